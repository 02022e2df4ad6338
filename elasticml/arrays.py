"""Arrays: their types in annotations, their addresses in compiled loops, what else rows may be."""

from __future__ import annotations

import os
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


def is_lazy(X: Any) -> bool:
    """Whether X is a Dask collection."""
    return hasattr(X, "__dask_graph__")


def is_named(X: Any) -> bool:
    """Whether X is a path, a URL or a source instead of rows."""
    return isinstance(X, str | os.PathLike) or (hasattr(X, "blocks") and hasattr(X, "with_columns"))
