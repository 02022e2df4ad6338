"""Which members cost least to give back."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from elasticml.control.policy import MemberView, View
from elasticml.terms import MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The cost of giving a member back."""

    member: MemberId
    #: Seconds to send the chunk bodies that no other member holds.
    moving_s: float
    #: Examples that the others take over.
    rows: int
    #: Seconds per example relative to the members' median; 1 if not measured.
    slowness: float


def losses(view: View) -> list[Loss]:
    """List the cost of giving back each working member, cheapest first.

    The order is by time to send, then the slowest, then the fewest examples, then the youngest.
    """
    measured = [m.seconds_per_row[-1] for m in view.working if m.seconds_per_row]
    median = statistics.median(measured) if measured else 0.0
    return sorted(
        (_cost(m, view, median) for m in view.working),
        key=lambda c: (
            c.moving_s,
            -c.slowness,
            c.rows,
            -c.member.incarnation,
            -c.member.slot,
        ),
    )


def cheapest(view: View, count: int) -> tuple[MemberId, ...]:
    """Return the ``count`` members that cost least to give back, cheapest first."""
    return tuple(cost.member for cost in losses(view)[:count])


def _cost(member: MemberView, view: View, median: float) -> Loss:
    chunks = view.chunks
    unique_bytes = 0
    if chunks is not None:
        others = {m.id for m in view.working if m != member}
        owned = chunks.of(member.id)
        unique_bytes = sum(chunks.nbytes(c) for c in owned if not others & chunks.holders(c))
    per_row = member.seconds_per_row[-1] if member.seconds_per_row else median
    return Loss(
        member=member.id,
        moving_s=unique_bytes / view.move_bytes_per_s,
        rows=member.rows,
        slowness=per_row / median if median > 0 else 1.0,
    )
