"""Show a job's progress: one updating line in a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from elasticml.ids import format_size
from elasticml.report.status import JobStatus
from elasticml.story.records import (
    GroupReturned,
    MemberLost,
    MemberNoticed,
    PolicyDecided,
    StoryRecord,
    Waiting,
    WentOutOfCore,
    records_from_json,
)

#: Seconds between lines if the output is not a terminal.
QUIET_S = 5.0
#: Seconds before the first of these lines, so that a job that fails at once prints none.
FIRST_S = 1.0
#: Policy suggestions that get a line of their own; moves of chunks may happen in every round.
_SHOWN_SUGGESTIONS = ("Retire", "Request", "Tune")


class ProgressBar:
    """Shows a job's status while the job is followed; a context manager.

    Parameters
    ----------
    console : rich.console.Console, optional
        By default standard error.
    label : str, optional
        Shown instead of the job's name.
    clock : callable
        Monotonic time in seconds.
    url : str, optional
        Address of the page that shows the job; printed once.
    """

    def __init__(
        self,
        console: Console | None = None,
        label: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        url: str | None = None,
    ) -> None:
        self._url = url
        self._console = console or Console(file=sys.stderr)
        self._label = label
        self._clock = clock
        self._status = JobStatus(job="")
        self._live: Live | None = None
        self._said_s: float | None = None
        self._is_over = False
        #: When the last record came.
        self._heard_s = 0.0

    def __enter__(self) -> ProgressBar:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=False)
            self._live.start()
            self._live.update(self._line(0.0))
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def on_records(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Process new records and update the display."""
        now_s = self._clock()
        if records:
            self._heard_s = now_s
        for record in records_from_json(records):
            self._status = self._status.after(record)
            text = _describe(record)
            if text is not None:
                self.note(text)
        if self._live is not None:
            self._print_url()
            self._live.update(self._line(now_s))
            return
        ended = self._status.is_over and not self._is_over
        self._is_over = self._status.is_over
        if self._said_s is None:
            self._said_s = now_s - QUIET_S + FIRST_S
        if ended and self._status.state == "failed":
            return  # the caller that waits for the result reports the error
        if ended or now_s - self._said_s >= QUIET_S:
            self._said_s = now_s
            if not ended:
                self._print_url()
            self._console.print(self._line(now_s), soft_wrap=True)

    def _print_url(self) -> None:
        if self._url is not None:
            self._console.print(Text(f"watch: {self._url}", style="dim"), soft_wrap=True)
            self._url = None

    def note(self, text: str) -> None:
        """Print a line above the status line; only in a terminal."""
        if self._live is not None:
            self._console.print(Text(text, style="dim"), soft_wrap=True)

    def _line(self, now_s: float) -> Text:
        line = status_line(self._status, self._label)
        if self._status.waiting is not None:
            job_s = self._status.seconds + now_s - self._heard_s
            line += f"\n  {waiting_line(self._status.waiting, job_s)}"
        return Text(line, no_wrap=True, overflow="ellipsis")


def status_line(status: JobStatus, label: str | None = None) -> str:
    """Format a job's status as one line: round, objective, members, stand-ins, time left."""
    name = label or status.name or "job"
    if status.round == 0 and not status.is_over:
        if not status.members:
            return f"{name}: waiting for members"
        return f"{name}: loading data on {status.members} members"
    of = "" if status.rounds_max is None else f"/{status.rounds_max}"
    parts = [f"{name}: round {status.round}{of}"]
    if status.epoch is not None:
        of = "" if status.epochs_max is None else f"/{status.epochs_max}"
        parts.append(f"epoch {status.epoch:.2f}{of}")
    if status.objective is not None:
        sign = "~" if status.objective_kind == "estimated" else ""
        parts.append(f"objective {sign}{status.objective:.6g}")
    if status.gap is not None:
        parts.append(_gap(status))
    parts.append(f"{status.members} members")
    if status.absent_examples:
        parts.append(f"{status.absent_examples} examples absent")
    if status.stand_ins:
        parts.append(f"{status.stand_ins} stand-in" + "s" * (status.stand_ins > 1))
    if status.is_over:
        parts.append(f"{status.badge} after {_time(status.seconds)}: {status.reason}")
    elif status.eta_s is not None:
        parts.append(f"{_time(status.eta_s)} to go")
    return " | ".join(parts)


def waiting_line(waiting: Waiting, now_s: float) -> str:
    """Format what a job waits for as one line.

    Parameters
    ----------
    waiting : Waiting
    now_s : float
        Seconds since the start of the job.
    """
    who = f" from {', '.join(waiting.who)}" if waiting.who else ""
    return (
        f"waiting for {waiting.what}{who} for {_time(max(0.0, now_s - waiting.since_s))}: "
        f"{waiting.have} of {waiting.need}; {waiting.remedy}"
    )


def _gap(status: JobStatus) -> str:
    """Format the gap and its progress towards the target on a logarithmic scale."""
    text = f"gap {'≤' if status.gap_is_bound else ''}{status.gap:.1e}"
    if status.gap_target is None or status.gap_share is None:
        return text
    return f"{text} of {status.gap_target:.0e} ({100 * status.gap_share:.0f} %)"


def _describe(record: StoryRecord) -> str | None:
    """Return the line of a record; None for most."""
    at = f"round {record.round}"
    match record:
        case MemberLost():
            return f"{at}: member {record.member} lost ({record.reason})"
        case MemberNoticed():
            return f"{at}: member {record.member} leaves in {record.grace_s} s"
        case WentOutOfCore():
            return (
                f"{at}: member {record.member} has {format_size(record.nbytes)} of chunks and "
                f"memory for {format_size(record.limit_bytes)}: they stream from its disk"
            )
        case PolicyDecided() if record.suggestion in _SHOWN_SUGGESTIONS:
            return f"{at}: {record.policy}: {record.why}"
        case GroupReturned():
            return f"{at}: {len(record.members)} members' chunks are back"
    return None


def _time(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
