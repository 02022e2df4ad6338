"""Types of arrays, as annotations use them, and their addresses, as compiled loops do."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


def address(array: NDArray[Any]) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])
