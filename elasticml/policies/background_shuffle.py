"""Background shuffling: slowly change which members hold which chunks while rounds continue."""

from __future__ import annotations

import math
from collections.abc import Sequence

from elasticml.control.policy import Chunks, Discard, Move, Replicate, Suggestion, View
from elasticml.control.seeded_random import hash64
from elasticml.ids import ChunkId, MemberId
from elasticml.policies.load_balancing import predicted_seconds, rows_owned, seconds_per_row
from elasticml.policies.validation import PolicyOptions
from elasticml.specification.settings_model import ShareAbove0, settings_dataclass

#: Separates the draw of a chunk's first turn from the draws of its holders.
SEED_SALT = 0x511FF1E
#: A change of owner may take a member this many chunks away from the mean load.
SLACK = 2.0
#: Rounds of the median of a member's speed.
ROUNDS = 4


@settings_dataclass(finite=False, eq=False)
class GlobalShuffle(PolicyOptions):
    """Change the holders of a small share of the chunks each round, without delaying rounds.

    Every chunk has turns of ``1/share`` rounds; different chunks start theirs in different rounds.
    In a turn the body is copied to a member drawn for that turn. Once the copy has arrived, the
    oldest copy that is not the owner's is dropped. With two holders :class:`Redeal` draws the owner
    among them. With one holder the new holder becomes the owner, as soon as all members remain
    within two chunks of the mean.

    Source: the uni-task paper, section 4 (global background shuffling), which gives no rule.

    Parameters
    ----------
    share : float
        Share of the chunks copied per round, in (0, 1].

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> em.policies.GlobalShuffle().name
    'shuffle'
    """

    name = "shuffle"

    share: ShareAbove0 = 0.02

    def __post_init__(self) -> None:
        #: Whether this policy drops old copies; False if the replication policy does.
        self.discards = True
        #: Phase of each chunk's turn at round 0, in [0, 1).
        self._phases: dict[ChunkId, float] = {}

    def suggest(self, view: View) -> Sequence[Suggestion]:
        """Return the copies, changes of owner and drops of this round."""
        chunks = view.chunks
        if chunks is None or len(view.steady) <= view.holders or view.has_waited:
            # Every member holds every chunk, or there is no other member.
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
                target = draw_member(view.seed, chunk, turn, members)
                holders = [m for m in members if m in there]
                if target not in holders:
                    if begins and chunk not in view.copying:
                        copies[chunk] = target
                    continue
                if view.holders == 1 and target != owner:
                    # The change of owner waits until it keeps both members near the mean load.
                    less = load[owner] - chunks.rows(chunk) * cost[owner]
                    more = load[target] + chunks.rows(chunk) * cost[target]
                    slack = SLACK * (more - load[target])
                    if less >= middle - slack and more <= middle + slack:
                        moves[chunk] = target
                        load[owner], load[target] = less, more
                    continue
                if self.discards and len(holders) > view.holders:
                    kept = {owner, target, draw_member(view.seed, chunk, turn - 1, members)}
                    stale = [m for m in holders if m not in kept]
                    stale = stale or [m for m in holders if m not in (owner, target)]
                    if stale:
                        old.setdefault(stale[0], []).append(chunk)
        return _suggestions(chunks, copies, moves, old)

    def _turn(self, view: View, chunk: ChunkId) -> tuple[int, bool]:
        """Return the number of a chunk's turn, and whether it begins in this round."""
        phase = self._phases.get(chunk)
        if phase is None:
            phase = self._phases[chunk] = hash64(SEED_SALT, view.seed, *keys(chunk)) / 2**64
        now = view.round * self.share + phase
        return math.floor(now), math.floor(now) != math.floor(now - self.share)


def keys(chunk: ChunkId) -> tuple[int, int, int]:
    """Return the integers that seed a chunk's draws."""
    return int.from_bytes(chunk.source.encode()), chunk.block, chunk.ordinal


def draw_member(seed: int, chunk: ChunkId, turn: int, members: Sequence[MemberId]) -> MemberId:
    """Draw a member for a chunk's turn by rendezvous hashing.

    The draw does not change when other members join or leave.
    """
    return max(members, key=lambda m: hash64(seed, *keys(chunk), turn, m.slot, m.incarnation))


def _suggestions(
    chunks: Chunks,
    copies: dict[ChunkId, MemberId],
    moves: dict[ChunkId, MemberId],
    old: dict[MemberId, list[ChunkId]],
) -> list[Suggestion]:
    suggestions: list[Suggestion] = []
    if moves:
        why = f"{len(moves)} chunks to where they were copied"
        suggestions.append(Move(targets=moves, why=why))
    if copies:
        nbytes = sum(chunks.nbytes(chunk) for chunk in copies)
        why = f"background shuffle: {len(copies)} chunks, {nbytes} B, to members drawn for them"
        suggestions.append(Replicate(targets=copies, why=why))
    for member, gone in sorted(old.items()):
        why = f"{len(gone)} copies are elsewhere by now"
        suggestions.append(Discard(member=member, chunks=tuple(gone), why=why))
    return suggestions
