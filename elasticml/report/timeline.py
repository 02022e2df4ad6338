"""The timeline of a run: the events of its story as sentences, with round and cause."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elasticml.ids import format_size
from elasticml.report.run_reader import Record, finite
from elasticml.report.series import rounds_of

#: Most members listed by name in one sentence.
_NAMES_MAX = 8

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
    #: Empty if the record has none.
    cause: str = ""


def timeline(records: Sequence[Record]) -> tuple[TimelineEntry, ...]:
    """Return the notable events of a story in order, without the rounds and exchanges."""
    groups: dict[tuple[str, str, float], list[Record]] = {}
    order: list[tuple[tuple[str, str, float], float]] = []
    first_members = True
    for record, number in zip(records, rounds_of(records), strict=True):
        event = record["event"]
        first_members = first_members and event != "RoundStarted"
        if event not in _FORMATTERS or record.get("suggestion") in ("Move", "Replicate", "Discard"):
            continue  # chunks may move in every round: see the table of decisions
        # NaN is unequal to itself and would make a group of each record.
        group_round = -1.0 if math.isnan(number) or first_members else number
        key = (event, str(record.get("reason", "")), group_round)
        if key not in groups:
            groups[key] = []
            order.append((key, number))
        groups[key].append(record)
    entries = []
    for key, number in order:
        kind, text = _FORMATTERS[key[0]](groups[key])
        entries.append(
            TimelineEntry(
                at_s=finite(groups[key][0].get("t"), 0.0),
                round=math.nan if key[2] < 0 else number,
                kind=kind,
                text=text,
                cause=_cause(groups[key]),
            )
        )
    return tuple(entries)


def count(n: float, noun: str) -> str:
    """Format a number with its noun, in the plural unless it is one."""
    return f"{n:,.0f} {noun}{'' if n == 1 else 's'}"


def seconds_text(seconds: float) -> str:
    """Format a duration."""
    if not math.isfinite(seconds):
        return "–"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _cause(records: Sequence[Record]) -> str:
    """List the causes of a group, at most two of them."""
    causes = list(dict.fromkeys(str(r["cause"]) for r in records if r.get("cause")))
    more = f" and {len(causes) - 2} more" if len(causes) > 2 else ""
    return "; ".join(causes[:2]) + more


def _sum(records: Sequence[Record], key: str) -> float:
    """Sum a field over records; values that are not numbers count as 0."""
    return sum(finite(record.get(key), 0.0) for record in records)


def _names(records: Sequence[Record], key: str = "member") -> str:
    """List the members of a group."""
    names = list(dict.fromkeys(str(record[key]) for record in records if record.get(key)))
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more


def _job_started(records: Sequence[Record]) -> tuple[str, str]:
    return "start", "The job started."


def _job_resumed(records: Sequence[Record]) -> tuple[str, str]:
    first = records[0]
    text = f"The job went on from a checkpoint with round {finite(first.get('round')):.0f}"
    rounds, seconds = finite(first.get("repeated_rounds")), finite(first.get("repeated_s"))
    if math.isfinite(rounds) and math.isfinite(seconds):
        text += f": {count(rounds, 'round')}, {seconds_text(seconds)}, done again"
    notes = first.get("notes")
    sentences = [str(note) for note in notes] if isinstance(notes, list | tuple) else []
    return "start", ". ".join([text, *sentences]) + "."


def _checkpoint_failed(records: Sequence[Record]) -> tuple[str, str]:
    return "trouble", f"No checkpoint could be written: {records[0].get('error')}."


def _data_loaded(records: Sequence[Record]) -> tuple[str, str]:
    first = records[0]
    text = f"Data in memory: {count(_sum([first], 'rows'), 'row')}"
    for key, noun in (("features", "feature"), ("chunks", "chunk")):
        if math.isfinite(finite(first.get(key))):
            text += f", {count(finite(first[key]), noun)}"
    if finite(first.get("bytes"), 0.0):
        text += f", {format_size(finite(first['bytes']))}"
    notes = first.get("notes")
    sentences = [str(note) for note in notes] if isinstance(notes, list | tuple) else []
    return "load", ". ".join([text, *sentences]) + "."


def _member_joined(records: Sequence[Record]) -> tuple[str, str]:
    hosts = {str(record["host"]) for record in records if record.get("host")}
    where = f" on {count(len(hosts), 'host')}" if hosts else ""
    return "back", f"{count(len(records), 'member')} joined{where}: {_names(records)}."


def _member_active(records: Sequence[Record]) -> tuple[str, str]:
    examples = _sum(records, "examples")
    holding = f" with {count(examples, 'example')}" if examples else ""
    takes = "takes" if len(records) == 1 else "take"
    return "back", f"{count(len(records), 'member')} {takes} part{holding}: {_names(records)}."


def _member_lost(records: Sequence[Record]) -> tuple[str, str]:
    reason = str(records[0].get("reason") or "no reason given")
    words = _REASONS.get(reason, reason)
    if reason == "retired":
        return "move", f"{count(len(records), 'member')} given back, {words}: {_names(records)}."
    return "lost", f"{count(len(records), 'member')} lost ({words}): {_names(records)}."


def _member_noticed(records: Sequence[Record]) -> tuple[str, str]:
    grace = finite(records[0].get("grace_s"))
    within = f" in {seconds_text(grace)}" if math.isfinite(grace) else ""
    return (
        "lost",
        f"Notice that {count(len(records), 'member')} will go{within}: {_names(records)}.",
    )


def _chunks_absent(records: Sequence[Record]) -> tuple[str, str]:
    text = f"{count(_sum(records, 'chunks'), 'chunk')} absent"
    examples = _sum(records, "examples")
    return "lost", text + (f" with {count(examples, 'example')}." if examples else ".")


def _group_returned(records: Sequence[Record]) -> tuple[str, str]:
    groups = ", ".join(str(record["group"]) for record in records if "group" in record)
    return "back", f"The absent chunks of group {groups} are back in the sum."


def _chunks_moved(records: Sequence[Record]) -> tuple[str, str]:
    sources = {str(record.get("source")) for record in records}
    targets = {str(record.get("target")) for record in records}
    text = (
        f"{count(_sum(records, 'chunks'), 'chunk')} ({format_size(_sum(records, 'bytes'))}) moved"
        f" from {count(len(sources), 'member')} to {count(len(targets), 'other')}"
    )
    spent = _sum(records, "seconds")
    return "move", text + (f", {seconds_text(spent)} under way." if spent else ".")


def _fault_injected(records: Sequence[Record]) -> tuple[str, str]:
    parts = []
    for record in records:
        members = record.get("members")
        n = len(members) if isinstance(members, list) else finite(record.get("count"), 0.0)
        if record.get("kind") == "return":
            parts.append(f"brings back {count(n, 'member')}")
        elif record.get("kind") == "lose":
            how = ", ".join(str(record[key]) for key in ("how", "phase") if record.get(key))
            parts.append(f"takes away {count(n, 'member')}" + (f" ({how})" if how else ""))
    return "fault", f"A planned fault {' and '.join(parts) or 'was injected'}."


def _data_dealt(records: Sequence[Record]) -> tuple[str, str]:
    members = finite(records[0].get("members"))
    among = f" among {count(members, 'member')}" if math.isfinite(members) else ""
    return "load", f"The data were distributed{among}."


def _group_readmitted(records: Sequence[Record]) -> tuple[str, str]:
    why = ", ".join(dict.fromkeys(str(r["why"]) for r in records if r.get("why")))
    text = "Absent chunks are being loaded again"
    return "load", text + (f": {why}." if why else ".")


def _group_without_room(records: Sequence[Record]) -> tuple[str, str]:
    lacking = format_size(_sum(records, "lacking_bytes"))
    text = f"Absent chunks cannot be loaded: the members lack {lacking} of memory"
    return "trouble", f"{text}; add members, or memory per worker."


def _move_failed(records: Sequence[Record]) -> tuple[str, str]:
    reasons = ", ".join(dict.fromkeys(str(r["reason"]) for r in records if r.get("reason")))
    text = f"{count(_sum(records, 'chunks'), 'chunk')} could not be moved"
    return "trouble", text + (f": {reasons}." if reasons else ".")


def _notice_withdrawn(records: Sequence[Record]) -> tuple[str, str]:
    return "back", f"The notice was withdrawn: {_names(records)} stay."


def _reclaimed(records: Sequence[Record]) -> tuple[str, str]:
    grace = finite(records[0].get("grace_s"))
    within = f" within {seconds_text(grace)}" if math.isfinite(grace) else ""
    marks = []
    for record in records:
        marked, given = record.get("marked") or record.get("address"), record.get("given")
        goes = "no member goes yet" if given is None else "it goes itself"
        if given not in (None, marked):
            goes = f"{given} goes for it"
        marks.append(f"{marked} ({goes}: {record.get('why')})")
    n = count(len(records), "container")
    return "lost", f"{n} asked for back{within}: {'; '.join(marks)}."


def _reclaim_lifted(records: Sequence[Record]) -> tuple[str, str]:
    names = _names(records) or _names(records, "address")
    return "back", f"No longer asked for: {names}."


def _member_kept(records: Sequence[Record]) -> tuple[str, str]:
    return "back", f"{_names(records)} may stay after all."


def _container_stopping(records: Sequence[Record]) -> tuple[str, str]:
    return "lost", f"SIGTERM in the container of {_names(records)}."


def _container_ended(records: Sequence[Record]) -> tuple[str, str]:
    ends = []
    for record in records:
        whose = f" of {record['member']}" if record.get("member") else ""
        status = f", status {record['status']}" if record.get("status") is not None else ""
        message = f": {record['message']}" if record.get("message") else ""
        reason = str(record.get("reason"))
        ends.append(
            f"{record.get('container')}{whose} ({_REASONS.get(reason, reason)}{status}){message}"
        )
    return "lost", f"Containers ended: {'; '.join(ends)}."


def _node_changed(records: Sequence[Record]) -> tuple[str, str]:
    states = [f"{record.get('node')} is {record.get('state')}" for record in records]
    return "fault", f"Nodes: {'; '.join(states)}."


def _policy_decided(records: Sequence[Record]) -> tuple[str, str]:
    reasons = dict.fromkeys(f"{r.get('policy')}: {r.get('why')}" for r in records)
    return "move", f"Decided by {'; '.join(reasons)}."


def _chunks_copied(records: Sequence[Record]) -> tuple[str, str]:
    size = format_size(_sum(records, "bytes"))
    return "move", f"{count(_sum(records, 'chunks'), 'chunk')} ({size}) copied to further members."


def _job_ended(records: Sequence[Record]) -> tuple[str, str]:
    last = records[-1]
    text = "The job ended"
    if last.get("reason"):
        text += f": {last['reason']}"
    if isinstance(last.get("converged"), bool):
        text += ", converged" if last["converged"] else ", not converged"
    return "end", text + "."


_FORMATTERS: dict[str, Callable[[Sequence[Record]], tuple[str, str]]] = {
    "JobStarted": _job_started,
    "JobResumed": _job_resumed,
    "CheckpointFailed": _checkpoint_failed,
    "DataLoaded": _data_loaded,
    "MemberJoined": _member_joined,
    "MemberActive": _member_active,
    "MemberLost": _member_lost,
    "MemberNoticed": _member_noticed,
    "ChunksAbsent": _chunks_absent,
    "GroupReturned": _group_returned,
    "ChunksMoved": _chunks_moved,
    "FaultInjected": _fault_injected,
    "JobEnded": _job_ended,
    "DataDealt": _data_dealt,
    "GroupReadmitted": _group_readmitted,
    "GroupWithoutRoom": _group_without_room,
    "MoveFailed": _move_failed,
    "NoticeWithdrawn": _notice_withdrawn,
    "Reclaimed": _reclaimed,
    "ReclaimLifted": _reclaim_lifted,
    "MemberKept": _member_kept,
    "ContainerStopping": _container_stopping,
    "ContainerEnded": _container_ended,
    "NodeChanged": _node_changed,
    "PolicyDecided": _policy_decided,
    "ChunksCopied": _chunks_copied,
}
