"""A member's dual coordinate ascent over all its rows on a GPU.

Imported only where there is a CUDA device, or numba's simulator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numba import cuda
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa import cuda_kernels, tables, visits
from elasticml.algorithms.cocoa.adaptive_damping import AdaptiveDamping
from elasticml.algorithms.cocoa.cuda_rows import (
    SHARE,
    DeviceRows,
    batches_of,
    fetch_alpha,
    halves_of,
    is_out_of_memory,
    no_room_for,
    send_alpha,
    send_rows,
)
from elasticml.algorithms.cocoa.orders import mix_hash
from elasticml.algorithms.cocoa.passes import Pass, Plan, Update
from elasticml.algorithms.cocoa.tables import Piece
from elasticml.objectives.conjugates import dual_loss_named

F64 = NDArray[np.float64]

#: Threads of a warp, which run in step.
_WARP: Final = 32
#: Minimum values of a row per thread before a block gets more threads.
_VALUES_PER_THREAD: Final = 4
#: Active blocks of one warp for each multiprocessor of the device.
_BLOCKS_PER_PROCESSOR: Final = 16
#: Minimum rows of a sub-epoch per block: with as many blocks as rows, no block would see another's
#: steps.
_ROWS_PER_BLOCK: Final = 8


class CudaSolver:
    """Improves the dual variables of its rows, as :class:`LocalSolver` does.

    All blocks update one model by atomic additions. The order of additions, and with it the last
    bits of the sums, differs between runs. A *sub-epoch* is one visit to all rows that are on the
    device together. A sub-epoch that lowers the local dual objective is undone and the steps are
    halved; after several that gain they are doubled again.

    Parameters
    ----------
    loss : str
        Name of a loss with a dual. Steps are exact, except for the logistic loss: one Newton step.
    dtype : {"float32", "float64"}
        Of the chunks' values, and of the model on the device.
    intercept_scaling : float, optional
        Value of the constant column that belongs to the model's last coordinate; None for none.
    blocks, threads : int, optional
        Number of blocks, and threads of each, a power of two up to 256; by default chosen by the
        device and the rows. One block visits rows one after another, as a processor does.
    room_bytes : float, optional
        Device memory available for rows; by default four fifths of the free memory.

    Source: Snap ML, section 3.1.
    """

    def __init__(
        self,
        *,
        loss: str,
        dtype: str,
        intercept_scaling: float | None,
        blocks: int | None = None,
        threads: int | None = None,
        room_bytes: float | None = None,
    ) -> None:
        self._loss = dual_loss_named(loss)
        self._dtype = np.dtype(dtype)
        self._intercept = 0.0 if intercept_scaling is None else intercept_scaling
        self._blocks_wanted, self._threads_wanted = blocks, threads
        self._room_bytes = room_bytes
        self._pieces: tuple[Piece, ...] = ()
        self._batches: list[tuple[Piece, ...]] = []
        #: All rows, if they fit on the device together.
        self._resident: DeviceRows | None = None
        self._blocks, self._threads = 1, _WARP
        self._weight = 0.0
        self._damping = AdaptiveDamping(least=1.0)

    @property
    def damping(self) -> float:
        """The share of each step that is taken."""
        return self._damping.share

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Set the rows to work on, as :meth:`LocalSolver.bind` does.

        They are sent to the device by the first visit.
        """
        if tables.is_same(self._pieces, pieces):
            return
        tables.check(pieces, self._dtype)
        self._pieces = tuple(pieces)
        filled = [piece for piece in pieces if piece.chunk.n_rows]
        self._resident = None  # first: its memory counts as free below
        room = self._room_bytes
        if room is None:
            room = SHARE * cuda.current_context().get_memory_info().free
        self._batches = batches_of(filled, room)
        n_rows = sum(piece.chunk.n_rows for piece in filled)
        stored = sum(tables.stored_of(piece.chunk) for piece in filled)
        self._threads = self._threads_wanted or threads_for(stored / max(1, n_rows))
        self._blocks = self._blocks_wanted or blocks_for(_processors(), self._threads)
        self._damping = AdaptiveDamping(least=1.0 / self._blocks)
        self._weight = tables.total_weight(filled)

    def run(self, v: F64, request: Pass, parallel: Parallel) -> Update:
        """Visit the rows in random order and update their dual variables in place.

        Parameters are those of :meth:`LocalSolver.run`. One thread of this process keeps the
        device busy, so ``parallel`` is not used.

        Returns
        -------
        Update
            Its counts include sub-epochs that were undone.
        """
        if self._weight <= 0.0:
            return Update(dv=np.zeros(v.size), groups=0, dampings=0.0)
        plan = Plan(
            request=request,
            own_weight=self._weight,
            reach=0.0,
            n_parts=1,
            n_slices=1,
            is_first=False,
        )
        began = v.astype(self._dtype)
        model = _Model(cuda.to_device(began), cuda.to_device(began))
        total = Update(dv=np.zeros(0), partitions=1, gap=math.nan)
        for _, key, share in request.turns():
            for number, batch in self._turns(key):
                own = (*key, number) if number else key
                total = total.plus(self._visit(batch, share, own, model, plan))
        dv = (model.r.copy_to_host().astype(np.float64) - began) / plan.whole
        return replace(total, dv=dv, sigma=plan.whole, dampings=self.damping)

    def undo(self) -> None:
        """Do nothing: sub-epochs that lose are undone as they end."""

    def _turns(self, key: tuple[int, int, int]) -> list[tuple[int, tuple[Piece, ...]]]:
        """Return the batches in random order, with their numbers."""
        turns = np.arange(len(self._batches), dtype=np.int64)
        visits.shuffle(turns, mix_hash(*key))
        return [(int(number), self._batches[number]) for number in turns]

    def _visit(
        self,
        batch: tuple[Piece, ...],
        share: float,
        key: Sequence[int],
        model: _Model,
        plan: Plan,
    ) -> Update:
        """Visit the rows of a batch, or of its halves where the device lacks memory for all.

        The batch's memory is free when the call returns.
        """
        rows = self._rows(batch)
        if rows is None:
            halves = halves_of(batch)
            at = self._batches.index(batch)
            self._batches[at : at + 1] = halves
            done = [
                self._visit(half, share, (*key, number), model, plan)
                for number, half in enumerate(halves)
            ]
            return done[0].plus(done[1])
        send_alpha(rows)
        order = _order(rows.n_rows, share, key)
        update = self._sub_epoch(rows, order, model, plan)
        fetch_alpha(rows)
        return update

    def _rows(self, batch: tuple[Piece, ...]) -> DeviceRows | None:
        """Return a batch on the device, None if memory is short; a single batch stays there.

        Raises
        ------
        DataError
            When one chunk alone does not fit.
        """
        if self._resident is not None:
            return self._resident
        try:
            rows = send_rows(batch, self._dtype, self._threads)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) == 1:
                raise no_room_for(batch[0].chunk) from None
            return None
        if len(self._batches) == 1:
            self._resident = rows
        return rows

    def _sub_epoch(
        self, rows: DeviceRows, order: NDArray[np.int64], model: _Model, plan: Plan
    ) -> Update:
        """Visit rows; undo the visit if the local dual objective has not grown."""
        grid = max(1, min(self._blocks, order.size // _ROWS_PER_BLOCK)), self._threads
        rows.before.copy_to_device(rows.alpha)
        model.before.copy_to_device(model.r)
        sums = cuda.to_device(cuda_kernels.empty_sums())
        cuda_kernels.ascend[grid](
            cuda.to_device(order),
            rows.indptr,
            rows.indices,
            rows.values,
            rows.targets,
            rows.weights,
            rows.norms,
            rows.alpha,
            self._loss.code,
            self._loss.curvature,
            plan.whole / plan.request.l2_total,
            self._intercept,
            self._damping.share,
            model.r,
            sums,
        )
        cuda_kernels.compare[grid](model.r, model.before, sums)
        dual, curvature, visited, stored, difference, size = sums.copy_to_host().tolist()
        # The local dual problem in terms of r: sum of -conj, minus l2 S |r|^2 / (2 sigma').
        half = 0.5 * plan.request.l2_total / plan.whole
        # The rounding error of a coordinate grows by the root of the number of additions to it.
        precision = float(np.finfo(self._dtype).eps) * math.sqrt(order.size)
        work = Update(
            dv=np.zeros(0),
            visited=int(visited),
            stored=int(stored),
            partitions=1,
            gap=math.nan,
        )
        if self._damping.accepts(dual - half * difference, abs(dual) + half * size, precision):
            return replace(work, dual=dual, curvature=curvature)
        model.r, model.before = model.before, model.r
        rows.alpha, rows.before = rows.before, rows.alpha
        return replace(work, discarded=1)


class _Model:
    """The model on the device, ``v + sigma' u``, and its copy from before a sub-epoch."""

    def __init__(self, r: Any, before: Any) -> None:
        self.r, self.before = r, before


def threads_for(values_per_row: float) -> int:
    """Return the threads of a block: a warp, or more for long rows."""
    threads = _WARP
    while (
        2 * threads <= cuda_kernels.THREADS_MAX
        and values_per_row >= 2 * threads * _VALUES_PER_THREAD
    ):
        threads *= 2
    return threads


def blocks_for(processors: int, threads: int) -> int:
    """Return the number of blocks that keeps a device's multiprocessors busy."""
    return max(1, processors * _BLOCKS_PER_PROCESSOR * _WARP // threads)


def _processors() -> int:
    """Count the device's multiprocessors; 1 for the simulator, which has none."""
    return int(getattr(cuda.current_context().device, "MULTIPROCESSOR_COUNT", 1))


def _order(n_rows: int, share: float, key: Sequence[int]) -> NDArray[np.int64]:
    """Draw the rows to visit: all in random order, or the first ``share`` of them."""
    order = np.arange(n_rows, dtype=np.int64)
    visits.shuffle(order, mix_hash(*key))
    return order[: max(1, round(share * n_rows))]
