"""Following a job to an abnormal end: an interrupt, a lost directory or a lost scheduler."""

from __future__ import annotations

import json
import shutil

import pytest

from elasticml.errors import JobFailedError
from elasticml.jobs import follow as module
from elasticml.jobs.rpc import JobOutcome
from elasticml.protocol.job_record import job_record

STORY = [
    {"t": 0.1, "event": "RoundEnded", "round": 0, "objective": 1.0},
    {"t": 0.2, "event": "JobEnded", "state": "done", "reason": "1 rounds"},
]
RECORD = {"name": "toy", "data": {"format": "npz"}, "algorithm": {"name": "batch_gradient"}}


class EndedJob:
    """A job that has ended and cannot be cancelled any more."""

    record, source, test = job_record(RECORD), None, None

    def batches(self, since=0):
        yield STORY[since:]

    def outcome(self):
        return JobOutcome(
            arrays={},
            snapshots={},
            history=[{"round": 0}],
            summary={"name": "toy"},
            facts=None,
            state="done",
            error=None,
        )

    def cancel(self):
        raise AssertionError("the job is over")


def test_interrupt_during_the_evaluation_keeps_the_jobs_result(tmp_path, monkeypatch):
    # Its history was final, and was to be extended: an internal error instead of exit 130.
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        module.follow(EndedJob(), run_dir=tmp_path / "run", cancels=True)
    assert caught.value.__notes__ == [f"partial results of the run are in {tmp_path / 'run'}"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["reason"] == "interrupted"
    assert (tmp_path / "run" / "report.html").exists()


class RunningJob(EndedJob):
    """A job that loses something while it runs."""

    def __init__(self, loses):
        self.loses = loses
        self.is_cancelled = False

    def batches(self, since=0):
        if not since:
            yield STORY[:1]
            self.loses()
        yield STORY[1:]

    def cancel(self):
        self.is_cancelled = True


def test_a_directory_removed_while_the_job_runs_is_a_one_line_error(tmp_path):
    # FileNotFoundError, and so an internal error.
    job = RunningJob(lambda: shutil.rmtree(tmp_path / "run"))
    with pytest.raises(JobFailedError, match="cannot be written any more: it has been"):
        module.follow(job, run_dir=tmp_path / "run", cancels=True)
    assert job.is_cancelled
    assert not (tmp_path / "run").exists()


def test_records_of_a_lost_scheduler_are_kept_and_their_path_is_named(tmp_path):
    def lose():
        raise JobFailedError("the scheduler is gone", reason="scheduler lost")

    with pytest.raises(JobFailedError) as caught:
        module.follow(RunningJob(lose), run_dir=tmp_path / "run", cancels=True)
    assert caught.value.message == (
        f"the scheduler is gone; partial results of the run are in {tmp_path / 'run'}"
    )
    assert caught.value.fields == {"reason": "scheduler lost"}
    assert (tmp_path / "run" / "report.html").exists()


class StartingJob(EndedJob):
    """A job that is interrupted before its first record."""

    def batches(self, since=0):
        if not since:
            raise KeyboardInterrupt
        yield []

    def cancel(self):
        pass


def test_a_run_interrupted_before_it_resumes_stays_unchanged(tmp_path):
    path = tmp_path / "run"
    module.follow(EndedJob(), run_dir=path, evaluates=False)
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    with pytest.raises(KeyboardInterrupt):
        module.follow(StartingJob(), run_dir=path, cancels=True, continues=True)
    after = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    assert after == before
