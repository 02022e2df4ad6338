"""``elasticml demo`` on few rows and members: four runs, a table, a plot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import elasticml
from elasticml.report.overlay_page import table

pytestmark = pytest.mark.cluster

WAIT_S = 240
FOLDERS = ["no-failure", "stall", "ignore", "taylor"]


@pytest.mark.slow
def test_the_demo_distinguishes_the_four_absent_rules(tmp_path: Path) -> None:
    former = tmp_path / "out" / "stall"
    former.mkdir(parents=True)
    (former / "story.jsonl").write_text("{}\n")
    (tmp_path / "out" / "mine.txt").write_text("kept")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "elasticml", "demo", "--out", str(tmp_path / "out")),
            *("--rows", "1000", "--workers", "4", "--rounds", "30", "--json"),
        ],
        env={**os.environ, "PYTHONPATH": str(Path(elasticml.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert [(run["lost"], run["returned"]) for run in runs.values()] == [(0, 0)] + 3 * [(2, 2)]
    at = (10, 15, 19, 30)
    rows = table([tmp_path / "out" / folder for folder in FOLDERS], list(runs), at)
    at_10, at_15, at_19, at_30 = zip(
        *([cell.value for cell in row.objective] for row in rows), strict=True
    )
    # Until members leave, all four runs are equal; a stalled run keeps its objective.
    assert at_10 == pytest.approx([at_10[0]] * 4, rel=1e-9)
    assert (at_15[1], at_19[1]) == pytest.approx((at_10[1], at_10[1]), rel=1e-12)
    assert len(set(at_19)) == 4
    # When all members are back, all runs continue over all examples.
    assert max(at_30) < at_10[0]
    assert rows[0].metric == "test_average_precision"
    assert (tmp_path / "out" / "overlay.png").stat().st_size > 10_000
    assert (tmp_path / "out" / "mine.txt").read_text() == "kept"
