"""Straggler mitigation: move work at once away from a member far slower than the others."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from elasticml.control.policy import MemberView, Move, View
from elasticml.ids import ChunkId, MemberId
from elasticml.policies.load_balancing import (
    LAST_CHUNK_MAX,
    assign_greedily,
    predicted_seconds,
    rows_owned,
    seconds_per_row,
    slowdown,
)
from elasticml.policies.validation import PolicyOptions
from elasticml.specification.settings_model import KEEP_INT, Count, settings_dataclass


@settings_dataclass(finite=False, eq=False)
class Straggler(PolicyOptions):
    """Take from a straggler the chunks that it cannot compute in the median time.

    A member is a straggler when each of its last ``confirm`` rounds took more than ``factor`` times
    the other members' median of that round. A member that computes as fast and answers more than
    three times as late, because its process gets little of a processor or its link is slow, counts
    by its answers. It keeps as many examples as it computes in the median time, and at least one
    chunk, unless that takes it more than three times the median. The others take the rest at once,
    balanced among them. A member without chunks is measured again now and then, by one chunk.

    Source: the uni-task paper, section 4 (straggler mitigation), which gives no rule. A member
    that does not answer at all is handled by the exchange deadline instead.

    Parameters
    ----------
    factor : float
        Multiple of the median, > 1.
    confirm : int
        Consecutive rounds, >= 1.

    Raises
    ------
    ConfigError
        When a setting is out of range.

    Examples
    --------
    >>> em.policies.Straggler().name
    'straggler'
    """

    name = "straggler"

    factor: Annotated[float, Field(gt=1), KEEP_INT] = 3.0
    confirm: Count = 2

    def suggest(self, view: View) -> Sequence[Move]:
        """Return one move for each straggler."""
        chunks = view.chunks
        if chunks is None or len(view.steady) < 2:
            return []
        slow = [m for m in view.steady if self._straggles(m, view.steady)]
        others = [m for m in view.steady if m not in slow]
        if not slow or not others:
            return []
        median_s = statistics.median([m.seconds[-1] for m in others if m.seconds] or [0.0])
        cost = seconds_per_row(others, self.confirm)
        load = predicted_seconds({m.id: rows_owned(chunks, m.id) for m in others}, cost)
        moves: list[Move] = []
        for member in sorted(slow, key=lambda m: m.id):
            # The latest round is the best estimate of its present speed.
            keep = median_s / member.seconds_per_row[-1] if member.seconds_per_row else 0.0
            excess: list[ChunkId] = []
            rows = rows_owned(chunks, member.id)
            owned = list(chunks.of(member.id))
            is_slow = slowdown(member, others) > LAST_CHUNK_MAX
            if not (owned and is_slow and keep * LAST_CHUNK_MAX < chunks.rows(owned[0])):
                owned = owned[1:]  # the first one stays
            for chunk in reversed(owned):
                if rows <= keep:
                    break
                excess.append(chunk)
                rows -= chunks.rows(chunk)
            if not excess:
                continue
            targets: dict[ChunkId, MemberId] = assign_greedily(excess, chunks, load, cost)
            for chunk, taker in targets.items():
                load[taker] += chunks.rows(chunk) * cost[taker]
            why = (
                f"member {member.id} took {member.seconds[-1]:.3g} s where the others took "
                f"{median_s:.3g} s, {self.confirm} rounds in a row"
            )
            moves.append(Move(targets=targets, why=why))
        return moves

    def _straggles(self, member: MemberView, members: Sequence[MemberView]) -> bool:
        if len(member.seconds) < self.confirm:
            return False
        for back in range(1, self.confirm + 1):
            others = [m.seconds[-back] for m in members if m != member and len(m.seconds) >= back]
            if not others or member.seconds[-back] <= self.factor * statistics.median(others):
                return False
        return True
