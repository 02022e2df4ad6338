"""The papers' experiments as a user runs them, on tiny data and real, really killed workers."""

from __future__ import annotations

import copy
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
STUDIES = ROOT / "examples" / "papers"
WAIT_S = 200
MODES = ("no failure", "stall", "taylor", "taylor (paper)")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Output of the resource-elastic study, and its figures."""
    out = tmp_path_factory.mktemp("resource-elastic")
    script = STUDIES / "resource_elastic.py"
    done = subprocess.run(
        [sys.executable, script, "--quick", "--out", out, "--modes", *MODES],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    (figures,) = json.loads((out / "figures.json").read_text())
    assert (out / "tables.md").read_text() in done.stdout
    return done.stdout, figures


def objectives(figures: dict[str, Any], mode: str) -> dict[int, float]:
    rounds = figures["runs"][mode]["rounds"]
    return {int(at): row["objective"] for at, row in rounds.items()}


def test_the_study_tabulates_every_mode_at_every_round(quick) -> None:
    report, figures = quick
    tables = [part.splitlines() for part in report.split("\n\n") if part.startswith(" | ")]
    assert [table[0] for table in tables] == [
        " | 10 | 15 | 19 | 25 | 30",
        " | 15 | 19 | 20 | 25 | 30",
        " | 10 | 15 | 19 | 25 | 30",
    ]
    assert [row.split(" | ")[0] for row in tables[0][2:]] == list(MODES)
    assert Path(figures["picture"]).stat().st_size > 10_000


def test_only_those_that_the_study_kills_are_lost_and_the_others_keep_their_process(quick) -> None:
    _, figures = quick
    verdicts = {v["text"]: v["holds"] for v in figures["verdicts"] if "nobody else" in v["text"]}
    assert verdicts == {
        "no failure: 0 of 4 lost and back, nobody else": True,
        "stall: 2 of 4 lost and back, nobody else": True,
        "taylor: 2 of 4 lost and back, nobody else": True,
        "taylor (paper): 2 of 4 lost and back, nobody else": True,
    }


def test_a_replaced_survivor_or_a_further_loss_would_be_noticed(
    quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(STUDIES))
    from support.elastic_comparison import Plan, judge_members

    plan = Plan(members=4, lost_at=10, back_at=20, rounds=30)
    seen = quick[1]["runs"]["taylor"]["members"]
    another, further = copy.deepcopy(seen), copy.deepcopy(seen)
    another["running_at_end"][min(another["kept"])] += 1
    further["lost"].append(["0.1", 25, "deadline"])
    verdicts = [judge_members("taylor", members, plan) for members in (seen, another, further)]
    assert [verdict.holds for verdict in verdicts] == [True, False, False]


def test_all_modes_agree_until_the_loss_and_stall_resumes_from_there(quick) -> None:
    _, figures = quick
    plain, stall = objectives(figures, "no failure"), objectives(figures, "stall")
    for mode in MODES:
        assert objectives(figures, mode)[10] == plain[10]
    assert (stall[15], stall[19], stall[20]) == (plain[10], plain[10], plain[10])
    assert stall[30] == pytest.approx(plain[20], rel=1e-9)


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Table rows that the asynchronous SGD study prints for real processes."""
    out = tmp_path_factory.mktemp("asgd")
    figures = ["real-small", "real-links"]
    script = STUDIES / "asgd.py"
    done = subprocess.run(
        [sys.executable, script, "--quick", "--seeds", "1", "--out", out, "--figures", *figures],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert [(out / f"asgd-{name}.png").exists() for name in figures] == [True, True]
    return [line.split(" | ") for line in done.stdout.splitlines() if " | " in line]


def test_asynchronous_sgd_and_its_baselines_come_near_the_true_centres(asynchronous) -> None:
    excess = {(row[0], row[1]): float(row[4]) for row in asynchronous if row[1].endswith("passes")}
    # BATCH ends when no centre moves.
    batch = [value for (method, _), value in excess.items() if method == "BATCH"]
    assert batch[0] > 20.0
    # An iteration of Lloyd's never increases the inertia; the printed values are rounded.
    assert all(after <= before for before, after in itertools.pairwise(batch))
    for name in ("ASGD, the paper's rule", "ASGD, default", "SimuParallelSGD"):
        assert excess[name, "2 passes"] < 0.2 * batch[0]


def test_every_b_is_run_on_a_limited_link_and_on_one_that_is_not(asynchronous) -> None:
    links = ("a sixteenth of Gigabit Ethernet", "no limit")
    rows = [row for row in asynchronous if row[0] in links]
    ways = ["300", "3,000", "adaptiveB (paper)", "log-PI", "newest state, default"]
    assert [(row[0], row[1]) for row in rows] == [(link, way) for link in links for way in ways]
    # Four passes of seven mini-batches; some of their states may not be sent by the end.
    assert 0 < float(rows[0][6]) <= 28
    # No member waits if the newest state is sent when there is room.
    assert [row[9] for row in rows if row[1] == "newest state, default"] == ["0 %", "0 %"]
