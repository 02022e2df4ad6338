"""A job's status, updated from its story record by record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from elasticml.protocol.job_record import job_record
from elasticml.story.history import HistoryRow
from elasticml.story.records import (
    DataDealt,
    DataLoaded,
    FinalModel,
    JobBegun,
    JobEnded,
    JobResumed,
    JobStarted,
    MemberActive,
    RoundEnded,
    StoryRecord,
    WaitEnded,
    Waiting,
    record_from_json,
)
from elasticml.training.shortfall import NOT_CONVERGED


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job's status.

    Examples
    --------
    >>> handle = em.Job(em.CoCoA(), em.from_arrays(X, y), stop=stop).start(client)
    >>> result = handle.result()
    >>> handle.status().state
    'done'
    """

    job: str
    name: str = ""
    #: loading, running, done, failed or cancelled.
    state: str = "loading"
    #: Number of ended rounds.
    round: int = 0
    rounds_max: int | None = None
    seconds_max: float | None = None
    #: Epochs at the start of the last round, and the limit, for algorithms that count them.
    epoch: float | None = None
    epochs_max: int | None = None
    #: Seconds from the start of the job to the last record.
    seconds: float = 0.0
    #: Seconds at the end of the first round, from which the pace is computed.
    first_round_s: float | None = None
    objective: float | None = None
    objective_kind: str = "exact"
    #: The last certified gap.
    gap: float | None = None
    #: The gap is only an upper bound, since examples were absent.
    gap_is_bound: bool = False
    #: The first certified gap, and the gap at which the job stops.
    gap_first: float | None = None
    gap_target: float | None = None
    members: int = 0
    absent_examples: int = 0
    stand_ins: int = 0
    examples: int | None = None
    features: int | None = None
    #: What the job waits for, since when, and what would help; None while it computes.
    waiting: Waiting | None = None
    #: How far the final model is from the job's tolerance or target; empty if it reached it.
    unconverged: str = ""
    #: Why the job ended; None while it runs.
    reason: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether the job has ended, successfully or not."""
        return self.state in ("done", "failed", "cancelled")

    @property
    def badge(self) -> str:
        """The state as people read it: a model that missed its tolerance is not just done."""
        return NOT_CONVERGED if self.unconverged else self.state

    @property
    def eta_s(self) -> float | None:
        """Estimated seconds until the first of the round, epoch and time limits, if known."""
        ends = []
        if self.seconds_max is not None:
            ends.append(self.seconds_max - self.seconds)
        if self.rounds_max is not None and self.round > 1 and self.first_round_s is not None:
            pace = (self.seconds - self.first_round_s) / (self.round - 1)
            ends.append(pace * (self.rounds_max - self.round))
        if self.epochs_max is not None and self.epoch:
            ends.append(self.seconds * (self.epochs_max / self.epoch - 1.0))
        return max(0.0, min(ends)) if ends else None

    @property
    def gap_share(self) -> float | None:
        """Progress towards the target gap on a logarithmic scale, 0 to 1; None if unknown."""
        if not (self.gap_target and self.gap_first and self.gap):
            return None
        if self.gap <= self.gap_target or self.gap_first <= self.gap_target:
            return 1.0
        log_ratio = math.log(self.gap_first / self.gap_target)
        return min(1.0, max(0.0, math.log(self.gap_first / self.gap) / log_ratio))

    def after(self, record: Mapping[str, Any] | StoryRecord) -> JobStatus:
        """Return the status after another record of the story."""
        if not isinstance(record, StoryRecord):
            record = record_from_json(record)
        now = replace(self, seconds=max(self.seconds, record.t))
        match record:
            case JobStarted():
                return now._limited(record)
            case JobResumed():
                limited = now._limited(record)
                return replace(
                    limited,
                    state="loading",
                    members=0,
                    round=record.round,
                    waiting=None,
                    unconverged="",
                    reason=None,
                )
            case Waiting():
                return replace(now, waiting=record)
            case WaitEnded():
                return replace(now, waiting=None)
            case DataLoaded():
                return replace(now, state="running", examples=record.rows, features=record.features)
            case DataDealt(rows=rows):
                return replace(now, state="running", examples=rows or self.examples)
            case MemberActive():
                return replace(now, members=self.members + 1)
            case FinalModel(row=row) if row.gap is not None:
                return replace(
                    now,
                    objective=self.objective if row.objective is None else row.objective,
                    gap=row.gap,
                    gap_is_bound=row.gap_is_bound,
                )
            case RoundEnded():
                return now._after_round(record.row)
            case JobEnded():
                return replace(
                    now,
                    state=record.state or "done",
                    unconverged=record.unconverged,
                    reason=record.reason,
                    waiting=None,
                )
        return now

    def _limited(self, record: JobBegun) -> JobStatus:
        """Return the status with the name, and the limits of the job record."""
        stop = job_record(record.spec).stop
        return replace(
            self,
            name=record.name or "",
            rounds_max=stop.rounds,
            seconds_max=stop.seconds,
            epochs_max=stop.epochs,
            gap_target=stop.gap,
        )

    def _after_round(self, row: HistoryRow) -> JobStatus:
        is_known = row.gap is not None
        return replace(
            self,
            state="running",
            round=row.round + 1,
            first_round_s=self.seconds if self.first_round_s is None else self.first_round_s,
            objective=self.objective if row.objective is None else row.objective,
            objective_kind=row.objective_kind or "exact",
            epoch=self.epoch if row.epoch is None else row.epoch,
            gap=row.gap if is_known else self.gap,
            gap_is_bound=row.gap_is_bound if is_known else self.gap_is_bound,
            gap_first=row.gap if self.gap_first is None else self.gap_first,
            members=row.members,
            absent_examples=row.absent_examples,
            stand_ins=row.stand_ins,
        )
