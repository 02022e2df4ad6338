"""Named arrays in one buffer: how a model goes down, a partial comes up; and buffers to reuse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


def manifest(arrays: Mapping[str, NDArray[Any]]) -> dict[str, list[int]]:
    """List names and shapes, in order."""
    return {name: list(array.shape) for name, array in arrays.items()}


def n_values(shapes: Mapping[str, Any]) -> int:
    """Count the values of all arrays together."""
    return sum(math.prod(shape) for shape in shapes.values())


def pack(arrays: Mapping[str, Any], shapes: Mapping[str, Any], out: Vector) -> Vector:
    """Copy arrays one behind the other into ``out`` (float64, exactly long enough).

    Raises
    ------
    ValueError
        When an array is missing or of another shape.
    """
    start = 0
    for name, shape in shapes.items():
        array = np.asarray(arrays[name], dtype=np.float64)
        if array.shape != tuple(shape):
            raise ValueError(f"array {name!r} has shape {array.shape}, wanted {tuple(shape)}")
        out[start : start + array.size] = array.reshape(-1)
        start += array.size
    return out


def unpack(buffer: Vector, shapes: Mapping[str, Any]) -> dict[str, Vector]:
    """Look at the arrays in a packed buffer."""
    arrays: dict[str, Vector] = {}
    start = 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        arrays[name] = buffer[start : start + size].reshape(tuple(shape))
        start += size
    return arrays


def merge(target: Vector, other: Vector, reduce: str) -> None:
    """Merge ``other`` into ``target`` in place, by "sum" or "max"."""
    (np.maximum if reduce == "max" else np.add)(target, other, out=target)


class Buffers:
    """Arrays under handles, and a free list: nothing is allocated in a steady round."""

    FREE_MAX = 64

    def __init__(self) -> None:
        self._arrays: dict[int, Vector] = {}
        self._free: dict[int, list[Vector]] = {}
        self._next = 1

    def take(self, nbytes: int) -> Vector:
        """Return an array of ``nbytes`` to write to; it is given back through ``free``."""
        free = self._free.get(nbytes)
        return free.pop() if free else np.empty(nbytes // 8, np.float64)

    def give(self, array: Vector) -> None:
        """Put an array without handle back on the free list."""
        free = self._free.setdefault(array.nbytes, [])
        if len(free) < self.FREE_MAX:
            free.append(array)

    def bind(self, array: Vector) -> int:
        """Give an array a handle."""
        handle = self._next
        self._next += 1
        self._arrays[handle] = array
        return handle

    def __getitem__(self, handle: int) -> Vector:
        return self._arrays[handle]

    def free(self, handle: int) -> None:
        """Take a handle back; its array may be reused."""
        array = self._arrays.pop(handle, None)
        if array is not None:
            self.give(array)

    def __len__(self) -> int:
        return len(self._arrays)
