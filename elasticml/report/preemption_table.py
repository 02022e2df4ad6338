"""The containers that a cluster took, and when, as a table of plain text."""

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
    """Tabulate containers in the order of their times; empty where none was asked for.

    Seconds since the job began. A stand-in comes where chunks went with the member; the round is
    the first one that was complete after the loss, or the notice where there was none.
    """
    found = containers(records)
    if not found:
        return ""
    lines = [_HEADS, *(_cells(container) for container in found)]
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
        return f"{what}, given for {other}"  # asked for, it went for another that is
    return f"{what} for {other}" if container.lost_s is not None else f"was to go for {other}"
