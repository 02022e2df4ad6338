"""A run's directory: usable at every moment, files that are complete or absent."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from elasticml.errors import ConfigError
from elasticml.jobs.run_directory import FIRST_COLUMNS, RunDirectory, check_free, default_run_path
from elasticml.report.run_reader import read_run

JOB = {"name": "toy", "data": {"format": "svmlight", "path": "/x"}}


def ended(r, **more):
    row = {"round": r, "objective": 1.0 / (r + 1), "members": 4, "objective_kind": "exact", **more}
    return {"t": 0.5 * r, "event": "RoundEnded", "cause": "trainer", "idle": False, **row}


def test_a_run_is_on_disk_as_soon_as_it_is_recorded_and_late_columns_are_added(tmp_path):
    with RunDirectory(tmp_path / "run").open(JOB) as directory:
        directory.on_records([{"t": 0.0, "event": "JobStarted", "name": "toy"}, ended(0)])
        directory.on_records([ended(1, probes=3), ended(2, probes=4)])
        seen = read_run(tmp_path / "run")
        assert [record.event for record in seen.records] == ["JobStarted", *["RoundEnded"] * 3]
        assert seen.history.column("objective").tolist() == [1.0, 0.5, 1 / 3]
        assert seen.history.column("seconds").tolist() == [0.0, 0.5, 1.0]
        assert seen.state == "unfinished"
        directory.write_summary({"gap": float("nan"), "rounds": np.int64(3), "at": Path("/x")})
    lines = (tmp_path / "run" / "history.csv").read_text().splitlines()
    assert lines[0] == ",".join([*FIRST_COLUMNS, "probes"])
    assert [line.rsplit(",", 1)[1] for line in lines[1:]] == ["", "3", "4"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == {"gap": None, "rounds": 3, "at": "/x"}  # strict JSON


@pytest.mark.parametrize("name", ["job.yaml", "history.csv", "model.npz", "report.html"])
def test_another_file_is_not_overwritten(tmp_path, name):
    # `run job.yaml --out .` overwrote the job file, and removed it when the data were wrong.
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"holds {name}, which a run would overwrite; give"):
        RunDirectory(tmp_path).open(JOB)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_path_that_cannot_be_a_run_is_refused_without_writing(tmp_path, monkeypatch):
    RunDirectory(tmp_path / "old").open(JOB).close()
    with pytest.raises(ConfigError, match="holds a run already; give another directory"):
        RunDirectory(tmp_path / "old").open(JOB)
    with pytest.raises(ConfigError, match="a run cannot be written there"):
        RunDirectory(tmp_path / "old" / "job.yaml" / "run").open(JOB)
    check_free(tmp_path / "new" / "run")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ConfigError, match="no permission to write"):
        check_free(tmp_path / "new" / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_discarding_removes_what_the_run_created_and_keeps_what_others_did(tmp_path):
    # A run of wrong data left a directory, so that the same command was refused after the data had
    # been corrected.
    directory = RunDirectory(tmp_path / "runs" / "one").open(JOB)
    directory.on_records([{"event": "JobStarted"}])
    directory.discard()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "notes").write_text("mine")
    RunDirectory(tmp_path).open(JOB).discard()
    directory = RunDirectory(tmp_path / "runs" / "one").open(JOB)
    (tmp_path / "runs" / "one" / "plot").write_text("mine")
    directory.discard()
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["notes", "runs", "runs/one", "runs/one/plot"]


def test_a_run_is_named_after_job_and_time_and_never_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    now = datetime(2026, 3, 4, 5, 6, 7)
    first = default_run_path("my job/1", now)
    first.mkdir(parents=True)
    assert str(first) == "runs/my-job-1-20260304-050607"
    assert str(default_run_path("my job/1", now)) == "runs/my-job-1-20260304-050607-2"


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_resumed_run_stays_unchanged_until_there_is_progress(tmp_path):
    # An interrupt between the two left an empty story, and neither model nor summary.
    with RunDirectory(tmp_path).open(JOB) as directory:
        directory.on_records([ended(0), ended(1)])
        directory.write_model({"coef": np.ones(2)})
        directory.write_summary({"name": "toy", "reason": "interrupted"})
    before = contents(tmp_path)
    with RunDirectory(tmp_path).open(JOB, continues=True) as directory:
        assert directory.is_as_before
    assert contents(tmp_path) == before
    with RunDirectory(tmp_path).open(JOB, continues=True) as directory:
        directory.discard()
    assert contents(tmp_path) == before
    with RunDirectory(tmp_path).open(JOB, continues=True) as directory:
        directory.on_records([ended(0), ended(1), {"t": 1.0, "event": "JobResumed"}])
        assert not directory.is_as_before
        names = {"history.csv", "job.yaml", "model.npz", "story.jsonl"}
        assert contents(tmp_path).keys() == names
        directory.on_records([ended(2)])
        assert not (tmp_path / "model.npz").exists()
        directory.write_model({"coef": np.zeros(2)})
        directory.on_records([ended(3)])
        assert (tmp_path / "model.npz").exists()
    assert read_run(tmp_path).history.column("round").tolist() == [0.0, 1.0, 2.0, 3.0]


#: No file may be longer, which acts like a full disk.
CROWDED = """
import resource, sys
from pathlib import Path
from elasticml.errors import JobFailedError
from elasticml.jobs.run_directory import RunDirectory
try:
    with RunDirectory(Path(sys.argv[1])).open({"name": "toy"}) as directory:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        while True:
            directory.on_records([{"event": "Ticked", "t": 0.0}] * 10)
except JobFailedError as error:
    print(error.message)
"""


def test_a_full_disk_is_one_line(tmp_path):
    # Closing the files failed as well: an internal error.
    command = [sys.executable, "-c", CROWDED, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'run'}: the run cannot be written any more: File")
    assert len((tmp_path / "run" / "story.jsonl").read_bytes()) == 4096
