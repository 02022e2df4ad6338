"""Serial compiled loops for the statistics of sparse columns; they release the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

_Function = TypeVar("_Function", bound=Callable[..., Any])

F64 = NDArray[np.float64]


def _kernel(function: _Function) -> _Function:
    return cast(_Function, njit(nogil=True, cache=True)(function))


@_kernel
def add_csr_squares(
    indptr: NDArray[np.int32],
    indices: NDArray[np.int32],
    values: NDArray[Any],
    coefficients: F64,
    out: F64,
) -> None:
    """Add ``sum_i c_i x_ij^2`` to ``out[j]``; ``coefficients`` (n,)."""
    for i in range(coefficients.size):
        for k in range(indptr[i], indptr[i + 1]):
            x = np.float64(values[k])
            out[indices[k]] += coefficients[i] * x * x


@_kernel
def raise_to_csr_maxabs(indices: NDArray[np.int32], values: NDArray[Any], out: F64) -> None:
    """Raise ``out[j]`` to the largest ``|x_ij|``."""
    for k in range(indices.size):
        x = abs(np.float64(values[k]))
        if x > out[indices[k]]:
            out[indices[k]] = x
