"""Preempted and returned containers: when each was noticed, lost and replaced.

All times are read from the story, in seconds since the job started.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticml.report.lanes import slot_of
from elasticml.report.markup import PlainTable
from elasticml.story.records import (
    ChunksAbsent,
    ChunksMoved,
    ContainerEnded,
    ContainerStopping,
    GroupReturned,
    MemberActive,
    MemberLost,
    MemberNoticed,
    Reclaimed,
    ReclaimLifted,
    RoundEnded,
    RoundStarted,
    StoryRecord,
)

#: Reasons of losses caused by the cluster, as opposed to containers that the job gave back.
TAKEN = (
    *("preempted", "node", "memory", "released", "killed", "exit", "terminated", "noticed"),
    *("walltime", "lifetime", "maintenance"),
)
_ROLES = {
    "marked": "asked for",
    "substitute": "given for another",
    "stayed": "asked for, stayed",
    "leaver": "asked for, left",
    "gone": "gone",
}


@dataclass(slots=True, kw_only=True)
class Container:
    """One member's container, from the first notice to its replacement."""

    member: str
    #: The resource manager's id; empty if its end was not reported.
    container: str = ""
    #: "marked", "substitute", "stayed", "leaver" or "gone".
    role: str = "gone"
    #: The member in whose place this container was given.
    given_for: str = ""
    reason: str = ""
    status: int | None = None
    notice_s: float | None = None
    #: Time of SIGTERM.
    stopping_s: float | None = None
    #: Time at which its last chunk had another owner.
    safe_s: float | None = None
    lost_s: float | None = None
    #: Chunks lost with it.
    chunks: int = 0
    #: Times at which a stand-in replaced its chunks, and at which others took them over.
    stand_in_s: float | None = None
    takeover_s: float | None = None
    #: End of the first complete round after its loss, or after the notice if it stayed.
    round_s: float | None = None
    rounds_lost: int = 0
    #: Time at which the next member in its slot took part.
    return_s: float | None = None
    #: Time at which the mark was withdrawn.
    lifted_s: float | None = None


@dataclass(slots=True)
class _Reader:
    """Reads the records of a story in order."""

    by_member: dict[str, Container] = field(default_factory=dict)
    #: When each member last sent chunks.
    gave_s: dict[str, float] = field(default_factory=dict)
    #: The container last lost in each vacant slot.
    vacant: dict[int, Container] = field(default_factory=dict)
    #: The containers of each group of absent chunks.
    groups: dict[int | None, list[Container]] = field(default_factory=dict)
    has_begun: bool = False

    def of(self, member: str) -> Container:
        """Return a member's entry, which is created on first use."""
        return self.by_member.setdefault(member, Container(member=member))

    def read(self, record: StoryRecord) -> None:
        """Process one record."""
        t = record.t
        match record:
            case RoundStarted():
                self.has_begun = True
            case Reclaimed():
                self._reclaimed(record)
            case ReclaimLifted(member=str(member)):
                self.of(member).lifted_s = t
            case MemberNoticed():
                self._noticed(record)
            case ContainerStopping():
                entry = self.of(record.member)
                entry.stopping_s = t if entry.stopping_s is None else entry.stopping_s
            case ChunksMoved():
                self.gave_s[record.source] = t
            case MemberLost():
                self._lost(record)
            case ContainerEnded(member=str(member)):
                self._ended(record, self.of(member))
            case ChunksAbsent():
                self._absent(record)
            case GroupReturned():
                self._returned(record)
            case MemberActive():
                back = self.vacant.pop(_slot(record.member), None)
                if back is not None:
                    back.return_s = t
            case RoundEnded():
                self._round(t, is_idle=record.idle)

    def _reclaimed(self, record: Reclaimed) -> None:
        if record.reason == "retired":
            return
        t, marked, substitute = record.t, record.marked, record.given
        if marked:
            entry = self.of(marked)
            _note_notice(entry, t)
            entry.role = "leaver" if substitute == marked else "marked"
        if substitute and substitute != marked:
            entry = self.of(substitute)
            _note_notice(entry, t)
            entry.role, entry.given_for = "substitute", marked or record.address

    def _noticed(self, record: MemberNoticed) -> None:
        if record.reason == "retired":
            return
        entry = self.of(record.member)
        _note_notice(entry, record.t)
        if record.reason == "terminated" and entry.stopping_s is None:
            entry.stopping_s = record.t

    def _lost(self, record: MemberLost) -> None:
        t, reason, member = record.t, record.reason, record.member
        has_notice = member in self.by_member
        if reason == "retired" or not (has_notice or self.has_begun):
            return
        entry = self.of(member)
        entry.lost_s, entry.reason = t, reason
        entry.chunks = record.chunks
        if not entry.chunks:
            first_s = t if entry.notice_s is None else entry.notice_s
            entry.safe_s = max(first_s, self.gave_s.get(member, first_s))
        self.vacant[_slot(member)] = entry

    def _ended(self, record: ContainerEnded, entry: Container) -> None:
        entry.container = record.container
        entry.status = record.status
        entry.reason = record.reason or entry.reason

    def _absent(self, record: ChunksAbsent) -> None:
        gone = [self.by_member[m] for m in record.members if m in self.by_member]
        for entry in gone:
            entry.stand_in_s = record.t
        self.groups[record.group] = gone

    def _returned(self, record: GroupReturned) -> None:
        for entry in self.groups.pop(record.group, []):
            entry.takeover_s = record.t
            entry.safe_s = record.t if entry.safe_s is None else entry.safe_s

    def _round(self, t: float, is_idle: bool) -> None:
        for entry in self.by_member.values():
            since_s = entry.notice_s if entry.lost_s is None else entry.lost_s
            if entry.round_s is not None and entry.round_s >= (since_s or 0.0):
                continue
            if since_s is None:
                continue
            entry.rounds_lost += is_idle
            if not is_idle:
                entry.round_s = t


def _note_notice(entry: Container, t: float) -> None:
    """Record the first notice of a container's end, or the first one after a withdrawal."""
    if entry.lifted_s is not None and entry.lost_s is None:
        entry.notice_s = entry.stopping_s = entry.round_s = entry.lifted_s = None
        entry.given_for, entry.rounds_lost = "", 0
    entry.notice_s = t if entry.notice_s is None else entry.notice_s


def _slot(member: str) -> int:
    slot = slot_of(member)
    return -1 if slot is None else slot


def containers(records: Iterable[StoryRecord]) -> tuple[Container, ...]:
    """List the containers that were asked for, taken or given back, in order of time."""
    reader = _Reader()
    for record in records:
        reader.read(record)
    entries = reader.by_member.values()
    affected = [c for c in entries if c.notice_s is not None or c.lost_s is not None]
    for entry in affected:
        if entry.role == "marked" and entry.lost_s is None:
            entry.role = "stayed"
    return tuple(sorted(affected, key=lambda c: (_first(c), c.member)))


def _first(entry: Container) -> float:
    times = [t for t in (entry.notice_s, entry.stopping_s, entry.lost_s) if t is not None]
    return min(times, default=0.0)


def preemptions(records: Iterable[StoryRecord]) -> dict[str, Any] | None:
    """Summarize what the cluster took; None if it took nothing.

    Returns
    -------
    dict or None
        ``containers`` with the times of each; the numbers ``asked`` for, ``stayed``, ``given`` for
        others, ``lost`` and ``preempted``; ``seconds`` from a notice to SIGTERM, to chunks safe and
        to the next complete round, and from a loss to the next round and to the return, each as
        min, median and max; ``rounds_lost``: idle rounds without any member.
    """
    taken = [c for c in containers(records) if _is_taken(c)]
    if not taken:
        return None
    return {
        "asked": sum(c.role in ("marked", "stayed", "leaver") for c in taken),
        "stayed": sum(c.role == "stayed" for c in taken),
        "given": sum(c.role == "substitute" and c.lost_s is not None for c in taken),
        "lost": sum(c.lost_s is not None for c in taken),
        "preempted": sum(c.reason in ("preempted", "released") for c in taken),
        "seconds": {
            "notice_to_sigterm": _spans(taken, "notice_s", "stopping_s"),
            "notice_to_chunks_safe": _spans(taken, "notice_s", "safe_s"),
            "notice_to_next_round": _spans(taken, "notice_s", "round_s"),
            "loss_to_next_round": _spans(taken, "lost_s", "round_s"),
            "loss_to_return": _spans(taken, "lost_s", "return_s"),
        },
        "rounds_lost": max(c.rounds_lost for c in taken),
        "containers": [_plain(c) for c in taken],
    }


def _is_taken(entry: Container) -> bool:
    return entry.role != "gone" or entry.container != "" or entry.reason in TAKEN


def _spans(taken: Sequence[Container], start: str, end: str) -> dict[str, float] | None:
    """Return min, median and max of the seconds between two times, where both are known."""
    pairs = [(getattr(c, start), getattr(c, end)) for c in taken]
    spans = [b - a for a, b in pairs if a is not None and b is not None and b >= a]
    if not spans:
        return None
    middle = statistics.median(spans)
    return {"min": _round(min(spans)), "median": _round(middle), "max": _round(max(spans))}


def _round(seconds: float) -> float:
    return round(seconds, 3)


def _plain(entry: Container) -> dict[str, Any]:
    names = (
        *("member", "container", "role", "given_for", "reason", "status", "notice_s", "stopping_s"),
        *("safe_s", "lost_s", "chunks", "stand_in_s", "takeover_s", "round_s", "rounds_lost"),
        *("return_s", "lifted_s"),
    )
    plain = {name: getattr(entry, name) for name in names}
    return {name: value for name, value in plain.items() if value not in (None, "")}


def preemptions_table(records: Sequence[StoryRecord]) -> PlainTable | None:
    """Return the table of the containers that a cluster took; None if it took none."""
    taken = [c for c in containers(records) if _is_taken(c)]
    rows = [
        [
            c.member + (f" ({c.container})" if c.container else ""),
            _ROLES[c.role] + (f" ({c.given_for})" if c.given_for else ""),
            c.reason + (f", status {c.status}" if c.status is not None else ""),
            _when(c.notice_s),
            _when(c.stopping_s, c.notice_s),
            _when(c.safe_s, c.notice_s),
            _when(c.lost_s, c.notice_s) + (f", {c.chunks} chunks" if c.chunks else ""),
            _instead(c),
            _when(c.round_s, c.notice_s if c.lost_s is None else c.lost_s),
            f"{c.rounds_lost}",
            _when(c.return_s, c.lost_s),
        ]
        for c in taken
    ]
    names = [
        *("member", "what", "why", "notice", "SIGTERM", "chunks safe", "lost"),
        *("in its place", "next round", "rounds lost", "back"),
    ]
    return PlainTable(names=names, rows=rows) if rows else None


def _when(at_s: float | None, since_s: float | None = None) -> str:
    if at_s is None:
        return "–"
    after = f" (+{at_s - since_s:.2f})" if since_s is not None and at_s >= since_s else ""
    return f"{at_s:,.2f}{after}"


def _instead(entry: Container) -> str:
    """Return what replaced the chunks that were lost with the member, as text."""
    parts = []
    if entry.stand_in_s is not None:
        parts.append(f"stand-in {entry.stand_in_s:,.2f}")
    if entry.takeover_s is not None:
        parts.append(f"others {entry.takeover_s:,.2f}")
    if not parts and entry.lost_s is not None and not entry.chunks:
        parts.append("chunks moved")
    return ", ".join(parts) or "–"
