"""Report a job's progress to YARN as a fraction in [0, 1]."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elasticml.jobs.status import JobStatus

#: Seconds between two reports, and the least change that is reported.
TELL_S = 1.0
STEP_MIN = 0.01


class ProgressReporter:
    """A watcher that reports a job's progress.

    Parameters
    ----------
    tell : callable (float)
        Receives the fraction, in [0, 1]; it never decreases.
    clock : callable
        Monotonic time in seconds.
    """

    def __init__(
        self, tell: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._status = JobStatus(job="")
        self._reported = -STEP_MIN  # so that 0 is reported as well
        self._reported_s: float | None = None

    def record(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Process new records and report the progress."""
        for record in records:
            self._status = self._status.after(record)
        share = progress_fraction(self._status)
        now_s = self._clock()
        if self._reported_s is not None and now_s - self._reported_s < TELL_S and share < 1:
            return
        if share >= self._reported + STEP_MIN:
            self._reported, self._reported_s = share, now_s
            self._tell(share)


def progress_fraction(status: JobStatus) -> float:
    """Return a job's progress in [0, 1], by the stop rule that is closest to ending it."""
    if status.is_over:
        return 1.0
    shares = [0.0]
    if status.rounds_max:
        shares.append(status.round / status.rounds_max)
    if status.seconds_max:
        shares.append(status.seconds / status.seconds_max)
    if status.epochs_max and status.epoch:
        shares.append(status.epoch / status.epochs_max)
    if status.gap_share is not None:
        shares.append(status.gap_share)
    return min(1.0, max(shares))
