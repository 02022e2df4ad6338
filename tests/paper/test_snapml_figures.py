"""The Snap ML paper's figures as a user draws them, on toy sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.paper.drawn import drawn, run_study

pytestmark = pytest.mark.slow

FIGURES = ("single", "hierarchical", "streaming")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """Output of the study, the lines of its plots, and its folder."""
    return drawn("snapml.py", tmp_path_factory.mktemp("snapml"), "--quick")


def test_every_figure_is_a_plot_and_a_table(study) -> None:
    _, figures, out = study
    assert tuple(figures) == FIGURES
    for name in FIGURES:
        assert (out / f"snapml-{name}.png").stat().st_size > 10_000
        assert "<svg" in (out / f"snapml-{name}.svg").read_text()


def test_ours_and_scikit_learn_s_reach_the_same_objective(data_dir, study) -> None:
    runs = study[2] / "runs"
    least = {}
    for peer in ("elasticml-1-thread", "elasticml-2-threads", "lbfgs-1-thread"):
        # The second run repeats the first fit that was near the best objective.
        first, again = sorted(runs.glob(f"{peer}-sample-*.json"), key=lambda p: "-again-" in p.name)
        lines = json.loads(first.read_text())["found"]
        least[peer] = min(line["objective"] for line in lines if "objective" in line)
        assert json.loads(again.read_text())["found"]
    assert least["elasticml-1-thread"] == pytest.approx(least["lbfgs-1-thread"], rel=1e-6)
    assert least["elasticml-2-threads"] == pytest.approx(least["lbfgs-1-thread"], rel=1e-6)


def test_both_links_have_measured_and_predicted_times(study) -> None:
    (panel,) = study[1]["hierarchical"]
    for link in ("1 Gbit/s", "10 Gbit/s"):
        measured, predicted = (panel["lines"][f"{link}, {kind}"] for kind in KINDS)
        assert [t2 for t2, _ in measured] == [t2 for t2, _ in predicted] == [1.0, 4.0]


KINDS = ("measured", "predicted")


def test_an_epoch_and_its_parts_are_printed_for_every_limit(study) -> None:
    for panel in study[1]["streaming"]:
        assert {name: len(line) for name, line in panel["lines"].items()} == dict.fromkeys(
            ("read", "permute", "compute", "epoch", "one after the other"), 3
        )


def test_stored_runs_are_not_repeated(study) -> None:
    text, _, out = study
    again = run_study("snapml.py", out, "--quick")
    assert (again.returncode, again.stdout, again.stderr) == (0, text, "")
