"""The CUDA kernels of the local pass: twice parallel asynchronous stochastic coordinate ascent.

Each block takes its own rows and updates the shared model by atomic additions; the threads of a
block share the values of a row. Neighbouring threads read neighbouring values. Imported only where
there is a CUDA device, or numba's simulator.

Source: Parnell and others, "Large-scale stochastic learning using GPUs", 2017, as used by Snap ML,
section 3.1.
"""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any, Final

import numpy as np
from numba import cuda, float64

from elasticml.objectives.losses import Loss

#: Maximum threads of a block, a power of two.
THREADS_MAX: Final = 256
#: From this number of blocks on numba does not warn that a kernel leaves the device idle.
_QUIET_BLOCKS: Final = 128
#: Sums that :func:`ascend` and :func:`compare` add to: change of the dual, curvature, visited rows;
#: then ``|r|^2 - |before|^2``, and ``|r|^2 + |before|^2``.
N_CUDA_SUMS: Final = 5


@cuda.jit(device=True)
def _sum_of_block(partial: Any) -> None:
    """Sum the threads' entries in shared memory by a tree reduction; the result is entry 0.

    The number of threads is a power of two.
    """
    lane = cuda.threadIdx.x
    half = cuda.blockDim.x // 2
    cuda.syncthreads()
    while half > 0:
        if lane < half:
            partial[lane] += partial[lane + half]
        cuda.syncthreads()
        half //= 2


@cuda.jit(device=True)
def _part_of_row(begin: Any, end: Any, indices: Any, values: Any, r: Any) -> Any:
    """Return this thread's part of a row's product with ``r``."""
    total = 0.0
    for j in range(begin + cuda.threadIdx.x, end, cuda.blockDim.x):
        x = float64(values[j]) if values.size > 0 else 1.0
        total += x * float64(r[indices[j] if indices.size > 0 else j - begin])
    return total


@cuda.jit(device=True)
def _add_row(begin: Any, end: Any, indices: Any, values: Any, c: Any, r: Any) -> None:
    """Add this thread's part of a row, times ``c``, to ``r``."""
    for j in range(begin + cuda.threadIdx.x, end, cuda.blockDim.x):
        x = float64(values[j]) if values.size > 0 else 1.0
        at = indices[j] if indices.size > 0 else j - begin
        cuda.atomic.add(r, at, r.dtype.type(c * x))


@cuda.jit
def norms_of(indptr: Any, values: Any, norms: Any) -> None:
    """Write the squared norms of the rows; empty ``values`` mean ones."""
    partial = cuda.shared.array(THREADS_MAX, float64)
    lane = cuda.threadIdx.x
    for i in range(cuda.blockIdx.x, norms.size, cuda.gridDim.x):
        total = 0.0
        for j in range(indptr[i] + lane, indptr[i + 1], cuda.blockDim.x):
            x = float64(values[j]) if values.size > 0 else 1.0
            total += x * x
        partial[lane] = total
        _sum_of_block(partial)
        if lane == 0:
            norms[i] = partial[0]
        cuda.syncthreads()


@cache
def _on_device(function: FunctionType) -> Any:
    """Return a function for kernels, of a plain one and those that it calls."""
    inner = {
        name: _on_device(other)
        for name in function.__code__.co_names
        if isinstance(other := function.__globals__.get(name), FunctionType)
    }
    own = FunctionType(function.__code__, {**function.__globals__, **inner}, function.__name__)
    return cuda.jit(device=True)(own)


@cache
def _taken_for(loss: Any) -> Any:
    """Return the device function of a row's step for a class of losses.

    Its steps must call no other methods. The logistic loss takes one Newton step.
    """
    has_short = loss.short_step is not Loss.short_step
    step = _on_device(loss.short_step if has_short else loss.step)
    minus = _on_device(loss.minus)

    @cuda.jit(device=True)
    def taken(terms: Any, old: Any, z: Any, y: Any, q: Any, share: Any) -> Any:
        """Return the new dual variable, and the change of ``-loss*``."""
        new = old
        if q >= 0.0:
            new = step(terms, old, z, y, q)
            new = old + share * (new - old) if share < 1.0 else new
        return new, minus(terms, new, y) - minus(terms, old, y)

    return taken


@cache
def ascend_for(loss: Any) -> Any:
    """Return the kernel that maximises the local dual problem over one row after another.

    Parameters
    ----------
    loss : type
        Class of the loss, see :mod:`elasticml.objectives.losses`. The kernel's parameters are:
    order : ndarray (n,), int64
        The rows to visit; block k of ``gridDim`` takes every ``gridDim``-th from the k-th.
    indptr : ndarray (rows + 1,), int64
    indices : ndarray (stored,) or (0,), int32
        Empty for dense rows.
    values : ndarray (stored,) or (0,)
        Empty means ones.
    targets, norms, alpha : ndarray (rows,), float64
    weights : ndarray (rows,) or (0,), float64
        Empty means ones.
    terms : NamedTuple
        The loss.
    folds : bool
        Whether margins are folded with the labels.
    quadratic : float
        Lower bound of ``-minus''``.
    unit, intercept : float
        As in :func:`elasticml.algorithms.cocoa.sdca_kernels.visit`.
    share : float
        The damping: the share of each step that is taken.
    r : ndarray (D,)
        ``v + sigma' u``.
    sums : ndarray (N_CUDA_SUMS,), float64
    """
    taken = _taken_for(loss)

    @cuda.jit
    def ascend(
        order: Any,
        indptr: Any,
        indices: Any,
        values: Any,
        targets: Any,
        weights: Any,
        norms: Any,
        alpha: Any,
        terms: Any,
        folds: Any,
        quadratic: Any,
        unit: Any,
        intercept: Any,
        share: Any,
        r: Any,
        sums: Any,
    ) -> None:
        partial = cuda.shared.array(THREADS_MAX, float64)
        scaled_step = cuda.shared.array(1, float64)
        lane, last = cuda.threadIdx.x, r.size - 1
        dual, curvature, visited = 0.0, 0.0, 0.0
        for k in range(cuda.blockIdx.x, order.size, cuda.gridDim.x):
            i = order[k]
            begin, end = indptr[i], indptr[i + 1]
            partial[lane] = _part_of_row(begin, end, indices, values, r)
            _sum_of_block(partial)
            if lane == 0:
                y, old = targets[i], alpha[i]
                s = weights[i] if weights.size > 0 else 1.0
                fold = y if folds else 1.0
                z = fold * (partial[0] + intercept * float64(r[last]))
                q = unit * s * (norms[i] + intercept * intercept) if s > 0.0 else -1.0
                new, gain = taken(terms, old, z, y, q, share)
                alpha[i] = new
                scaled_step[0] = unit * s * fold * (new - old)
                dual += s * gain
                curvature += 0.5 * quadratic * s * (new - old) * (new - old)
                visited += 1.0
                if intercept != 0.0 and new != old:
                    cuda.atomic.add(r, last, r.dtype.type(intercept * scaled_step[0]))
            cuda.syncthreads()
            if scaled_step[0] != 0.0:
                _add_row(begin, end, indices, values, scaled_step[0], r)
            # The next row must see what other blocks have added, not a cached copy.
            cuda.threadfence()
            cuda.syncthreads()
        if lane == 0:
            cuda.atomic.add(sums, 0, dual)
            cuda.atomic.add(sums, 1, curvature)
            cuda.atomic.add(sums, 2, visited)

    return ascend


@cuda.jit
def compare(r: Any, before: Any, sums: Any) -> None:
    """Add ``|r|^2 - |before|^2`` and ``|r|^2 + |before|^2`` to the sums."""
    partial = cuda.shared.array(THREADS_MAX, float64)
    lane = cuda.threadIdx.x
    difference, size = 0.0, 0.0
    for j in range(cuda.grid(1), r.size, cuda.gridsize(1)):
        a, b = float64(r[j]), float64(before[j])
        # Not a^2 - b^2, which would lose most digits.
        difference += (a - b) * (a + b)
        size += a * a + b * b
    partial[lane] = difference
    _sum_of_block(partial)
    if lane == 0:
        cuda.atomic.add(sums, 3, partial[0])
    cuda.syncthreads()
    partial[lane] = size
    _sum_of_block(partial)
    if lane == 0:
        cuda.atomic.add(sums, 4, partial[0])


@cuda.jit
def touch(out: Any) -> None:
    """Write a one."""
    if cuda.grid(1) == 0:
        out[0] = 1.0


def try_device() -> None:
    """Compile and run the smallest kernel, and wait for its result.

    Raises
    ------
    RuntimeError
        When it had no effect; numba raises its own errors for anything missing.
    """
    out = cuda.to_device(np.zeros(1))
    touch[_QUIET_BLOCKS, 1](out)
    if out.copy_to_host()[0] != 1.0:
        raise RuntimeError("a kernel ran without effect")


def empty_sums() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return zeroed sums."""
    return np.zeros(N_CUDA_SUMS)
