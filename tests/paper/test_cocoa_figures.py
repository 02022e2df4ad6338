"""The CoCoA papers' figures and tables as a user draws them, on tiny data and in virtual time."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.paper.drawn import STUDIES, drawn

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """The elastic-CoCoA study."""
    return drawn("elastic_cocoa.py", tmp_path_factory.mktemp("elastic-cocoa"), "--quick")


@pytest.fixture(scope="module")
def chicle(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """The uni-task study."""
    return drawn("chicle.py", tmp_path_factory.mktemp("chicle"), "--quick")


def rounds(figures: dict[str, Any], rule: str, setting: str, gap: str) -> float:
    return float(figures["tiny"][rule][setting]["rounds"][gap]["value"])


def test_more_members_need_more_rounds_and_reshuffling_fewer(elastic) -> None:
    _, figures, _ = elastic
    fixed = [rounds(figures, "paper", f"K={k}", "1e-4") for k in (1, 4, 16)]
    ours = [rounds(figures, "ours", f"K={k}", "1e-4") for k in (4, 16)]
    assert fixed == sorted(fixed)
    assert fixed[0] < 0.6 * fixed[1]
    assert all(mine < theirs for mine, theirs in zip(ours, fixed[1:], strict=True))


def test_releasing_members_saves_container_time(elastic) -> None:
    _, figures, _ = elastic
    paper = figures["tiny"]["paper"]
    cost = {s: paper[s]["member_units"]["1e-4"] for s in ("16-4-1", "K=16")}
    assert cost["16-4-1"]["reached"]
    assert cost["16-4-1"]["value"] < 0.5 * cost["K=16"]["value"]


def test_the_elastic_study_draws_its_tables_and_plots(elastic) -> None:
    text, _, out = elastic
    assert text.count("Table 2, 16-4-1") == 4
    assert text.count("Table 2, 16-4-2") == 4
    names = {f"figure-{k}-{rule}.{kind}" for k in (1, 3) for rule in ("paper", "ours")
             for kind in ("png", "svg")}  # fmt: skip
    assert names <= {path.name for path in out.iterdir()}


def test_uni_tasks_need_no_more_time_than_micro_tasks(chicle) -> None:
    _, figures, _ = chicle
    for experiment in ("scale-in", "scale-out", "mixed"):
        lines = figures["lines"][experiment]["tiny"]["seconds"]
        at = {
            setting: next((t for t, gap in line if gap <= 1e-3), float("inf"))
            for setting, line in lines.items()
        }
        assert at["uni-tasks"] <= 1.1 * min(at.values()), experiment


def test_balanced_members_reach_the_projected_round_time(chicle) -> None:
    _, figures, _ = chicle
    # 512 chunks of 3 or 4 examples each on 16 members: one is 3 % of a fast member's share.
    assert figures["units"]["tiny"] == pytest.approx(1.2, rel=0.06)


def test_the_uni_task_study_draws_its_tables_and_plots(chicle) -> None:
    text, _, out = chicle
    for title in ("Figure 1", "Figures 4 and 9", "Figures 5 and 10", "Figures 6 and 11"):
        assert title in text
    names = {path.name.partition(".")[0] for path in out.iterdir()}
    assert {"figure-4a-scale-in", "figure-5-mixed", "figure-6-tiny"} <= names


def test_a_study_with_no_set_left_writes_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(STUDIES))
    study = importlib.import_module("chicle")
    monkeypatch.setattr(study, "has_torch", lambda: False)
    with pytest.raises(SystemExit) as ended:
        study.main(["--data", "fashion", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "no data set is left" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
