"""Deal chunks anew between rounds, so that no partition of the examples is ever fixed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from elasticml.control.chance import shuffled
from elasticml.control.policy import Chunks, Move, View
from elasticml.errors import ConfigError
from elasticml.policies.settings import entry_of, number
from elasticml.policies.speeds import predicted_seconds, rows_owned, seconds_per_row
from elasticml.terms import ChunkId, MemberId

AUTO = "auto"
#: Sets these draws apart from those that others make with the same seed and round.
PURPOSE = 0x5EDEA1
#: What the automatic share may cost where whole bodies move: a part of a round's seconds.
COST = 0.1
#: The automatic share at most, where whole bodies move: more is hardly better, and costs as much.
SHARE_MAX = 0.25


class Redeal:
    """Draw each chunk's owner anew before every round.

    Where chunks have two holders, a share of the chunks is dealt anew in a random order, each to
    that of its holders which is done with it first; only the state of the chunks travels. Where
    every chunk has one holder, a share of the chunks changes hands between members at random,
    with their bodies. Either way members end with the same predicted time: examples times the
    median of the seconds per example over the last ``rounds`` rounds.

    Source: ours; the uni-task paper (section 4) shuffles chunks in the background for the same
    reason. On fixed partitions CoCoA's gap has a knee that dealing anew takes away.

    Parameters
    ----------
    share : float or "auto"
        Share of the chunks that is dealt anew in a round, 0 to 1. "auto": all in a job with two
        holders; else as many as move in a tenth of a round, at most a quarter. The setting
        ``redeal_share``, where another policy has tuned it, goes before it.
    rounds : int
        Rounds that the median looks back, >= 1.

    Raises
    ------
    ConfigError
        When a setting is out of its range.
    """

    name = "redeal"

    def __init__(self, *, share: float | str = AUTO, rounds: int = 8) -> None:
        if isinstance(share, str) and share != AUTO:
            raise ConfigError(
                f"{self.name}.share: got {share!r}, wanted 'auto' or a number from 0 to 1",
                key="share",
            )
        if share != AUTO:
            number(self.name, "share", share, high=1)
        number(self.name, "rounds", rounds, low=1, whole=True)
        self.share = share
        self.rounds = rounds

    @property
    def draws_all(self) -> bool:
        """Whether in a job with two holders all chunks are drawn anew."""
        return self.share in (AUTO, 1)

    def entry(self) -> dict[str, object]:
        """Write the policy as a job record has it."""
        return entry_of(self)

    def suggest(self, view: View) -> Sequence[Move]:
        """Return this round's changes of owner."""
        chunks = view.chunks
        if chunks is None or len(view.steady) < 2 or view.has_waited:
            return []
        share = float(view.tuned.get("redeal_share", self._share(view, chunks)))
        owner = {chunk: m.id for m in view.steady for chunk in chunks.of(m.id)}
        drawn = self._drawn(view, chunks, owner, share)
        if not drawn:
            return []
        cost = seconds_per_row(view.steady, self.rounds)
        rows = {m.id: rows_owned(chunks, m.id) for m in view.steady}
        for chunk in drawn:
            rows[owner[chunk]] -= chunks.rows(chunk)
        dealt = Deal(chunks, predicted_seconds(rows, cost), cost)
        members = tuple(sorted(cost))
        for chunk in drawn:
            if view.holders > 1:
                dealt.give(chunk, sorted(m for m in chunks.holders(chunk) if m in cost))
            else:
                dealt.give(chunk, [m for m in members if m != owner[chunk]])
        if view.holders > 1:
            dealt.level()
        dealt.spare_none(owner)
        targets = {c: m for c, m in sorted(dealt.owner.items()) if m != owner[c]}
        if not targets:
            return []
        why = f"{len(targets)} of {len(owner)} chunks dealt anew, {share:.0%} drawn"
        return [Move(targets=targets, why=why)]

    def _drawn(
        self, view: View, chunks: Chunks, owner: Mapping[ChunkId, MemberId], share: float
    ) -> list[ChunkId]:
        """Choose the chunks that are dealt anew, in the order in which they are."""
        free = sorted(owner)
        if view.holders > 1:
            members = {m.id for m in view.steady}
            free = [c for c in free if len(chunks.holders(c) & members) > 1]
        else:
            # A member with one chunk would be emptied, and count as a newcomer.
            count = {m.id: len(chunks.of(m.id)) for m in view.steady}
            free = [c for c in free if count[owner[c]] > 1]
        wanted = math.ceil(share * len(free) - 1e-9)
        return shuffled(free, view.seed, view.round, PURPOSE)[:wanted]

    def _share(self, view: View, chunks: Chunks) -> float:
        if not isinstance(self.share, str):
            return float(self.share)
        if view.holders > 1:
            return 1.0
        seconds = [m.seconds[-1] for m in view.steady if m.seconds]
        if not seconds:
            return 0.0
        # Members send side by side: what one sends is what a round waits for.
        each = max(sum(chunks.nbytes(c) for c in chunks.of(m.id)) for m in view.steady)
        affordable = COST * statistics.median(seconds) * view.move_bytes_per_s / max(each, 1)
        return min(SHARE_MAX, affordable)


class Deal:
    """Chunks being dealt: who owns which, and how long everybody will take.

    Parameters
    ----------
    chunks : Chunks
        Looks up examples and holders.
    load : mapping
        Predicted seconds of each member without the chunks that are dealt.
    cost : mapping
        Seconds that an example takes each member.
    """

    def __init__(
        self, chunks: Chunks, load: Mapping[MemberId, float], cost: Mapping[MemberId, float]
    ) -> None:
        self.chunks = chunks
        self.load = dict(load)
        self.cost = cost
        self.owner: dict[ChunkId, MemberId] = {}

    def give(self, chunk: ChunkId, members: Sequence[MemberId]) -> None:
        """Give a chunk to the member that is done with it first."""
        taker = min(members, key=lambda m: (self.load[m] + self._seconds(chunk, m), m))
        self.owner[chunk] = taker
        self.load[taker] += self._seconds(chunk, taker)

    def level(self) -> None:
        """Hand chunks on to their other holder as long as that lowers the longer of the two.

        At most as many steps are made as there are chunks.
        """
        owned: dict[MemberId, list[ChunkId]] = {m: [] for m in self.load}
        for chunk, member in self.owner.items():
            owned[member].append(chunk)
        for _ in range(len(self.owner)):
            step = next(
                (
                    found
                    for giver in sorted(self.load, key=lambda m: (-self.load[m], m))
                    if (found := self._step(giver, owned[giver])) is not None
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

    def spare_none(self, before: Mapping[ChunkId, MemberId]) -> None:
        """Give a chunk back to whoever would be left with none, and count as a newcomer.

        Where that does not help, nothing is dealt at all.
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

    def _step(self, giver: MemberId, owned: Sequence[ChunkId]) -> tuple[ChunkId, MemberId] | None:
        """Find the chunk of a member whose other holder would be done soonest with it."""
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
