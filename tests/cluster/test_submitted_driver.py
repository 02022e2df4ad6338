"""The driver of a submitted job: what it leaves, how it ends, and how it resumes after a kill
-9.
"""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from elasticml.clusters.yarn.jobs.submission import (
    CANCEL_KEY,
    Submission,
    read_attempt,
    read_verdict,
)
from elasticml.job import Job
from elasticml.protocol.job_record import job_record
from tests.play.stock_workers import kill_session
from tests.waiting import until

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
LIFE = "tests.cluster.driver_attempt"
WORKERS = 2
WAIT_S = 120.0


@pytest.fixture
def submit(tmp_path):
    """Write a job for a driver; return the file and the path of its run."""

    def write(**changes):
        raw = {
            "data": {"format": "synthetic_splice", "rows": 2000},
            "algorithm": {
                "name": "batch_gradient",
                "optimizer": "gd",
                "intercept": False,
                "tolerance": 0,
            },
            "stop": {"rounds": 10},
            **changes,
        }
        job = Job.from_sections(raw, folder=tmp_path, name="driven")
        submission = Submission(
            record=job_record(job.record("driven-1", WORKERS, run_dir=tmp_path / "place")),
            cluster={"kind": "yarn", "workers": WORKERS},
            place=str(tmp_path / "place"),
            workers=WORKERS,
            workers_min=WORKERS,
        )
        file = tmp_path / "submission.json"
        file.write_bytes(submission.to_json())
        return file, tmp_path / "place"

    return write


@pytest.fixture
def start(tmp_path):
    """Start an attempt of a driver in a separate process."""
    lives = []

    def begin(file, workers=WORKERS, written=""):
        folder = tmp_path / f"life-{len(lives)}"
        folder.mkdir()
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", LIFE, str(file), str(folder), str(workers), written],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
        lives.append(process)
        return process

    yield begin
    for process in lives:
        kill_session(process)
        process.communicate()


def ended(process):
    out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def rounds_of(place):
    with (place / "history.csv").open() as file:
        return [int(row["round"]) for row in csv.DictReader(file)]


@pytest.mark.slow
def test_a_job_is_driven_to_its_end_and_leaves_its_run(submit, start):
    file, place = submit()
    calls = ended(start(file))
    assert calls["end"] == ["SUCCEEDED", f"done: 10 rounds (10 rounds); the run is in {place}"]
    assert calls["shares"][-1] == 1.0
    assert rounds_of(place) == list(range(11))
    summary = json.loads((place / "summary.json").read_text())
    assert (summary["rounds"], summary["run_dir"]) == (10, str(place))
    assert summary["train"]["accuracy"] > 0.5
    assert {"job.yaml", "model.npz", "report.html"} <= {path.name for path in place.iterdir()}
    assert read_verdict(str(place)).state == "done"
    assert not (place / "checkpoint").exists()


@pytest.mark.slow
def test_after_a_kill_the_next_driver_resumes_from_the_last_checkpoint(submit, start):
    # Enough work that the job is far from its end when its history appears.
    rounds = 300
    file, place = submit(
        stop={"rounds": rounds}, data={"format": "synthetic_splice", "rows": 40_000}
    )
    first = start(file)

    def is_on_its_way() -> bool:
        assert first.poll() is None
        return (place / "history.csv").exists() and len(rounds_of(place)) > 50

    until(is_on_its_way, "50 rounds")
    kill_session(first)
    calls = ended(start(file))
    assert calls["end"][0] == "SUCCEEDED"
    assert read_attempt(str(place)).number == 2
    # One history, without a gap and without repeated rounds.
    assert rounds_of(place) == list(range(rounds + 1))
    story = [json.loads(line) for line in (place / "story.jsonl").read_text().splitlines()]
    resumed = [record for record in story if record["event"] == "JobResumed"]
    assert len(resumed) == 1
    told_rounds = [r["round"] for r in story if r["event"] == "RoundEnded"]
    assert told_rounds == sorted(set(told_rounds))


def test_data_that_the_node_lacks_end_the_application_with_the_remedy(submit, start):
    file, place = submit(data={"format": "svmlight", "path": "/nowhere/train.svm"})
    status, diagnostics = ended(start(file))["end"]
    assert status == "FAILED"
    assert "/nowhere/train.svm does not exist" in diagnostics
    assert "data must be at a path that all nodes share, or on hdfs://" in diagnostics
    assert read_verdict(str(place)).to_error().message == diagnostics.removeprefix("failed: ")


def test_a_job_that_waits_for_its_workers_can_be_ended(submit, start):
    # Commands were ignored before the job began: elasticml kill took two minutes, and reported a
    # failed job.
    file, place = submit()
    calls = ended(start(file, workers=1, written=CANCEL_KEY))
    why = "waiting for its workers (1 of 2 were there)"
    verdict = read_verdict(str(place))
    assert (verdict.state, verdict.reason, verdict.error) == ("cancelled", why, None)
    assert calls["end"] == ["KILLED", f"cancelled: {why}; the run is in {place}"]
