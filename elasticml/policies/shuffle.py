"""Shuffle the whole data set slowly, in the background, while rounds go on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from elasticml.control.chance import hashed
from elasticml.control.policy import Chunks, Discard, Move, Replicate, Suggestion, View
from elasticml.policies.settings import entry_of, number
from elasticml.policies.speeds import predicted_seconds, rows_owned, seconds_per_row
from elasticml.terms import ChunkId, MemberId

#: Sets the draw of a chunk's first turn apart from those of its holders.
PURPOSE = 0x511FF1E
#: Chunks by which a change of owner may put a member beside the mean.
SLACK = 2.0
#: Rounds that the median of a member's speed looks back.
ROUNDS = 4


class GlobalShuffle:
    """Change who holds the chunks, a small share each round, without a round waiting for it.

    Every chunk has turns of ``1/share`` rounds, each chunk's beginning in another round. In a turn
    the body is copied to a member drawn for it; once the copy is there, the oldest one goes that
    is not the owner's. With two holders :class:`Redeal` draws the owner among them; with one the
    owner changes to the new holder, as soon as all members stay within two chunks of the mean.

    Source: the uni-task paper, section 4 (global background shuffling), which gives no rule.

    Parameters
    ----------
    share : float
        Share of the chunks copied in a round, in (0, 1].

    Raises
    ------
    ConfigError
        When a setting is out of its range.
    """

    name = "shuffle"

    def __init__(self, *, share: float = 0.02) -> None:
        number(self.name, "share", share, high=1, above=True)
        self.share = share
        #: Old copies are this policy's to drop; not where another one keeps the number of holders.
        self.discards = True
        #: Where in its turn each chunk was at round 0.
        self._starts: dict[ChunkId, float] = {}

    def entry(self) -> dict[str, object]:
        """Write the policy as a job record has it."""
        return entry_of(self)

    def suggest(self, view: View) -> Sequence[Suggestion]:
        """Return this round's copies, changes of owner and copies that are no longer wanted."""
        chunks = view.chunks
        if chunks is None or len(view.steady) <= view.holders or view.has_waited:
            # Everybody holds everything, or there is nobody to change with.
            return []
        members = sorted(m.id for m in view.steady)
        copies: dict[ChunkId, MemberId] = {}
        moves: dict[ChunkId, MemberId] = {}
        old: dict[MemberId, list[ChunkId]] = {}
        cost = seconds_per_row(view.steady, ROUNDS)
        load = predicted_seconds({m: rows_owned(chunks, m) for m in members}, cost)
        middle = sum(load.values()) / len(load)
        for owner in members:
            for chunk in chunks.of(owner):
                turn, begins = self._turn(view, chunk)
                there = chunks.holders(chunk)
                if not begins and len(there) <= view.holders:
                    continue
                wanted = drawn(view.seed, chunk, turn, members)
                holders = [m for m in members if m in there]
                if wanted not in holders:
                    if begins and chunk not in view.copying:
                        copies[chunk] = wanted
                    continue
                if view.holders == 1 and wanted != owner:
                    # A copy waits until nobody gets far from the others by it.
                    less = load[owner] - chunks.rows(chunk) * cost[owner]
                    more = load[wanted] + chunks.rows(chunk) * cost[wanted]
                    slack = SLACK * (more - load[wanted])
                    if less >= middle - slack and more <= middle + slack:
                        moves[chunk] = wanted
                        load[owner], load[wanted] = less, more
                    continue
                if self.discards and len(holders) > view.holders:
                    kept = {owner, wanted, drawn(view.seed, chunk, turn - 1, members)}
                    stale = [m for m in holders if m not in kept]
                    stale = stale or [m for m in holders if m not in (owner, wanted)]
                    if stale:
                        old.setdefault(stale[0], []).append(chunk)
        return _suggestions(chunks, copies, moves, old)

    def _turn(self, view: View, chunk: ChunkId) -> tuple[int, bool]:
        """Return the number of a chunk's turn, and whether it begins in this round."""
        start = self._starts.get(chunk)
        if start is None:
            start = self._starts[chunk] = hashed(PURPOSE, view.seed, *keys(chunk)) / 2**64
        now = view.round * self.share + start
        return math.floor(now), math.floor(now) != math.floor(now - self.share)


def keys(chunk: ChunkId) -> tuple[int, int, int]:
    """Return what a chunk's draws go by."""
    return int.from_bytes(chunk.source.encode()), chunk.block, chunk.ordinal


def drawn(seed: int, chunk: ChunkId, turn: int, members: Sequence[MemberId]) -> MemberId:
    """Draw a member for a chunk's turn; the draw stays when other members come or go."""
    return max(members, key=lambda m: hashed(seed, *keys(chunk), turn, m.slot, m.incarnation))


def _suggestions(
    chunks: Chunks,
    copies: dict[ChunkId, MemberId],
    moves: dict[ChunkId, MemberId],
    old: dict[MemberId, list[ChunkId]],
) -> list[Suggestion]:
    found: list[Suggestion] = []
    if moves:
        found.append(Move(targets=moves, why=f"{len(moves)} chunks to where they were copied"))
    if copies:
        nbytes = sum(chunks.nbytes(chunk) for chunk in copies)
        why = f"background shuffle: {len(copies)} chunks, {nbytes} B, to members drawn for them"
        found.append(Replicate(targets=copies, why=why))
    for member, gone in sorted(old.items()):
        why = f"{len(gone)} copies are elsewhere by now"
        found.append(Discard(member=member, chunks=tuple(gone), why=why))
    return found
