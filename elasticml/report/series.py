"""What a report draws, derived from a run: windows of absence, marks, clocks, test metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.report.run import History, Record, RunData, finite

#: Test metrics in the order of preference for the headline picture: column, its name in words.
TEST_METRICS = (
    ("test_auprc", "area under the precision-recall curve"),
    ("test_auroc", "area under the ROC curve"),
    ("test_accuracy", "accuracy"),
    ("test_r2", "coefficient of determination"),
    ("test_rmse", "root mean squared error"),
    ("test_logloss", "log loss"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rounds ``start_round`` up to, not including, ``end_round`` in which examples were absent."""

    start_round: float
    end_round: float
    #: Largest number of absent examples in the window.
    examples: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Members that went or came in one round."""

    kind: Literal["lost", "back", "retired"]
    round: float
    at_s: float
    count: int


@dataclass(frozen=True, slots=True)
class Clock:
    """Maps rounds to seconds since the job started, by the rounds that the run saw begin."""

    rounds: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def at(self, number: float) -> float:
        """Seconds at which a round began; NaN where no round has a time."""
        if not len(self.rounds):
            return math.nan
        return float(np.interp(number, self.rounds, self.seconds))


def absence_windows(history: History) -> tuple[Window, ...]:
    """Group the rounds with absent examples into windows."""
    absent, rounds = history.column("absent_examples"), history.column("round")
    windows: list[Window] = []
    start: int | None = None
    for i in range(history.n_rows + 1):
        away = i < history.n_rows and absent[i] > 0
        if away and start is None:
            start = i
        elif not away and start is not None:
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


def rounds_of(records: Sequence[Record]) -> list[float]:
    """Round of each record: its own, else the last one that had started; NaN before the first."""
    current = math.nan
    found = []
    for record in records:
        own = finite(record.get("round"))
        if record["event"] == "RoundStarted" and not math.isnan(own):
            current = own
        found.append(current if math.isnan(own) else own)
    return found


def membership_marks(records: Sequence[Record]) -> tuple[Mark, ...]:
    """Count the losses and the later joins of each round; the first members are no mark."""
    marks: dict[tuple[str, float], Mark] = {}
    counted: set[tuple[str, str]] = set()
    started = False
    for record, number in zip(records, rounds_of(records), strict=True):
        event = record["event"]
        started = started or event == "RoundStarted"
        if event not in ("MemberLost", "MemberJoined"):
            continue
        identity = (event, str(record.get("member")))
        if identity in counted or (event == "MemberJoined" and not started):
            continue
        counted.add(identity)
        kind: Literal["lost", "back", "retired"] = "lost" if event == "MemberLost" else "back"
        if kind == "lost" and record.get("reason") == "retired":
            kind = "retired"  # a policy gave it back
        place = 0.0 if math.isnan(number) else number
        old = marks.get((kind, place))
        marks[kind, place] = Mark(
            kind=kind,
            round=place,
            at_s=finite(record.get("t"), 0.0) if old is None else old.at_s,
            count=1 if old is None else old.count + 1,
        )
    return tuple(marks.values())


def clock(run: RunData) -> Clock:
    """Tell when each round of the history began.

    The story knows it exactly. The history's own seconds are those at which a row was finished:
    they serve for the last row, which no round follows, and for runs without a story.
    """
    begun = {
        finite(record.get("round")): finite(record.get("t"))
        for record in run.records
        if record["event"] == "RoundStarted"
    }
    told = zip(run.history.column("round"), run.history.column("seconds"), strict=True)
    seconds = {float(r): float(s) for r, s in told} | begun
    known = sorted((r, s) for r, s in seconds.items() if math.isfinite(r) and math.isfinite(s))
    return Clock(np.array([r for r, _ in known]), np.array([s for _, s in known]))


def members_over_time(run: RunData) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return times (k,) in seconds, and the number of members that take part from each on (k,).

    A member takes part from ``MemberActive`` on, or from its joining in stories without that
    event; where the story names no member at all, the history's count is given.
    """
    events = {record["event"] for record in run.records}
    enters = "MemberActive" if "MemberActive" in events else "MemberJoined"
    here: set[str] = set()
    steps: list[tuple[float, int]] = []
    for record in run.records:
        if record["event"] not in (enters, "MemberLost", "JobResumed"):
            continue
        member = str(record.get("member"))
        if record["event"] == "JobResumed":
            here.clear()  # members end with their scheduler
        else:
            (here.add if record["event"] == enters else here.discard)(member)
        steps.append((finite(record.get("t"), 0.0), len(here)))
    if steps:
        # The count holds until the story ends.
        steps.append((max(finite(run.records[-1].get("t"), 0.0), steps[-1][0]), len(here)))
        return np.array([t for t, _ in steps]), np.array([float(n) for _, n in steps])
    known = np.isfinite(run.history.column("members"))
    times = clock(run)
    seconds = np.array([times.at(r) for r in run.history.column("round")[known]])
    return seconds, run.history.column("members")[known]


def full_objective(history: History) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return rounds (k,) and the objective over all examples (k,), wherever it is known.

    The evaluator's figure goes first; a row without one counts when the driver's own objective
    was exact in it.
    """
    exact = np.array([kind == "exact" for kind in history.kinds], dtype=bool)
    own = np.where(exact, history.column("objective"), np.nan)
    evaluated = history.column("objective_full")
    values = np.where(np.isfinite(evaluated), evaluated, own)
    known = np.isfinite(values)
    return history.column("round")[known], values[known]


def headline_metric(history: History) -> tuple[str, str] | None:
    """Column and name of the test metric to show; None where nothing was evaluated."""
    return next(((c, words) for c, words in TEST_METRICS if history.has(c)), None)


def united_windows(runs: Sequence[RunData]) -> list[tuple[float, float]]:
    """Unite the rounds of absence of all runs, ascending."""
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
    """Choose the headline test metric of the first run that has one; empty where none has."""
    return next((found[0] for run in runs if (found := headline_metric(run.history))), "")


def last_round(run: RunData) -> float:
    """Return the last round of the history; 0 where there is none."""
    rounds = run.history.column("round")
    return float(rounds.max()) if len(rounds) else 0.0


def metric_series(run: RunData, metric: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return rounds and values at which a test metric was evaluated."""
    values = run.history.column(metric)
    known = np.isfinite(values)
    return run.history.column("round")[known], values[known]


def metric_name(column: str) -> str:
    """Write a test column's short name for people: AUPRC for ``test_auprc``."""
    short = column.removeprefix("test_").replace("_", " ")
    return short.upper() if short in ("auprc", "auroc", "rmse") else short


def wants_log(values: NDArray[np.float64]) -> bool:
    """Tell whether a log axis suits: all positive, and more than a factor of five apart."""
    known = values[np.isfinite(values)]
    return bool(known.size) and bool(known.min() > 0) and bool(known.max() / known.min() > 5)
