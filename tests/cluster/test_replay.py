"""Replay of real runs with real SIGKILLs, from their stories alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import elasticml as em
from tests.run_command import WAIT_S, end_run, start_run

pytestmark = pytest.mark.cluster

DATA = {"format": "synthetic_splice", "rows": 1500, "length": 30, "chunk_size": "16 KiB"}
KILLS = [
    {"round": 3, "lose": 1, "how": "kill"},
    {"round": 6, "return": 1},
    {"round": 9, "lose": 1, "how": "notice", "grace": 2},
    {"round": 12, "return": 1},
]
JOBS: dict[str, dict[str, Any]] = {
    "descent": {
        "algorithm": {"name": "batch_gradient", "l2": 1e-3, "intercept": False, "tolerance": 0},
        "collective": {"topology": "tree", "fan_out": 2},
        "absent": "taylor",
        "cluster": {"workers": 4},
        "faults": KILLS,
    },
    "hinge": {
        "algorithm": {
            "name": "cocoa",
            "loss": "hinge",
            "l2": 1e-3,
            "intercept": False,
            "tolerance": 0,
        },
        "absent": "reload",
        "policies": ["redeal", {"name": "knee", "factor": 4}],
        "cluster": {"workers": 3, "threads": 2},
        "faults": KILLS,
    },
    "groups": {
        "algorithm": {
            "name": "cocoa",
            "loss": "hinge",
            "l2": 1e-3,
            "groups": 2,
            "local_epochs": 2,
            "intercept": False,
            "tolerance": 0,
        },
        "absent": "reload",
        "cluster": {"workers": 3, "threads": 2},
        "faults": KILLS,
    },
}


def replay(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "elasticml", "replay", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(em.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    return done.returncode, done.stdout, done.stderr


def model(path: Path) -> dict[str, bytes]:
    with np.load(path / "model.npz") as arrays:
        return {name: arrays[name].tobytes() for name in arrays.files}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["descent", "hinge", "groups"])
def test_a_run_with_kills_returns_and_notices_replays_to_the_same_bits(
    tmp_path: Path, name: str
) -> None:
    job = {"name": name, "data": DATA, "stop": {"rounds": 16}, **JOBS[name]}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    code, _, err = end_run(start_run(tmp_path, "job.yaml", "--out", "run"))
    assert code == 0, err
    code, out, err = replay(tmp_path, "run", "--out", "again", "--json")
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert (summary["identical"], summary["rounds"]) == (True, 16)
    assert model(tmp_path / "again") == model(tmp_path / "run")
    assert (tmp_path / "again" / "story.jsonl").read_text() == (
        tmp_path / "run" / "story.jsonl"
    ).read_text()
    # A story edited by hand is refused, and so is another model.
    story = tmp_path / "run" / "story.jsonl"
    lines = story.read_text().splitlines(keepends=True)
    number = next(k for k, line in enumerate(lines) if '"ExchangeEnded"' in line)
    lines[number] = lines[number].replace('"examples": ', '"examples": 1')
    text = story.read_text()
    story.write_text("".join(lines))
    code, _, err = replay(tmp_path, "run", "--out", "no")
    assert (code, f"story.jsonl line {number + 1}: the story was changed" in err) == (
        2,
        True,
    )
    assert not (tmp_path / "no").exists()
    story.write_text(text)
    arrays = dict(np.load(tmp_path / "run" / "model.npz"))
    arrays["coef"][0, 3] += 1e-9
    np.savez(tmp_path / "run" / "model.npz", **arrays)
    code, _, err = replay(tmp_path, "run", "--out", "no")
    assert (code, "coef differs in 1 of" in err) == (3, True)


@pytest.mark.slow
def test_a_run_that_was_killed_and_resumed_replays_across_its_attempts(tmp_path: Path) -> None:
    job = {
        "name": "cut",
        "data": DATA,
        "algorithm": {
            "name": "cocoa",
            "loss": "logistic",
            "l2": 1e-3,
            "intercept": False,
            "tolerance": 0,
        },
        "cluster": {"workers": 2},
        "checkpoint": {"every": 0},
        "stop": {"rounds": 10**6, "gap": 1e-9},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job | {"stop": {"rounds": 10**6}}))
    process = start_run(tmp_path, "job.yaml", "--out", "run")
    assert process.stderr is not None
    story = tmp_path / "run" / "story.jsonl"
    for _ in process.stderr:  # a line every few seconds: the wait has no timeout of its own
        if story.exists() and story.read_text().count('"CheckpointWritten"') > 1:
            break
    process.kill()
    process.communicate(timeout=WAIT_S)
    text = (tmp_path / "run" / "job.yaml").read_text()
    (tmp_path / "run" / "job.yaml").write_text(text.replace("1000000", "60"))
    code, _, err = end_run(start_run(tmp_path, "--resume", "run"))
    assert code == 0, err
    assert story.read_text().count('"JobResumed"') == 1
    done = em.replay(tmp_path / "run")
    assert done.identical
    assert done.arrays["coef"].tobytes() == model(tmp_path / "run")["coef"]
