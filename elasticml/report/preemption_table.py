"""A plain-text table of preempted containers and their times."""

from __future__ import annotations

from collections.abc import Sequence

from elasticml.report.preemptions import Container, containers
from elasticml.report.run import Record

_HEADS = ("member", "what", "notice", "SIGTERM", "chunks safe", "lost", "stand-in", "round", "back")
_WHAT = {
    "marked": "asked for",
    "substitute": "given",
    "stayed": "asked for, stayed",
    "leaver": "asked for, left",
    "gone": "gone",
}


def preemption_table(records: Sequence[Record]) -> str:
    """Return the table of containers in order of time; empty if there is none.

    Times are seconds since the job started. A stand-in is listed if chunks were lost with the
    member. The round is the first complete one after the loss, or after the notice without a loss.
    """
    listed = containers(records)
    if not listed:
        return ""
    lines = [_HEADS, *(_cells(container) for container in listed)]
    wide = [max(len(line[j]) for line in lines) for j in range(len(_HEADS))]
    texts = [
        "  ".join(
            cell.ljust(width) if j < 2 else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(line, wide, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join(texts) + "\n"


def _cells(container: Container) -> tuple[str, ...]:
    instead_s = container.stand_in_s if container.chunks else None
    moments_s = (
        container.notice_s,
        container.stopping_s,
        container.safe_s,
        container.lost_s,
        instead_s,
        container.round_s,
        container.return_s,
    )
    return (
        container.member,
        _what(container),
        *("–" if t is None else f"{t:.2f}" for t in moments_s),
    )


def _what(container: Container) -> str:
    what, other = _WHAT[container.role], container.given_for
    if not other:
        return what
    if container.role != "substitute":
        return f"{what}, given for {other}"  # marked itself, and given in place of another one
    return f"{what} for {other}" if container.lost_s is not None else f"was to go for {other}"
