"""A member's local pass: dual coordinate ascent over all rows of all its chunks.

The request, the plan and the result of a pass; the protocol of its solvers, and the solver that
runs on CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa import chunk_pointers, parallel_epoch, sdca_kernels
from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.parallel_epoch import Replicas
from elasticml.algorithms.cocoa.permutation import VisitOrder, bucket_for
from elasticml.algorithms.cocoa.shrinking import Shrinking
from elasticml.algorithms.parallel import Serial
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Dtype, dense_chunk
from elasticml.data.out_of_core.store import release
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
    #: Whether a line search shortens sums of steps that are too long. Without one, threads use the
    #: safe factor.
    searches: bool = True
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
    #: Parts of the rows that changed without seeing each other.
    partitions: int = 0
    #: Sum of the last epoch's rows' contributions to the duality gap, as they were visited; NaN:
    #: not known.
    gap: float = 0.0
    #: Sub-epochs on a GPU that were undone because the subproblem's objective had fallen.
    discarded: int = 0

    def plus(self, other: PassResult) -> PassResult:
        """Add a later result in the same subproblem, which starts where this one ends."""
        return replace(
            other,
            dv=self.dv + other.dv,
            dual=self.dual + other.dual,
            curvature=self.curvature + other.curvature,
            visited=self.visited + other.visited,
            partitions=max(self.partitions, other.partitions),
            discarded=self.discarded + other.discarded,
        )

    def plus_parallel(self, other: PassResult) -> PassResult:
        """Add the simultaneous result of another group, on other rows."""
        return replace(self.plus(other), gap=self.gap + other.gap)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """Constants of a pass."""

    request: PassRequest
    #: Weight of the member's own rows.
    own_weight: float
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
    def safe(self) -> float:
        """The sigma' with which the parts' steps together never lower the objective."""
        return self.whole * self.n_parts

    @property
    def adapts(self) -> bool:
        """Whether the parts' factor is below the safe one: a line search follows."""
        return self.request.sigma is None and self.request.searches

    @property
    def factor(self) -> float:
        """The parts' sigma' in a single slice; several adapt it, except in a scaled first pass."""
        return self.request.sigma_of(self.own_weight / self.n_parts) if self.adapts else self.safe


class DualSolver(Protocol):
    """Improves a member's dual variables, on any device: see ``LocalSolver``."""

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Set the rows to work on; :meth:`run` changes their ``alpha``."""
        ...

    def run(self, v: F64, request: PassRequest, parallel: Parallel) -> PassResult:
        """Visit the rows in random order and update their dual variables in place."""
        ...


# A member's dual coordinate ascent over all rows of all its chunks.

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
    #: Scale a member's very first pass, from zero, as if the rows seen so far were all there are.
    #: Its dual variables then belong to a model of the right size from the start, and the first
    #: pass does the work of three or four: see docs/performance.md. Members' first models are
    #: averaged, so this is safe. It does not pay where a row's margin depends mostly on the row's
    #: own dual variable.
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
    """

    def __init__(
        self,
        *,
        loss: MarginLoss,
        dtype: str,
        intercept_scaling: float | None,
        options: PassOptions = PassOptions(),
    ) -> None:
        self._loss, self._options = loss, options
        self._dtype = np.dtype(dtype)
        self._intercept = 0.0 if intercept_scaling is None else intercept_scaling
        self._shrinking = Shrinking()
        #: (1,) how often the steps of threads count in their replicas, see ``damping``.
        self._damping = np.array([math.inf])
        self._pieces: tuple[Piece, ...] = ()
        self._orders = VisitOrder(skips=options.skip)
        self._rows = chunk_pointers.rows_of([], self._dtype, 1)
        self._weight, self._stored = 0.0, 0
        #: The pieces were measured, or stream and are measured when they are loaded.
        self._is_measured = True

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Set the rows to work on; squared norms of known chunks are kept.

        Costs almost nothing if all arrays are the same objects as at the last call.

        Parameters
        ----------
        pieces : sequence of Piece
            :meth:`run` changes their ``alpha`` and nothing else.
        """
        if chunk_pointers.is_same(self._pieces, pieces):
            return
        self._pieces = tuple(pieces)
        self._stored = chunk_pointers.total_stored(pieces)
        bucket = self._options.bucket or bucket_for(self._stored)
        self._rows = chunk_pointers.rows_of(pieces, self._dtype, bucket)
        self._orders.bind(pieces, bucket)
        self._is_measured = self._orders.store is not None
        self._weight = chunk_pointers.total_weight(pieces)

    def _measure_all(self, numbers: NDArray[np.int64]) -> None:
        for number in numbers:
            self._measure(number)

    def _measure(self, number: int) -> None:
        """Store the addresses of a loaded body, and compute its rows' squared norms once."""
        table, grams, like, _ = self._rows
        if not table[number, chunk_pointers.VALUES]:
            chunk_pointers.locate_body(table, number, self._pieces[number].chunk)
        cache = self._pieces[number].cache
        if not cache.is_measured:
            sdca_kernels.write_norms(table[number], grams, like)
            cache.is_measured = True

    def run(self, v: F64, request: PassRequest, parallel: Parallel) -> PassResult:
        """Visit the rows in random order and update their dual variables in place.

        Each epoch reassigns the rows to the n threads. A thread works on a replica of the model in
        which its own steps count ``sigma' = max(1, damping n S / S_k)`` times, S_k the weight of
        all these rows.
        With enough work, replicas are merged several times per epoch, and the threads' factor
        adapts, see :mod:`elasticml.algorithms.cocoa.damping`. Rows that do not all fit in memory
        come in batches, see :mod:`elasticml.algorithms.cocoa.permutation`.

        Parameters
        ----------
        v : ndarray (D,), float64
            The model of all dual variables of all members; not changed.
        request : PassRequest
        parallel : Parallel
            The threads.

        Returns
        -------
        PassResult
        """
        if self._weight <= 0.0:
            return PassResult(dv=np.zeros(v.size))
        if not self._is_measured:
            numbers = np.arange(len(self._pieces))
            parallel.map(self._measure_all, np.array_split(numbers, parallel.n_threads))
            self._is_measured = True
        plan = self._plan(v, request, parallel.n_threads)
        self._damping[0] = min(self._damping[0], plan.n_parts)
        replicas = Replicas.of(v, plan.n_parts, plan.whole, self._dtype)
        sums, gaps = np.zeros(sdca_kernels.N_SUMS), []
        whole = plan.is_first or self._shrinking.repeats
        for epoch, key, share in request.turns():
            seen = 0 if plan.is_first and epoch == 0 else None
            sums[3] = 0.0  # the gap is that of the last epoch
            for order in self._orders.epoch(key, share, whole=whole, measure=self._measure):
                self._run_slices(order, plan, seen, replicas, sums, parallel)
                seen = None if seen is None else seen + order.size
            gaps.append(float(sums[3]))
            if request.is_solved(gaps):
                break
        replicas.finish()
        return PassResult(
            dv=replicas.dv,
            dual=float(sums[0]),
            curvature=float(sums[1]),
            visited=int(sums[2]),
            partitions=1 if plan.n_slices > 1 else min(plan.n_parts, self._orders.size),
            gap=float(sums[3]) if request.epochs % 1.0 == 0.0 else math.nan,
        )

    def _plan(self, v: F64, request: PassRequest, n_threads: int) -> PassPlan:
        """Plan a pass."""
        if not request.start and self._shrinking.begin(v):
            for piece in self._pieces:
                piece.cache.skips[:] = 0
        n_parts = self._parts(n_threads)
        is_untouched = not (v.any() or any(piece.alpha.any() for piece in self._pieces))
        is_first = is_untouched and self._grows(request)
        return PassPlan(
            request=request,
            own_weight=self._weight,
            n_parts=n_parts,
            n_slices=self._slices(n_parts, v.size),
            is_first=is_first,
        )

    def _run_slices(
        self,
        order: NDArray[np.int64],
        plan: PassPlan,
        seen: int | None,
        replicas: Replicas,
        sums: F64,
        parallel: Parallel,
    ) -> None:
        """Visit several slices with all threads.

        Parameters
        ----------
        seen : int, optional
            In a scaled first pass, the number of visits made before.
        sums : ndarray (N_SUMS,)
            Added to.
        """
        n_parts, n_slices = plan.n_parts, round(plan.n_slices * order.size / self._orders.size)
        ends = np.array([order.size * s // max(1, n_slices) for s in range(max(1, n_slices) + 1)])
        factors, before, total = np.full(ends.size - 1, plan.factor), np.zeros(ends.size - 1), 0.0
        if seen is not None:
            # Each thread assumes that the others have seen a like share of their rows.
            total = plan.own_weight / n_parts
            before = total * (seen + ends[:-1]) / self._orders.size
        elif plan.adapts and plan.n_slices > 1:
            factors[:] = 0.0
            if n_slices >= _SAFE_FROM:
                # If the threads overshoot, a last slice at the safe factor corrects it.
                factors[-1] = plan.safe
        slices = parallel_epoch.Slices(order, ends, factors, total, before)
        counters = np.zeros(16, np.int64)
        results = parallel_epoch.SliceResults(np.zeros((n_parts, 8)), np.zeros((n_parts, 8)), sums)
        dual = sdca_kernels.LocalDual(
            loss=self._loss.terms,
            l2_total=plan.request.l2_total,
            intercept=self._intercept,
            reach=self._shrinking.reach if self._options.shrink else 0.0,
        )

        def work(_: int) -> None:
            try:
                parallel_epoch.run_tasks(
                    slices, counters, replicas, self._damping, results, self._rows, dual
                )
            except BaseException:
                parallel_epoch.abort_tasks(counters)
                raise

        parallel.map(work, range(n_parts))

    def _slices(self, n_parts: int, size: int) -> int:
        """Return how often per epoch the threads' replicas of ``size`` coordinates are merged."""
        n_batches, least = self._orders.n_batches, self._options.values_per_thread
        if n_parts == 1 or least <= 0:
            return n_batches
        worth = self._stored / n_parts // max(least // 4, VALUES_PER_COORDINATE * size)
        return max(n_batches, int(min(SLICES_MAX, worth)))

    def _parts(self, n_threads: int) -> int:
        """Return the number of parts of an epoch: no more than pay."""
        least = self._options.values_per_thread
        worth = n_threads if least <= 0 else self._stored // least
        return int(max(1, min(n_threads, worth)))

    def _grows(self, request: PassRequest) -> bool:
        """Whether the first pass is scaled to the rows seen so far, by a sample of their norms."""
        is_other = request.start or request.sigma is not None or request.epochs < 1.0
        if is_other or not self._options.grow:
            return False
        number = next(n for n, piece in enumerate(self._pieces) if piece.chunk.n_rows)
        self._measure(number)
        release([self._pieces[number].chunk])
        norm = float(self._pieces[number].cache.norms.mean(dtype=np.float64))
        return norm <= GROW_MAX * request.l2_total


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
