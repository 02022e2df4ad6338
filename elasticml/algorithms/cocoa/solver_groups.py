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
from dataclasses import replace

import numpy as np

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.cocoa.chunk_pointers import Piece, total_weight
from elasticml.algorithms.cocoa.damping import Aggregation
from elasticml.algorithms.cocoa.line_search import LineModel, products
from elasticml.algorithms.cocoa.local_pass import DualSolver, PassRequest, PassResult
from elasticml.algorithms.cocoa.permutation import mix_hash
from elasticml.algorithms.parallel import runs
from elasticml.arrays import F64
from elasticml.data.out_of_core.store import store_of
from elasticml.objectives.loss_kernels import MarginLoss


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
    redeals : bool
        Reassign chunks in each pass, as to members with two holders: groups that always have the
        same rows take many more passes. Otherwise chunks stay in their group while no chunk comes
        or goes.
    """

    def __init__(
        self,
        solvers: Sequence[DualSolver],
        *,
        loss: MarginLoss,
        searches: bool,
        redeals: bool = False,
    ) -> None:
        self._loss, self._solvers, self._redeals = loss, list(solvers), redeals
        self._pieces: Sequence[Piece] = ()
        self._aggregation = Aggregation(gamma=None if searches else 1.0, adapts=searches)

    def bind(self, pieces: Sequence[Piece]) -> None:
        """Set the rows to work on, see :meth:`LocalSolver.bind`."""
        self._pieces = pieces

    def _deal(self, seed: int, serial: int) -> list[Sequence[Piece]]:
        """Return each group's chunks, which have about as many rows."""
        draw = mix_hash(seed, serial) if self._redeals else 0
        order = sorted(
            self._pieces, key=lambda own: mix_hash(draw, zlib.crc32(str(own.chunk.id).encode()))
        )
        dealt = runs(order, len(self._solvers))
        return [*dealt, *([[]] * (len(self._solvers) - len(dealt)))]

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
        weight = total_weight(self._pieces)
        if weight <= 0.0:
            return PassResult(dv=np.zeros(v.size))
        if store_of([piece.chunk for piece in self._pieces]) is not None:
            # A member has one reader: rows that stream all go to the first group, with all threads.
            for solver in self._solvers[1:]:
                solver.bind([])
            self._solvers[0].bind(self._pieces)
            return self._solvers[0].run(v, request, parallel)
        dealt = self._deal(request.seed, request.serial)
        for solver, pieces in zip(self._solvers, dealt, strict=True):
            solver.bind(pieces)
        whole = request.sigma_of(weight)
        total, gaps = PassResult(dv=np.zeros(v.size)), []
        for inner, (_, _, start), share in request.turns():
            r = v if inner == 0 else v + whole * total.dv
            one = replace(request, epochs=share, start=start)
            done = self._inner_round(r, whole, one, dealt, parallel)
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
        dealt: Sequence[Sequence[Piece]],
        parallel: Parallel,
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
        dealt : sequence of sequence of Piece
            The rows of each group.
        """
        weights = [total_weight(pieces) for pieces in dealt]
        n_filled = sum(1 for weight in weights if weight > 0.0)
        sigma = whole * max(1.0, self._aggregation.damping * n_filled)

        def work(k: int, team: Parallel) -> tuple[PassResult, list[F64]]:
            before = [piece.alpha.copy() for piece in dealt[k]]
            damping = min(1.0, sigma * weights[k] / one.total_weight)
            own = replace(one, damping=damping, sigma=None if one.sigma is None else sigma)
            return self._solvers[k].run(r, own, team), before

        updates: list[tuple[PassResult, list[F64]]] = parallel.in_teams(work, len(dealt))
        done = functools.reduce(PassResult.plus_parallel, [update for update, _ in updates])
        product, square = products(r, done.dv)
        along = LineModel(
            slope=done.dual + done.curvature - one.l2_total * product,
            curvature=2.0 * done.curvature + one.l2_total * whole * square,
        )
        length = self._aggregation.length(along)
        self._aggregation = self._aggregation.adapted(along, n_filled)
        if length < 1.0:
            for pieces, (_, before) in zip(dealt, updates, strict=True):
                for piece, old in zip(pieces, before, strict=True):
                    # Clipped: a share of a step may round beyond a bound.
                    np.add(old, length * (piece.alpha - old), out=piece.alpha)
                    self._loss.clip(piece.alpha, piece.targets)
            # Exact where minus the conjugates are parabolas, else from below.
            dual = length * (done.dual + done.curvature - length * done.curvature)
            curvature = length * length * done.curvature
            done = replace(done, dv=length * done.dv, dual=dual, curvature=curvature)
        # Groups are not partitions of the members' level, whose damping adapts to their number.
        return replace(done, partitions=1)
