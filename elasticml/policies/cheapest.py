"""Which members a job can best do without."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from elasticml.control.policy import MemberView, View
from elasticml.terms import MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What giving a member back costs."""

    member: MemberId
    #: Seconds until the bodies that nobody else holds have gone to others.
    moving_s: float
    #: Examples that others must compute from then on.
    rows: int
    #: Seconds per example over the members' median; 1 where it was never measured.
    slowness: float


def losses(view: View) -> list[Loss]:
    """List what each working member's loss costs, the cheapest first.

    First comes who has the least to send; among equals the slower one, then the one with the
    fewest examples, then the youngest.
    """
    measured = [m.seconds_per_row[-1] for m in view.working if m.seconds_per_row]
    usual = statistics.median(measured) if measured else 0.0
    found = [_loss(m, view, usual) for m in view.working]
    return sorted(
        found,
        key=lambda c: (
            c.moving_s,
            -c.slowness,
            c.rows,
            -c.member.incarnation,
            -c.member.slot,
        ),
    )


def cheapest(view: View, count: int) -> tuple[MemberId, ...]:
    """Name the members that a job can best do without, ``count`` of them, the cheapest first."""
    return tuple(found.member for found in losses(view)[:count])


def _loss(member: MemberView, view: View, usual: float) -> Loss:
    chunks = view.chunks
    alone = 0
    if chunks is not None:
        others = {m.id for m in view.working if m != member}
        owned = chunks.of(member.id)
        alone = sum(chunks.nbytes(c) for c in owned if not others & chunks.holders(c))
    per_row = member.seconds_per_row[-1] if member.seconds_per_row else usual
    return Loss(
        member=member.id,
        moving_s=alone / view.move_bytes_per_s,
        rows=member.rows,
        slowness=per_row / usual if usual > 0 else 1.0,
    )
