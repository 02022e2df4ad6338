"""Killed runs resume: after the scheduler's death, the client's, and an interrupt."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from elasticml.report.run_reader import read_run
from tests.run_command import WAIT_S, end_run, start_run
from tests.waiting import until

pytestmark = pytest.mark.cluster

EVERY_S = 1.0
COCOA = {
    "name": "cut",
    "data": {"format": "synthetic_splice", "rows": 4000, "length": 30},
    "algorithm": {"name": "cocoa", "loss": "hinge", "l2": 1e-4, "intercept": False, "tolerance": 0},
    "cluster": {"workers": 3},
    "checkpoint": {"every": EVERY_S},
    "stop": {"rounds": 5000, "gap": 1e-6},
}
DESCENT = {
    **COCOA,
    "algorithm": {
        "name": "batch_gradient",
        "l2": 1e-3,
        "optimizer": "gd",
        "intercept": False,
        "tolerance": 0,
    },
    "stop": {"rounds": 5000},
}


def until_written(process: subprocess.Popen[str], folder: Path, attempt: int) -> None:
    """Wait until an attempt has written a second checkpoint."""
    story = folder / "run" / "story.jsonl"

    def is_written() -> bool:
        assert process.poll() is None, process.stderr and process.stderr.read()
        text = story.read_text() if story.exists() else ""
        last = text.rpartition('"JobResumed"')[2]
        has_resumed = text.count('"JobResumed"') == attempt - 1
        return has_resumed and last.count('"CheckpointWritten"') > 1

    until(is_written, f"a second checkpoint of attempt {attempt}")


def story_of(folder: Path) -> list[dict]:
    lines = (folder / "run" / "story.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def scheduler_of(process: subprocess.Popen[str]) -> psutil.Process:
    family = psutil.Process(process.pid).children(recursive=True)
    return next(p for p in family if "elasticml.clusters.local.scheduler_process" in p.cmdline())


@pytest.mark.slow
def test_a_job_whose_scheduler_is_killed_reaches_its_certified_gap(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(COCOA | {"stop": {"rounds": 10**6}}))
    process = start_run(tmp_path, "job.yaml", "--out", "run")
    until_written(process, tmp_path, attempt=1)
    family = psutil.Process(process.pid).children(recursive=True)
    scheduler_of(process).kill()
    code, _, err = end_run(process)
    assert code == 3, err
    assert "cannot be reached" in err.splitlines()[-1]
    assert "partial results of the run are in run" in err.splitlines()[-1]
    # Workers end with their scheduler.
    assert psutil.wait_procs(family, timeout=WAIT_S)[1] == []
    stop = ("--set", "stop.gap=1.0e-6")
    code, out, err = end_run(start_run(tmp_path, "--resume", "run", "--json", *stop))
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["gap"] <= 1e-6
    assert not summary["gap_is_bound"]
    assert (summary["attempts"], summary["examples"]) == (2, 4000)
    story = story_of(tmp_path)
    (record,) = (r for r in story if r["event"] == "JobResumed")
    assert record["round"] > 0
    assert record["repeated_rounds"] >= 0
    assert record["repeated_s"] <= 10.0
    ended = [r["round"] for r in story if r["event"] == "RoundEnded"]
    assert ended == list(range(len(ended)))
    seen = read_run(tmp_path / "run")
    assert seen.state == "finished"
    assert seen.history.column("round").tolist() == [*map(float, ended), float(len(ended))]
    seconds = seen.history.column("seconds")
    assert np.all(np.diff(seconds) >= 0.0)
    assert not (tmp_path / "run" / "checkpoint").exists()
    assert "The job went on from a checkpoint" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_a_run_resumes_after_an_interrupt_and_after_its_client_was_killed(tmp_path: Path) -> None:
    # It works on until it is killed, however long a busy machine takes to start the other command.
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(DESCENT | {"stop": {"rounds": 10**6}}))
    process = start_run(tmp_path, "job.yaml", "--out", "run")
    until_written(process, tmp_path, attempt=1)
    process.send_signal(signal.SIGINT)
    assert end_run(process)[0] == 130
    process = start_run(tmp_path, "--resume", "run")
    until_written(process, tmp_path, attempt=2)
    family = psutil.Process(process.pid).children(recursive=True)
    refused = end_run(start_run(tmp_path, "--resume", "run"))
    assert refused[0] == 2
    assert "another process is writing this run" in refused[2].splitlines()[-1]
    process.kill()
    end_run(process)
    assert psutil.wait_procs(family, timeout=WAIT_S)[1] == []
    # A checkpoint may be of a later round than the last one that the client had written.
    before = max(r["round"] for r in story_of(tmp_path) if r["event"] == "RoundEnded")
    code, out, err = end_run(
        start_run(tmp_path, "--resume", "run", "--json", "--set", f"stop.rounds={before + 1000}")
    )
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert (summary["rounds"], summary["attempts"]) == (before + 1000, 3)
    resumed = [r for r in story_of(tmp_path) if r["event"] == "JobResumed"]
    # An interrupted job writes a checkpoint: no round is repeated.
    assert resumed[0]["repeated_rounds"] == 0
    assert [r["attempt"] for r in resumed] == [2, 3]
    code, _, err = end_run(start_run(tmp_path, "--resume", "run"))
    assert code == 2
    assert "the run has ended" in err.splitlines()[-1]


@pytest.mark.slow
def test_a_run_of_other_settings_or_other_data_is_refused(tmp_path: Path) -> None:
    rows = tmp_path / "rows.svm"
    lines = [f"{1 if i % 3 else -1} 1:{i % 7} 2:{i % 5}" for i in range(300)]
    rows.write_text("\n".join(lines) + "\n")
    job = DESCENT | {"data": {"format": "svmlight", "path": str(rows)}}
    job["algorithm"] = {
        "name": "batch_gradient",
        "optimizer": "gd",
        "l2": 1e-3,
        "step": "constant",
        "intercept": False,
        "tolerance": 0,
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job | {"stop": {"rounds": 10**6}}))
    process = start_run(tmp_path, "job.yaml", "--out", "run")
    until_written(process, tmp_path, attempt=1)
    process.send_signal(signal.SIGINT)
    assert end_run(process)[0] == 130
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    code, _, err = end_run(start_run(tmp_path, "--resume", "run", "--set", "algorithm.l2=0.5"))
    assert code == 2
    assert "algorithm.l2 was 0.001, is 0.5" in err.splitlines()[-1]
    rows.write_text("\n".join([*lines, "1 1:3"]) + "\n")
    code, _, err = end_run(start_run(tmp_path, "--resume", "run"))
    assert code == 2
    assert "the data have changed since the checkpoint was written" in err.splitlines()[-1]
    # Nothing of the run has been touched.
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
