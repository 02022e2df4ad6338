"""Following a job: an interrupt, a lost directory or scheduler, callbacks that fail."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.data.readers.arrays import from_arrays
from elasticml.errors import ConfigError, JobFailedError
from elasticml.jobs.callbacks import Callback
from elasticml.jobs.follow import follow
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


def interrupt() -> None:
    raise KeyboardInterrupt


def lose() -> None:
    raise JobFailedError("the scheduler is gone", reason="scheduler lost")


class Job:
    """A job with two records: what happens before each of them, and after the last."""

    def __init__(
        self, *happens: Callable[[], Any], record: dict[str, Any] = RECORD, story: Any = STORY
    ) -> None:
        self.happens, self.record = [*happens, *[lambda: None] * 3], job_record(record)
        self.story = story
        self.is_cancelled = False

    def batches(self, since: int = 0) -> Iterator[list[dict[str, Any]]]:
        for number in range(3):
            if number >= since:
                if not self.is_cancelled:
                    self.happens[number]()
                yield self.story[number : number + 1]

    def outcome(self) -> JobOutcome:
        return JobOutcome(
            arrays={},
            snapshots={},
            history=[{"round": 0}],
            summary={"name": "toy"},
            facts=None,
            state="done",
            error=None,
        )

    def cancel(self) -> None:
        self.is_cancelled = True


class LostJob(Job):
    """A job whose scheduler ends while it runs."""

    def __init__(self, record: dict[str, Any] = RECORD) -> None:
        super().__init__(lambda: None, lose, record=record)

    def outcome(self) -> JobOutcome:
        raise JobFailedError("the scheduler is gone", reason="scheduler lost")


class StartingJob(Job):
    """A job that is interrupted before its first record, and again while it is cancelled."""

    def cancel(self) -> None:
        pass


def summary_of(run: Path) -> Any:
    return json.loads((run / "summary.json").read_text())


def test_an_interrupt_after_the_end_keeps_the_jobs_result(tmp_path) -> None:
    # Its history was final, and was to be extended: an internal error instead of exit 130.
    job = Job(lambda: None, lambda: None, interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        follow(job, run_dir=tmp_path / "run", cancels=True)
    assert not job.is_cancelled
    assert caught.value.__notes__ == [f"the job had ended: its model is in {tmp_path / 'run'}"]
    assert summary_of(tmp_path / "run")["reason"] == "interrupted"
    assert (tmp_path / "run" / "report.html").exists()


def test_an_interrupt_before_the_first_record_leaves_everything_as_it_was(tmp_path) -> None:
    job, first = Job(interrupt, story=[]), tmp_path / "runs" / "first"
    with pytest.raises(KeyboardInterrupt) as caught:
        follow(job, run_dir=first, cancels=True)
    assert job.is_cancelled
    assert caught.value.__notes__ == ["no round had ended, and nothing was written"]
    assert list(tmp_path.iterdir()) == []
    follow(Job(), run_dir=first)
    before = {file.name: file.read_bytes() for file in first.iterdir() if file.is_file()}
    with pytest.raises(KeyboardInterrupt):
        follow(StartingJob(interrupt), run_dir=first, cancels=True, continues=True)
    assert before == {file.name: file.read_bytes() for file in first.iterdir() if file.is_file()}


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_directory_removed_while_the_job_runs_is_written_again(tmp_path, is_moved) -> None:
    # The job ran to its end, and its model was lost.
    run = tmp_path / "run"

    def remove() -> None:
        shutil.move(run, tmp_path / "new") if is_moved else shutil.rmtree(run)

    job = Job(lambda: None, remove)
    result = follow(job, run_dir=run, cancels=True)
    assert not job.is_cancelled
    saved = Result.load(run)
    assert [record["event"] for record in saved.story] == ["RoundEnded", "JobEnded"]
    assert (run / "job.yaml").read_text().startswith("name: toy")
    assert "was removed while the job ran" in " ".join(saved.summary["notes"])
    assert result.run_dir == run


@pytest.fixture
def saved_record(tmp_path: Path) -> dict[str, Any]:
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
    return VirtualJob(record, source, checkpoints=place).end().agent.record.fields_json()


def test_a_directory_that_cannot_be_written_again_names_the_checkpoint_to_go_on_from(
    tmp_path, saved_record
) -> None:
    # It said: run it again, although hours of work were in the checkpoint.
    run = tmp_path / "run"

    def replace_by_a_file() -> None:
        shutil.rmtree(run)
        run.write_text("")

    for record, end in (
        (RECORD, ""),
        (saved_record, f"; resume it: elasticml run --resume {run}"),
    ):
        job = Job(lambda: None, replace_by_a_file, record=record)
        with pytest.raises(JobFailedError) as caught:
            follow(job, run_dir=run, cancels=True, cluster={"kind": "local"})
        assert job.is_cancelled
        message = caught.value.message
        assert "the run cannot be written any more: File exists; " in message
        assert message.endswith(end)
        run.unlink()


def lost(record: dict[str, Any], run: Path, cluster: Any = None) -> str:
    """Follow a job whose scheduler is lost; return the error."""
    with pytest.raises(JobFailedError) as caught:
        follow(LostJob(record), run_dir=run, cluster=cluster, cancels=True)
    assert caught.value.fields == {"reason": "scheduler lost"}
    assert (run / "report.html").exists()
    return caught.value.message


def test_the_run_of_a_lost_scheduler_has_its_records_and_the_last_checkpoints_model(
    tmp_path, saved_record
) -> None:
    assert lost(RECORD, tmp_path / "run") == (
        f"the scheduler is gone; partial results of the run are in {tmp_path / 'run'}; it wrote no "
        "checkpoints: set checkpoint.path to be able to resume such a job"
    )
    summary = summary_of(tmp_path / "run")
    assert (summary["rounds"], summary["error"]) == (1, "the scheduler is gone")
    assert not (tmp_path / "run" / "model.npz").exists()
    run = tmp_path / "saved"
    message = lost(saved_record, run, cluster={"kind": "local"})
    assert message.endswith(f"; resume it: elasticml run --resume {run}")
    checkpoint: Any = read_checkpoint(saved_record["checkpoint"]["path"])
    assert summary_of(run)["model_round"] == checkpoint.round
    with np.load(run / "model.npz") as model:
        np.testing.assert_array_equal(model["coef"], checkpoint.resume_point.model["coef"])
        np.testing.assert_array_equal(model["classes"], [-1.0, 1.0])
        assert np.count_nonzero(model["coef"]) == 3
    assert lost(saved_record, tmp_path / "other").endswith(
        f'; resume it: em.Job.resume(client, "{tmp_path / "other"}", data=em.from_arrays(X, y))'
    )


def test_a_report_that_cannot_be_written_is_a_note(tmp_path, monkeypatch) -> None:
    # An error of the job file, exit code 2, after all results had been written.
    def full(path: Path) -> None:
        raise ConfigError(f"{path / 'report.html'}: No space left on device")

    run = tmp_path / "run"
    monkeypatch.setattr(run_page, "write_report", full)
    (note,) = follow(Job(), run_dir=run).summary["notes"]
    assert note.startswith("there is no report: ")
    assert note.endswith(f"No space left on device; draw it later: elasticml report {run}")
    # The cause of a failed run is reported, not that of its missing report.
    with pytest.raises(JobFailedError, match="the scheduler is gone"):
        follow(LostJob(), run_dir=tmp_path / "other")


class Recorder(Callback):
    """Keeps the names of the calls and the rounds; raises in one of them."""

    def __init__(self, *, fails: bool = False) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = fails

    def on_start(self, job: Any) -> None:
        self.calls.append(("start", job["name"]))

    def on_round(self, row: Any) -> None:
        self.calls.append(("round", row["round"], row["seconds"]))
        if self.fails:
            raise OSError("the server\nis gone")

    def on_end(self, result: Any) -> None:
        self.calls.append(("end", len(result.history)))

    def on_fail(self, error: BaseException) -> None:
        self.calls.append(("fail", type(error)))


def test_callbacks_follow_a_job_and_one_that_raises_does_not_end_it(tmp_path) -> None:
    good, bad, rows, run = Recorder(), Recorder(fails=True), [], tmp_path / "run"
    text = "callback Recorder failed in on_round: OSError: the server is gone"
    with pytest.warns(RuntimeWarning, match=text):
        result = follow(Job(), run_dir=run, callbacks=[bad, good, rows.append])
    assert good.calls == [("start", "toy"), ("round", 0, 0.1), ("end", 1)]
    assert bad.calls == good.calls[:2]
    assert [row["objective"] for row in rows] == [1.0]
    notes = [f"{text}; it was not called again"]
    assert result.summary["notes"] == summary_of(run)["notes"] == notes
    with pytest.raises(JobFailedError):
        follow(LostJob(), callbacks=[good])
    assert good.calls[-1] == ("fail", JobFailedError)
    with pytest.raises(ConfigError, match=r"callbacks\[0\]: got 'mlflow', wanted an object"):
        follow(Job(), callbacks=["mlflow"])
