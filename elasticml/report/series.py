"""Data series derived from a run: windows of absence, membership marks, clocks, test metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.report.run_reader import History, RunData
from elasticml.story.records import (
    JobResumed,
    MemberActive,
    MemberJoined,
    MemberLost,
    RoundStarted,
    StoryRecord,
)

#: Test metrics in order of preference for the headline plot: column and name.
TEST_METRICS = (
    ("test_average_precision", "area under the precision-recall curve"),
    ("test_roc_auc", "area under the ROC curve"),
    ("test_accuracy", "accuracy"),
    ("test_r2", "coefficient of determination"),
    ("test_neg_root_mean_squared_error", "minus the root mean squared error"),
    ("test_neg_log_loss", "minus the log loss"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rounds from ``start_round`` up to but excluding ``end_round`` with absent examples."""

    start_round: float
    end_round: float
    #: Largest number of absent examples in the window.
    examples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Members that left or joined in one round."""

    kind: Literal["lost", "back", "retired"]
    round: float
    at_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Clock:
    """Maps rounds to seconds since the job started, by interpolating the starts of rounds."""

    rounds: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def at(self, number: float) -> float:
        """Return the start of a round in seconds; NaN if no round has a time."""
        if not len(self.rounds):
            return math.nan
        return float(np.interp(number, self.rounds, self.seconds))


def absence_windows(history: History) -> tuple[Window, ...]:
    """Group the rounds with absent examples into windows."""
    absent, rounds = history.column("absent_examples"), history.column("round")
    windows: list[Window] = []
    start: int | None = None
    for i in range(history.n_rows + 1):
        is_absent = i < history.n_rows and absent[i] > 0
        if is_absent and start is None:
            start = i
        elif not is_absent and start is not None:
            end = rounds[i] if i < history.n_rows else rounds[i - 1] + 1
            windows.append(
                Window(
                    start_round=float(rounds[start]),
                    end_round=float(end),
                    examples=float(np.max(absent[start:i])),
                )
            )
            start = None
    return tuple(windows)


def rounds_of(records: Sequence[StoryRecord]) -> list[float]:
    """Return each record's round, else the last started round; NaN before the first."""
    current = math.nan
    rounds = []
    for record in records:
        own = record.round
        if isinstance(record, RoundStarted) and own is not None:
            current = float(own)
        rounds.append(current if own is None else float(own))
    return rounds


def membership_marks(records: Sequence[StoryRecord]) -> tuple[Mark, ...]:
    """Count the losses and joins of each round; joins before the first round do not count."""
    marks: dict[tuple[str, float], Mark] = {}
    counted: set[tuple[str, str]] = set()
    started = False
    for record, number in zip(records, rounds_of(records), strict=True):
        started = started or isinstance(record, RoundStarted)
        kind: Literal["lost", "back", "retired"]
        match record:
            case MemberLost():
                kind = "retired" if record.reason == "retired" else "lost"
            case MemberJoined() if started:
                kind = "back"
            case _:
                continue
        identity = (record.event, record.member)
        if identity in counted:
            continue
        counted.add(identity)
        in_round = 0.0 if math.isnan(number) else number
        old = marks.get((kind, in_round))
        marks[kind, in_round] = Mark(
            kind=kind,
            round=in_round,
            at_s=record.t if old is None else old.at_s,
            count=1 if old is None else old.count + 1,
        )
    return tuple(marks.values())


def clock(run: RunData) -> Clock:
    """Return the start time of each round of the history.

    The story has the exact times. The history's seconds are the times at which rows were finished;
    they are used for the last row, which no round follows, and for runs without a story.
    """
    begun = {
        float(record.round): record.t
        for record in run.records
        if isinstance(record, RoundStarted) and record.round is not None
    }
    rows = zip(run.history.column("round"), run.history.column("seconds"), strict=True)
    seconds = {float(r): float(s) for r, s in rows} | begun
    timed = sorted((r, s) for r, s in seconds.items() if math.isfinite(r) and math.isfinite(s))
    return Clock(np.array([r for r, _ in timed]), np.array([s for _, s in timed]))


def members_over_time(run: RunData) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return times (k,) in seconds, and the number of participating members from each on (k,).

    A member takes part from ``MemberActive`` on, or from ``MemberJoined`` in stories without that
    event. If the story names no member, the counts come from the history.
    """
    enters = MemberJoined if run.first(MemberActive) is None else MemberActive
    here: set[str] = set()
    steps: list[tuple[float, int]] = []
    for record in run.records:
        match record:
            case JobResumed():
                here.clear()  # members ended with their scheduler
            case MemberLost():
                here.discard(record.member)
            case MemberActive() | MemberJoined() if isinstance(record, enters):
                here.add(record.member)
            case _:
                continue
        steps.append((record.t, len(here)))
    if steps:
        # The count holds until the story ends.
        steps.append((max(run.records[-1].t, steps[-1][0]), len(here)))
        return np.array([t for t, _ in steps]), np.array([float(n) for _, n in steps])
    valid = np.isfinite(run.history.column("members"))
    times = clock(run)
    seconds = np.array([times.at(r) for r in run.history.column("round")[valid]])
    return seconds, run.history.column("members")[valid]


def full_objective(history: History) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return rounds (k,) and the objective over all examples (k,), where it is known.

    A value computed after the run takes precedence. In rows without one, the driver's objective is
    used if it is exact.
    """
    exact = np.array([kind == "exact" for kind in history.kinds], dtype=bool)
    own = np.where(exact, history.column("objective"), np.nan)
    evaluated = history.column("objective_full")
    values = np.where(np.isfinite(evaluated), evaluated, own)
    valid = np.isfinite(values)
    return history.column("round")[valid], values[valid]


def validation_column(history: History) -> str | None:
    """Return the column of the score that decides in a validated job; None in other jobs."""
    return next((c for c in history.names if is_validation_score(c) and history.has(c)), None)


def is_validation_score(column: str) -> bool:
    """Whether a column of the history is a score of the validation rows."""
    return column.startswith("validation_") and column != "validation_rows"


def headline_metric(history: History) -> tuple[str, str] | None:
    """Return column and name of the test metric to show; None if nothing was evaluated."""
    return next(((c, words) for c, words in TEST_METRICS if history.has(c)), None)


def united_windows(runs: Sequence[RunData]) -> list[tuple[float, float]]:
    """Return the union of all runs' windows of absence, ascending."""
    spans = sorted(
        (w.start_round, w.end_round) for run in runs for w in absence_windows(run.history)
    )
    united: list[tuple[float, float]] = []
    for start, end in spans:
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], end))
        else:
            united.append((start, end))
    return united


def common_metric(runs: Sequence[RunData]) -> str:
    """Return the headline test metric of the first run that has one; empty if none has."""
    return next((metric[0] for run in runs if (metric := headline_metric(run.history))), "")


def last_round(run: RunData) -> float:
    """Return the last round of the history; 0 if it is empty."""
    rounds = run.history.column("round")
    return float(rounds.max()) if len(rounds) else 0.0


def metric_series(run: RunData, metric: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the rounds in which a test metric was evaluated, and its values."""
    values = run.history.column(metric)
    valid = np.isfinite(values)
    return run.history.column("round")[valid], values[valid]


def metric_name(column: str) -> str:
    """Return the display name of a column of scores: ``roc auc`` for ``test_roc_auc``."""
    return column.removeprefix("test_").replace("_", " ")


def wants_log(values: NDArray[np.float64]) -> bool:
    """Whether to use a log axis: all values positive, and a ratio of more than five."""
    valid = values[np.isfinite(values)]
    return bool(valid.size) and bool(valid.min() > 0) and bool(valid.max() / valid.min() > 5)
