"""Patches that numba's GPU simulator needs: alternating threads, and one shared memory per
block.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numba.core import config
from numba.np import numpy_support


@contextmanager
def alternating_threads(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Switch between the simulator's threads, which are Python threads, often.

    On a real GPU there is nothing to patch.
    """
    if not config.ENABLE_CUDASIM:
        yield
        return
    from numba.cuda.simulator import kernelapi

    monkeypatch.setattr(kernelapi.FakeCUDAShared, "array", _shared_array)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _shared_array(memory: Any, shape: int, dtype: Any) -> np.ndarray:
    """Return the shared array of the caller's line, the same for all threads of a block.

    The simulator looks the array up and creates it in two steps: two threads that call at once get
    an array each, and the block's sums miss one of them.
    """
    frame = sys._getframe(1)
    place = (frame.f_code.co_filename, frame.f_lineno)
    new = np.empty(shape, numpy_support.as_dtype(dtype))
    return memory._allocations.setdefault(place, new)
