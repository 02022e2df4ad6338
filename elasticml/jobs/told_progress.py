"""How far a job is, as one number that a resource manager shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elasticml.jobs.status import JobStatus

#: Seconds between two tellings, and the least difference that is worth one.
TELL_S = 1.0
STEP_MIN = 0.01


class ToldProgress:
    """Tells how much of a job is done while it is followed; a watcher.

    Parameters
    ----------
    tell : callable (float)
        Is told the share, 0 to 1; it never falls.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self, tell: Callable[[float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._status = JobStatus(job="")
        self._told = -STEP_MIN  # that nothing is done is told, too
        self._told_s: float | None = None

    def record(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Take note of further records, and tell how far the job is."""
        for record in records:
            self._status = self._status.after(record)
        share = share_done(self._status)
        now_s = self._clock()
        if self._told_s is not None and now_s - self._told_s < TELL_S and share < 1:
            return
        if share >= self._told + STEP_MIN:
            self._told, self._told_s = share, now_s
            self._tell(share)


def share_done(status: JobStatus) -> float:
    """Return how much of a job is done, 0 to 1: by the limit that is nearest."""
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
