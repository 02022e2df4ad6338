"""Finished jobs on the scheduler: their results, and how long they are kept.

A driver's links, buffers, trainer and machine end with the job. What clients may still ask for is
kept for a day, up to a number of jobs and of bytes.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import dask
import numpy as np
from dask.utils import parse_bytes, parse_timedelta

from elasticml.algorithms.base import Arrays
from elasticml.data.dataset_stats import DatasetStats
from elasticml.protocol.job_record import JobRecord, job_record
from elasticml.story.journal import Journal
from elasticml.training.driver_session import DriverSession

#: Limits of what is kept, with their keys in Dask's configuration, which has precedence.
KEPT_S: Final = "24h"
KEPT_JOBS: Final = 100
KEPT_BYTES: Final = "1 GiB"
KEYS = SECONDS_KEY, JOBS_KEY, BYTES_KEY = (
    "elasticml.results.time",
    "elasticml.results.jobs",
    "elasticml.results.size",
)
#: A result that no client has fetched is kept at least for this long, whatever the limits.
UNFETCHED_S: Final = 60.0


@dataclass(slots=True, kw_only=True)
class FinishedJob:
    """The results of a job: all that is left of its driver."""

    #: Without the initial model.
    record: JobRecord
    journal: Journal
    state: str
    error: Mapping[str, Any] | None
    summary: Mapping[str, Any]
    facts: DatasetStats | None
    #: Spec of the training data.
    data: Mapping[str, Any]
    #: The model.
    arrays: Arrays
    #: Duration of the job.
    seconds: float
    #: Set from the start; other jobs set them at their end, and when their story has grown.
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, record: JobRecord, session: DriverSession, seconds: float) -> FinishedJob:
        """Return the results of a job whose driver is about to be dropped."""
        journal, arrays = session.journal, session.result_arrays()
        record = job_record(record.without_arrays())
        journal.compact(record.json)
        finished = cls(
            record=record,
            journal=journal,
            state=session.state,
            error=session.error,
            summary=session.summary,
            facts=session.facts,
            data=session.source.spec(),
            # Views would keep the trainer's arrays alive.
            arrays={name: np.array(array) for name, array in arrays.items()},
            seconds=seconds,
        )
        finished.ended.set()
        finished.grown.set()
        return finished

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        models = [self.arrays, *self.journal.snapshots.values()]
        arrays = sum(array.nbytes for model in models for array in model.values())
        rest = pickle.dumps((self.facts, self.data, self.summary, self.record.json))
        return arrays + self.journal.nbytes + len(rest)

    def now_s(self) -> float:
        """Return the seconds since the start of the job, up to its end."""
        return self.seconds


@dataclass(slots=True, kw_only=True)
class _Kept:
    nbytes: int
    since_s: float
    timer: asyncio.TimerHandle
    is_fetched: bool = False


class FinishedJobs:
    """Decides which finished jobs are kept.

    Those whose results were fetched go first, then the oldest.

    Parameters
    ----------
    drop : callable (str)
        Forgets a job.
    """

    def __init__(self, drop: Callable[[str], None]) -> None:
        self._drop = drop
        #: Oldest first.
        self._kept: dict[str, _Kept] = {}
        #: Looks again when the results that no client has fetched may be dropped.
        self._look: asyncio.TimerHandle | None = None

    def add(self, job: str, nbytes: int) -> None:
        """Keep a job that has ended, and drop others that exceed the limits now."""
        kept_s = parse_timedelta(dask.config.get(SECONDS_KEY, KEPT_S))
        timer = asyncio.get_running_loop().call_later(kept_s, self._drop, job)
        self._kept[job] = _Kept(nbytes=nbytes, since_s=time.monotonic(), timer=timer)
        self.trim()

    def fetched(self, job: str) -> None:
        """Record that a client has a job's results."""
        if job in self._kept:
            self._kept[job].is_fetched = True

    def forget(self, job: str) -> None:
        """Record that a job is kept no more."""
        kept = self._kept.pop(job, None)
        if kept is not None:
            kept.timer.cancel()

    def trim(self) -> None:
        """Drop jobs beyond the limits."""
        jobs = int(dask.config.get(JOBS_KEY, KEPT_JOBS))
        nbytes = parse_bytes(dask.config.get(BYTES_KEY, KEPT_BYTES))
        total, now_s = sum(kept.nbytes for kept in self._kept.values()), time.monotonic()
        for job, kept in sorted(self._kept.items(), key=lambda item: not item[1].is_fetched):
            if len(self._kept) <= jobs and total <= nbytes:
                return
            if not kept.is_fetched and now_s - kept.since_s < UNFETCHED_S:
                self._look_again()
                return
            total -= kept.nbytes
            self._drop(job)

    def _look_again(self) -> None:
        if self._look is not None:
            self._look.cancel()
        self._look = asyncio.get_running_loop().call_later(UNFETCHED_S, self.trim)

    def close(self) -> None:
        """Cancel the timers."""
        for job in list(self._kept):
            self.forget(job)
        if self._look is not None:
            self._look.cancel()
