"""The Snap ML paper's figures as a user draws them, on toy sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "examples" / "papers"
WAIT_S = 300
FIGURES = ("single", "hierarchical", "streaming")


def snapml(out: Path) -> subprocess.CompletedProcess[str]:
    """Draw all figures."""
    return subprocess.run(
        [sys.executable, STUDIES / "snapml.py", "--quick", "--out", out],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """Output of the study, the lines of its plots, and its folder."""
    out = tmp_path_factory.mktemp("snapml")
    done = snapml(out)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((out / "figures.json").read_text()), out


def test_every_figure_is_a_plot_and_a_table(drawn) -> None:
    text, figures, out = drawn
    assert tuple(figures) == FIGURES
    assert (out / "tables.md").read_text() in text
    for name in FIGURES:
        assert (out / f"snapml-{name}.png").stat().st_size > 10_000
        assert "<svg" in (out / f"snapml-{name}.svg").read_text()


def test_ours_and_scikit_learn_s_reach_the_same_objective(data_dir, drawn) -> None:
    runs = drawn[2] / "runs"
    least = {}
    for peer in ("elasticml-1-thread", "elasticml-2-threads", "lbfgs-1-thread"):
        # The second run repeats the first fit that was near the best objective.
        first, again = sorted(runs.glob(f"{peer}-sample-*.json"), key=lambda p: "-again-" in p.name)
        lines = json.loads(first.read_text())["found"]
        least[peer] = min(line["objective"] for line in lines if "objective" in line)
        assert json.loads(again.read_text())["found"]
    assert least["elasticml-1-thread"] == pytest.approx(least["lbfgs-1-thread"], rel=1e-6)
    assert least["elasticml-2-threads"] == pytest.approx(least["lbfgs-1-thread"], rel=1e-6)


def test_both_links_have_measured_and_predicted_times(drawn) -> None:
    (panel,) = drawn[1]["hierarchical"]
    for link in ("1 Gbit/s", "10 Gbit/s"):
        measured, predicted = (panel["lines"][f"{link}, {kind}"] for kind in KINDS)
        assert [t2 for t2, _ in measured] == [t2 for t2, _ in predicted] == [1.0, 4.0]


KINDS = ("measured", "predicted")


def test_an_epoch_and_its_parts_are_printed_for_every_limit(drawn) -> None:
    for panel in drawn[1]["streaming"]:
        assert {name: len(line) for name, line in panel["lines"].items()} == dict.fromkeys(
            ("read", "permute", "compute", "epoch", "one after the other"), 3
        )


def test_stored_runs_are_not_repeated(drawn) -> None:
    text, _, out = drawn
    again = snapml(out)
    assert (again.returncode, again.stdout, again.stderr) == (0, text, "")


def test_after_the_limit_no_run_is_started_and_the_next_call_continues(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(str(STUDIES))
    from support.snapml_store import Store

    made = []
    for limit_s in (-1.0, 60.0, -1.0):
        store = Store(folder=tmp_path, limit_s=limit_s)
        result = store.run("a run", {"rows": 3}, lambda: made.append(1) or [1.5])
        assert (result, store.missing) == ((None, 1) if not made else ([1.5], 0))
    assert made == [1]
    assert Store(folder=tmp_path).run("a run", {"rows": 4}, lambda: [2.5]) == [2.5]


def test_a_field_and_its_value_are_hashed_into_one_column(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(STUDIES))
    from support.snapml_data import hashed

    rows = [
        {"label": "1", "I1": "22", "C1": "a"},
        {"label": "0", "I1": "21", "C1": "b"},
        {"label": "0", "I1": "", "C1": "a"},
    ]
    X = hashed(rows, 2**20).toarray()
    np.testing.assert_allclose((X * X).sum(axis=1), 1.0)
    shared = X @ X.T
    # The same step of a number; the same word; nothing in common.
    assert (shared[0, 1], shared[0, 2], shared[1, 2]) == pytest.approx((0.5, 0.5, 0.0))
