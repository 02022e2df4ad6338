"""The uni-task paper's figures for local SGD as a user draws them, on small images."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 300

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def chicle(out: Path) -> subprocess.CompletedProcess[str]:
    """Run the study of the small images."""
    settings = (
        "--data squares --epochs 4 --tasks 16 32 --members 1 4 --batches 64 128 --change 0.5 "
        "--local-steps 2 --balanced-rounds 12"
    )
    study = ROOT / "examples" / "papers" / "chicle.py"
    return subprocess.run(
        [sys.executable, study, *settings.split(), "--out", out],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """Output of the study, its lines, and its folder."""
    out = tmp_path_factory.mktemp("chicle")
    text = chicle(out).stdout
    return text, json.loads((out / "figures.json").read_text())["local_sgd"], out


def last(lines: dict[str, Any], setting: str) -> float:
    return float(lines["squares"]["epochs"][setting][-1][1])


def test_one_member_is_as_good_as_pytorch_after_every_epoch(drawn) -> None:
    lines = drawn[1]["lines"]["7"]["squares"]["epochs"]
    for name in ("mini-batch SGD, batch 64", "local SGD, K = 1"):
        ours, plain = lines[f"{name}: elasticml"], lines[f"{name}: PyTorch"]
        assert [x for x, _ in ours] == [1.0, 2.0, 3.0, 4.0]
        # The same steps; sums in another order may change one of the 240 images.
        assert [y for _, y in ours] == pytest.approx([y for _, y in plain], abs=1.5 / 240)
    assert lines["local SGD, K = 1: elasticml"][-1][1] > 0.9


def test_larger_batches_need_more_epochs(drawn) -> None:
    lines = drawn[1]["lines"]["1a"]["squares"]["epochs"]
    mean = {name: sum(y for _, y in line) for name, line in lines.items()}
    assert mean["batch 64"] > mean["batch 128"]


def test_a_change_of_members_changes_the_progress_of_a_unit(drawn) -> None:
    result = drawn[1]["lines"]
    for figure in ("4a", "4b"):
        units = result[figure]["squares"]["units"]
        ends = {setting: line[-1][0] for setting, line in units.items()}
        # Fewer members than tasks make waves; uni-tasks never wait for one.
        assert ends["micro-tasks (16)"] > ends["uni-tasks"]
        assert ends["micro-tasks (32)"] > ends["uni-tasks"]
    assert last(result["4a"], "uni-tasks") > 0.9


def test_balanced_members_reach_the_projected_round_time(drawn) -> None:
    # 320 chunks of three examples each on 16 members: one is 4 % of a fast member's share.
    assert drawn[1]["units"]["squares"] == pytest.approx(1.2, rel=0.08)


def test_the_study_draws_its_tables_and_plots(drawn) -> None:
    text, _, out = drawn
    assert (out / "tables.md").read_text() in text
    for title in ("Figure 1a", "Figures 4 and 9", "Figures 5 and 10", "Figure 7", "Figure 11"):
        assert title in text
    names = {path.name for path in out.iterdir()}
    assert {f"local-sgd-{figure}-epochs.png" for figure in ("1a", "fixed", "4a", "5", "7")} <= names
    assert "figure-11-squares.png" in names


def test_stored_runs_are_not_computed_again(drawn) -> None:
    text, _, out = drawn
    again = chicle(out)
    assert again.stdout == text
    assert "epoch" not in again.stderr


def test_runs_of_other_rows_or_seeds_are_stored_beside_each_other(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "papers"))
    store = importlib.import_module("support.local_sgd_store")
    runs = importlib.import_module("support.local_sgd_runs")
    trained = []

    def train(setting, data, write):
        trained.append(setting.seed)
        point = runs.Point(epoch=1, rounds=0, units=1.0, members=1, loss=1.0, test_accuracy=0.5)
        result = runs.Run(points=(point,), rounds=(), wall_s=0.0)
        write(result)
        return result

    monkeypatch.setattr(store, "run", train)
    monkeypatch.setattr(store, "load", lambda data, rows: None)
    for _ in range(2):
        for rows, seed in ((None, 0), (100, 0), (None, 1)):
            setting = runs.Setting(name="a", learning_rate=0.1, epochs=1, seed=seed)
            store.Store(folder=tmp_path, rows=rows).run("squares", setting)
    assert trained == [0, 0, 1]


def test_a_study_that_runs_side_by_side_lists_each_run_once(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "papers"))
    store = importlib.import_module("support.local_sgd_store")
    figures = importlib.import_module("support.local_sgd_figures")
    study = importlib.import_module("support.local_sgd_study")
    listing = store._Listing(folder=tmp_path)
    budget = study.Budget(tasks=(16, 32), members=(1, 4), batches=(64,))
    figures.run_all(["squares"], list(figures.FIGURES), listing, budget)
    names = sorted((way, setting.name) for way, _, setting in listing.needs)
    runs = "16-2 2-16 4-2-4 members-1 members-16 members-32 members-4 members-8 mixed msgd-64"
    runs += " throttled-balanced throttled-fixed"
    expected = [("plain", name) for name in ("members-1", "msgd-64")]
    assert names == expected + [("run", name) for name in runs.split()]
    assert not list(tmp_path.iterdir())
