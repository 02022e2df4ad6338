"""The CUDA kernels of the local pass: twice parallel asynchronous stochastic coordinate ascent.

Each block takes its own rows and updates the shared model by atomic additions; the threads of a
block share the values of a row. Neighbouring threads read neighbouring values. Imported only where
there is a CUDA device, or numba's simulator.

Source: Parnell and others, "Large-scale stochastic learning using GPUs", 2017, as used by Snap ML,
section 3.1.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import cuda, float64

from elasticml.objectives.dual_kernels import logistic_newton_step, minus_conjugate_of, stepped

#: Maximum threads of a block, a power of two.
THREADS_MAX: Final = 256
#: From this number of blocks on numba does not warn that a kernel leaves the device idle.
_QUIET_BLOCKS: Final = 128
#: Sums that :func:`ascend` and :func:`compare` add to: change of the dual, curvature, visited rows,
#: visited values; then ``|r|^2 - |before|^2``, and ``|r|^2 + |before|^2``.
N_CUDA_SUMS: Final = 6


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
    code: int,
    box: Any,
    unit: float,
    intercept: float,
    share: float,
    r: Any,
    sums: Any,
) -> None:
    """Maximise the local dual problem over one row after another, in each block.

    Parameters
    ----------
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
    code : int
        Code of the loss; the logistic loss takes one Newton step.
    box : tuple of 3 floats
    unit, intercept : float
        As in :func:`elasticml.algorithms.cocoa.sdca_kernels.visit`.
    share : float
        The damping: the share of each step that is taken.
    r : ndarray (D,)
        ``v + sigma' u``.
    sums : ndarray (N_CUDA_SUMS,), float64
    """
    partial = cuda.shared.array(THREADS_MAX, float64)
    scaled_step = cuda.shared.array(1, float64)
    lane, width, last = cuda.threadIdx.x, cuda.blockDim.x, r.size - 1
    dual, curvature, visited, stored = 0.0, 0.0, 0.0, 0.0
    for k in range(cuda.blockIdx.x, order.size, cuda.gridDim.x):
        i = order[k]
        begin, end = indptr[i], indptr[i + 1]
        total = 0.0
        for j in range(begin + lane, end, width):
            x = float64(values[j]) if values.size > 0 else 1.0
            total += x * float64(r[indices[j] if indices.size > 0 else j - begin])
        partial[lane] = total
        _sum_of_block(partial)
        if lane == 0:
            y, old = targets[i], alpha[i]
            s = weights[i] if weights.size > 0 else 1.0
            fold = y if code != 1 and code != 5 else 1.0
            z = fold * (partial[0] + intercept * float64(r[last]))
            q = unit * s * (norms[i] + intercept * intercept)
            new = old
            if s > 0.0:
                if code == 0:
                    new = logistic_newton_step(old, z, q)
                else:
                    new = stepped(code, old, z, y, q, box)
                new = old + share * (new - old) if share < 1.0 else new
            alpha[i] = new
            scaled_step[0] = unit * s * fold * (new - old)
            gain = minus_conjugate_of(code, new, y, box) - minus_conjugate_of(code, old, y, box)
            dual += s * gain
            curvature += 0.5 * box[2] * s * (new - old) * (new - old)
            visited += 1.0
            stored += float64(end - begin)
            if intercept != 0.0 and new != old:
                cuda.atomic.add(r, last, r.dtype.type(intercept * scaled_step[0]))
        cuda.syncthreads()
        change = scaled_step[0]
        if change != 0.0:
            for j in range(begin + lane, end, width):
                x = float64(values[j]) if values.size > 0 else 1.0
                at = indices[j] if indices.size > 0 else j - begin
                cuda.atomic.add(r, at, r.dtype.type(change * x))
        # The next row must see what other blocks have added, not a cached copy.
        cuda.threadfence()
        cuda.syncthreads()
    if lane == 0:
        cuda.atomic.add(sums, 0, dual)
        cuda.atomic.add(sums, 1, curvature)
        cuda.atomic.add(sums, 2, visited)
        cuda.atomic.add(sums, 3, stored)


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
        cuda.atomic.add(sums, 4, partial[0])
    cuda.syncthreads()
    partial[lane] = size
    _sum_of_block(partial)
    if lane == 0:
        cuda.atomic.add(sums, 5, partial[0])


@cuda.jit
def _touch(out: Any) -> None:
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
    _touch[_QUIET_BLOCKS, 1](out)
    if out.copy_to_host()[0] != 1.0:
        raise RuntimeError("a kernel ran without effect")


def empty_sums() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return zeroed sums."""
    return np.zeros(N_CUDA_SUMS)
