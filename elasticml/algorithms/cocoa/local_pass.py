"""A member's local pass: dual coordinate ascent over all rows of all its chunks.

The request, the plan and the result of a pass; the protocol of its solvers, and the solver that
runs on CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa import chunk_pointers, parallel_epoch, sdca_kernels
from elasticml.algorithms.cocoa.chunk_pointers import ChunkCache, ChunkCaches, Piece
from elasticml.algorithms.cocoa.damping import Damping
from elasticml.algorithms.cocoa.line_search import products
from elasticml.algorithms.cocoa.parallel_epoch import ModelReplicas
from elasticml.algorithms.cocoa.permutation import VisitOrder, bucket_for
from elasticml.algorithms.cocoa.shrinking import Shrinking
from elasticml.algorithms.parallel import Serial
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Dtype, dense_chunk
from elasticml.data.out_of_core.store import release, row_array, store_of
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import MarginLoss, loss_named

# The request for a local pass over a member's rows, its plan and its result.


#: Maximum slices of an epoch. More than 32 brought nothing on 120 million values and two threads,
#: and after each slice a thread finds half of its replica's lines in another core's cache.
SLICES_MAX: Final = 32
#: Minimum values per thread and slice for each coordinate to merge.
VALUES_PER_COORDINATE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRequest:
    """The request for a pass over a member's rows."""

    #: ``l2 S``.
    l2_total: float
    #: S, the weight of all rows of all members.
    total_weight: float
    #: In (0, 1]: the share of the safe sigma' that is used.
    damping: float
    #: Visits to each row, at most; a fraction visits a random share of the buckets.
    epochs: float
    #: The pass ends after an epoch whose rows contributed at most this share of what they
    #: contributed to the gap in the first one: the subproblem is solved well enough.
    enough: float = 0.0
    #: The order depends only on these, the chunks and the number of threads.
    seed: int
    serial: int
    #: The members' fixed sigma', as in the papers; a member's threads multiply it by their number.
    sigma: float | None = None
    #: Above 0, the pass continues with this epoch, from another model than it ended with.
    start: int = 0

    def sigma_of(self, weight: float) -> float:
        """Return sigma' of a subproblem whose rows have this weight."""
        if self.sigma is not None:
            return self.sigma
        return max(1.0, self.damping * self.total_weight / weight)

    def turns(self) -> list[tuple[int, tuple[int, int, int], float]]:
        """Return each epoch's number, the key of its order, and its share of the rows."""
        return [
            (epoch, (self.seed, self.serial, self.start + epoch), min(1.0, self.epochs - epoch))
            for epoch in range(math.ceil(self.epochs))
        ]

    def is_solved(self, gaps: Sequence[float]) -> bool:
        """Whether no more epochs pay, by the epochs' contributions to the gap so far."""
        return self.enough > 0.0 and len(gaps) > 1 and gaps[-1] <= self.enough * gaps[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """The result of one pass over a member's rows."""

    #: (D,) ``1/(l2 S) sum s_i (change of a_i) x_i``, without the factor sigma'.
    dv: F64
    #: Sum of ``s_i`` times the change of ``-conj``.
    dual: float = 0.0
    #: ``1/2 sum s_i c (change of a_i)^2``, c the curvature of ``-conj`` where it is a parabola.
    curvature: float = 0.0
    #: Visited rows, without shrunk ones.
    visited: int = 0
    #: Stored values of these rows.
    stored: int = 0
    #: Parts of the rows that changed without seeing each other.
    partitions: int = 0
    #: Sum of the last epoch's rows' contributions to the duality gap, as they were visited; NaN:
    #: not known.
    gap: float = 0.0
    #: sigma' of the subproblem.
    sigma: float = 1.0
    #: The subproblem's objective has fallen, as it can when threads' steps are too long.
    is_loss: bool = False
    #: Passes of groups, or sub-epochs on a GPU, that were undone for that reason.
    discarded: int = 0
    #: Number of groups with rows, and the sum of their dampings.
    groups: int = 1
    dampings: float = 1.0

    def plus(self, other: PassResult) -> PassResult:
        """Add a later result in the same subproblem, which starts where this one ends."""
        return replace(
            other,
            dv=self.dv + other.dv,
            dual=self.dual + other.dual,
            curvature=self.curvature + other.curvature,
            visited=self.visited + other.visited,
            stored=self.stored + other.stored,
            partitions=max(self.partitions, other.partitions),
            discarded=self.discarded + other.discarded,
        )

    def plus_parallel(self, other: PassResult) -> PassResult:
        """Add the simultaneous result of another group, on other rows."""
        return replace(
            self.plus(other),
            gap=self.gap + other.gap,
            groups=self.groups + other.groups,
            dampings=self.dampings + other.dampings,
        )

    def undone(self) -> PassResult:
        """Return the result with its steps taken back: only the counts remain."""
        return replace(
            self,
            dv=np.zeros(self.dv.size),
            dual=0.0,
            curvature=0.0,
            is_loss=False,
            discarded=self.discarded + 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """Constants of a pass."""

    #: With damping 1 in a scaled first pass.
    request: PassRequest
    #: Weight of the member's own rows.
    own_weight: float
    #: See :class:`elasticml.algorithms.cocoa.shrinking.Shrinking`.
    reach: float
    #: Parts of each slice, one per thread.
    n_parts: int
    #: Slices of an epoch; the threads' replicas are merged after each.
    n_slices: int
    #: A first pass, from zero, scaled to the rows seen so far.
    is_first: bool

    @property
    def whole(self) -> float:
        """The member's sigma', without the factor of its threads."""
        return self.request.sigma_of(self.own_weight)

    @property
    def learns(self) -> bool:
        """Whether the threads' factor adapts from slice to slice, except in a first pass."""
        return self.n_slices > 1 and self.request.sigma is None

    def sigma_of(self, weight: float, slice_weight: float) -> float:
        """Return sigma' of a part with this weight, of a slice with that weight."""
        if weight <= 0.0:
            return self.whole
        if self.is_first or self.request.sigma is not None:
            return self.whole * slice_weight / weight
        return self.request.sigma_of(weight)


def slices_worth(stored: float, size: int, values_per_thread: int) -> int:
    """Return how many merges of the threads' replicas per epoch pay.

    Parameters
    ----------
    stored : float
        Values that each thread visits.
    size : int
        Coordinates of the model.
    values_per_thread : int
        Values for which a thread pays; a slice has at least a quarter of them.
    """
    least = max(values_per_thread // 4, VALUES_PER_COORDINATE * size)
    return int(min(SLICES_MAX, stored // least))


class DualSolver(Protocol):
    """Improves a member's dual variables, on any device: see ``LocalSolver``."""

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Set the rows to work on; :meth:`run` changes their ``alpha``."""
        ...

    def run(self, v: F64, request: PassRequest, parallel: Parallel) -> PassResult:
        """Visit the rows in random order and update their dual variables in place."""
        ...

    def undo(self) -> None:
        """Forget the last run; the caller has restored its dual variables."""
        ...


# A member's dual coordinate ascent over all rows of all its chunks.

#: Stored values per thread that one compiled call may visit: about 50 ms.
_VALUES_PER_CALL: Final = 32_000_000
#: Stored values of an epoch for which another thread pays: about a millisecond.
VALUES_PER_THREAD: Final = 1_000_000
#: Number of slices of a call from which its last slice uses the safe factor.
_SAFE_FROM: Final = 8
#: Share of the first epoch's gap at which a pass of several epochs ends. With many more rows than
#: columns the second epoch reaches it.
ENOUGH: Final = 0.25
#: Limit of the mean of ``|x|^2 / (l2 S)``, how much a row's own margin moves with its dual
#: variable, up to which the first pass is scaled to the rows seen so far.
GROW_MAX: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOptions:
    """How a solver visits its rows; every choice has the same limit."""

    #: Consecutive rows visited together; None: chosen by the number of stored values.
    bucket: int | None = None
    #: Skip rows for a while whose margin is so far from where their dual variable would leave its
    #: bound that several more steps of the model's last size cannot take it there. The number of
    #: skipped epochs is finite, so the limit does not change.
    shrink: bool = True
    #: For rows that stream from a disk: skip chunks for a while that hold almost nothing of the
    #: duality gap (DuHL).
    skip: bool = True
    #: Scale a member's very first pass, from zero, as if the rows seen so far were all there are
    #: (and use ``damping`` 1). Its dual variables then belong to a model of the right size from the
    #: start, and the first pass does the work of three or four: see docs/performance.md. Members'
    #: first models are averaged, so this is safe. It does not pay where a row's margin depends
    #: mostly on the row's own dual variable.
    grow: bool = True
    #: Stored values below which another thread would cost more than it saves.
    values_per_thread: int = VALUES_PER_THREAD


class LocalSolver:
    """Improves the dual variables of its rows; ``bind``, then any number of ``run``.

    Parameters
    ----------
    loss : MarginLoss
    dtype : {"float32", "float64"}
        Of the chunks' values, and of the model replicas.
    intercept_scaling : float, optional
        Value of the constant column that belongs to the model's last coordinate; None for none.
    options : PassOptions
    caches : mapping, optional
        Shared with the solvers of other groups, which take turns with the chunks.
    """

    def __init__(
        self,
        *,
        loss: MarginLoss,
        dtype: str,
        intercept_scaling: float | None,
        options: PassOptions = PassOptions(),
        caches: ChunkCaches | None = None,
    ) -> None:
        bucket = options.bucket
        if bucket is not None and bucket < 1:
            raise ValueError(f"bucket is {bucket}, wanted at least 1")
        self._loss = loss
        self._dtype = np.dtype(dtype)
        self._like: NDArray[Any] = np.empty(0, self._dtype)
        self._bucket_wanted = bucket
        self._bucket = bucket_for(0) if bucket is None else bucket
        self._intercept = 0.0 if intercept_scaling is None else intercept_scaling
        self._shrinking = Shrinking(is_used=options.shrink)
        self._damping = Damping()
        self._replicas = ModelReplicas(self._dtype)
        self._grow = options.grow
        self._values_per_thread = options.values_per_thread
        self._caches, self._forgets = {} if caches is None else caches, caches is None
        self._pieces: tuple[Piece, ...] = ()
        self._table = np.zeros((0, chunk_pointers.N_FIELDS), np.int64)
        self._orders = VisitOrder(self._bucket, skips=options.skip)
        self._grams = np.zeros((0, chunk_pointers.GRAM_FIELDS), np.int64)
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
        if chunk_pointers.is_same(self._pieces, pieces):
            return
        chunk_pointers.check(pieces, self._dtype)
        self._pieces = tuple(pieces)
        self._grams = chunk_pointers.grams_of(pieces[0].chunk.layout) if pieces else self._grams
        self._table = np.zeros((len(pieces), chunk_pointers.N_FIELDS), np.int64)
        keys = [(piece.chunk.id, piece.chunk.content_id) for piece in pieces]
        kept = [self._caches.get(key) for key in keys]
        sizes = [piece.chunk.n_rows for piece in pieces]
        self._shrinking.bind(sizes, [None if cached is None else cached.skips for cached in kept])
        if self._forgets:
            self._caches = {}
        for number, skips in enumerate(self._shrinking.views(sizes)):
            piece, old = pieces[number], kept[number]
            norms = row_array(piece.chunk, self._dtype) if old is None else old.norms
            is_measured = old is not None and old.is_measured
            cached = ChunkCache(norms=norms, is_measured=is_measured, skips=skips)
            chunk_pointers.fill_row(self._table, number, piece, cached)
            self._caches[keys[number]] = cached
        stored = chunk_pointers.total_stored(pieces)
        if self._bucket_wanted is None:
            self._bucket = bucket_for(stored)
        self._orders.bind(pieces, bucket=self._bucket)
        self._weight = chunk_pointers.total_weight(pieces)
        self._stored_per_visit = max(1.0, stored / max(1, self._orders.size))

    def _measure(self, number: int) -> None:
        """Store the addresses of a loaded body, and compute its rows' squared norms once."""
        piece = self._pieces[number]
        if not self._table[number, chunk_pointers.VALUES]:
            chunk_pointers.locate_body(self._table, number, piece.chunk)
        cached = self._caches[piece.chunk.id, piece.chunk.content_id]
        if not cached.is_measured:
            sdca_kernels.write_norms(self._table[number], self._grams, self._like)
            cached.is_measured = True

    def run(self, v: F64, request: PassRequest, parallel: Parallel) -> PassResult:
        """Visit the rows in random order and update their dual variables in place.

        Each epoch reassigns the rows to the threads. A thread works on a replica of the model in
        which its own steps count ``sigma' = max(1, damping S / S_t)`` times, S_t its rows' weight.
        With enough work, replicas are merged several times per epoch, and the threads' factor
        adapts, see :mod:`elasticml.algorithms.cocoa.damping`. Rows that do not all fit in memory
        come in batches, see :mod:`elasticml.algorithms.cocoa.permutation`.

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
            return PassResult(dv=np.zeros(v.size), groups=0, dampings=0.0)
        is_first = not request.start and self._is_untouched(v) and self._grows(request)
        plan = PassPlan(
            request=replace(request, damping=1.0) if is_first else request,
            own_weight=self._weight,
            reach=reach,
            n_parts=n_parts,
            n_slices=self._slices(n_parts, v.size),
            is_first=is_first,
        )
        if not request.start:
            self._damping.begin(request.serial, n_parts)
        self._replicas.begin(v, n_parts)
        sums, gaps = np.zeros(sdca_kernels.N_SUMS + 1), []
        for epoch, key, share in request.turns():
            grows, seen = plan.is_first and epoch == 0, 0.0
            sums[4] = 0.0  # the gap is that of the last epoch
            orders = self._orders.epoch(key, share, whole=plan.is_first, measure=self._measure)
            for order in orders:
                for some in self._portions(order, plan):
                    before = seen if grows else None
                    seen += self._run_slices(some, plan, before, sums, parallel)
            gaps.append(float(sums[4]))
            if request.is_solved(gaps):
                break
        self._replicas.finish(plan.whole)
        return PassResult(
            dv=self._replicas.dv,
            dual=float(sums[0]),
            curvature=float(sums[1]),
            visited=int(sums[2]),
            stored=int(sums[3]),
            partitions=1 if plan.n_slices > 1 else min(n_parts, self._orders.size),
            gap=float(sums[4]) if request.epochs % 1.0 == 0.0 else math.nan,
            sigma=plan.whole,
            is_loss=self._is_loss(plan, sums, v),
            dampings=self._damping.share,
        )

    def undo(self) -> None:
        """Undo the last run's shrinking and chunk choice; the caller restores ``alpha``."""
        self._shrinking.undo()
        self._orders.undo()

    def _is_loss(self, plan: PassPlan, sums: F64, v: F64) -> bool:
        """Whether the threads' steps have lowered the local objective.

        A single thread cannot; a scaled first pass is judged by the driver's line search alone.
        """
        if plan.n_parts == 1 or plan.is_first:
            return False
        gain, half = float(sums[sdca_kernels.N_SUMS]), 0.5 * plan.request.l2_total / plan.whole
        size = 0.0 if gain >= 0.0 else abs(float(sums[0])) + half * products(v, v)[1]
        precision = float(np.finfo(self._dtype).eps) * math.sqrt(max(1.0, float(sums[2])))
        is_safe = self._damping.is_safe
        return not (self._damping.accepts(gain, size, precision) or is_safe)

    def _portions(self, order: NDArray[np.int64], plan: PassPlan) -> list[NDArray[np.int64]]:
        """Cut visits into portions for one compiled call, of several slices each."""
        calls = self._calls(order.size, plan.n_parts)
        return [some for some in np.array_split(order, calls) if some.size]

    def _calls(self, n_visits: int, n_parts: int) -> int:
        return math.ceil(n_visits * self._stored_per_visit / (_VALUES_PER_CALL * n_parts)) or 1

    def _run_slices(
        self,
        order: NDArray[np.int64],
        plan: PassPlan,
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
        slices = parallel_epoch.Slices(order, ends, factors, totals, before)
        counters = np.zeros(16, np.int64)
        is_due = plan.n_slices == 1 or self._replicas.is_due(order.size * self._stored_per_visit)
        replicas = self._replicas.arrays(plan.whole, is_due=is_due)
        results = parallel_epoch.SliceResults(
            np.zeros((plan.n_parts, 8)), np.zeros((plan.n_parts, 8)), sums
        )
        rows = sdca_kernels.ChunkRows(self._table, self._grams, self._like, self._bucket)
        dual = sdca_kernels.LocalDual(
            loss=self._loss.terms,
            l2_total=plan.request.l2_total,
            intercept=self._intercept,
            reach=plan.reach,
        )

        def work(_: int) -> None:
            try:
                parallel_epoch.run_tasks(
                    slices, counters, replicas, self._damping.factor, results, rows, dual
                )
            except BaseException:
                parallel_epoch.abort_tasks(counters)
                raise

        parallel.map(work, range(plan.n_parts))
        return weight

    def _shares(
        self, order: NDArray[np.int64], ends: NDArray[np.int64], plan: PassPlan, seen: float | None
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
        sdca_kernels.weights_of_parts(order, ends, self._bucket, self._table, weights)
        done = 0.0 if seen is None else seen
        for s, each in enumerate(weights):
            whole = float(each.sum())
            least = plan.whole * float(self._damping.factor[1])
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

    def _grows(self, request: PassRequest) -> bool:
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
        if store_of(chunks) is not None:
            filled = filled[:1]
            for number in filled:
                self._measure(number)
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


# Compile the kernels of a local pass in advance.


def warm_kernels(kind: str | None = None, dtype: str | None = None) -> None:
    """Compile the kernels for both types of values, or load their machine code from the cache."""
    dtypes: tuple[Dtype, ...] = ("float32", "float64")
    for each in dtypes:
        if dtype in (None, each):
            warm_up(loss_named("hinge"), each)


def warm_up(loss: MarginLoss, dtype: Dtype) -> None:
    """Do so for a loss and a type of values."""
    chunk = dense_chunk(ChunkId("warm", 0, 0), np.ones(1), np.ones((1, 1)), dtype=dtype)
    solver, one = LocalSolver(loss=loss, dtype=dtype, intercept_scaling=None), np.ones(1)
    solver.bind([Piece(chunk, one, one, np.zeros(1))])
    for serial in range(2):  # from the second on, it is measured how far the model moved
        request = PassRequest(
            l2_total=1.0, total_weight=1.0, damping=1.0, epochs=1, seed=0, serial=serial
        )
        solver.run(one, request, Serial())
