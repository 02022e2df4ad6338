"""The figures of a running job, kept up to date record by record of its story.

The page on the scheduler, ``em.watch`` and notebooks show them. The cost of an update depends on
the new records only, and the size of the result does not grow with the length of the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Literal

from elasticml.ids import format_size
from elasticml.protocol.chunk_ranges import parse_chunk_ranges
from elasticml.protocol.job_record import JobRecord, job_record
from elasticml.report.lanes import slot_of
from elasticml.report.markup import lead_text, number
from elasticml.report.series import TEST_METRICS, is_validation_score, metric_name
from elasticml.report.status import JobStatus
from elasticml.report.timeline import FORMATTED, count, seconds_text, timeline
from elasticml.report.waiting import RoundTimes
from elasticml.story.history import HistoryRow
from elasticml.story.json_fields import finite
from elasticml.story.records import (
    CheckpointWritten,
    ChunksGiven,
    ChunksLoaded,
    ChunksMoved,
    ContainerStopping,
    DataDealt,
    ExchangeEnded,
    FinalModel,
    JobBegun,
    JobEnded,
    JobResumed,
    MemberActive,
    MemberJoined,
    MemberKept,
    MemberLost,
    MemberNoticed,
    MemberRetiring,
    MemberSpare,
    MoveFailed,
    NoticeWithdrawn,
    RoundEnded,
    RoundStarted,
    StoryRecord,
    records_of,
    some_rounds,
)

#: Most points of a curve. Where there would be more, their distance in time is doubled.
POINTS_MAX: Final = 512
#: Most entries of the list of events.
EVENTS_MAX: Final = 200
#: Most rounds of one update that are read; the others are between them.
ROUNDS_MAX: Final = 200
#: Most moves of chunks that are listed.
MOVES_MAX: Final = 12
#: Most records of members that are kept for pictures.
_KEPT_MAX: Final = 4000

State = Literal["loading", "active", "leaving", "lost", "retired"]

#: The states of members in the order in which they are counted, with the words of the report.
STATE_WORDS: Final[Mapping[State, str]] = {
    "active": "taking part",
    "loading": "loading",
    "leaving": "leaving",
    "lost": "lost",
    "retired": "given back",
}
#: The columns of a point.
COLUMNS: Final = (
    *("seconds", "round", "objective", "is_exact", "gap", "gap_is_bound", "members", "absent"),
    *("metric", "computing", "waiting", "links", "driver"),
)

_KINDS: Final[tuple[type[StoryRecord], ...]] = (
    *FORMATTED,
    CheckpointWritten,
    ChunksGiven,
    ChunksLoaded,
    ExchangeEnded,
    FinalModel,
    MemberRetiring,
    MemberSpare,
    RoundEnded,
    RoundStarted,
)
#: Records that pictures need.
_PICTURED: Final = (MemberJoined, MemberActive, MemberLost, JobResumed)


@dataclass(slots=True, kw_only=True)
class Slot:
    """A slot with its present or last member."""

    slot: int
    member: str
    host: str = ""
    state: State = "loading"
    examples: int = 0
    #: When a leaving member will be gone, in seconds since the job started; None if unknown.
    deadline_s: float | None = None
    #: Why it leaves or left.
    reason: str = ""
    #: Number of the update that changed it last.
    version: int = 0

    def to_json(self) -> list[Any]:
        """Return its values as an array, in the order in which they are declared."""
        return [
            self.slot,
            self.member,
            self.host,
            self.state,
            self.examples,
            None if self.deadline_s is None else round(self.deadline_s, 2),
            self.reason,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An entry of the list of events."""

    number: int
    at_s: float
    round: int | None
    kind: str
    text: str

    def to_json(self) -> list[Any]:
        """Return its values as an array, in the order in which they are declared."""
        return [self.number, round(self.at_s, 2), self.round, self.kind, self.text]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A key figure. If ``since_s`` is given, the value is the time passed since then."""

    label: str
    value: str = ""
    small: str = ""
    since_s: float | None = None

    def shown(self, now_s: float) -> str:
        """Return the value as text."""
        return self.value if self.since_s is None else seconds_text(max(0.0, now_s - self.since_s))


@dataclass(slots=True)
class LiveJob:
    """The figures of one job."""

    job: str
    status: JobStatus = field(init=False)
    #: The job record; None before the story's first record.
    record: JobRecord | None = None
    slots: dict[int, Slot] = field(default_factory=dict)
    #: Points of the curves, in the order of :data:`COLUMNS`.
    points: list[list[Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    #: Time of the last checkpoint.
    checkpoint_s: float | None = None
    lost: int = 0
    returned: int = 0
    retired: int = 0
    moved_bytes: int = 0
    #: Seconds of participation, summed over members.
    container_s: float = 0.0
    #: Name of the validation score or test metric of the points.
    metric: str = ""
    #: Number of updates, and of times at which the points were thinned.
    version: int = 0
    epoch: int = 0
    #: Records of members, for pictures.
    kept: list[StoryRecord] = field(default_factory=list)
    #: Orders to send chunks that are not yet carried out: source, target, number of chunks.
    moves: dict[int, tuple[str, str, int]] = field(default_factory=dict)
    #: Compute seconds of the last exchange, by slot.
    compute_s: Mapping[str, float] = field(default_factory=dict)
    _speeds: str = ""
    _times: RoundTimes | None = None
    _row_s: float = 0.0
    _has_begun: bool = False
    _spacing_s: float = 0.0
    _n_events: int = 0

    def __post_init__(self) -> None:
        self.status = JobStatus(job=self.job)

    # --- update ----------------------------------------------------------------------------------

    def read(self, story: Sequence[Mapping[str, Any]]) -> None:
        """Process further records of the story."""
        # The timeline groups by rounds, so it must know the present one.
        notable: list[StoryRecord] = [RoundStarted(round=self.status.round)]
        if not self._has_begun:
            notable.clear()
        self.version += 1
        for record in records_of(_KINDS, some_rounds(story, ROUNDS_MAX)):
            self.status = self.status.after(record)
            self._read_job(record)
            self._read_member(record)
            self._read_move(record)
            if isinstance(record, (*FORMATTED, RoundStarted)):
                notable.append(record)
        self._add_events(notable)

    def _read_job(self, record: StoryRecord) -> None:
        match record:
            case JobBegun():
                self.record = job_record(record.spec)
                self._row_s = record.t
            case RoundStarted():
                self._has_begun = True
                self._times = RoundTimes(record.t)
                for name, examples in (record.rows or {}).items():
                    self._own(name, examples)
                if not self.kept or record.rows is not None:
                    self._keep(record)
            case ExchangeEnded():
                if record.compute_s:
                    self.compute_s, self._speeds = record.compute_s, ""
                if self._times is not None:
                    self._times.add(record)
            case RoundEnded():
                self._add_point(record.t, record.row)
                self._times = None
            case FinalModel():
                counted = {
                    "members": self.status.members,
                    "absent_examples": self.status.absent_examples,
                }
                self._add_point(record.t, HistoryRow({**record.row.columns, **counted}))
            case CheckpointWritten():
                self.checkpoint_s = record.t
            case JobEnded():
                self.moves.clear()
                self.container_s += self.status.members * max(0.0, record.t - self._row_s)
                self._row_s = record.t
        if isinstance(record, _PICTURED):
            self._keep(record)

    def _keep(self, record: StoryRecord) -> None:
        if len(self.kept) < _KEPT_MAX:
            self.kept.append(record)

    def _own(self, name: str, examples: int) -> None:
        """Note the number of examples of a slot."""
        slot = self.slots.get(-1 if (k := slot_of(name)) is None else k)
        if slot is not None and slot.examples != examples:
            slot.examples, slot.version = examples, self.version

    def _read_member(self, record: StoryRecord) -> None:
        match record:
            case JobResumed():
                self.slots.clear()
                self.moves.clear()
                self.epoch += 1
            case MemberJoined():
                slot = slot_of(record.member)
                if slot is not None:
                    self.slots[slot] = Slot(slot=slot, member=record.member, host=record.host)
                    self.slots[slot].version = self.version
            case MemberActive():
                self.returned += self._has_begun and self.returned < self.lost
                self._enter(record.member, "active", examples=record.examples)
            case MemberSpare():
                self._enter(record.member, "loading", examples=0)
            case MemberNoticed() | ContainerStopping():
                end_s = None if record.grace_s is None else record.t + record.grace_s
                reason = record.reason if isinstance(record, MemberNoticed) else "terminated"
                self._enter(record.member, "leaving", reason=reason, deadline_s=end_s)
            case MemberRetiring():
                self._enter(record.member, "leaving", reason=record.why)
            case NoticeWithdrawn() | MemberKept():
                self._enter(record.member, "active")
            case MemberLost():
                is_retired = record.reason == "retired"
                self.retired += is_retired
                self.lost += not is_retired
                state: State = "retired" if is_retired else "lost"
                self._enter(record.member, state, examples=0, reason=record.reason)
                gone = record.member
                self.moves = {o: m for o, m in self.moves.items() if gone not in m[:2]}

    def _enter(
        self,
        member: str,
        state: State,
        *,
        examples: int | None = None,
        reason: str = "",
        deadline_s: float | None = None,
    ) -> None:
        """Move a member to another state; do nothing if another one has its slot."""
        slot = self.slots.get(-1 if (k := slot_of(member)) is None else k)
        if slot is None or slot.member != member:
            return
        slot.state, slot.reason, slot.deadline_s = state, reason, deadline_s
        slot.examples = slot.examples if examples is None else examples
        slot.version = self.version

    def _read_move(self, record: StoryRecord) -> None:
        match record:
            case ChunksGiven():
                n = len(parse_chunk_ranges(record.chunks, ""))
                self.moves[record.order] = (record.member, record.target, n)
            case ChunksLoaded() if record.order is not None:
                self.moves.pop(record.order, None)
            case ChunksMoved():
                self.moved_bytes += record.bytes
            case MoveFailed():
                pair = (record.source, record.target)
                self.moves = {o: m for o, m in self.moves.items() if m[:2] != pair}
            case DataDealt():
                # The initial placement of chunks is part of loading and does not count as moves.
                self.moved_bytes = 0

    def _add_events(self, notable: Sequence[StoryRecord]) -> None:
        """Append the entries of the timeline for new records."""
        for entry in timeline(notable):
            self._n_events += 1
            self.events.append(
                Event(
                    number=self._n_events,
                    at_s=entry.at_s,
                    round=None if entry.round != entry.round else int(entry.round),
                    kind=entry.kind,
                    text=entry.text,
                )
            )
        del self.events[:-EVENTS_MAX]

    def _add_point(self, t: float, row: HistoryRow) -> None:
        """Append a point of the curves, in place of the last one if that is close."""
        self.container_s += row.members * max(0.0, t - self._row_s)
        self._row_s = t
        tests = [name for name, _ in TEST_METRICS if name in row.columns]
        metric = next(iter((*tests, *filter(is_validation_score, row.columns))), "")
        self.metric = metric_name(metric) if metric else self.metric
        # Idle rounds have no exchange, and of some rounds not all records are read.
        spent = self._times
        times = (None,) * 4 if spent is None or not spent.has_exchange else spent.shares(t)
        point = [
            round(t, 3),
            row.round,
            _short(row.objective, 9),  # curves of weak signals fall by little
            int(row.objective_kind in (None, "exact")),
            _short(row.gap),
            int(row.gap_is_bound),
            row.members,
            row.absent_examples,
            _short(row.columns.get(metric)),
            *(_short(seconds, 3) for seconds in times),
        ]
        self._append(point)
        if len(self.points) > POINTS_MAX:
            self.epoch += 1
            span = self.points[-1][0] - self.points[0][0]
            self._spacing_s = max(2 * self._spacing_s, 2 * span / POINTS_MAX)
            every, self.points = self.points, []
            for point in every:
                self._append(point)

    def _append(self, point: list[Any]) -> None:
        near = len(self.points) > 1 and point[0] - self.points[-2][0] < self._spacing_s
        if near:
            last = self.points.pop()
            for k in _LAST_KNOWN:  # not every round has them
                point[k] = last[k] if point[k] is None else point[k]
        self.points.append(point)

    # --- the result ------------------------------------------------------------------------------

    @property
    def token(self) -> str:
        """The state of the figures; a later :meth:`to_json` contains only what changed since."""
        return f"{self.epoch}.{len(self.points)}.{self.version}.{self._n_events}"

    def counts(self) -> dict[State, int]:
        """Count the members by state."""
        counted = Counter(map(attrgetter("state"), self.slots.values()))
        return {state: counted[state] for state in STATE_WORDS}

    @property
    def metric_label(self) -> str:
        """Name of the score in the points: of the validation rows, or of the test data."""
        return self.metric if self.metric.startswith("validation") else f"test {self.metric}"

    def cards(self) -> list[Card]:
        """Return the key figures, most important first."""
        status, counted = self.status, self.counts()
        kind = {"exact": "", "bound": "an upper bound"}.get(status.objective_kind, "an estimate")
        last = self.points[-1] if self.points else None
        absent = status.absent_examples
        share = f"{100 * absent / status.examples:.2g} %" if absent and status.examples else ""
        goal = f"stops at {status.gap_target:g}" if status.gap_target else ""
        gap_small = "; ".join(
            w for w in ("an upper bound" if status.gap_is_bound else "", goal) if w
        )
        limit = "" if status.rounds_max is None else f"of at most {number(status.rounds_max)}"
        away = {"loading": counted["loading"], "leaving": counted["leaving"]}
        small = ", ".join(f"{n} {word}" for word, n in away.items() if n)
        cards = [
            Card(label="gap", value=number(status.gap, 3), small=gap_small),
            Card(label="objective", value=number(status.objective), small=kind),
        ]
        metric = None if last is None else self._last_known(COLUMNS.index("metric"))
        if metric is not None:
            cards.append(Card(label=self.metric_label, value=number(metric, 4)))
        cards += [
            Card(
                label="members", value=number(counted["active"] + counted["leaving"]), small=small
            ),
            Card(label="examples absent", value=number(absent), small=share),
            Card(label="rounds", value=number(status.round), small=limit),
            self._time_card(),
            Card(label="lost", value=number(self.lost), small=f"members; {self.returned} returned"),
            Card(label="given back", value=number(self.retired), small="members"),
            Card(
                label="container-seconds",
                value=number(round(self.container_s)),
                small="members × time",
            ),
            Card(label="moved", value=format_size(self.moved_bytes), small="between members"),
        ]
        if self.checkpoint_s is not None:
            cards.append(Card(label="checkpoint", since_s=self.checkpoint_s, small="old"))
        always = ("members", "rounds")
        return [
            c
            for c in cards
            if c.since_s is not None or c.value not in ("–", "0", "0 B") or c.label in always
        ]

    def _time_card(self) -> Card:
        status = self.status
        if status.is_over:
            return Card(label="time", value=seconds_text(status.seconds))
        left = status.eta_s
        small = "" if left is None else f"at most {seconds_text(left)} left"
        return Card(label="time", since_s=0.0, small=small)

    def _last_known(self, column: int) -> Any:
        return next((p[column] for p in reversed(self.points) if p[column] is not None), None)

    def lead(self) -> str:
        """Describe the job in one line."""
        return lead_text(self.record, self.status.examples, self.status.features)

    def note(self) -> str:
        """Say what keeps the job from training, or why it ended; empty if it trains."""
        status = self.status
        if status.is_over:
            return status.unconverged or status.reason or ""
        waiting = status.waiting
        if waiting is not None:
            who = f" from {', '.join(waiting.who)}" if waiting.who else ""
            return (
                f"Waiting for {waiting.what}{who} since {waiting.since_s:.0f} s: {waiting.have} of "
                f"{waiting.need}; {waiting.remedy}."
            )
        if status.round or any(slot.state == "active" for slot in self.slots.values()):
            return ""
        present = sum(slot.state == "loading" for slot in self.slots.values())
        if not present:
            return "Waiting for members."
        return f"Loading data on {count(present, 'member')}."

    def speeds(self) -> str:
        """Return the compute time of each slot in the last exchange as one digit, by slot number.

        A digit is four times the ratio to the mean, 4 for the mean and 9 from 2.25 times on; a dash
        for a slot that did not take part.
        """
        n = max(self.slots, default=-1) + 1
        if len(self._speeds) != n:
            times, total = self.compute_s, sum(self.compute_s.values())
            scale = 4 * len(times) / total if total > 0 else 0.0
            self._speeds = "".join(
                "-"
                if (s := times.get(str(slot))) is None
                else _DIGITS[min(9, int(scale * s + 0.5))]
                for slot in range(n)
            )
        return self._speeds

    def to_json(self, since: str = "") -> dict[str, Any]:
        """Return the figures as JSON values.

        Parameters
        ----------
        since : str
            The ``token`` of an earlier result: points, slots and events that it contained are left
            out, and ``is_whole`` is false.
        """
        first, version, event, is_whole = 0, 0, 0, True
        parts = since.split(".")
        if len(parts) == 4 and all(p.isdecimal() for p in parts) and int(parts[0]) == self.epoch:
            # The last point may have been replaced.
            first = max(0, min(int(parts[1]), len(self.points)) - 1)
            version, event, is_whole = int(parts[2]), int(parts[3]), False
        status = self.status
        moves = list(self.moves.values())
        return {
            "token": self.token,
            "is_whole": is_whole,
            "job": self.job,
            "name": status.name,
            "state": status.state,
            "badge": status.badge,
            "lead": self.lead(),
            "note": self.note(),
            "examples": status.examples,
            "gap_target": status.gap_target,
            "metric": self.metric,
            "cards": [[c.label, c.value, c.small, c.since_s] for c in self.cards()],
            "first": first,
            "points": self.points[first:],
            "counts": list(self.counts().values()),
            "slots": [s.to_json() for s in self.slots.values() if s.version > version],
            "speeds": self.speeds(),
            "moves": moves[:MOVES_MAX],
            "n_moves": len(moves),
            "moving": sum(n for _, _, n in moves),
            "events": [e.to_json() for e in self.events if e.number > event],
        }


_DIGITS: Final = "0123456789"
#: Columns of which a point that replaces another keeps the last known value.
_LAST_KNOWN: Final = tuple(COLUMNS.index(name) for name in ("gap", "objective", "metric"))


def _short(value: object, digits: int = 6) -> float | None:
    """Round to significant digits; None if it is not a finite number."""
    number = finite(value)
    return None if number != number else float(f"{number:.{digits}g}")


def read_story(job: str, story: Iterable[Mapping[str, Any]]) -> LiveJob:
    """Return the figures of a job whose story is complete, or as far as it goes."""
    live = LiveJob(job)
    live.read(list(story))
    return live
