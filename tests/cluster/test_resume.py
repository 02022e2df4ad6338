"""Runs of the command resume after an interrupt, and after their scheduler or client was killed.

What is refused: ``tests/unit/runtime/test_checkpoints.py``.
"""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from tests.cluster.test_run_command import ENDLESS
from tests.run_command import WAIT_S, end_run, start_run
from tests.stock_cluster import stock_cluster
from tests.waiting import until

pytestmark = pytest.mark.cluster

# It works on until it is ended, however long a busy machine takes to start another command.
JOB = {
    **ENDLESS,
    "data": {"format": "synthetic_splice", "rows": 4000, "length": 30},
    "checkpoint": {"every": 1.0},
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


@pytest.mark.slow
def test_a_run_resumes_whatever_of_it_was_interrupted_or_killed(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    process = start_run(tmp_path, "job.yaml", "--out", "run")
    until_written(process, tmp_path, attempt=1)
    process.send_signal(signal.SIGINT)
    assert end_run(process)[0] == 130
    process = start_run(tmp_path, "--resume", "run")
    until_written(process, tmp_path, attempt=2)
    family = psutil.Process(process.pid).children(recursive=True)
    (scheduler,) = (p for p in family if any("scheduler_process" in word for word in p.cmdline()))
    scheduler.kill()
    code, _, err = end_run(process)
    assert code == 3, err
    assert "partial results of the run are in run; resume it: elasticml run --resume run" in err
    assert (tmp_path / "run" / "model.npz").exists()
    process = start_run(tmp_path, "--resume", "run")
    until_written(process, tmp_path, attempt=3)
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
    assert (summary["rounds"], summary["attempts"]) == (before + 1000, 4)
    resumed = [r for r in story_of(tmp_path) if r["event"] == "JobResumed"]
    # An interrupted job writes a checkpoint: no round is repeated.
    assert resumed[0]["repeated_rounds"] == 0
    assert [r["attempt"] for r in resumed] == [2, 3, 4]
    code, _, err = end_run(start_run(tmp_path, "--resume", "run"))
    assert code == 2
    assert "the run has ended" in err.splitlines()[-1]


@pytest.mark.slow
def test_a_run_resumes_on_another_cluster_after_its_scheduler_was_killed(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = np.column_stack([np.sign(rng.normal(size=6000)), rng.normal(size=(6000, 20))])
    np.savetxt(tmp_path / "rows.csv", rows, "%.4f", ",")
    job = {
        **JOB,
        "data": {"path": "rows.csv", "label": 0, "header": False, "cache": "cache"},
        "checkpoint": {"path": str(tmp_path / "checkpoint"), "every": 1.0},
        "members": {"start": 1},
        # Noise has its optimum after some rounds; such steps do not reach it.
        "algorithm": {**JOB["algorithm"], "step": "constant", "step_size": 1e-9},
    }
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with stock_cluster(tmp_path / "old") as cluster:
        cluster.worker("worker")
        (tmp_path / "job.yaml").write_text(yaml.safe_dump({**job, "cluster": cluster.address}))
        process = start_run(tmp_path, "job.yaml", "--out", "run")
        until_written(process, tmp_path, attempt=1)
        cluster.kill_scheduler()
        code, _, err = end_run(process)
    assert code == 3, err
    assert "resume it: elasticml run --resume run" in err
    before = max(r["round"] for r in story_of(tmp_path) if r["event"] == "RoundEnded")
    with stock_cluster(tmp_path / "new") as cluster:
        cluster.worker("worker")
        settings = [f"cluster.address={cluster.address}", f"stop.rounds={before + 1000}"]
        options = [word for setting in settings for word in ("--set", setting)]
        code, out, err = end_run(start_run(tmp_path, "--resume", "run", "--json", *options))
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["attempts"] == 2
    story = story_of(tmp_path)
    first, second = (r["parsed_bytes"] for r in story if r["event"] == "DataLoaded")
    assert (first > 0, second) == (True, 0)  # the text was parsed once
    ended = [r["round"] for r in story if r["event"] == "RoundEnded"]
    assert ended == list(range(before + 1000))
