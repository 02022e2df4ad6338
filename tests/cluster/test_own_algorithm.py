"""The example of a user's own algorithm, as its reader runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_algorithm.py"
#: Of a9a with l2 = 1e-3 and no intercept: LIBLINEAR's objective at tolerance 1e-8.
OPTIMUM = 0.33334075
WAIT_S = 200


@pytest.mark.slow
def test_a_users_sgd_gets_near_the_optimum_of_a9a(data_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLE, data_dir / "a9a" / "a9a.svm.gz"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    objectives = [float(objective) for _, objective in rows]

    assert [int(round) for round, _ in rows] == list(range(20))
    assert objectives[0] == pytest.approx(0.693147, abs=1e-6)
    assert OPTIMUM <= objectives[-1] <= 1.002 * OPTIMUM


def test_the_example_is_shorter_than_sixty_lines() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
