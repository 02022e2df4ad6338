"""The policies' decisions and their reasons, for the page's table and the table of rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from elasticml.report.markup import table_html
from elasticml.report.run_reader import Record, finite
from elasticml.report.series import rounds_of

#: Suggestions that may occur in every round; those of one policy are summed up in one entry.
_OFTEN = ("Move", "Replicate", "Discard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision, or several of one kind that a policy took in successive rounds."""

    first_round: float
    last_round: float
    at_s: float
    policy: str
    #: A short description.
    what: str
    #: The policy's reason; of several decisions that of the last one.
    why: str
    count: int = 1

    #: The decision is of a kind that may occur in every round.
    is_often: bool = False

    @property
    def rounds(self) -> str:
        """The round, or the first and the last round, as text."""
        if math.isnan(self.first_round):
            return ""
        if self.last_round == self.first_round:
            return f"{self.first_round:.0f}"
        return f"{self.first_round:.0f} to {self.last_round:.0f}"


def decisions(records: Sequence[Record]) -> tuple[Decision, ...]:
    """List the policies' decisions in order of their beginning, with chunk moves summed up."""
    taken: list[Decision] = []
    # Index of the entry to which the next decision of a policy and kind is added.
    open_at: dict[tuple[str, str], int] = {}
    chunks: dict[int, float] = {}
    for record, number in zip(records, rounds_of(records), strict=True):
        if record["event"] != "PolicyDecided":
            continue
        policy, kind = str(record.get("policy")), str(record.get("suggestion"))
        place = open_at.get((policy, kind))
        if kind in _OFTEN and place is not None:
            chunks[place] += finite(record.get("chunks"), 0.0)
            old = taken[place]
            taken[place] = Decision(
                first_round=old.first_round,
                last_round=number,
                at_s=old.at_s,
                policy=policy,
                what=_often(kind, chunks[place]),
                why=str(record.get("why") or ""),
                count=old.count + 1,
                is_often=True,
            )
            continue
        if kind in _OFTEN:
            open_at[policy, kind] = len(taken)
            chunks[len(taken)] = finite(record.get("chunks"), 0.0)
        else:
            open_at.clear()  # moves after any other decision make a new entry
        what = _often(kind, chunks[len(taken)]) if kind in _OFTEN else _what(record, kind)
        taken.append(
            Decision(
                first_round=number,
                last_round=number,
                at_s=finite(record.get("t"), 0.0),
                policy=policy,
                what=what,
                why=str(record.get("why") or ""),
                is_often=kind in _OFTEN,
            )
        )
    return tuple(taken)


def decisions_section(records: Sequence[Record]) -> str:
    """Return the table of the policies' decisions and reasons; empty if there are none."""
    taken = decisions(records)
    if not taken:
        return ""
    rows = [
        [
            d.rounds,
            f"{d.at_s:,.2f} s",
            d.policy.replace("_", " "),
            d.what + (f" in {d.count} rounds" if d.count > 1 else ""),
            d.why,
        ]
        for d in taken
    ]
    names = ["round", "from", "policy", "what it did", "why"]
    return (
        "<section><h2>What policies decided</h2>"
        f"{table_html(names, rows, ['words'] * len(rows))}</section>"
    )


def decided_by_round(records: Sequence[Record]) -> dict[float, str]:
    """Describe briefly the decisions before each round, except moves of chunks."""
    by_round: dict[float, list[str]] = {}
    for decision in decisions(records):
        if decision.count == 1 and not decision.is_often:
            by_round.setdefault(decision.first_round, []).append(
                f"{decision.policy.replace('_', ' ')} {decision.what}"
            )
    return {number: "; ".join(texts) for number, texts in by_round.items()}


def _often(kind: str, chunks: float) -> str:
    n = f"{chunks:,.0f} chunk{'' if chunks == 1 else 's'}"
    return {"Move": f"moved {n}", "Replicate": f"copied {n}", "Discard": "dropped copies"}[kind]


def _what(record: Record, kind: str) -> str:
    members = record.get("members")
    n = len(members) if isinstance(members, list) else 0
    match kind:
        case "Retire":
            return f"gave back {n} member{'' if n == 1 else 's'}"
        case "Request":
            return f"asked for {finite(record.get('count'), 0.0):.0f} more"
        case "Tune":
            value = record.get("value")
            shown = f"{value:.4g}" if isinstance(value, float) else str(value)
            return f"set {record.get('setting')} to {shown}"
        case "Readmit":
            return "brought absent chunks back"
    return kind.lower()
