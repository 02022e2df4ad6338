"""An epoch by several threads that merge their replicas of the model several times.

The work is a sequence of tasks. For each slice: a visit of every part to its rows, the merging of
every range of coordinates, and an evaluation of the slice. A task starts when those of the phases
before it are done. Threads draw tasks by an atomic counter and wait for one another in compiled
code, which costs some microseconds per slice. A task does the same whichever thread draws it:
results depend on the number of parts, not of threads, and one thread alone can do all tasks.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.crowding import adapted
from elasticml.algorithms.cocoa.replicas import merge_range
from elasticml.algorithms.cocoa.visits import N_SUMS, visit
from elasticml.data.kernels import unchecked_kernel

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

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


@unchecked_kernel
def run_tasks(
    order: I64,
    ends: I64,
    factors: F64,
    totals: F64,
    seen: F64,
    counters: I64,
    rows: NDArray[Any],
    v: F64,
    dv: F64,
    size: int,
    whole: float,
    l2_total: float,
    contention: F64,
    merged: F64,
    tallies: F64,
    sums: F64,
    bucket: int,
    table: I64,
    grams: I64,
    like: NDArray[Any],
    code: int,
    quadratic: float,
    intercept: float,
    reach: float,
) -> None:
    """Do tasks until none are left; every thread calls this.

    Parameters
    ----------
    order : ndarray (any,), int64
        Visits of all slices.
    ends : ndarray (slices + 1,), int64
        Boundaries of the slices.
    factors : ndarray (slices, parts)
        Each part's sigma'; 0: by ``contention``, which then adapts to the slice.
    totals, seen : ndarray (slices, parts)
        In a scaled first pass, the weight of all rows that count and of those seen before; else 0.
    counters : ndarray (16,), int64
        Zeros at first: tasks drawn at 0 and, in another cache line, tasks done at 8.
    rows, v, dv, whole
        See :class:`elasticml.algorithms.cocoa.replicas.Replicas`.
    size : int
        Coordinates to merge: all, or 0 where a single part continues on its replica.
    contention : ndarray (2,)
        The factor, which is changed, and its lower limit.
    merged : ndarray (parts, 8), tallies : ndarray (parts, 8)
        Zeros; a cache line for each part.
    sums : ndarray (N_SUMS + 1,)
        Added to, see :func:`elasticml.algorithms.cocoa.visits.visit`, except the last of those; the
        entry after them is the growth of the local problem's objective.
    """
    n_parts = factors.shape[1]
    n_phase = 2 * n_parts + 1
    shares = np.empty(n_parts)
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
        if at < n_parts:
            begin, length = ends[s], ends[s + 1] - ends[s]
            factor = factors[s, at] if factors[s, at] > 0.0 else whole * contention[0]
            tallies[at, N_SUMS - 1] = seen[s, at]
            visit(
                order,
                begin + length * at // n_parts,
                begin + length * (at + 1) // n_parts,
                bucket,
                table,
                grams,
                like,
                code,
                quadratic,
                factor / l2_total,
                intercept,
                reach,
                totals[s, at],
                rows[at + 1],
                tallies[at],
            )
        elif at < 2 * n_parts:
            k = at - n_parts
            for p in range(n_parts):
                shares[p] = 1.0 / (factors[s, p] if factors[s, p] > 0.0 else whole * contention[0])
            merge_range(
                rows,
                shares,
                v,
                whole,
                dv,
                size * k // n_parts,
                size * (k + 1) // n_parts,
                merged[k],
            )
        else:
            _conclude(l2_total, whole, contention, factors[s, 0] <= 0.0, merged, tallies, sums)
        _draw(counters, 8)


def abort_tasks(counters: I64) -> None:
    """Stop all threads: the thread that failed will not finish its task."""
    counters[0] = counters[8] = _NO_MORE


@unchecked_kernel
def _conclude(
    l2_total: float,
    whole: float,
    contention: F64,
    learns: bool,
    merged: F64,
    tallies: F64,
    sums: F64,
) -> None:
    """Sum the results of a slice, and adapt the threads' factor."""
    dual, curvature, along, square = 0.0, 0.0, 0.0, 0.0
    for k in range(tallies.shape[0]):
        dual += tallies[k, 0]
        curvature += tallies[k, 1]
        along += merged[k, 0]
        square += merged[k, 1]
        for j in range(N_SUMS - 1):
            sums[j] += tallies[k, j]
    sums[N_SUMS] += dual - l2_total * (along + 0.5 * whole * square)
    tallies[:] = 0.0
    merged[:] = 0.0
    if learns:
        slope = dual + curvature - l2_total * along
        bend = l2_total * whole * square + 2.0 * curvature
        factor = adapted(contention[0], slope, bend, float(tallies.shape[0]))
        contention[0] = max(factor, contention[1])
