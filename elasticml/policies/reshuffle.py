"""Reshuffling: reassign chunks to members between rounds, so that no partition is fixed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from elasticml.control.policy import Chunks, Move, View
from elasticml.control.seeded_random import shuffled
from elasticml.ids import ChunkId, MemberId
from elasticml.policies.load_balancing import predicted_seconds, rows_owned, seconds_per_row
from elasticml.policies.validation import PolicyOptions
from elasticml.specification.settings_model import Count, Share, settings_dataclass

AUTO: Literal["auto"] = "auto"
#: Separates these random draws from others with the same seed and round.
SEED_SALT = 0x5EDEA1
#: With one holder, the automatic share may cost this part of a round's time.
COST = 0.1
#: With one holder, the limit of the automatic share: more costs more and is hardly better.
SHARE_MAX = 0.25
#: With two holders, each member's chunks that are always reassigned, for each round of a period.
EACH = 64
#: And those whose states move in this part of a round. With many more rows than columns a member
#: solves its part in a round, and only a reassignment brings the next gain.
STATES_COST = 0.5
#: Rounds between reassignments, at most, if members have more chunks: members prepare all their
#: chunks again after each, which takes longer than a round if these are thousands and small.
PERIOD_MAX = 8
#: Seconds that the move of a chunk's state takes, of driver and members together.
STATE_S = 2e-4


@settings_dataclass(finite=False, eq=False)
class Redeal(PolicyOptions):
    """Reassign chunks to owners before every round.

    If chunks have two holders, a share of the chunks is reassigned in random order, each to the
    holder that finishes it first; only the chunks' state travels. If chunks have one holder, a
    share of the chunks moves to other members in random order, bodies included. Either way the
    members end with equal predicted times: examples times the median seconds per example over the
    last ``rounds`` rounds.

    Source: ours; the uni-task paper (section 4) shuffles chunks in the background for the same
    reason. On fixed partitions CoCoA's gap has a knee, which reshuffling removes.

    Parameters
    ----------
    share : float or "auto"
        Share of the chunks reassigned per round, 0 to 1. "auto" with two holders: all. If members
        have more than 64 chunks, 64 per member and round, and at least as many as can move in a
        tenth of a round; up to 8 rounds' chunks are reassigned together. "auto" with one holder: as
        many as can move in a tenth of a round, at most a quarter. The setting ``redeal_share``, if
        another policy has tuned it, takes precedence.
    rounds : int
        Rounds of the median, >= 1.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> again = {"policies": [em.policies.Redeal()], "holders": 2, "stop": stop}
    >>> job = em.Job(em.CoCoA(), em.from_arrays(X, y), **again)
    >>> job.run(client).summary["rounds"]
    3
    """

    name = "redeal"

    share: Share | Literal["auto"] = AUTO
    rounds: Count = 8

    @property
    def draws_all(self) -> bool:
        """Whether all chunks are reassigned in a job with two holders."""
        return self.share in (AUTO, 1)

    def suggest(self, view: View) -> Sequence[Move]:
        """Return this round's changes of owner."""
        chunks, steady = view.chunks, view.steady
        if chunks is None or len(steady) < 2 or view.has_waited:
            return []
        share = float(view.tuned.get("redeal_share", self._share(view, chunks)))
        if share == 0.0:
            return []
        owner = {chunk: m.id for m in steady for chunk in chunks.of(m.id)}
        if len(owner) <= len(set(owner.values())):
            # With one chunk each, all assignments have the same partitions.
            return []
        drawn = self._draw(view, chunks, owner, share)
        if not drawn:
            return []
        cost = seconds_per_row(steady, self.rounds)
        rows = {m.id: rows_owned(chunks, m.id) for m in steady}
        for chunk in drawn:
            rows[owner[chunk]] -= chunks.rows(chunk)
        assignment = Assignment(chunks, predicted_seconds(rows, cost), cost)
        members = tuple(sorted(cost))
        for chunk in drawn:
            if view.holders > 1:
                assignment.give(chunk, sorted(m for m in chunks.holders(chunk) if m in cost))
            else:
                assignment.give(chunk, [m for m in members if m != owner[chunk]])
        if view.holders > 1:
            assignment.balance()
        assignment.refill_emptied(owner)
        targets = {c: m for c, m in sorted(assignment.owner.items()) if m != owner[c]}
        if not targets:
            return []
        why = f"{len(targets)} of {len(owner)} chunks dealt anew, {share:.0%} drawn"
        return [Move(targets=targets, why=why)]

    def _draw(
        self, view: View, chunks: Chunks, owner: Mapping[ChunkId, MemberId], share: float
    ) -> list[ChunkId]:
        """Draw the chunks to reassign, in the order of assignment."""
        free = sorted(owner)
        if view.holders > 1:
            members = {m.id for m in view.steady}
            free = [c for c in free if len(chunks.holders(c) & members) > 1]
        else:
            # A member with one chunk would be emptied and then count as a newcomer.
            count = {m.id: len(chunks.of(m.id)) for m in view.steady}
            free = [c for c in free if count[owner[c]] > 1]
        n_drawn = math.ceil(share * len(free) - 1e-9)
        return shuffled(free, view.seed, view.round, SEED_SALT)[:n_drawn]

    def _share(self, view: View, chunks: Chunks) -> float:
        if not isinstance(self.share, str):
            return float(self.share)
        seconds = [m.seconds[-1] for m in view.steady if m.seconds]
        if view.holders > 1:
            n = sum(len(chunks.of(m.id)) for m in view.steady)
            affordable = STATES_COST * statistics.median(seconds or [0.0]) / STATE_S
            each = max(EACH * len(view.steady), affordable)
            period = max(1, min(PERIOD_MAX, math.ceil(n / each)))
            return 0.0 if view.round % period else min(1.0, period * each / max(n, 1))
        if not seconds:
            return 0.0
        # Members send in parallel: the round waits for the largest share sent by one member.
        each = max(sum(chunks.nbytes(c) for c in chunks.of(m.id)) for m in view.steady)
        affordable = COST * statistics.median(seconds) * view.move_bytes_per_s / max(each, 1)
        return min(SHARE_MAX, affordable)


class Assignment:
    """A growing assignment of chunks to owners, with each member's predicted time.

    Parameters
    ----------
    chunks : Chunks
        Looks up examples and holders.
    load : mapping
        Predicted seconds of each member without the chunks to be assigned.
    cost : mapping
        Seconds per example of each member.
    """

    def __init__(
        self, chunks: Chunks, load: Mapping[MemberId, float], cost: Mapping[MemberId, float]
    ) -> None:
        self.chunks = chunks
        self.load = dict(load)
        self.cost = cost
        self.owner: dict[ChunkId, MemberId] = {}

    def give(self, chunk: ChunkId, members: Sequence[MemberId]) -> None:
        """Assign a chunk to the member that finishes it first."""
        taker = min(members, key=lambda m: (self.load[m] + self._seconds(chunk, m), m))
        self.owner[chunk] = taker
        self.load[taker] += self._seconds(chunk, taker)

    def balance(self) -> None:
        """Pass chunks to their other holder while that lowers the longer time of the two.

        Takes at most as many steps as there are chunks.
        """
        owned: dict[MemberId, list[ChunkId]] = {m: [] for m in self.load}
        for chunk, member in self.owner.items():
            owned[member].append(chunk)
        for _ in range(len(self.owner)):
            step = next(
                (
                    step
                    for giver in sorted(self.load, key=lambda m: (-self.load[m], m))
                    if (step := self._best_step(giver, owned[giver])) is not None
                ),
                None,
            )
            if step is None:
                return
            chunk, taker = step
            giver = self.owner[chunk]
            owned[giver].remove(chunk)
            owned[taker].append(chunk)
            self.owner[chunk] = taker
            self.load[giver] -= self._seconds(chunk, giver)
            self.load[taker] += self._seconds(chunk, taker)

    def refill_emptied(self, before: Mapping[ChunkId, MemberId]) -> None:
        """Return a chunk to each member without any, which would count as a newcomer.

        If some member remains without chunks, the whole assignment is dropped.
        """
        after = {**before, **self.owner}
        count = dict.fromkeys(self.load, 0)
        for member in after.values():
            count[member] += 1
        for chunk in sorted(self.owner):
            former, taker = before[chunk], self.owner[chunk]
            if count[former] == 0 and count[taker] > 1:
                self.owner[chunk] = former
                count[former] += 1
                count[taker] -= 1
        if any(count[member] == 0 for member in before.values()):
            self.owner = {}

    def _best_step(
        self, giver: MemberId, owned: Sequence[ChunkId]
    ) -> tuple[ChunkId, MemberId] | None:
        """Return the chunk of a member whose other holder would finish it soonest."""
        best: tuple[float, ChunkId, MemberId] | None = None
        for chunk in owned:
            for taker in self.chunks.holders(chunk):
                if taker == giver or taker not in self.load:
                    continue
                done = self.load[taker] + self._seconds(chunk, taker)
                gain = self.load[giver] - done
                if gain > 1e-9 * self.load[giver] and (best is None or (done, chunk, taker) < best):
                    best = (done, chunk, taker)
        return (best[1], best[2]) if best else None

    def _seconds(self, chunk: ChunkId, member: MemberId) -> float:
        return max(self.chunks.rows(chunk), 1) * self.cost[member]
