"""The uni-task paper's figures for local SGD as a user draws them, on small images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.paper.drawn import drawn, run_study

pytestmark = [pytest.mark.torch, pytest.mark.slow]


SETTINGS = (
    "--data squares --epochs 4 --tasks 16 32 --members 1 4 --batches 64 128 --change 0.5 "
    "--local-steps 2 --balanced-rounds 12"
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """Output of the study of the small images, its lines, and its folder."""
    text, figures, out = drawn("chicle.py", tmp_path_factory.mktemp("chicle"), *SETTINGS.split())
    return text, figures["local_sgd"], out


def last(lines: dict[str, Any], setting: str) -> float:
    return float(lines["squares"]["epochs"][setting][-1][1])


def test_one_member_is_as_good_as_pytorch_after_every_epoch(study) -> None:
    lines = study[1]["lines"]["7"]["squares"]["epochs"]
    for name in ("mini-batch SGD, batch 64", "local SGD, K = 1"):
        ours, plain = lines[f"{name}: elasticml"], lines[f"{name}: PyTorch"]
        assert [x for x, _ in ours] == [1.0, 2.0, 3.0, 4.0]
        # The same steps; sums in another order may change one of the 240 images.
        assert [y for _, y in ours] == pytest.approx([y for _, y in plain], abs=1.5 / 240)
    assert lines["local SGD, K = 1: elasticml"][-1][1] > 0.9


def test_larger_batches_need_more_epochs(study) -> None:
    lines = study[1]["lines"]["1a"]["squares"]["epochs"]
    mean = {name: sum(y for _, y in line) for name, line in lines.items()}
    assert mean["batch 64"] > mean["batch 128"]


def test_a_change_of_members_changes_the_progress_of_a_unit(study) -> None:
    result = study[1]["lines"]
    for figure in ("4a", "4b"):
        units = result[figure]["squares"]["units"]
        ends = {setting: line[-1][0] for setting, line in units.items()}
        # Fewer members than tasks make waves; uni-tasks never wait for one.
        assert ends["micro-tasks (16)"] > ends["uni-tasks"]
        assert ends["micro-tasks (32)"] > ends["uni-tasks"]
    assert last(result["4a"], "uni-tasks") > 0.9


def test_balanced_members_reach_the_projected_round_time(study) -> None:
    # 320 chunks of three examples each on 16 members: one is 4 % of a fast member's share.
    assert study[1]["units"]["squares"] == pytest.approx(1.2, rel=0.08)


def test_the_study_draws_its_tables_and_plots(study) -> None:
    text, _, out = study
    for title in ("Figure 1a", "Figures 4 and 9", "Figures 5 and 10", "Figure 7", "Figure 11"):
        assert title in text
    names = {path.name for path in out.iterdir()}
    assert {f"local-sgd-{figure}-epochs.png" for figure in ("1a", "fixed", "4a", "5", "7")} <= names
    assert "figure-11-squares.png" in names


def test_stored_runs_are_not_computed_again(study) -> None:
    text, _, out = study
    again = run_study("chicle.py", out, *SETTINGS.split())
    assert again.stdout == text
    assert "epoch" not in again.stderr
