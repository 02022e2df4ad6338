"""Named arrays in one buffer: how a model goes down, a partial comes up; and buffers to reuse."""

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


#: Values of one input that are added at a time, so that the sum stays in the processor's cache.
BLOCK_VALUES = 64 * 1024
#: Fewer values than these are not worth a thread.
THREAD_VALUES = 256 * 1024


def merge_all(
    inputs: Sequence[Vector], reduce: str, out: Vector, parallel: Parallel | None = None
) -> Vector:
    """Merge inputs where they lie, in their order, into ``out``; zeros where there are none.

    ``((inputs[0] + inputs[1]) + inputs[2]) + …`` for every value, as ``merge`` of one after the
    other gives, bit for bit and with any number of threads; but memory is read once and written
    once.
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
    """Merge the values from one index to before another."""
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
    """Have no memory that others could read."""
    return None


class Buffers:
    """Arrays under handles, and a free list: nothing is allocated in a steady round.

    Parameters
    ----------
    lendable : callable (int)
        Makes an array of so many bytes that is to be sent, where others can read it; None where
        there is no such memory. Such an array, and one that was lent to us, is not kept for reuse:
        it goes back to its owner when nobody has a view of it.
    """

    FREE_MAX = 64

    def __init__(self, lendable: Callable[[int], Vector | None] = own_memory) -> None:
        self._lendable = lendable
        self._arrays: dict[int, Vector] = {}
        self._free: dict[int, list[Vector]] = {}
        self._next = 1

    def take(self, nbytes: int) -> Vector:
        """Return an array of ``nbytes`` to write to; it is given back through ``free``."""
        free = self._free.get(nbytes)
        return free.pop() if free else np.empty(nbytes // 8, np.float64)

    def take_to_send(self, nbytes: int) -> Vector:
        """Return an array as ``take`` does, where peers can read it if there is such memory."""
        shared = self._lendable(nbytes)
        return self.take(nbytes) if shared is None else shared

    def give(self, array: Vector) -> None:
        """Put an array without handle back on the free list."""
        if not array.flags.owndata:
            return
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
