"""The timeline of a run: the events of its story as sentences, with their rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from elasticml.ids import format_size
from elasticml.report.series import rounds_of
from elasticml.story.records import (
    CheckpointFailed,
    ChunksAbsent,
    ChunksCopied,
    ChunksMoved,
    ContainerEnded,
    ContainerStopping,
    DataDealt,
    DataLoaded,
    FaultInjected,
    GroupReadmitted,
    GroupReturned,
    GroupWithoutRoom,
    JobEnded,
    JobResumed,
    JobStarted,
    MemberActive,
    MemberJoined,
    MemberKept,
    MemberLost,
    MemberNoticed,
    MoveFailed,
    NodeChanged,
    NoticeWithdrawn,
    PolicyDecided,
    Reclaimed,
    ReclaimLifted,
    RoundStarted,
    StoryRecord,
    WaitEnded,
    Waiting,
)
from elasticml.training.shortfall import NOT_CONVERGED

#: Most members listed by name in one sentence.
_NAMES_MAX = 8

#: Suggestions that may be applied in every round: see the table of decisions.
_OFTEN = ("Move", "Replicate", "Discard")

_REASONS = {
    "killed": "killed without notice",
    "noticed": "left after notice",
    "deadline": "silent past the deadline",
    "closed": "connection closed",
    "retired": "emptied",
    "preempted": "pre-empted",
    "released": "emptied and given back for another one",
    "node": "its node failed",
    "memory": "its container used too much memory",
    "exit": "its process ended by itself",
    "terminated": "told to end",
    "walltime": "the time of its allocation was over",
    "lifetime": "its lifetime was over",
    "maintenance": "its machine was maintained",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One line of the timeline; records of the same round and kind share one entry."""

    at_s: float
    #: NaN before the first round.
    round: float
    #: Determines the colour: start, load, lost, back, move, fault, end or trouble.
    kind: str
    text: str


def timeline(records: Sequence[StoryRecord]) -> tuple[TimelineEntry, ...]:
    """Return the notable events of a story in order, without the rounds and exchanges."""
    groups: dict[tuple[type[StoryRecord], str, float], list[StoryRecord]] = {}
    order: list[tuple[tuple[type[StoryRecord], str, float], float]] = []
    first_members = True
    for record, number in zip(records, rounds_of(records), strict=True):
        first_members = first_members and not isinstance(record, RoundStarted)
        is_often = isinstance(record, PolicyDecided) and record.suggestion in _OFTEN
        if type(record) not in _FORMATTERS or is_often:
            continue
        # NaN is unequal to itself and would make a group of each record.
        group_round = -1.0 if math.isnan(number) or first_members else number
        key = (type(record), str(getattr(record, "reason", "")), group_round)
        if key not in groups:
            groups[key] = []
            order.append((key, number))
        groups[key].append(record)
    entries = []
    for key, number in order:
        kind, text = _FORMATTERS[key[0]](groups[key])
        entries.append(
            TimelineEntry(
                at_s=groups[key][0].t,
                round=math.nan if key[2] < 0 else number,
                kind=kind,
                text=text,
            )
        )
    return tuple(entries)


def count(n: float, noun: str) -> str:
    """Format a number with its noun, in the plural unless it is one."""
    return f"{n:,.0f} {noun}{'' if n == 1 else 's'}"


def seconds_text(seconds: float | None) -> str:
    """Format a duration; a dash if it is unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _names(names: Iterable[str | None]) -> str:
    """List names, each once and only the first ones."""
    listed = list(dict.fromkeys(name for name in names if name))
    more = f" and {len(listed) - _NAMES_MAX} more" if len(listed) > _NAMES_MAX else ""
    return ", ".join(listed[:_NAMES_MAX]) + more


class _OfMember(Protocol):
    @property
    def member(self) -> str | None: ...


def _members(records: Iterable[_OfMember]) -> str:
    """List the members of a group."""
    return _names(record.member for record in records)


def _job_started(records: Sequence[JobStarted]) -> tuple[str, str]:
    return "start", "The job started."


def _job_resumed(records: Sequence[JobResumed]) -> tuple[str, str]:
    first = records[0]
    text = f"The job went on from a checkpoint with round {first.round}"
    if first.repeated_rounds is not None and first.repeated_s is not None:
        repeated = count(first.repeated_rounds, "round")
        text += f": {repeated}, {seconds_text(first.repeated_s)}, done again"
    return "start", ". ".join([text, *first.notes]) + "."


def _checkpoint_failed(records: Sequence[CheckpointFailed]) -> tuple[str, str]:
    return "trouble", f"No checkpoint could be written: {records[0].error}."


def _data_loaded(records: Sequence[DataLoaded]) -> tuple[str, str]:
    first = records[0]
    text = f"Data in memory: {count(first.rows or 0, 'row')}"
    for number, noun in ((first.features, "feature"), (first.chunks, "chunk")):
        if number is not None:
            text += f", {count(number, noun)}"
    if first.bytes:
        text += f", {format_size(float(first.bytes))}"
    if first.parsed_bytes == 0:
        text += ", nothing of it parsed: all from the hosts' caches"
    return "load", ". ".join([text, *first.notes]) + "."


def _member_joined(records: Sequence[MemberJoined]) -> tuple[str, str]:
    hosts = {record.host for record in records if record.host}
    where = f" on {count(len(hosts), 'host')}" if hosts else ""
    return (
        "back",
        f"{count(len(records), 'member')} joined{where}: {_members(records)}.",
    )


def _member_active(records: Sequence[MemberActive]) -> tuple[str, str]:
    examples = sum(record.examples for record in records)
    holding = f" with {count(examples, 'example')}" if examples else ""
    takes = "takes" if len(records) == 1 else "take"
    return (
        "back",
        f"{count(len(records), 'member')} {takes} part{holding}: {_members(records)}.",
    )


def _member_lost(records: Sequence[MemberLost]) -> tuple[str, str]:
    reason = records[0].reason or "no reason given"
    words = _REASONS.get(reason, reason)
    if reason == "retired":
        return (
            "move",
            f"{count(len(records), 'member')} given back, {words}: {_members(records)}.",
        )
    return (
        "lost",
        f"{count(len(records), 'member')} lost ({words}): {_members(records)}.",
    )


def _member_noticed(records: Sequence[MemberNoticed]) -> tuple[str, str]:
    grace = records[0].grace_s
    within = f" in {seconds_text(grace)}" if grace is not None else ""
    return (
        "lost",
        f"Notice that {count(len(records), 'member')} will go{within}: {_members(records)}.",
    )


def _chunks_absent(records: Sequence[ChunksAbsent]) -> tuple[str, str]:
    text = f"{count(sum(record.chunks for record in records), 'chunk')} absent"
    examples = sum(record.examples for record in records)
    return "lost", text + (f" with {count(examples, 'example')}." if examples else ".")


def _group_returned(records: Sequence[GroupReturned]) -> tuple[str, str]:
    groups = ", ".join(str(record.group) for record in records if record.group is not None)
    return "back", f"The absent chunks of group {groups} are back in the sum."


def _chunks_moved(records: Sequence[ChunksMoved]) -> tuple[str, str]:
    sources = {record.source for record in records}
    targets = {record.target for record in records}
    chunks = sum(record.chunks for record in records)
    size = format_size(sum(record.bytes for record in records))
    text = (
        f"{count(chunks, 'chunk')} ({size}) moved"
        f" from {count(len(sources), 'member')} to {count(len(targets), 'other')}"
    )
    spent = sum(record.seconds for record in records)
    return "move", text + (f", {seconds_text(spent)} under way." if spent else ".")


def _fault_injected(records: Sequence[FaultInjected]) -> tuple[str, str]:
    parts = []
    for record in records:
        n = (record.count or 0) if record.members is None else len(record.members)
        if record.kind == "return":
            parts.append(f"brings back {count(n, 'member')}")
        elif record.kind == "lose":
            how = ", ".join(word for word in (record.how, record.phase) if word)
            parts.append(f"takes away {count(n, 'member')}" + (f" ({how})" if how else ""))
    return "fault", f"A planned fault {' and '.join(parts) or 'was injected'}."


def _data_dealt(records: Sequence[DataDealt]) -> tuple[str, str]:
    members = records[0].members
    among = f" among {count(members, 'member')}" if members is not None else ""
    return "load", f"The data were distributed{among}."


def _group_readmitted(records: Sequence[GroupReadmitted]) -> tuple[str, str]:
    why = ", ".join(dict.fromkeys(record.why for record in records if record.why))
    text = "Absent chunks are being loaded again"
    return "load", text + (f": {why}." if why else ".")


def _group_without_room(records: Sequence[GroupWithoutRoom]) -> tuple[str, str]:
    lacking = format_size(sum(record.lacking_bytes for record in records))
    text = f"Absent chunks cannot be loaded: the members lack {lacking} of memory"
    return "trouble", f"{text}; add members, or memory per worker."


def _move_failed(records: Sequence[MoveFailed]) -> tuple[str, str]:
    reasons = ", ".join(dict.fromkeys(record.reason for record in records if record.reason))
    text = f"{count(sum(record.chunks for record in records), 'chunk')} could not be moved"
    return "trouble", text + (f": {reasons}." if reasons else ".")


def _notice_withdrawn(records: Sequence[NoticeWithdrawn]) -> tuple[str, str]:
    return "back", f"The notice was withdrawn: {_members(records)} stay."


def _reclaimed(records: Sequence[Reclaimed]) -> tuple[str, str]:
    grace = records[0].grace_s
    within = f" within {seconds_text(grace)}" if grace is not None else ""
    marks = []
    for record in records:
        marked, substitute = record.marked or record.address, record.given
        goes = "no member goes yet" if substitute is None else "it goes itself"
        if substitute not in (None, marked):
            goes = f"{substitute} goes for it"
        marks.append(f"{marked} ({goes}: {record.why})")
    if records[0].reason == "retired":
        n = count(len(records), "worker")
        return "move", f"{n} retired{within}: {'; '.join(marks)}."
    n = count(len(records), "container")
    return "lost", f"{n} asked for back{within}: {'; '.join(marks)}."


def _reclaim_lifted(records: Sequence[ReclaimLifted]) -> tuple[str, str]:
    names = _members(records) or _names(record.address for record in records)
    return "back", f"No longer asked for: {names}."


def _member_kept(records: Sequence[MemberKept]) -> tuple[str, str]:
    return "back", f"{_members(records)} may stay after all."


def _container_stopping(records: Sequence[ContainerStopping]) -> tuple[str, str]:
    return "lost", f"SIGTERM in the container of {_members(records)}."


def _container_ended(records: Sequence[ContainerEnded]) -> tuple[str, str]:
    ends = []
    for record in records:
        whose = f" of {record.member}" if record.member else ""
        status = "" if record.status is None else f", status {record.status}"
        message = f": {record.message}" if record.message else ""
        reason = record.reason
        ends.append(f"{record.container}{whose} ({_REASONS.get(reason, reason)}{status}){message}")
    return "lost", f"Containers ended: {'; '.join(ends)}."


def _node_changed(records: Sequence[NodeChanged]) -> tuple[str, str]:
    states = [f"{record.node} is {record.state}" for record in records]
    return "fault", f"Nodes: {'; '.join(states)}."


def _policy_decided(records: Sequence[PolicyDecided]) -> tuple[str, str]:
    reasons = dict.fromkeys(f"{record.policy}: {record.why}" for record in records)
    return "move", f"Decided by {'; '.join(reasons)}."


def _chunks_copied(records: Sequence[ChunksCopied]) -> tuple[str, str]:
    chunks = sum(record.chunks for record in records)
    size = format_size(sum(record.bytes for record in records))
    return "move", f"{count(chunks, 'chunk')} ({size}) copied to further members."


def _waiting(records: Sequence[Waiting]) -> tuple[str, str]:
    last = records[-1]
    who = f" from {_names(last.who)}" if last.who else ""
    since = seconds_text(last.since_s)
    held = f"{last.have} of {last.need} {last.what}{who}"
    return "trouble", f"The job waits with {held}, since {since}: {last.remedy}."


def _wait_ended(records: Sequence[WaitEnded]) -> tuple[str, str]:
    seconds = sum(record.seconds for record in records)
    whats = ", ".join(dict.fromkeys(record.what for record in records))
    return "back", f"The job goes on after {seconds_text(seconds)} of waiting for {whats}."


def _job_ended(records: Sequence[JobEnded]) -> tuple[str, str]:
    last = records[-1]
    text = "The job ended"
    if last.reason:
        text += f": {last.reason}"
    if last.converged:
        text += ", converged"
    elif last.unconverged:
        text += f", {NOT_CONVERGED}"
    return "end", text + "."


_FORMATTERS: dict[type[StoryRecord], Callable[[Sequence[Any]], tuple[str, str]]] = {
    JobStarted: _job_started,
    JobResumed: _job_resumed,
    CheckpointFailed: _checkpoint_failed,
    DataLoaded: _data_loaded,
    MemberJoined: _member_joined,
    MemberActive: _member_active,
    MemberLost: _member_lost,
    MemberNoticed: _member_noticed,
    ChunksAbsent: _chunks_absent,
    GroupReturned: _group_returned,
    ChunksMoved: _chunks_moved,
    FaultInjected: _fault_injected,
    JobEnded: _job_ended,
    DataDealt: _data_dealt,
    GroupReadmitted: _group_readmitted,
    GroupWithoutRoom: _group_without_room,
    MoveFailed: _move_failed,
    NoticeWithdrawn: _notice_withdrawn,
    Reclaimed: _reclaimed,
    ReclaimLifted: _reclaim_lifted,
    MemberKept: _member_kept,
    ContainerStopping: _container_stopping,
    ContainerEnded: _container_ended,
    NodeChanged: _node_changed,
    PolicyDecided: _policy_decided,
    ChunksCopied: _chunks_copied,
    Waiting: _waiting,
    WaitEnded: _wait_ended,
}
#: Records that have a line in the timeline, except for frequent decisions of policies.
FORMATTED: Final = tuple(_FORMATTERS)
