"""Following a job to an abnormal end: an interrupt, a lost directory or a lost scheduler."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from elasticml.data.readers.arrays import from_arrays
from elasticml.errors import ConfigError, JobFailedError
from elasticml.jobs import follow as module
from elasticml.jobs.callbacks import Callback
from elasticml.jobs.result import Result
from elasticml.jobs.rpc import JobOutcome
from elasticml.protocol.job_record import job_record
from elasticml.report import run_page
from elasticml.runtime.checkpoints.checkpoint_store import read_checkpoint
from tests.sim.small_jobs import VirtualJob, toy_job

STORY = [
    {"t": 0.1, "event": "RoundEnded", "round": 0, "objective": 1.0},
    {"t": 0.2, "event": "JobEnded", "state": "done", "reason": "1 rounds"},
]
RECORD = {"name": "toy", "data": {"format": "npz"}, "algorithm": {"name": "batch_gradient"}}


class EndedJob:
    """A job that has ended and cannot be cancelled any more."""

    record = job_record(RECORD)

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


def test_an_interrupt_after_the_end_keeps_the_jobs_result(tmp_path):
    # Its history was final, and was to be extended: an internal error instead of exit 130.
    class InterruptedJob(EndedJob):
        def batches(self, since=0):
            yield STORY[since:]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        module.follow(InterruptedJob(), run_dir=tmp_path / "run", cancels=True)
    assert caught.value.__notes__ == [f"the job had ended: its model is in {tmp_path / 'run'}"]
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


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_directory_removed_while_the_job_runs_is_written_again(tmp_path, is_moved):
    # The job ran to its end, and its model was lost.
    run = tmp_path / "run"
    job = RunningJob(lambda: shutil.move(run, tmp_path / "new") if is_moved else shutil.rmtree(run))
    result = module.follow(job, run_dir=run, cancels=True)
    assert not job.is_cancelled
    saved = Result.load(run)
    assert [record["event"] for record in saved.story] == ["RoundEnded", "JobEnded"]
    assert (run / "job.yaml").read_text().startswith("name: toy")
    assert "was removed while the job ran" in " ".join(saved.summary["notes"])
    assert result.run_dir == run


def test_a_directory_that_cannot_be_written_again_is_a_one_line_error(tmp_path):
    def replace_by_a_file():
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").write_text("")

    job = RunningJob(replace_by_a_file)
    with pytest.raises(JobFailedError, match="the run cannot be written any more: File exists"):
        module.follow(job, run_dir=tmp_path / "run", cancels=True)
    assert job.is_cancelled


def test_a_full_disk_names_the_checkpoint_from_which_the_job_goes_on(tmp_path, monkeypatch):
    # It said: run it again, although hours of work were in the checkpoint.
    def full(*args):
        raise OSError("No space left on device")

    job = RunningJob(lambda: monkeypatch.setattr(module.RunDirectory, "_restore", full))
    job.record = job_record(saved_record(tmp_path))
    with pytest.raises(JobFailedError) as caught:
        module.follow(job, run_dir=tmp_path / "run", cancels=True, cluster={"kind": "local"})
    assert job.is_cancelled
    message = caught.value.message
    assert "cannot be written any more: No space left on device; make room there" in message
    assert message.endswith(f"; resume it: elasticml run --resume {tmp_path / 'run'}")


class LostJob(RunningJob):
    """A job whose scheduler ends while it runs."""

    def __init__(self, record):
        super().__init__(self.outcome)
        self.record = job_record(record)

    def outcome(self):
        raise JobFailedError("the scheduler is gone", reason="scheduler lost")


def lost(record, run_dir, cluster=None):
    """Follow such a job; return the error, and the run's summary."""
    with pytest.raises(JobFailedError) as caught:
        module.follow(LostJob(record), run_dir=run_dir, cluster=cluster, cancels=True)
    assert caught.value.fields == {"reason": "scheduler lost"}
    assert (run_dir / "report.html").exists()
    return caught.value.message, json.loads((run_dir / "summary.json").read_text())


def test_records_of_a_lost_scheduler_are_kept_and_their_path_is_named(tmp_path):
    message, summary = lost(RECORD, tmp_path / "run")
    assert message == (
        f"the scheduler is gone; partial results of the run are in {tmp_path / 'run'}; it wrote no "
        "checkpoints: set checkpoint.path to be able to resume such a job"
    )
    assert (summary["rounds"], summary["error"]) == (1, "the scheduler is gone")
    assert not (tmp_path / "run" / "model.npz").exists()


def saved_record(tmp_path):
    """Run a job with checkpoints; return its record."""
    rng = np.random.default_rng(3)
    source = from_arrays(rng.normal(size=(60, 3)), np.sign(rng.normal(size=60)))
    place = tmp_path / "checkpoints"
    record = toy_job(
        algorithm={"name": "batch_gradient", "l2": 1e-2},
        absent="auto",
        stop={"rounds": 3},
        checkpoint={"path": str(place), "every_s": 0},
        members={"start": 1, "min": 1},
    )
    job = VirtualJob(record, source, checkpoints=place).end()
    return job.agent.record.fields_json()


def test_the_run_of_a_lost_scheduler_has_the_last_checkpoints_model(tmp_path):
    record = saved_record(tmp_path)
    checkpoint = read_checkpoint(record["checkpoint"]["path"])
    message, summary = lost(record, tmp_path / "run", cluster={"kind": "local"})
    assert message.endswith(f"; resume it: elasticml run --resume {tmp_path / 'run'}")
    assert summary["model_round"] == checkpoint.round
    with np.load(tmp_path / "run" / "model.npz") as model:
        expected = checkpoint.resume_point.model["coef"]
        np.testing.assert_array_equal(model["coef"], expected)
        np.testing.assert_array_equal(model["classes"], [-1.0, 1.0])
    assert np.count_nonzero(expected) == 3
    message, _ = lost(record, tmp_path / "other")
    assert message.endswith(
        f'; resume it: em.Job.resume(client, "{tmp_path / "other"}", data=em.from_arrays(X, y))'
    )


def test_a_report_that_cannot_be_written_is_a_note(tmp_path, monkeypatch):
    # An error of the job file, exit code 2, after all results had been written.
    def full(path):
        raise ConfigError(f"{path / 'report.html'}: No space left on device")

    run = tmp_path / "run"
    monkeypatch.setattr(run_page, "write_report", full)
    result = module.follow(EndedJob(), run_dir=run)
    (note,) = result.summary["notes"]
    assert note.startswith("there is no report: ")
    assert note.endswith(f"No space left on device; draw it later: elasticml report {run}")
    # The cause of a failed run is reported, not that of its missing report.
    with pytest.raises(JobFailedError, match="the scheduler is gone"):
        module.follow(LostJob(RECORD), run_dir=tmp_path / "other")


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
    module.follow(EndedJob(), run_dir=path)
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    with pytest.raises(KeyboardInterrupt):
        module.follow(StartingJob(), run_dir=path, cancels=True, continues=True)
    after = {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}
    assert after == before


def test_an_interrupt_before_the_first_round_leaves_nothing(tmp_path):
    class Loading(RunningJob):
        def batches(self, since=0):
            if not self.is_cancelled:
                raise KeyboardInterrupt
            yield []

    job = Loading(lambda: None)
    with pytest.raises(KeyboardInterrupt) as caught:
        module.follow(job, run_dir=tmp_path / "runs" / "first", cancels=True)
    assert job.is_cancelled
    assert caught.value.__notes__ == ["no round had ended, and nothing was written"]
    assert list(tmp_path.iterdir()) == []


class Recorder(Callback):
    """Keeps the names of the calls and the rounds; raises in one of them."""

    def __init__(self, fails_in=""):
        self.calls, self.fails_in = [], fails_in

    def on_start(self, job):
        self.calls.append(("start", job["name"]))

    def on_round(self, row):
        self.calls.append(("round", row["round"], row["seconds"]))
        if self.fails_in == "on_round":
            raise OSError("the server\nis gone")

    def on_end(self, result):
        self.calls.append(("end", len(result.history)))

    def on_fail(self, error):
        self.calls.append(("fail", type(error)))


def test_callbacks_follow_a_job_and_one_that_raises_does_not_end_it(tmp_path):
    good, bad, rows = Recorder(), Recorder("on_round"), []
    callbacks, run = [bad, good, rows.append], tmp_path / "run"
    text = "callback Recorder failed in on_round: OSError: the server is gone"
    with pytest.warns(RuntimeWarning, match=text):
        result = module.follow(EndedJob(), run_dir=run, callbacks=callbacks)
    assert good.calls == [("start", "toy"), ("round", 0, 0.1), ("end", 1)]
    assert bad.calls == good.calls[:2]
    assert [row["objective"] for row in rows] == [1.0]
    assert result.summary["notes"] == [f"{text}; it was not called again"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["notes"] == result.summary["notes"]


def test_callbacks_are_told_of_a_failure_and_wrong_ones_are_refused_first(tmp_path):
    recorder = Recorder()
    with pytest.raises(JobFailedError):
        module.follow(LostJob(RECORD), callbacks=[recorder])
    assert recorder.calls[-1] == ("fail", JobFailedError)
    with pytest.raises(ConfigError, match=r"callbacks\[0\]: got 'mlflow', wanted an object"):
        module.follow(EndedJob(), callbacks=["mlflow"])
