"""Convert a run's story into planned faults, so that a simulation repeats its losses and returns.

Faults are placed by round instead of time, because simulated rounds have other durations. The model
depends only on who took part in each round, and on the first exchange that lacked a lost member.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticml.errors import ConfigError
from elasticml.story.records import (
    ExchangeEnded,
    FaultInjected,
    GroupReadmitted,
    JobResumed,
    MemberActive,
    MemberJoined,
    MemberLost,
    MemberNoticed,
    PolicyDecided,
    Reclaimed,
    RoundEnded,
    RoundStarted,
    StoryRecord,
    first_of,
)

#: Reason of losses at the end of the job, which are not repeated.
_ENDED = "job ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFaults:
    """A run's losses and returns as planned faults."""

    #: Entries of a job record's ``faults``, by round.
    faults: tuple[dict[str, Any], ...]
    lost: int
    returned: int
    #: What the entries omit.
    notes: tuple[str, ...] = ()


def faults_from_story(records: Sequence[StoryRecord]) -> RecordedFaults:
    """Return a story's losses, notices and returns as planned faults.

    A loss is placed in the first exchange whose sum lacked the member, a notice in the round of its
    arrival, a return in the first round in which the newcomer took part.

    Raises
    ------
    ConfigError
        When the job was resumed from a checkpoint.
    """
    if first_of(JobResumed, records) is not None:
        raise ConfigError(
            "what-if: the run went on from a checkpoint, and its members ended with their "
            "scheduler; such a run cannot be simulated as a single job"
        )
    starts = (k for k, record in enumerate(records) if isinstance(record, RoundStarted))
    first = next(starts, len(records))
    notices: dict[str, StoryRecord] = {}
    faults: list[dict[str, Any]] = []
    # Newcomers, with the first round in which they took part.
    newcomers: dict[str, int | None] = {}
    lost: set[str] = set()
    retired = requested = answered = 0
    for k, record in enumerate(records[first:], start=first):
        match record:
            case MemberNoticed():
                notices[record.member] = record
            case Reclaimed(given=str(substitute)):
                notices.setdefault(substitute, record)
            case MemberLost(reason="retired") if record.member not in notices:
                retired += 1
            case MemberLost() if record.reason != _ENDED and record.member not in lost:
                lost.add(record.member)
                slot = _slot(record.member)
                # A member without chunks left because of its notice, whatever ended its container.
                faults.append(
                    _killed(records, k, slot)
                    if record.chunks
                    else _noticed(notices.get(record.member, record), slot)
                )
            case PolicyDecided(suggestion="Request"):
                requested += record.count or 0
            case MemberJoined() if requested > answered:
                # The first newcomers answer the policies' requests, which the simulation repeats.
                answered += 1
            case MemberJoined():
                newcomers[record.member] = None
            case MemberActive() if record.member in newcomers:
                newcomers[record.member] = _round(record)
    took_part = [number for number in newcomers.values() if number is not None]
    for number in sorted(set(took_part)):
        faults.append({"round": number, "return": took_part.count(number)})
    notes = []
    early = sum(isinstance(record, MemberLost) for record in records[:first])
    if early:
        notes.append(f"{early} lost while the data were loaded, and kept here")
    n_unused = len(newcomers) - len(took_part)
    if n_unused:
        notes.append(f"{n_unused} newcomers that never took part are left out")
    if answered:
        notes.append(f"{answered} newcomers that policies asked for are left to the policies")
    if retired:
        notes.append(f"{retired} members that policies gave back are left to the policies")
    faults = _merge_equal(faults)
    return RecordedFaults(
        faults=tuple(faults), lost=len(lost), returned=len(took_part), notes=tuple(notes)
    )


def _slot(member: str) -> int:
    return int(member.split(".")[0])


def _round(record: StoryRecord) -> int:
    return record.round or 0


def _noticed(record: StoryRecord, slot: int) -> dict[str, Any]:
    return {
        "round": _round(record),
        "phase": "broadcast",
        "lose": [slot],
        "how": "notice",
        # The member leaves when it is empty, not at a deadline: simulated rounds differ in length.
        "grace": 1e6,
    }


def _killed(records: Sequence[StoryRecord], k: int, slot: int) -> dict[str, Any]:
    """Place a loss in the first exchange of its round that lacked the member, or at the end."""
    number = _round(records[k])
    entry = {"round": number, "phase": "apply", "lose": [slot], "how": "kill", "grace": 0.0}
    before = sum(isinstance(r, ExchangeEnded) and _round(r) == number for r in records[:k])
    for place, exchange in enumerate(_exchanges(records[k:], number), start=before):
        if not int(exchange.contributors, 16) >> slot & 1:
            return entry | {"phase": "broadcast", "exchange": place}
    return entry


def _exchanges(records: Sequence[StoryRecord], number: int) -> Iterator[ExchangeEnded]:
    """Iterate over the exchanges of a round, up to its end."""
    for record in records:
        if isinstance(record, RoundEnded):
            return
        if isinstance(record, ExchangeEnded) and _round(record) == number:
            yield record


def _merge_equal(faults: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge losses of the same kind at the same place into one entry; sort by round."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for k, fault in enumerate(faults):
        key = tuple(fault.get(name) for name in ("round", "phase", "exchange", "how"))
        if "lose" not in fault or key not in merged:
            merged[key if "lose" in fault else ("return", k)] = dict(fault)
        else:
            merged[key]["lose"] = sorted({*merged[key]["lose"], *fault["lose"]})
    return sorted(merged.values(), key=lambda f: (f["round"], f.get("exchange", 0), "return" in f))


def initial_slots(records: Sequence[StoryRecord]) -> int:
    """Return the number of slots at the start of the first round; 0 if the story lacks it."""
    for record in records:
        if isinstance(record, RoundStarted) and record.rows:
            return 1 + max(int(slot) for slot in record.rows)
    return 0


def measured_pace(records: Sequence[StoryRecord]) -> dict[str, Any]:
    """Measure compute times and overheads, as options of a simulation with the same speeds.

    Returns
    -------
    dict
        ``compute_s`` (seconds per example) and ``overhead_s``, each by operation; empty if the
        story does not record them. Also ``start_s`` and ``standby_s`` if there was a return.
    """
    rows: Mapping[str, int] = {}
    per_row: dict[str, list[float]] = {}
    overhead: dict[str, list[float]] = {}
    for record in records:
        if isinstance(record, RoundStarted) and record.rows:
            rows = record.rows
        if not isinstance(record, ExchangeEnded) or not record.compute_s:
            continue
        operation, seconds = record.operation, record.compute_s
        each = [s / rows[slot] for slot, s in seconds.items() if rows.get(slot)]
        if each:
            per_row.setdefault(operation, []).append(statistics.median(each))
        took_s = record.t - (record.t if record.start_t is None else record.start_t)
        overhead.setdefault(operation, []).append(max(0.0, took_s - max(seconds.values())))
    world: dict[str, Any] = {}
    if per_row:
        world["compute_s"] = {name: statistics.median(all_) for name, all_ in per_row.items()}
        world["overhead_s"] = {name: statistics.median(all_) for name, all_ in overhead.items()}
    world |= _waits(records)
    return world


def _waits(records: Sequence[StoryRecord]) -> dict[str, float]:
    """Measure the median time from a planned return to the readmission of its group."""
    waits: list[float] = []
    asked_s: float | None = None
    for record in records:
        if isinstance(record, FaultInjected) and record.kind == "return":
            asked_s = record.t
        elif isinstance(record, GroupReadmitted) and asked_s is not None:
            waits.append(max(0.0, record.t - asked_s))
            asked_s = None
    return dict.fromkeys(("start_s", "standby_s"), statistics.median(waits)) if waits else {}
