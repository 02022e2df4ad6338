"""Plays the same plans in virtual time and on local processes, as they are and with mutants.

    python -m tests.play.both_worlds

The plans of ``plans.jsonl`` kill members within rounds; their rules must hold in both worlds. Some
are played again, each with a wrong change of the package, a mutant of ``mutants.json``: both worlds
must find it. A line has the plan, what was violated in virtual time and on processes, with
seconds, and the mutant. The exit code is the number of verdicts that are not as they must be. With
seeds as arguments, only their plans are played, without mutants.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.play.campaign import judge
from tests.play.plan import Plan
from tests.play.process_campaign import ROOT, judge_groups

HERE: Final = Path(__file__).parent
HOLDS: Final = "all rules hold"


def play(seeds: set[int]) -> Iterator[str]:
    """Play the plans of seeds in both worlds, or all; yield a line of each."""
    plans = map(Plan.from_json, (HERE / "plans.jsonl").read_text().splitlines())
    plans = [plan for plan in plans if not seeds or plan.seed in seeds]
    local = [replace(p, world={"on": "local", "members": p.job["members"]["start"]}) for p in plans]
    for plan, on_processes in zip(plans, judge_groups([local], ROOT / "runs"), strict=True):
        cells = [f"{plan.seed:2} {plan.name:50}"]
        for verdict in (judge(plan), on_processes):
            # A fault that did not hit says less than another rule.
            rules = sorted(verdict.violations, key=lambda found: found[0] == "hits")
            found = ": ".join(rules[0]) if rules else HOLDS
            cells.append(f"{verdict.seconds:5.1f} s {found[:60]:60}")
        yield " | ".join(cells)


def play_mutants() -> Iterator[str]:
    """Play a plan with each mutant, in a copy of the package; yield its line."""
    for mutant in json.loads((HERE / "mutants.json").read_text()):
        with tempfile.TemporaryDirectory() as folder:
            for part in ("elasticml", "tests"):
                shutil.copytree(ROOT / part, Path(folder, part))
            place = Path(folder, mutant["file"])
            source = place.read_text()
            assert source.count(mutant["old"]) == 1, mutant
            place.write_text(source.replace(mutant["old"], mutant["new"]))
            command = [sys.executable, "-m", "tests.play.both_worlds", str(mutant["seed"])]
            environment = {**os.environ, "PYTHONPATH": folder}
            done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE)
            # Without a line the program broke, which is no find.
            yield f"{done.stdout.decode().rstrip() or 2 * HOLDS} | {mutant['what']}"


def main(seeds: set[int]) -> int:
    """Play plans; return how many verdicts are not as they must be."""
    wrong = 0
    for line in play(seeds):
        wrong += 2 - line.count(HOLDS)
        print(line, flush=True)
    for line in () if seeds else play_mutants():
        wrong += line.count(HOLDS)
        print(line, flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main({int(seed) for seed in sys.argv[1:]}))
