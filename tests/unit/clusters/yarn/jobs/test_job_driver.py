"""The driver of a submitted job while the file system of its run is temporarily unavailable."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from elasticml.clusters.yarn.jobs import job_driver
from elasticml.clusters.yarn.jobs.job_driver import YarnJob
from elasticml.clusters.yarn.jobs.submission import (
    CANCEL_KEY,
    Attempt,
    Submission,
    Verdict,
    read_verdict,
    write_attempt,
    write_verdict,
)
from elasticml.data.storage import filesystem
from elasticml.protocol.job_record import job_record
from tests.fake_yarn import FakeApplication


@pytest.fixture
def place(tmp_path):
    place = f"memory://driven-{tmp_path.name}/run"
    yield place
    filesystem.remove(place)


@pytest.fixture
def application():
    return FakeApplication()


@pytest.fixture
def driver(place, tmp_path, application):
    data = {"format": "svmlight", "path": f"{place}/train.svm"}
    submission = Submission(
        record=job_record({"data": data}), cluster={}, place=place, workers=1, workers_min=1
    )
    return YarnJob(submission, None, application, tmp_path)


@pytest.fixture
def failing_reads(monkeypatch):
    """Make reading a file of this name fail a few times, as while a name node restarts."""
    monkeypatch.setattr(job_driver, "TRY_PAUSE_S", 0.0)
    left = {}

    def failing(of):
        def act(self, path, *arguments, **options):
            name = str(path).rpartition("/")[2]
            if left.get(name, 0) > 0:
                left[name] -= 1
                raise ConnectionError("the name node is away")
            return of(self, path, *arguments, **options)

        return act

    for name in ("cat_file", "info"):
        monkeypatch.setattr(MemoryFileSystem, name, failing(getattr(MemoryFileSystem, name)))
    return left


def test_a_job_that_has_ended_is_not_failed_by_a_restarting_name_node(
    driver, application, place, failing_reads
):
    # The driver started again meanwhile, and overwrote the verdict that the job had failed.
    verdict = Verdict(state="done", reason="5 rounds (gap)")
    write_verdict(place, verdict)
    failing_reads["verdict.json"] = 3
    asyncio.run(driver.run())
    assert failing_reads["verdict.json"] == 0
    assert read_verdict(place) == verdict
    assert application.ended == (
        "SUCCEEDED",
        f"done: 5 rounds (gap); the run is in {place}",
    )


@pytest.mark.parametrize(("attempts", "left"), [(0, 18), (1, 0)])
def test_a_resumed_driver_waits_for_data_that_were_present_before(
    driver, place, failing_reads, attempts, left
):
    # In a first attempt errors of the data are reported at once.
    if attempts:
        write_attempt(place, Attempt(number=attempts))
    failing_reads["train.svm"] = job_driver.TRIES_MAX - 1
    asyncio.run(driver.run())
    verdict = read_verdict(place)
    assert verdict.state == "failed"
    assert failing_reads["train.svm"] == left
    is_missing = "does not exist" in verdict.reason
    assert is_missing is (attempts > 0), verdict.reason
    assert "data must be at a path that all nodes share" in verdict.reason


def test_a_job_that_is_ended_before_it_resumes_reports_its_progress(place, tmp_path, application):
    # Its run had a story and checkpoints of the attempt before, and no summary.
    data = {"format": "svmlight", "path": f"{place}/train.svm"}
    filesystem.write_whole(f"{place}/train.svm", b"1 1:1\n-1 2:1\n")
    records = [{"event": "RoundEnded", "round": r, "t": r / 2} for r in range(4)]
    story = "".join(json.dumps(record) + "\n" for record in records)
    filesystem.write_whole(f"{place}/story.jsonl", story.encode())
    submission = Submission(
        record=job_record({"name": "toy", "data": data}),
        cluster={},
        place=place,
        workers=1,
        workers_min=1,
    )
    application.store.put(CANCEL_KEY, b"1")
    driver = YarnJob(submission, SimpleNamespace(workers={}), application, tmp_path)
    asyncio.run(driver.run())
    why = "cancelled: waiting for its workers (0 of 1 were there)"
    assert application.ended == ("KILLED", f"{why}; the run is in {place}")
    assert json.loads(filesystem.read_bytes(f"{place}/summary.json")) == {
        "name": "toy",
        "rounds": 4,
        "seconds": 1.5,
        "reason": why,
    }
