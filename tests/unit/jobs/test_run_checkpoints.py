"""The setting ``checkpoint``, its default path, and runs that can be resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticml.errors import ConfigError
from elasticml.jobs.job_spec import JobSpec
from elasticml.jobs.run_checkpoints import (
    checkpoint_setting,
    forget_checkpoints,
    interrupted_run,
    reached,
    resume_call,
)
from elasticml.protocol.job_record import job_record
from elasticml.specification.sections import Checkpoint

JOB = {
    "data": {"format": "synthetic_splice", "rows": 100},
    "algorithm": {"name": "batch_gradient"},
}


def setting_of(folder: Path, **sections: object) -> object:
    return JobSpec.from_sections({**JOB, **sections}, folder=folder, name="job").checkpoint


def test_runs_of_job_files_keep_checkpoints_except_on_another_users_scheduler(tmp_path):
    assert setting_of(tmp_path) == Checkpoint(every=5.0)
    assert setting_of(tmp_path, checkpoint=False) is False
    assert setting_of(tmp_path, cluster="tcp://host:8786") is False
    results = setting_of(tmp_path, checkpoint={"path": "kept", "every": 1})
    assert results == Checkpoint(path=str(tmp_path / "kept"), every=1.0)
    assert setting_of(tmp_path, checkpoint="hdfs://nn/run") == Checkpoint(path="hdfs://nn/run")
    # A job from Python keeps none by default.
    assert checkpoint_setting(None) is False
    assert checkpoint_setting(True) == Checkpoint()
    assert checkpoint_setting(tmp_path) == Checkpoint(path=str(tmp_path))


@pytest.mark.parametrize(
    ("data", "scored", "given"),
    [
        ("arrays", {"test": "arrays"}, ", data=em.from_arrays(X, y), test=em.from_arrays(X, y)"),
        ("csv", {"test": "frame"}, ", test=em.from_frame(frame, label=...)"),
        ("dask", {"test": "csv"}, ", data=em.from_dask(X, y)"),
        ("dask_table", {}, ", data=em.from_dask(frame, label=...)"),
        ("csv", {"validation": "arrays"}, ", validate=em.from_arrays(X, y)"),
        ("csv", {}, ""),
    ],
)
def test_data_that_were_in_memory_are_given_again(data, scored, given):
    scored = {"scored": {name: {"format": kind} for name, kind in scored.items()}}
    record = job_record({"data": {"format": data, **scored}})
    assert resume_call("place", record) == f'em.Job.resume(client, "place"{given})'


def test_a_run_reports_why_it_cannot_be_resumed_and_where_its_checkpoints_are(tmp_path):
    elsewhere = Checkpoint(path="/of/the/scheduler")
    first = "was interrupted before the first one; run it from its"
    for name, text, checkpoint, words in (
        ("", "", Checkpoint(), r"holds no run \(there is no job\.yaml\)"),
        ("job.yaml", "name: x\n", Checkpoint(), first),
        ("job.yaml", "name: x\n", Checkpoint(path=str(tmp_path)), first),
        ("job.yaml", "name: x\n", False, "keeps none"),
        ("summary.json", '{"rounds": 3}', Checkpoint(), "the run has ended"),
    ):
        if name:
            (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=words):
            interrupted_run(tmp_path, checkpoint)
    (tmp_path / "summary.json").unlink()
    assert interrupted_run(tmp_path, elsewhere).path == "/of/the/scheduler"


def test_a_story_cut_off_by_a_kill_shows_the_runs_progress(tmp_path):
    (tmp_path / "story.jsonl").write_text(
        '{"t": 1.0, "event": "RoundEnded", "round": 4}\n'
        '{"t": 1.2, "event": "RoundEn\n'
        '{"t": 1.5, "event": "RoundStarted", "round": 5}\n'
        '{"t": 2.0, "event": "RoundEn'
    )
    assert reached(tmp_path) == {"round": 5, "seconds": 1.5}
    assert reached(tmp_path / "nowhere") == {}


def test_only_checkpoints_are_removed_when_the_job_is_done(tmp_path):
    place = tmp_path / "run" / "checkpoint"
    place.mkdir(parents=True)
    names = ("checkpoint-001-00000001.bin", "journal-001-00000001.jsonl")
    for name in (*names, ".checkpoint-001-00000002.bin.17-a.part"):
        (place / name).write_bytes(b"x")
    (place / "mine.txt").write_text("x")
    forget_checkpoints(job_record({"checkpoint": {"path": str(place)}}))
    assert [path.name for path in place.iterdir()] == ["mine.txt"]
    (place / "mine.txt").unlink()
    (place / names[0]).write_bytes(b"x")
    forget_checkpoints(job_record({"checkpoint": {"path": str(place)}}))
    assert not place.exists()
    assert place.parent.exists()
