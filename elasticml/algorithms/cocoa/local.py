"""A member's dual coordinate ascent over all rows of all its chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa import tables, together, visits
from elasticml.algorithms.cocoa.crowding import Crowding
from elasticml.algorithms.cocoa.orders import Orders, bucket_for
from elasticml.algorithms.cocoa.passes import Pass, Plan, Update, slices_worth
from elasticml.algorithms.cocoa.replicas import Replicas
from elasticml.algorithms.cocoa.rests import Rests
from elasticml.algorithms.cocoa.step_kernels import products
from elasticml.algorithms.cocoa.tables import Cached, Caches, Piece
from elasticml.data.shelf import numbers, release, shelf_of
from elasticml.objectives.conjugates import dual_loss_named

F64 = NDArray[np.float64]

#: Stored values per thread that one compiled call may visit: about 50 ms.
_VALUES_PER_CALL: Final = 32_000_000
#: Stored values of an epoch for which another thread pays: about a millisecond.
VALUES_PER_THREAD: Final = 1_000_000
#: Number of slices of a call from which its last slice uses the safe factor.
_SAFE_FROM: Final = 8
#: Limit of the mean of ``|x|^2 / (l2 S)``, how much a row's own margin moves with its dual
#: variable, up to which the first pass is scaled to the rows seen so far.
GROW_MAX: Final = 0.25


class LocalSolver:
    """Improves the dual variables of its rows; ``bind``, then any number of ``run``.

    Parameters
    ----------
    loss : str
        Name of a loss with a dual, see :mod:`elasticml.objectives.conjugates`.
    dtype : {"float32", "float64"}
        Of the chunks' values, and of the model replicas.
    bucket : int, optional
        Consecutive rows visited together; by default chosen by the number of stored values.
    intercept_scaling : float, optional
        Value of the constant column that belongs to the model's last coordinate; None for none.
    shrink : bool
        Skip rows for a while whose margin is so far from where their dual variable would leave its
        bound that several more steps of the model's last size cannot take it there. The number of
        skipped epochs is finite, so the limit does not change.
    skip : bool
        For rows that stream from a disk: skip chunks for a while that hold almost nothing of the
        duality gap (DuHL).
    grow : bool
        Scale a member's very first pass, from zero, as if the rows seen so far were all there are
        (and use ``damping`` 1). Its dual variables then belong to a model of the right size from
        the start, and the first pass does the work of three or four: see docs/performance.md.
        Members' first models are averaged, so this is safe. It does not pay where a row's margin
        depends mostly on the row's own dual variable.
    values_per_thread : int
        Stored values below which another thread would cost more than it saves.
    caches : mapping, optional
        Shared with the solvers of other groups, which take turns with the chunks.
    """

    def __init__(
        self,
        *,
        loss: str,
        dtype: str,
        bucket: int | None,
        intercept_scaling: float | None,
        shrink: bool = True,
        skip: bool = True,
        grow: bool = True,
        values_per_thread: int = VALUES_PER_THREAD,
        caches: Caches | None = None,
    ) -> None:
        if bucket is not None and bucket < 1:
            raise ValueError(f"bucket is {bucket}, wanted at least 1")
        self._loss = dual_loss_named(loss)
        self._dtype = np.dtype(dtype)
        self._like: NDArray[Any] = np.empty(0, self._dtype)
        self._bucket_wanted = bucket
        self._bucket = bucket_for(0) if bucket is None else bucket
        self._intercept = 0.0 if intercept_scaling is None else intercept_scaling
        self._shrinking = Rests(is_used=shrink)
        self._contention = Crowding()
        self._replicas = Replicas(self._dtype)
        self._grow = grow
        self._values_per_thread = values_per_thread
        self._caches, self._forgets = {} if caches is None else caches, caches is None
        self._pieces: tuple[Piece, ...] = ()
        self._table = np.zeros((0, tables.N_FIELDS), np.int64)
        self._orders = Orders(self._bucket, skips=skip)
        self._grams = np.zeros((0, tables.GRAM_FIELDS), np.int64)
        self._weight = 0.0
        self._stored_per_visit = 1.0

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Set the rows to work on; squared norms of known chunks are kept.

        Costs almost nothing if all arrays are the same objects as at the last call.

        Parameters
        ----------
        pieces : sequence of Piece
            :meth:`run` changes their ``alpha`` and nothing else.

        Raises
        ------
        ValueError
            When shapes or types do not fit.
        """
        if tables.is_same(self._pieces, pieces):
            return
        tables.check(pieces, self._dtype)
        self._pieces = tuple(pieces)
        self._grams = tables.grams_of(pieces[0].chunk.layout) if pieces else self._grams
        self._table = np.zeros((len(pieces), tables.N_FIELDS), np.int64)
        keys = [(piece.chunk.id, piece.chunk.content_id) for piece in pieces]
        kept = [self._caches.get(key) for key in keys]
        sizes = [piece.chunk.n_rows for piece in pieces]
        self._shrinking.bind(sizes, [None if cached is None else cached.skips for cached in kept])
        if self._forgets:
            self._caches = {}
        for number, skips in enumerate(self._shrinking.views(sizes)):
            piece, old = pieces[number], kept[number]
            norms = numbers(piece.chunk, self._dtype) if old is None else old.norms
            is_measured = old is not None and old.is_measured
            cached = Cached(norms=norms, is_measured=is_measured, skips=skips)
            tables.fill_row(self._table, number, piece, cached)
            self._caches[keys[number]] = cached
        stored = tables.total_stored(pieces)
        if self._bucket_wanted is None:
            self._bucket = bucket_for(stored)
        self._orders.bind(pieces, bucket=self._bucket)
        self._weight = tables.total_weight(pieces)
        self._stored_per_visit = max(1.0, stored / max(1, self._orders.size))

    def _measure(self, number: int) -> None:
        """Store the addresses of a loaded body, and compute its rows' squared norms once."""
        piece = self._pieces[number]
        if piece.chunk.is_packed or not self._table[number, tables.VALUES]:
            tables.locate_body(self._table, number, piece.chunk)
        cached = self._caches[piece.chunk.id, piece.chunk.content_id]
        if not cached.is_measured:
            visits.write_norms(self._table[number], self._grams, self._like)
            cached.is_measured = True

    def run(self, v: F64, request: Pass, parallel: Parallel) -> Update:
        """Visit the rows in random order and update their dual variables in place.

        Each epoch reassigns the rows to the threads. A thread works on a replica of the model in
        which its own steps count ``sigma' = max(1, damping S / S_t)`` times, S_t its rows' weight.
        With enough work, replicas are merged several times per epoch, and the threads' factor
        adapts, see :mod:`elasticml.algorithms.cocoa.crowding`. Rows that do not all fit in memory
        come in batches, see :mod:`elasticml.algorithms.cocoa.orders`.

        Parameters
        ----------
        v : ndarray (D,), float64
            The model of all dual variables of all members; not changed.
        request : Pass
        parallel : Parallel
            The threads.

        Returns
        -------
        Update
        """
        self._orders.measure_all(self._measure, parallel)
        reach = (
            self._shrinking.resume() if request.start else self._shrinking.begin(v, request.serial)
        )
        n_parts = self._parts(parallel.n_threads)
        if self._weight <= 0.0:
            return Update(dv=np.zeros(v.size), groups=0, dampings=0.0)
        is_first = not request.start and self._is_untouched(v) and self._grows(request)
        plan = Plan(
            request=replace(request, damping=1.0) if is_first else request,
            own_weight=self._weight,
            reach=reach,
            n_parts=n_parts,
            n_slices=self._slices(n_parts, v.size),
            is_first=is_first,
        )
        if not request.start:
            self._contention.begin(request.serial, n_parts)
        self._replicas.begin(v, n_parts)
        sums = np.zeros(visits.N_SUMS + 1)
        for epoch, key, share in request.turns():
            grows, seen = plan.is_first and epoch == 0, 0.0
            sums[4] = 0.0  # the gap is that of the last epoch
            orders = self._orders.epoch(key, share, whole=plan.is_first, measure=self._measure)
            for order in orders:
                for some in self._portions(order, plan):
                    before = seen if grows else None
                    seen += self._run_slices(some, plan, before, sums, parallel)
        self._replicas.finish(plan.whole)
        return Update(
            dv=self._replicas.dv,
            dual=float(sums[0]),
            curvature=float(sums[1]),
            visited=int(sums[2]),
            stored=int(sums[3]),
            partitions=1 if plan.n_slices > 1 else min(n_parts, self._orders.size),
            gap=float(sums[4]) if request.epochs % 1.0 == 0.0 else math.nan,
            sigma=plan.whole,
            is_loss=self._is_loss(plan, sums, v),
            dampings=self._contention.damping,
        )

    def undo(self) -> None:
        """Undo the last run's shrinking and chunk choice; the caller restores ``alpha``."""
        self._shrinking.undo()
        self._orders.undo()

    def _is_loss(self, plan: Plan, sums: F64, v: F64) -> bool:
        """Whether the threads' steps have lowered the local objective.

        A single thread cannot; a scaled first pass is judged by the driver's line search alone.
        """
        if plan.n_parts == 1 or plan.is_first:
            return False
        gain, half = float(sums[visits.N_SUMS]), 0.5 * plan.request.l2_total / plan.whole
        size = 0.0 if gain >= 0.0 else abs(float(sums[0])) + half * products(v, v)[1]
        precision = float(np.finfo(self._dtype).eps) * math.sqrt(max(1.0, float(sums[2])))
        return not self._contention.accepts(gain, size, precision)

    def _portions(self, order: NDArray[np.int64], plan: Plan) -> list[NDArray[np.int64]]:
        """Cut visits into portions for one compiled call, of several slices each."""
        calls = self._calls(order.size, plan.n_parts)
        return [some for some in np.array_split(order, calls) if some.size]

    def _calls(self, n_visits: int, n_parts: int) -> int:
        return math.ceil(n_visits * self._stored_per_visit / (_VALUES_PER_CALL * n_parts)) or 1

    def _run_slices(
        self,
        order: NDArray[np.int64],
        plan: Plan,
        seen: float | None,
        sums: F64,
        parallel: Parallel,
    ) -> float:
        """Visit several slices with all threads; return the weight of their rows.

        Parameters
        ----------
        seen : float, optional
            In a scaled first pass, the weight of the rows visited before.
        sums : ndarray (N_SUMS + 1,)
            Added to.
        """
        n_slices = max(1, round(plan.n_slices * order.size / max(1, self._orders.size)))
        ends = np.array([order.size * s // n_slices for s in range(n_slices + 1)])
        factors, totals, before, weight = self._shares(order, ends, plan, seen)
        counters, replicas = np.zeros(16, np.int64), self._replicas
        is_due = plan.n_slices == 1 or replicas.is_due(order.size * self._stored_per_visit)
        size = replicas.v.size if is_due else 0
        merged, tallies = np.zeros((plan.n_parts, 8)), np.zeros((plan.n_parts, 8))

        def work(_: int) -> None:
            try:
                together.run_tasks(
                    order,
                    ends,
                    factors,
                    totals,
                    before,
                    counters,
                    replicas.rows,
                    replicas.v,
                    replicas.dv,
                    size,
                    plan.whole,
                    plan.request.l2_total,
                    self._contention.factor,
                    merged,
                    tallies,
                    sums,
                    self._bucket,
                    self._table,
                    self._grams,
                    self._like,
                    self._loss.code,
                    self._loss.curvature,
                    self._intercept,
                    plan.reach,
                )
            except BaseException:
                together.abort_tasks(counters)
                raise

        parallel.map(work, range(plan.n_parts))
        return weight

    def _shares(
        self, order: NDArray[np.int64], ends: NDArray[np.int64], plan: Plan, seen: float | None
    ) -> tuple[F64, F64, F64, float]:
        """Return sigma' by slice and part, a scaled first pass's weights, and the total weight.

        A sigma' of 0 means the adaptive factor of the threads.
        """
        shape = (ends.size - 1, plan.n_parts)
        factors, totals, before = (np.zeros(shape) for _ in range(3))
        if seen is None and plan.learns:
            if shape[0] >= _SAFE_FROM:
                # If the threads overshoot, a last slice at the safe factor corrects it.
                factors[-1] = plan.whole * plan.n_parts
            return factors, totals, before, 0.0
        weights = np.zeros(shape)
        visits.weights_of_parts(order, ends, self._bucket, self._table, weights)
        done = 0.0 if seen is None else seen
        for s, each in enumerate(weights):
            whole = float(each.sum())
            least = plan.whole * float(self._contention.factor[1])
            factors[s] = [max(plan.sigma_of(part, whole), least) for part in each.tolist()]
            if seen is not None and whole > 0.0:
                # Each thread assumes that the others have seen a like share of their rows.
                totals[s], before[s] = each / whole * plan.own_weight, each / whole * done
            done += whole
        return factors, totals, before, float(weights.sum())

    def _slices(self, n_parts: int, size: int) -> int:
        """Return how often per epoch the threads' replicas of ``size`` coordinates are merged."""
        stored = self._stored_per_visit * self._orders.size
        needed = max(self._orders.n_batches, self._calls(self._orders.size, n_parts))
        if n_parts == 1 or self._values_per_thread <= 0:
            return needed
        return max(needed, slices_worth(stored / n_parts, size, self._values_per_thread))

    def _parts(self, n_threads: int) -> int:
        """Return the number of parts of an epoch: no more than pay."""
        stored = self._stored_per_visit * self._orders.size
        worth = n_threads if self._values_per_thread <= 0 else stored // self._values_per_thread
        return int(max(1, min(n_threads, worth)))

    def _grows(self, request: Pass) -> bool:
        """Whether the first pass is scaled to the rows seen so far."""
        if not self._grow or request.sigma is not None or request.epochs < 1.0:
            return False
        return self._mean_norm() <= GROW_MAX * request.l2_total

    def _mean_norm(self) -> float:
        """Return the rows' mean squared norm; where they stream, that of the first nonempty chunk.

        Always that chunk: a repeated pass, with more chunks measured, must give the same result.
        """
        filled = [n for n, piece in enumerate(self._pieces) if piece.chunk.n_rows]
        chunks = [piece.chunk for piece in self._pieces]
        if shelf_of(chunks) is not None:
            filled = filled[:1]
            for number in filled:
                chunks[number].bring(pin=True)
                self._measure(number)
                chunks[number].unpin()
                release([chunks[number]])
        keys = [(chunks[k].id, chunks[k].content_id) for k in filled]
        total = sum(float(self._caches[key].norms.sum(dtype=np.float64)) for key in keys)
        return total / max(1, sum(chunks[number].n_rows for number in filled))

    def _is_untouched(self, v: F64) -> bool:
        """Whether nothing has been computed yet; if so, unshrink all rows."""
        if v.any() or any(piece.alpha.any() for piece in self._pieces):
            return False
        self._shrinking.wake()
        return True
