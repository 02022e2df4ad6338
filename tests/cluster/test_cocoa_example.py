"""The example of certified training as a user runs it: the job file and the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
WAIT_S = 200


def run(data_dir: Path, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "ELASTICML_DATA": str(data_dir)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_job_file_trains_to_its_gap_and_releases_members(
    data_dir: Path, tmp_path: Path
) -> None:
    job = EXAMPLES / "cocoa_knee.yaml"
    out = run(data_dir, "-m", "elasticml", "run", job, "--out", tmp_path / "run", "--json")
    summary = json.loads(out.splitlines()[-1])
    assert 0 <= summary["gap"] <= 1e-6
    assert not summary["gap_is_bound"]
    assert summary["holders"] == 2
    assert summary["decisions"]["redeal"] > 0
    assert summary["members"]["end"] == 4 - summary["retired"]
    # Gap and objective are of the same model: the evaluator's own sums agree.
    assert summary["test"]["roc_auc"] > 0.9
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Certified gap" in page
    assert "What policies decided" in page
