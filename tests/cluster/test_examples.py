"""The examples of certified training and of a user's own algorithm, as their readers run them."""

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
#: Of a9a with l2 = 1e-3 and no intercept: LIBLINEAR's objective at tolerance 1e-8.
OPTIMUM = 0.33334075
WAIT_S = 200


def run(data_dir: Path, *arguments: object) -> list[str]:
    """Run Python; return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "ELASTICML_DATA": str(data_dir)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_job_file_trains_to_its_gap_and_releases_members(
    data_dir: Path, tmp_path: Path
) -> None:
    job = EXAMPLES / "cocoa_knee.yaml"
    lines = run(data_dir, "-m", "elasticml", "run", job, "--out", tmp_path / "run", "--json")
    summary = json.loads(lines[-1])
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


@pytest.mark.slow
def test_a_users_sgd_gets_near_the_optimum_of_a9a(data_dir: Path) -> None:
    example = EXAMPLES / "own_algorithm.py"
    assert len(example.read_text().splitlines()) < 60  # as its page says
    lines = run(data_dir, example, data_dir / "a9a" / "a9a.svm.gz")
    rounds, objectives = zip(*((int(a), float(b)) for a, b in map(str.split, lines)), strict=True)
    assert rounds == tuple(range(20))
    assert objectives[0] == pytest.approx(0.693147, abs=1e-6)
    assert OPTIMUM <= objectives[-1] <= 1.002 * OPTIMUM
