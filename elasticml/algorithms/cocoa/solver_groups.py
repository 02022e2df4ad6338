"""The groups of a member: NUMA nodes or GPUs, each with a replica of the model.

Three levels solve one problem: members, the groups of a member, and the threads of a group. Each
level has a subproblem in which its own steps count ``sigma'`` times, the product of what all levels
need. In an inner round every group makes a pass over its rows, all at the same time and from the
same model. Their steps are then added, scaled by the exact line search, and the next inner round
starts from the member's model, ``v + sigma' u`` with u the change so far. The member's update is
sent after all its inner rounds: Snap ML's t2.

On CPUs, chunks are reassigned to the groups in each round, as to members with two holders: groups
that always have the same rows take many more passes. On GPUs, where rows would have to be sent
again, and in ``mode: paper``, chunks stay in their group.

A group whose threads have lowered the objective of its own subproblem has its pass undone, and its
threads are damped: Snap ML's adaptive damping.

Source: Snap ML, section 2.1 and appendix B (the subproblems of equation 6), section 3.1 (damping).
Ours: groups are damped as the line search along their steps requires, at most as much as is safe.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa import chunk_pointers
from elasticml.algorithms.cocoa.chunk_pointers import ChunkCaches, Piece
from elasticml.algorithms.cocoa.damping import Aggregation
from elasticml.algorithms.cocoa.line_search import LineModel, products, summed_steps
from elasticml.algorithms.cocoa.local_pass import DualSolver, PassRequest, PassResult
from elasticml.algorithms.cocoa.permutation import mix_hash
from elasticml.arrays import F64
from elasticml.data.out_of_core.store import row_array, store_of
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import MarginLoss

# Assign a member's chunks to its groups.

#: Load that a group may have above an equal share, in units of the largest chunk.
_SLACK: Final = 0.5


def assign_chunks(
    ids: Sequence[ChunkId], sizes: Sequence[float], n: int, draw: int = 0
) -> list[int]:
    """Assign chunks to groups of similar size so that a change of chunks moves few others.

    Each chunk ranks the groups by its own hash. Chunks, the largest first, take the first group of
    their ranking that has room; if none has, the emptiest. A chunk that leaves then makes room for
    a chunk that its group had turned away, and moves little else.

    Parameters
    ----------
    sizes : sequence of float
        One for each chunk, nonnegative; for example stored values.
    n : int
        Groups, >= 1.
    draw : int
        Seed: another value redraws the whole assignment.

    Returns
    -------
    list of int in [0, n)
        One for each chunk; a function of the arguments alone, independent of the chunks' order and
        of earlier assignments.

    Source: rendezvous hashing (Thaler and Ravishankar, 1998) with bounded loads.
    """
    if n == 1:
        return [0] * len(ids)
    room = sum(sizes) / n + _SLACK * max(sizes, default=0.0)
    hashes = [mix_hash(draw, zlib.crc32(str(id).encode())) for id in ids]
    loads, groups = [0.0] * n, [0] * len(ids)
    for i in sorted(range(len(ids)), key=lambda i: (-_class_of(sizes[i]), hashes[i], ids[i])):
        ranking = sorted(range(n), key=lambda k: mix_hash(hashes[i], k))
        free = [k for k in ranking if loads[k] + sizes[i] <= room]
        groups[i] = free[0] if free else min(ranking, key=lambda k: loads[k])
        loads[groups[i]] += sizes[i]
    return groups


def _class_of(size: float) -> int:
    """Return the size's power of two: within it, chunks are ordered by hash and not by size."""
    return int(size).bit_length()


@dataclass(slots=True, eq=False)
class _Rows:
    """A chunk's rows, with their dual variables from before an inner round."""

    piece: Piece
    weight: float
    #: The steps since; empty where not needed. For rows that stream, both arrays are in a file.
    step: F64
    #: Dual variables at that time; empty before the first call of ``keep``.
    before: F64 = field(default_factory=lambda: np.empty(0))

    @staticmethod
    def of(piece: Piece, *, steps: bool) -> _Rows:
        """Wrap a piece; allocate its steps where they are needed."""
        return _Rows(
            piece=piece,
            weight=chunk_pointers.total_weight([piece]),
            step=row_array(piece.chunk) if steps else np.empty(0),
        )


@dataclass(slots=True, eq=False)
class _Group:
    """One group's solver and rows."""

    solver: DualSolver
    rows: list[_Rows] = field(default_factory=list)

    @property
    def pieces(self) -> list[Piece]:
        """The pieces, as solvers take them."""
        return [own.piece for own in self.rows]

    @property
    def weight(self) -> float:
        """Total weight of the rows."""
        return sum(own.weight for own in self.rows)

    def keep(self) -> None:
        """Save the dual variables."""
        for own in self.rows:
            if own.before.size != own.piece.alpha.size:
                own.before = row_array(own.piece.chunk)
            np.copyto(own.before, own.piece.alpha)

    def restore(self) -> None:
        """Restore the saved dual variables bit for bit."""
        for own in self.rows:
            np.copyto(own.piece.alpha, own.before)

    def summed(self, loss: MarginLoss) -> F64:
        """Store the steps since :meth:`keep`; return the line search's sums, (2,)."""
        sums = np.zeros(2)
        for own in self.rows:
            sums += summed_steps(loss, own.before, own.piece, own.step)
        return sums

    def shorten(self, length: float, loss: MarginLoss) -> F64:
        """Shorten the steps to this share; return the new sums."""
        for own in self.rows:
            # Clipped: a share of a step may round beyond a bound.
            np.add(own.before, length * own.step, out=own.piece.alpha)
            loss.clip(own.piece.alpha, own.piece.targets)
        return self.summed(loss)


@dataclass(frozen=True, slots=True)
class _Level:
    """The member's subproblem, constant during a pass."""

    request: PassRequest
    own_weight: float

    @property
    def whole(self) -> float:
        """The member's sigma', without the factor of its groups."""
        return self.request.sigma_of(self.own_weight)

    def part(self, one: PassRequest, weight: float, damping: float, n_groups: int) -> PassRequest:
        """Return the request for a group with this weight.

        Its sigma' covers both levels: ``whole max(1, damping S_k / weight)``, S_k the member's
        weight. ``n_groups`` counts the groups that have rows.
        """
        if one.sigma is not None:
            return replace(one, sigma=one.sigma * n_groups)
        if weight <= 0.0:
            return replace(one, damping=1.0)
        sigma = self.whole * max(1.0, damping * self.own_weight / weight)
        return replace(one, damping=min(1.0, sigma * weight / one.total_weight))


class GroupedSolver:
    """Improves a member's dual variables by several solvers at once, each on its share of chunks.

    With one solver there is one group of all threads, whose passes are undone if they lose; with
    one thread, which cannot lose, the solver runs directly.

    Parameters
    ----------
    solvers : sequence of Ascent
        One for each group.
    loss : MarginLoss
    searches : bool
        Scale the groups' steps by the line search, and adapt their damping to it; otherwise add
        them whole, which is safe with sigma' at its safe value.
    caches : mapping, optional
        The solvers' shared caches of all chunks. With it, chunks are reassigned in each pass, as to
        members with two holders: groups that always have the same rows take many more passes.
        Without it, a chunk stays in its group.
    """

    def __init__(
        self,
        solvers: Sequence[DualSolver],
        *,
        loss: MarginLoss,
        searches: bool,
        caches: ChunkCaches | None = None,
    ) -> None:
        self._loss = loss
        self._groups = [_Group(solver) for solver in solvers]
        self._caches = caches
        self._rows: list[_Rows] = []
        #: Number of groups that get rows; number of those with weight.
        self._n_dealt = len(self._groups)
        self._n_filled = 1
        self._pieces: tuple[Piece, ...] = ()
        self._weight = 0.0
        self._aggregation = Aggregation(gamma=None if searches else 1.0, adapts=searches)
        self._serial: int | None = None
        self._before = self._aggregation

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Set the rows to work on, see :meth:`LocalSolver.bind`."""
        if chunk_pointers.is_same(self._pieces, pieces):
            return
        self._pieces = tuple(pieces)
        # A member has one reader: rows that stream all go to the first group, with all threads.
        streams = store_of([piece.chunk for piece in pieces]) is not None
        self._n_dealt = 1 if streams else len(self._groups)
        self._rows = [_Rows.of(piece, steps=self._n_dealt > 1) for piece in pieces]
        for group in self._groups[self._n_dealt :]:
            if group.rows:
                group.rows = []
                group.solver.bind([])
        self._weight = chunk_pointers.total_weight(pieces)
        if self._caches is not None:
            keys = {(piece.chunk.id, piece.chunk.content_id) for piece in pieces}
            for key in self._caches.keys() - keys:
                del self._caches[key]

    def _deal(self, seed: int, serial: int) -> None:
        """Assign chunks to groups by their stored values, see :func:`assign_chunks`."""
        chunks = [own.piece.chunk for own in self._rows]
        sizes = [chunk_pointers.stored_of(chunk) for chunk in chunks]
        draw = 0 if self._caches is None else mix_hash(seed, serial)
        of = assign_chunks([chunk.id for chunk in chunks], sizes, self._n_dealt, draw)
        for k, group in enumerate(self._groups):
            group.rows = [own for own, to in zip(self._rows, of, strict=True) if to == k]
        self._n_filled = max(1, sum(1 for group in self._groups if group.weight > 0.0))

    def undo(self) -> None:
        """Do nothing: passes that lose are undone as they end."""

    def run(self, v: F64, request: PassRequest, parallel: Parallel) -> PassResult:
        """Visit the rows in one inner round per epoch.

        Parameters are those of :meth:`LocalSolver.run`. The bits of the result depend on the
        number of groups and of each one's threads, not on which thread does the work; with no more
        threads than groups, on the groups alone.

        Returns
        -------
        Update
            Its counts include passes that were undone.
        """
        if len(self._groups) == 1 and parallel.n_threads == 1:
            only = self._groups[0].solver
            only.bind(self._pieces)
            return only.run(v, request, parallel)
        if self._weight <= 0.0:
            return PassResult(dv=np.zeros(v.size), groups=0, dampings=0.0)
        if request.serial == self._serial:
            self._aggregation = self._before  # repeated: start as the first attempt did
        self._serial, self._before = request.serial, self._aggregation
        self._deal(request.seed, request.serial)
        # The very first steps are damped to the safe value on every level.
        is_first = not v.any() and not any(piece.alpha.any() for piece in self._pieces)
        if is_first and self._n_dealt > 1:
            request = replace(request, damping=1.0)
        level = _Level(request, self._weight)
        total, gaps = PassResult(dv=np.zeros(v.size)), []
        for inner, (_, _, start), share in request.turns():
            r = v if inner == 0 else v + total.sigma * total.dv
            one = replace(request, epochs=share, start=start)
            is_safe = is_first and inner == 0
            done = self._inner_round(r, level, one, parallel, is_safe=is_safe)
            total = total.plus(done)
            gaps.append(done.gap)
            if request.is_solved(gaps):
                break
        return total

    def _inner_round(
        self, r: F64, level: _Level, one: PassRequest, parallel: Parallel, *, is_safe: bool
    ) -> PassResult:
        """Run a pass of all groups from the same model, and merge their steps.

        Parameters
        ----------
        r : ndarray (D,)
            The member's model, in which its steps so far count sigma' times.
        one : Pass
            The request for this epoch of ``level``.
        is_safe : bool
            Damp the groups to the safe sigma'.
        """
        is_alone = self._n_dealt == 1
        between = 1.0 if is_safe else self._aggregation.damping

        def work(k: int, team: Parallel) -> PassResult:
            group = self._groups[k]
            group.solver.bind(group.pieces)
            group.keep()
            own = one if is_alone else level.part(one, group.weight, between, self._n_filled)
            update = group.solver.run(r, own, team)
            if update.is_loss:
                group.restore()
                group.solver.undo()
                update = update.undone()
            if is_alone:
                return update
            dual, curvature = group.summed(self._loss).tolist()
            return replace(update, dual=dual, curvature=curvature)

        updates = parallel.in_teams(work, self._n_dealt)
        return updates[0] if is_alone else self._merge(r, level, updates, parallel)

    def _merge(
        self, r: F64, level: _Level, updates: Sequence[PassResult], parallel: Parallel
    ) -> PassResult:
        """Add the groups' steps, scaled by the line search of the member's subproblem."""
        done = updates[0]
        for update in updates[1:]:
            done = done.plus_parallel(update)
        product, square = products(r, done.dv)
        along = LineModel(
            slope=done.dual + done.curvature - level.request.l2_total * product,
            curvature=2.0 * done.curvature + level.request.l2_total * level.whole * square,
        )
        length = self._aggregation.length(along)
        self._aggregation = self._aggregation.adapted(along, self._n_filled)
        if length < 1.0:
            parts = parallel.in_teams(
                lambda k, team: self._groups[k].shorten(length, self._loss), len(updates)
            )
            dual, curvature = np.sum(parts, axis=0).tolist()
            done = replace(done, dv=length * done.dv, dual=dual, curvature=curvature)
        # Groups are not partitions of the members' level, whose damping adapts to their number.
        return replace(done, partitions=1, sigma=level.whole)
