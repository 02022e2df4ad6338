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

Source: Snap ML, section 2.1 and appendix B (the subproblems of equation 6). Ours: groups are damped
as the line search along their steps requires, at most as much as is safe.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa import chunk_pointers
from elasticml.algorithms.cocoa.chunk_pointers import ChunkCaches, Piece
from elasticml.algorithms.cocoa.damping import Aggregation
from elasticml.algorithms.cocoa.line_search import LineModel, products
from elasticml.algorithms.cocoa.local_pass import DualSolver, PassRequest, PassResult
from elasticml.algorithms.cocoa.permutation import mix_hash
from elasticml.algorithms.parallel import runs
from elasticml.arrays import F64
from elasticml.data.out_of_core.store import store_of
from elasticml.objectives.loss_kernels import MarginLoss


@dataclass(slots=True, eq=False)
class _Rows:
    """A chunk's rows, with their dual variables from before an inner round, (n_rows,)."""

    piece: Piece
    before: F64
    n_rows: int


@dataclass(slots=True, eq=False)
class _Group:
    """One group's solver and rows."""

    solver: DualSolver
    rows: Sequence[_Rows] = ()
    weight: float = 0.0

    def take(self, rows: Sequence[_Rows]) -> None:
        """Work on these rows."""
        pieces = [own.piece for own in rows]
        self.rows, self.weight = rows, chunk_pointers.total_weight(pieces)
        self.solver.bind(pieces)

    def run(self, r: F64, request: PassRequest, team: Parallel) -> PassResult:
        """Save the dual variables, and make a pass."""
        for own in self.rows:
            np.copyto(own.before, own.piece.alpha)
        return self.solver.run(r, request, team)

    def shorten(self, length: float, loss: MarginLoss) -> None:
        """Shorten the steps of the pass to this share."""
        for own in self.rows:
            alpha = own.piece.alpha
            # Clipped: a share of a step may round beyond a bound.
            np.add(own.before, length * (alpha - own.before), out=alpha)
            loss.clip(alpha, own.piece.targets)


class GroupedSolver:
    """Improves a member's dual variables by several solvers at once, each on its share of chunks.

    Parameters
    ----------
    solvers : sequence of DualSolver
        One for each group, at least two.
    loss : MarginLoss
    searches : bool
        Scale the groups' steps by the line search, and adapt their damping to it; otherwise add
        them whole, which is safe with sigma' at its safe value.
    caches : mapping, optional
        The solvers' shared caches of all chunks. With it, chunks are reassigned in each pass, as to
        members with two holders: groups that always have the same rows take many more passes.
        Without it, chunks stay in their group while no chunk comes or goes.
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
        self._pieces: tuple[Piece, ...] = ()
        self._rows: list[_Rows] = []
        self._streams = False
        self._weight = 0.0
        self._aggregation = Aggregation(gamma=None if searches else 1.0, adapts=searches)

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Set the rows to work on, see :meth:`LocalSolver.bind`."""
        if chunk_pointers.is_same(self._pieces, pieces):
            return
        self._pieces = tuple(pieces)
        self._weight = chunk_pointers.total_weight(pieces)
        self._streams = store_of([piece.chunk for piece in pieces]) is not None
        sized = [] if self._streams else [(piece, piece.alpha.size) for piece in pieces]
        self._rows = [_Rows(piece, np.empty(n), n) for piece, n in sized]
        if self._caches is not None:
            keys = {(piece.chunk.id, piece.chunk.content_id) for piece in pieces}
            for key in self._caches.keys() - keys:
                del self._caches[key]

    def _deal(self, seed: int, serial: int) -> int:
        """Assign chunks of about as many rows to each group; return how many have weight."""
        draw = 0 if self._caches is None else mix_hash(seed, serial)
        order = sorted(
            self._rows, key=lambda own: mix_hash(draw, zlib.crc32(str(own.piece.chunk.id).encode()))
        )
        shares = runs(order, len(self._groups))
        for k, group in enumerate(self._groups):
            group.take(shares[k] if k < len(shares) else [])
        return sum(1 for group in self._groups if group.weight > 0.0)

    def run(self, v: F64, request: PassRequest, parallel: Parallel) -> PassResult:
        """Visit the rows in one inner round per epoch.

        Parameters are those of :meth:`LocalSolver.run`. The bits of the result depend on the
        number of groups and of each one's threads, not on which thread does the work; with no more
        threads than groups, on the groups alone.

        Returns
        -------
        PassResult
            Its counts include sub-epochs that were undone.
        """
        if self._weight <= 0.0:
            return PassResult(dv=np.zeros(v.size), groups=0, dampings=0.0)
        if self._streams:
            # A member has one reader: rows that stream all go to the first group, with all threads.
            for group in self._groups[1:]:
                group.take([])
            only = self._groups[0].solver
            only.bind(self._pieces)
            return only.run(v, request, parallel)
        n_filled = self._deal(request.seed, request.serial)
        # The very first steps are damped to the safe value on every level.
        is_first = not v.any() and not any(piece.alpha.any() for piece in self._pieces)
        if is_first:
            request = replace(request, damping=1.0)
        whole = request.sigma_of(self._weight)
        total, gaps = PassResult(dv=np.zeros(v.size)), []
        for inner, (_, _, start), share in request.turns():
            r = v if inner == 0 else v + whole * total.dv
            one = replace(request, epochs=share, start=start)
            is_safe = is_first and inner == 0
            done = self._inner_round(r, whole, one, n_filled, parallel, is_safe=is_safe)
            total = total.plus(done)
            gaps.append(done.gap)
            if request.is_solved(gaps):
                break
        return total

    def _inner_round(
        self,
        r: F64,
        whole: float,
        one: PassRequest,
        n_filled: int,
        parallel: Parallel,
        *,
        is_safe: bool,
    ) -> PassResult:
        """Run a pass of all groups from the same model, and merge their steps by the line search.

        Parameters
        ----------
        r : ndarray (D,)
            The member's model, in which its steps so far count sigma' times.
        whole : float
            The member's sigma', without the factor of its groups.
        one : PassRequest
            The request for this epoch of the member.
        n_filled : int
            Groups with weight.
        is_safe : bool
            Damp the groups to the safe sigma'.
        """
        between = 1.0 if is_safe else self._aggregation.damping
        sigma = whole * max(1.0, between * n_filled)

        def work(k: int, team: Parallel) -> PassResult:
            group = self._groups[k]
            damping = min(1.0, sigma * group.weight / one.total_weight)
            own = replace(one, damping=damping, sigma=None if one.sigma is None else sigma)
            return group.run(r, own, team)

        updates: list[PassResult] = parallel.in_teams(work, len(self._groups))
        done = functools.reduce(PassResult.plus_parallel, updates)
        product, square = products(r, done.dv)
        along = LineModel(
            slope=done.dual + done.curvature - one.l2_total * product,
            curvature=2.0 * done.curvature + one.l2_total * whole * square,
        )
        length = self._aggregation.length(along)
        self._aggregation = self._aggregation.adapted(along, n_filled)
        if length < 1.0:
            parallel.in_teams(
                lambda k, team: self._groups[k].shorten(length, self._loss), len(self._groups)
            )
            # Exact where minus the conjugates are parabolas, else from below.
            dual = length * (done.dual + done.curvature - length * done.curvature)
            curvature = length * length * done.curvature
            done = replace(done, dv=length * done.dv, dual=dual, curvature=curvature)
        # Groups are not partitions of the members' level, whose damping adapts to their number.
        return replace(done, partitions=1)
