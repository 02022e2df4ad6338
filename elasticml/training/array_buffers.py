"""Pack named arrays into one float64 buffer, merge such buffers, and pool them for reuse.

Models and partials travel in this form.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel

Vector = NDArray[np.float64]


def n_values(shapes: Mapping[str, Any]) -> int:
    """Return the total number of values of all arrays."""
    return sum(math.prod(shape) for shape in shapes.values())


def pack(arrays: Mapping[str, Any], shapes: Mapping[str, Any], out: Vector) -> Vector:
    """Copy the arrays one after another into ``out`` (float64, of exactly the total length).

    Raises
    ------
    ValueError
        When an array has another shape, or holds other than real numbers.
    """
    start = 0
    for name, shape in shapes.items():
        array = np.asarray(arrays[name])
        if array.dtype.kind not in "biuf":
            raise ValueError(f"array {name!r} is of dtype {array.dtype}, wanted real numbers")
        if array.shape != tuple(shape):
            raise ValueError(f"array {name!r} has shape {array.shape}, wanted {tuple(shape)}")
        out[start : start + array.size] = array.reshape(-1)
        start += array.size
    return out


def unpack(buffer: Vector, shapes: Mapping[str, Any]) -> dict[str, Vector]:
    """Return views of the arrays in a packed buffer."""
    arrays: dict[str, Vector] = {}
    start = 0
    for name, shape in shapes.items():
        size = math.prod(shape)
        arrays[name] = buffer[start : start + size].reshape(tuple(shape))
        start += size
    return arrays


#: Up to so many values, a loop is faster than numpy.
SMALL = 16


def is_finite(values: NDArray[Any]) -> bool:
    """Whether no value is NaN or infinite, in one pass and without a copy for those that are not.

    A sum is finite unless a value is not, or it overflows.
    """
    if values.size <= SMALL:
        return all(map(math.isfinite, values.ravel().tolist()))
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(values)
    return bool(np.isfinite(total) or np.isfinite(values).all())


def merge(target: Vector, other: Vector, reduce: str) -> None:
    """Merge ``other`` into ``target`` in place, by "sum" or "max"."""
    (np.maximum if reduce == "max" else np.add)(target, other, out=target)


#: Values of one input that are added at a time, so that the sum stays in the CPU cache.
BLOCK_VALUES = 64 * 1024
#: Values per thread below which another thread does not pay.
THREAD_VALUES = 256 * 1024


def merge_all(
    inputs: Sequence[Vector], reduce: str, out: Vector, parallel: Parallel | None = None
) -> Vector:
    """Merge the inputs, in their order, into ``out``; without inputs, fill it with zeros.

    Each value is ``((inputs[0] + inputs[1]) + inputs[2]) + …``: bit-identical to calling ``merge``
    for one input after another, with any number of threads. Memory is read once and written once.
    """
    if not inputs:
        out[:] = 0.0
        return out
    n_parts = 1 if parallel is None else max(1, min(parallel.n_threads, out.size // THREAD_VALUES))
    bounds = [out.size * k // n_parts for k in range(n_parts + 1)]
    ranges = list(itertools.pairwise(bounds))
    if parallel is None or n_parts == 1:
        _merge_range(inputs, reduce, out, ranges[0])
    else:
        parallel.map(functools.partial(_merge_range, inputs, reduce, out), ranges)
    return out


def _merge_range(
    inputs: Sequence[Vector], reduce: str, out: Vector, values: tuple[int, int]
) -> None:
    """Merge the values in a half-open index range."""
    operation = np.maximum if reduce == "max" else np.add
    begin, end = values
    for start in range(begin, end, BLOCK_VALUES):
        block = slice(start, min(start + BLOCK_VALUES, end))
        target = out[block]
        if len(inputs) == 1:
            target[:] = inputs[0][block]
            continue
        operation(inputs[0][block], inputs[1][block], out=target)
        for other in inputs[2:]:
            operation(target, other[block], out=target)


def own_memory(nbytes: int) -> Vector | None:
    """Return None: this process has no memory that peers can read."""
    return None


class Buffers:
    """A buffer pool with a free list, and handles for arrays: a steady round allocates nothing.

    Parameters
    ----------
    lendable : callable (int)
        Allocates an array of the given number of bytes in memory that peers can read; returns None
        if there is no such memory. Shared arrays, ours and those of peers, are not pooled: they
        return to their owner when the last view of them is dropped.
    """

    FREE_MAX = 64

    def __init__(self, lendable: Callable[[int], Vector | None] = own_memory) -> None:
        self._lendable = lendable
        self._arrays: dict[int, Vector] = {}
        self._free: dict[int, list[Vector]] = {}
        self._next = 1

    def take(self, nbytes: int) -> Vector:
        """Return an uninitialized array of ``nbytes``; release it through ``free``."""
        free = self._free.get(nbytes)
        return free.pop() if free else np.empty(nbytes // 8, np.float64)

    def take_to_send(self, nbytes: int) -> Vector:
        """Return an array like ``take``, in memory that peers can read if there is any."""
        shared = self._lendable(nbytes)
        return self.take(nbytes) if shared is None else shared

    def give(self, array: Vector) -> None:
        """Return an array without a handle to the free list."""
        if not array.flags.owndata:
            return
        free = self._free.setdefault(array.nbytes, [])
        if len(free) < self.FREE_MAX:
            free.append(array)

    def bind(self, array: Vector) -> int:
        """Register an array and return its handle."""
        handle = self._next
        self._next += 1
        self._arrays[handle] = array
        return handle

    def __getitem__(self, handle: int) -> Vector:
        return self._arrays[handle]

    def free(self, handle: int) -> None:
        """Release a handle; its array may be reused."""
        array = self._arrays.pop(handle, None)
        if array is not None:
            self.give(array)

    def clear(self) -> None:
        """Drop all arrays."""
        self._arrays.clear()
        self._free.clear()

    def __len__(self) -> int:
        return len(self._arrays)
