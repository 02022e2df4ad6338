"""What has happened to a run's members, read from its story: as faults that can be planned again.

By round, not by second: a virtual world keeps its own time, in which a round takes as long as it is
made to; who was there in which round, and in which exchange of it a member was missing for the
first time, is what the model depends on.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticml.errors import ConfigError
from elasticml.report.run import Record, finite

#: Reasons of losses that are no history: a policy's own doing, and the end.
_OWN = ("retired", "job ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A run's losses and returns."""

    #: Entries as in a job record's ``faults``, by round.
    faults: tuple[dict[str, Any], ...]
    lost: int
    returned: int
    #: What of the history these entries do not say.
    notes: tuple[str, ...] = ()


def past_of(records: Sequence[Record]) -> Past:
    """Read who was lost, who had a notice, and who came back, each with its round.

    A loss stands in the exchange whose sum lacked the member for the first time; a notice in the
    round in which it came; a return in the round in which the newcomer first took part.

    Raises
    ------
    ConfigError
        When the story does not tell of one life of the job.
    """
    if any(record["event"] == "JobResumed" for record in records):
        raise ConfigError(
            "what-if: the run went on from a checkpoint, and its members ended with their "
            "scheduler; what would have happened to one job cannot be simulated from it"
        )
    first = next((k for k, r in enumerate(records) if r["event"] == "RoundStarted"), len(records))
    told: dict[str, Record] = {}
    faults: list[dict[str, Any]] = []
    came: dict[str, int | None] = {}
    lost: set[str] = set()
    retired = requested = answered = 0
    for k, record in enumerate(records[first:], start=first):
        member, event = str(record.get("member")), record["event"]
        if event == "MemberNoticed":
            told[member] = record
        elif event == "Reclaimed" and record.get("given"):
            told.setdefault(str(record["given"]), record)
        elif event == "MemberLost" and record.get("reason") not in _OWN and member not in lost:
            lost.add(member)
            # One that had nothing left went by its notice, whatever took its container then.
            is_empty = not int(finite(record.get("chunks"), 0.0))
            faults.append(
                _noticed(told.get(member, record), _slot(member))
                if is_empty
                else _killed(records, k, _slot(member))
            )
        elif event == "MemberLost" and record.get("reason") == "retired":
            retired += 1
        elif event == "PolicyDecided" and record.get("suggestion") == "Request":
            requested += int(finite(record.get("count"), 0.0))
        elif event == "MemberJoined" and requested > answered:
            # First come, first counted: what policies asked for they ask for again.
            answered += 1
        elif event == "MemberJoined":
            came[member] = None
        elif event == "MemberActive" and member in came:
            came[member] = _round(record)
    took_part = [number for number in came.values() if number is not None]
    for number in sorted(set(took_part)):
        faults.append({"round": number, "return": took_part.count(number)})
    notes = []
    early = sum(r["event"] == "MemberLost" for r in records[:first])
    if early:
        notes.append(f"{early} lost while the data were loaded stay, here")
    if len(took_part) < len(came):
        notes.append(f"{len(came) - len(took_part)} newcomers that never took part are left out")
    if answered:
        notes.append(f"{answered} newcomers that policies asked for are left to the policies")
    if retired:
        notes.append(f"{retired} members that policies gave back are left to the policies")
    faults = _together(faults)
    return Past(faults=tuple(faults), lost=len(lost), returned=len(took_part), notes=tuple(notes))


def _slot(member: str) -> int:
    return int(member.split(".")[0])


def _round(record: Record) -> int:
    return int(finite(record.get("round"), 0.0))


def _noticed(record: Record, slot: int) -> dict[str, Any]:
    return {
        "round": _round(record),
        "phase": "broadcast",
        "lose": [slot],
        "how": "notice",
        # It went because it was empty, not at its deadline: virtual rounds are of other lengths.
        "grace": 1e6,
    }


def _killed(records: Sequence[Record], k: int, slot: int) -> dict[str, Any]:
    """Place a loss in the first exchange of its round that lacked the member, or at its end."""
    number = _round(records[k])
    entry = {"round": number, "phase": "apply", "lose": [slot], "how": "kill", "grace": 0.0}
    before = sum(_is_exchange(r, number) for r in records[:k])
    for place, exchange in enumerate(_exchanges(records[k:], number), start=before):
        if not int(str(exchange["contributors"]), 16) >> slot & 1:
            return entry | {"phase": "broadcast", "exchange": place}
    return entry


def _is_exchange(record: Record, number: int) -> bool:
    return record["event"] == "ExchangeEnded" and _round(record) == number


def _exchanges(records: Sequence[Record], number: int) -> Iterator[Record]:
    """Go through the exchanges of a round, up to its end."""
    for record in records:
        if record["event"] == "RoundEnded":
            return
        if _is_exchange(record, number):
            yield record


def _together(faults: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make one entry of members that go in the same way at the same place; by round."""
    made: dict[tuple[Any, ...], dict[str, Any]] = {}
    for k, fault in enumerate(faults):
        key = tuple(fault.get(name) for name in ("round", "phase", "exchange", "how"))
        if "lose" not in fault or key not in made:
            made[key if "lose" in fault else ("return", k)] = dict(fault)
        else:
            made[key]["lose"] = sorted({*made[key]["lose"], *fault["lose"]})
    return sorted(made.values(), key=lambda f: (f["round"], f.get("exchange", 0), "return" in f))


def members_of(records: Sequence[Record]) -> int:
    """Count the slots with which the first round began; 0 where the story does not tell."""
    for record in records:
        if record["event"] == "RoundStarted" and record.get("rows"):
            return 1 + max(int(slot) for slot in record["rows"])
    return 0


def pace_of(records: Sequence[Record]) -> dict[str, Any]:
    """Measure how long members computed and exchanges took: options of a like virtual world.

    Returns
    -------
    dict
        ``compute_s`` (seconds per example) and ``overhead_s``, each by operation, as far as the
        story tells; empty where it does not.
    """
    rows: Mapping[str, Any] = {}
    per_row: dict[str, list[float]] = {}
    overhead: dict[str, list[float]] = {}
    for record in records:
        if record["event"] == "RoundStarted" and record.get("rows"):
            rows = record["rows"]
        seconds = record.get("compute_s")
        if record["event"] != "ExchangeEnded" or not seconds:
            continue
        operation = str(record.get("operation"))
        each = [s / rows[slot] for slot, s in seconds.items() if rows.get(slot)]
        if each:
            per_row.setdefault(operation, []).append(statistics.median(each))
        took_s = finite(record.get("t")) - finite(record.get("start_t"))
        overhead.setdefault(operation, []).append(max(0.0, took_s - max(seconds.values())))
    world: dict[str, Any] = {}
    if per_row:
        world["compute_s"] = {name: statistics.median(all_) for name, all_ in per_row.items()}
        world["overhead_s"] = {name: statistics.median(all_) for name, all_ in overhead.items()}
    world |= _waits(records)
    return world


def _waits(records: Sequence[Record]) -> dict[str, float]:
    """Measure how long a planned return takes, from the word to the newcomers' being there."""
    waits: list[float] = []
    asked_s: float | None = None
    for record in records:
        if record["event"] == "FaultInjected" and record.get("kind") == "return":
            asked_s = finite(record.get("t"))
        elif record["event"] == "GroupReadmitted" and asked_s is not None:
            waits.append(max(0.0, finite(record.get("t")) - asked_s))
            asked_s = None
    return dict.fromkeys(("start_s", "standby_s"), statistics.median(waits)) if waits else {}
