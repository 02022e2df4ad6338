"""A scheduler keeps finished jobs within limits of number, bytes and time."""

from __future__ import annotations

import asyncio

import dask
import pytest

from elasticml.runtime import finished_jobs as module
from elasticml.runtime.finished_jobs import BYTES_KEY, JOBS_KEY, SECONDS_KEY, FinishedJobs

pytestmark = pytest.mark.asyncio


class Kept:
    """Jobs that are kept, by name."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.finished = FinishedJobs(self.drop)

    def drop(self, job: str) -> None:
        self.jobs.remove(job)
        self.finished.forget(job)

    def add(self, job: str, nbytes: int = 1, is_fetched: bool = True) -> None:
        self.jobs.append(job)
        self.finished.add(job, nbytes)
        if is_fetched:
            self.finished.fetched(job)


async def test_the_oldest_of_too_many_jobs_are_dropped():
    kept = Kept()
    with dask.config.set({JOBS_KEY: 3}):
        for k in range(6):
            kept.add(f"j{k}")
    assert kept.jobs == ["j3", "j4", "j5"]
    kept.finished.close()


async def test_jobs_that_take_too_many_bytes_are_dropped_down_to_the_limit():
    kept = Kept()
    with dask.config.set({BYTES_KEY: "1 MiB"}):
        for k, nbytes in enumerate((10, 10, 2**20 - 15, 10)):
            kept.add(f"j{k}", nbytes)
    assert kept.jobs == ["j2", "j3"]
    kept.finished.close()


async def test_a_result_that_no_client_has_fetched_is_dropped_last_and_not_at_once(monkeypatch):
    kept = Kept()
    with dask.config.set({JOBS_KEY: 1}):
        kept.add("unfetched", is_fetched=False)
        kept.add("fetched")
        kept.add("other", is_fetched=False)
        assert kept.jobs == ["unfetched", "other"]
        monkeypatch.setattr(module, "UNFETCHED_S", 0.0)
        kept.finished.trim()
        assert kept.jobs == ["other"]
    kept.finished.close()


async def test_a_job_is_dropped_when_its_time_is_over():
    kept = Kept()
    with dask.config.set({SECONDS_KEY: "1ms"}):
        kept.add("brief")
        kept.add("forgotten")
        kept.drop("forgotten")
    while kept.jobs:
        await asyncio.sleep(0)
    kept.finished.close()
