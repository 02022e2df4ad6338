"""The papers' studies as a user draws them, on toy sizes: their main claims, tables and plots.

Each is a program in a process of its own; the resource-elastic one and a part of the asynchronous
one have workers of their own, which are really killed.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import LOST_DEADLINE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
MODES = ("no failure", "stall", "taylor", "taylor (paper)")
CHOSEN = ["adaptiveB (paper)", "log-PI", "newest state, default"]
SQUARES = (
    "--data squares --epochs 4 --tasks 16 32 --members 1 4 --batches 64 128 --change 0.5 "
    "--local-steps 2 --balanced-rounds 12"
)


@dataclass(frozen=True)
class Drawn:
    """What a study has printed and written."""

    text: str
    figures: Any
    folder: Path

    def rows(self, *heads: str) -> list[list[str]]:
        """Cells of the rows of all tables that begin with one of these words."""
        rows = (line.split(" | ") for line in self.text.splitlines())
        return [row for row in rows if len(row) > 1 and row[0] in heads]


def run_study(script: str, out: Path, words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "papers" / script, *shlex.split(words), "--out", out],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=900,
    )


def check_networks(study: Drawn) -> None:
    """Every b is run on both networks, and no more messages are good than merged."""
    rows = [row for row in study.rows("Gigabit Ethernet", "InfiniBand") if len(row) == 10]
    fixed = [(n, b) for n in ("Gigabit Ethernet", "InfiniBand") for b in ("100", "1,000")]
    ways = 2 * [*fixed, *(("Gigabit Ethernet", name) for name in CHOSEN)]
    assert [(row[0], row[1]) for row in rows] == ways
    assert all(float(row[7]) <= float(row[6]) for row in rows)


def check_processes(study: Drawn) -> None:
    """All methods come near the true centres."""
    rows = [line.split(" | ") for line in study.text.splitlines() if " | " in line]
    excess = {(row[0], row[1]): float(row[4]) for row in rows if row[1].endswith("passes")}
    batch = [value for (method, _), value in excess.items() if method == "BATCH"]
    assert batch[0] > 20.0
    # An iteration of Lloyd's never increases the inertia; the printed values are rounded.
    assert all(after <= before for before, after in itertools.pairwise(batch))
    for name in ("ASGD, the paper's rule", "ASGD, default", "SimuParallelSGD"):
        assert excess[name, "2 passes"] < 0.2 * batch[0]


def check_elastic_cocoa(study: Drawn) -> None:
    """More members need more rounds, and members that are released save their time."""

    def rounds(rule: str, k: int) -> float:
        return float(study.figures["tiny"][rule][f"K={k}"]["rounds"]["1e-4"]["value"])

    paper = [rounds("paper", k) for k in (1, 4, 16)]
    assert paper == sorted(paper)
    assert paper[0] < 0.6 * paper[1]
    assert all(rounds("ours", k) < theirs for k, theirs in zip((4, 16), paper[1:], strict=True))
    cost = {
        s: study.figures["tiny"]["paper"][s]["member_units"]["1e-4"] for s in ("16-4-1", "K=16")
    }
    assert cost["16-4-1"]["reached"]
    assert cost["16-4-1"]["value"] < 0.5 * cost["K=16"]["value"]


def check_uni_tasks(study: Drawn) -> None:
    """Uni-tasks need no more time than micro-tasks, and balanced members the projected time."""
    for experiment in ("scale-in", "scale-out", "mixed"):
        lines = study.figures["lines"][experiment]["tiny"]["seconds"]
        at = {
            setting: next((t for t, gap in line if gap <= 1e-3), float("inf"))
            for setting, line in lines.items()
        }
        assert at["uni-tasks"] <= 1.1 * min(at.values()), experiment
    # 512 chunks of 3 or 4 examples each on 16 members: one is 3 % of a fast member's share.
    assert study.figures["units"]["tiny"] == pytest.approx(1.2, rel=0.06)


def check_images(study: Drawn) -> None:
    """One member is as good as PyTorch after every epoch, and micro-tasks make waves."""
    found = study.figures["local_sgd"]["lines"]
    lines = found["7"]["squares"]["epochs"]
    for name in ("mini-batch SGD, batch 64", "local SGD, K = 1"):
        ours, plain = lines[f"{name}: elasticml"], lines[f"{name}: PyTorch"]
        # The same steps; sums in another order may change one of the 240 images.
        assert [y for _, y in ours] == pytest.approx([y for _, y in plain], abs=1.5 / 240)
    for figure in ("4a", "4b"):
        units = found[figure]["squares"]["units"]
        ends = {setting: line[-1][0] for setting, line in units.items()}
        assert min(ends["micro-tasks (16)"], ends["micro-tasks (32)"]) > ends["uni-tasks"]


def check_snapml(study: Drawn) -> None:
    """elasticml and scikit-learn reach the same objective, and stored runs are not repeated."""
    least = {}
    for peer in ("elasticml-1-thread", "elasticml-2-threads", "lbfgs-1-thread"):
        (first, *_) = sorted(
            (study.folder / "runs").glob(f"{peer}-sample-*.json"), key=lambda p: "-again-" in p.name
        )
        lines = json.loads(first.read_text())["found"]
        least[peer] = min(line["objective"] for line in lines if "objective" in line)
    assert [*least.values()] == pytest.approx([least["lbfgs-1-thread"]] * 3, rel=1e-6)
    again = run_study("snapml.py", study.folder, "--quick")
    printed = again.stderr.replace(LOST_DEADLINE, "")
    assert (again.returncode, again.stdout, printed) == (0, study.text, "")


def check_kills(study: Drawn) -> None:
    """Only those that the study kills are lost, and all modes agree until then."""
    (figures,) = study.figures
    verdicts = {v["text"]: v["holds"] for v in figures["verdicts"] if "nobody else" in v["text"]}
    lost = {mode: 0 if mode == "no failure" else 2 for mode in MODES}
    assert verdicts == {
        f"{mode}: {n} of 4 lost and back, nobody else": True for mode, n in lost.items()
    }
    objective = {
        mode: {int(at): row["objective"] for at, row in figures["runs"][mode]["rounds"].items()}
        for mode in MODES
    }
    plain, stall = objective["no failure"], objective["stall"]
    assert {objective[mode][10] for mode in MODES} == {plain[10]}
    assert (stall[15], stall[19], stall[20]) == (plain[10], plain[10], plain[10])
    assert stall[30] == pytest.approx(plain[20], rel=1e-9)


@pytest.mark.parametrize(
    ("script", "words", "pictures", "check"),
    [
        ("asgd.py", "--quick --figures 1 3 4 5", 5, check_networks),
        ("asgd.py", "--quick --seeds 1 --figures real-small", 1, check_processes),
        ("elastic_cocoa.py", "--quick", 4, check_elastic_cocoa),
        ("chicle.py", "--quick --data tiny", 3, check_uni_tasks),
        pytest.param("chicle.py", SQUARES, 6, check_images, marks=pytest.mark.torch),
        ("snapml.py", "--quick", 3, check_snapml),
        ("resource_elastic.py", f"--quick --modes {shlex.join(MODES)}", 1, check_kills),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_study_draws_its_tables_and_plots_and_shows_its_claims(
    tmp_path: Path, script: str, words: str, pictures: int, check: Callable[[Drawn], None]
) -> None:
    done = run_study(script, tmp_path, words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tables.md").read_text() in done.stdout
    drawn = [path for path in tmp_path.rglob("*.png") if path.stat().st_size > 10_000]
    assert len(drawn) >= pictures
    figures = json.loads((tmp_path / "figures.json").read_text())
    check(Drawn(done.stdout, figures, tmp_path))
