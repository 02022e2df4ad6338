"""An epoch by several threads that merge their replicas of the model several times.

A thread adds ``sigma'`` times its rows' steps to its own replica. After each slice of the epoch one
loop over the coordinates takes the steps out of all replicas, sums them in float64, updates the
model and writes it back to every replica: each number is read and written once.

The work is a sequence of tasks. For each slice: a visit of every part to its rows, the merging of
every range of coordinates, and an evaluation of the slice. A task starts when those of the phases
before it are done. Threads draw tasks by an atomic counter and wait for one another in compiled
code, which costs some microseconds per slice. A task does the same whichever thread draws it:
results depend on the number of parts, not of threads, and one thread alone can do all tasks.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.chunk_pointers import ChunkRows
from elasticml.algorithms.cocoa.damping import compiled_adapted
from elasticml.algorithms.cocoa.row_kernels import row_of, start_of
from elasticml.algorithms.cocoa.sdca_kernels import N_SUMS, LocalDual, visit
from elasticml.arrays import F64, I64
from elasticml.compiled import unchecked_kernel

#: Coordinates merged at a time: the float32 values of one cache line.
_LINE: Final = 16


class Replicas(NamedTuple):
    """The model during a pass, and each part's replica of it."""

    #: (parts + 1, D); row 0 is the common starting point, the others are a replica each.
    rows: NDArray[Any]
    #: (D,) the model at the beginning of the pass, and the change merged since.
    v: F64
    dv: F64
    #: The multiple of a step that the local problem counts: sigma'.
    whole: float

    @staticmethod
    def of(v: F64, n_parts: int, whole: float, dtype: np.dtype[Any]) -> Replicas:
        """Return replicas of this type of a model, which is not changed."""
        rows = np.empty((n_parts + 1, v.size), dtype)
        rows[:] = v
        return Replicas(rows, v, np.zeros(v.size), whole)

    def finish(self) -> None:
        """Merge the steps of a single part, which has continued on its replica."""
        if self.rows.shape[0] == 2:
            merge_range(self, 1.0 / self.whole, 0, self.v.size, np.zeros(2))


@unchecked_kernel
def merge_range(replicas: Replicas, share: float, begin: int, end: int, sums: F64) -> None:
    """Merge the coordinates from ``begin`` to ``end``.

    Works on one cache line at a time, in loops without a branch, and skips lines without changes.

    Parameters
    ----------
    replicas : Replicas
    share : float
        Factor of a replica's difference.
    sums : ndarray (2,)
        Added to: the step's product with the model before it, and its square.
    """
    rows, whole = replicas.rows, replicas.whole
    base, v, dv = row_of(rows, 0), start_of(replicas.v), start_of(replicas.dv)
    steps, along, square = np.zeros(_LINE), np.zeros(_LINE), np.zeros(_LINE)
    for first in range(begin, end, _LINE):
        size, is_moved = min(_LINE, end - first), False
        for k in range(1, rows.shape[0]):
            copy = row_of(rows, k)
            for j in range(size):
                is_moved |= copy[first + j] != base[first + j]
        if not is_moved:
            continue
        for j in range(_LINE):
            steps[j] = 0.0
        for k in range(1, rows.shape[0]):
            copy = row_of(rows, k)
            for j in range(size):
                steps[j] += (np.float64(copy[first + j]) - np.float64(base[first + j])) * share
        for j in range(size):
            at = first + j
            along[j] += (v[at] + whole * dv[at]) * steps[j]
            square[j] += steps[j] * steps[j]
            dv[at] += steps[j]
            base[at] = v[at] + whole * dv[at]
        for k in range(1, rows.shape[0]):
            copy = row_of(rows, k)
            for j in range(size):
                copy[first + j] = base[first + j]
    for j in range(_LINE):
        sums[0] += along[j]
        sums[1] += square[j]


#: Polls of the counter before a waiting thread yields its core.
_LOOKS: Final = 4000
#: Larger than any number of tasks, with room for further draws.
_NO_MORE: Final = 2**62
_give_way = types.ExternalFunction("sched_yield", types.int32())


@intrinsic
def _draw(typing_context: Any, counters: Any, k: Any) -> Any:
    """Add 1 to ``counters[k]`` atomically, and return its former value."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        where = _place(context, builder, signature, arguments)
        return builder.atomic_rmw("add", where, ir.Constant(ir.IntType(64), 1), "seq_cst")

    return types.int64(counters, k), generate


@intrinsic
def _read(typing_context: Any, counters: Any, k: Any) -> Any:
    """Return ``counters[k]`` atomically, after which other threads' earlier writes are visible."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        where = _place(context, builder, signature, arguments)
        return builder.load_atomic(where, "seq_cst", 8)

    return types.int64(counters, k), generate


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


class Slices(NamedTuple):
    """The visits of an epoch, in slices between which the replicas are merged."""

    #: (any,), int64, the visits of all slices.
    order: I64
    #: (slices + 1,), int64, boundaries of the slices.
    ends: I64
    #: (slices,), the parts' sigma'; 0: by the damping, which then adapts to the slice.
    factors: F64
    #: In a scaled first pass, the weight of all rows of a part, else 0; and (slices,) that of the
    #: rows that it has seen before.
    total: float
    seen: F64


class SliceResults(NamedTuple):
    """What the tasks of a slice add to."""

    #: (parts, 8), zeros; a cache line for each part.
    merged: F64
    tallies: F64
    #: (N_SUMS,), see :func:`elasticml.algorithms.cocoa.sdca_kernels.visit`, except the last.
    sums: F64


@unchecked_kernel
def run_tasks(
    slices: Slices,
    counters: I64,
    replicas: Replicas,
    damping: F64,
    results: SliceResults,
    chunk_rows: ChunkRows,
    dual: LocalDual,
) -> None:
    """Do tasks until none are left; every thread calls this.

    Parameters
    ----------
    slices : Slices
    counters : ndarray (16,), int64
        Zeros at first: tasks drawn at 0 and, in another cache line, tasks done at 8.
    replicas : Replicas
        A single part continues on its own, which is merged when the pass ends.
    damping : ndarray (1,)
        The parts' factor, which is changed.
    results : SliceResults
    chunk_rows : ChunkRows
    dual : LocalDual
    """
    order, ends, factors, total, seen = slices
    rows, whole = replicas.rows, replicas.whole
    merged, tallies, l2_total = results.merged, results.tallies, dual.l2_total
    n_parts = rows.shape[0] - 1
    size = rows.shape[1] if n_parts > 1 else 0
    n_phase = 2 * n_parts + 1
    while True:
        task = _draw(counters, 0)
        s, at = task // n_phase, task % n_phase
        if s >= factors.shape[0]:
            return
        start = s * n_phase + (0 if at < n_parts else n_parts if at < 2 * n_parts else 2 * n_parts)
        looks = 0
        while _read(counters, 8) < start:
            looks += 1
            if looks > _LOOKS:
                _give_way()
        factor = factors[s] if factors[s] > 0.0 else whole * damping[0]
        if at < n_parts:
            begin, length = ends[s], ends[s + 1] - ends[s]
            tallies[at, N_SUMS - 1] = seen[s]
            visit(
                order[begin + length * at // n_parts : begin + length * (at + 1) // n_parts],
                chunk_rows,
                dual,
                factor / l2_total,
                total,
                rows[at + 1],
                tallies[at],
            )
        elif at < 2 * n_parts:
            k = at - n_parts
            first, stop = size * k // n_parts, size * (k + 1) // n_parts
            merge_range(replicas, 1.0 / factor, first, stop, merged[k])
        else:
            _conclude(l2_total, whole, damping, factors[s] <= 0.0, results)
        _draw(counters, 8)


def abort_tasks(counters: I64) -> None:
    """Stop all threads: the thread that failed will not finish its task."""
    counters[0] = counters[8] = _NO_MORE


@unchecked_kernel
def _conclude(
    l2_total: float,
    whole: float,
    damping: F64,
    learns: bool,
    results: SliceResults,
) -> None:
    """Sum the results of a slice, and adapt the parts' factor."""
    merged, tallies, sums = results
    dual, curvature, along, square = 0.0, 0.0, 0.0, 0.0
    for k in range(tallies.shape[0]):
        dual += tallies[k, 0]
        curvature += tallies[k, 1]
        along += merged[k, 0]
        square += merged[k, 1]
        for j in range(N_SUMS - 1):
            sums[j] += tallies[k, j]
        for j in range(tallies.shape[1]):
            tallies[k, j] = 0.0
        for j in range(merged.shape[1]):
            merged[k, j] = 0.0
    if learns:
        slope = dual + curvature - l2_total * along
        bend = l2_total * whole * square + 2.0 * curvature
        damping[0] = compiled_adapted(damping[0], slope, bend, 1.0, float(tallies.shape[0]))
