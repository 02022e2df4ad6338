"""The grid's plans are data; its rules find what is wrong; its runner finds what is left."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from elasticml.errors import JobFailedError
from tests.play import process_campaign
from tests.play.both_worlds import HERE, ROOT
from tests.play.grid import draw, draw_raising, fences
from tests.play.leftovers import Leftovers
from tests.play.plan import Plan, Played
from tests.play.problems import rows_of
from tests.play.process_campaign import judge_groups, raw_errors
from tests.play.raising import ERRORS, raise_what
from tests.play.rules import violations


@pytest.mark.parametrize("on", ["local", "nannies", "stock", "hosts", "yarn"])
def test_a_seed_gives_the_same_plan_and_json_keeps_it(on: str) -> None:
    for seed in range(3):
        plan = draw(seed, on)
        assert plan == draw(seed, on)
        assert Plan.from_json(plan.to_json()) == plan
        last_s = max(fault.at for fault in plan.faults)
        assert plan.job["stop"]["seconds"] > last_s + 10.0


def test_the_mutants_of_both_worlds_still_have_their_lines() -> None:
    for mutant in json.loads((HERE / "mutants.json").read_text()):
        assert (ROOT / mutant["file"]).read_text().count(mutant["old"]) == 1, mutant["what"]


def test_every_builtin_exception_is_raised_in_a_solver_and_in_a_trainer(tmp_path: Path) -> None:
    plans = draw_raising()
    assert len(plans) == 2 * len(ERRORS) > 130
    for plan in plans:
        (fault,) = plan.faults
        trigger = tmp_path / fault.phase
        trigger.write_text(fault.error)
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            raise_what(str(trigger))
        assert caught.type.__name__ == fault.error
        raise_what(str(trigger))  # once
        assert ("fails" in plan.rules) == (fault.phase == "trainer" or not fences(fault.error))


@pytest.fixture
def played() -> Played:
    """Return a job of least squares that has reached its optimum, and violates no rule."""
    plan = draw_raising()[-1]
    rules = {"ends": 60.0, "goes_on": 3, "sums": True, "result": 0.1, "one_line": True}
    plan = replace(plan, rules={**rules, "leaves_nothing": True})
    X, y = rows_of(plan.job["algorithm"], plan.data)
    w = np.linalg.lstsq(X, y, rcond=None)[0]
    model = {"arrays": {"coef": w}, "summary": {"gap": None}}
    return Played(plan=plan, state="done", **model, quiet_rounds=9, is_whole=True, has_settled=True)


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("ends", {"state": "endless", "late_s": 61.0}),
        ("goes_on", {"quiet_rounds": 2}),
        ("goes_on", {"absent": 7}),
        ("may_fail", {"error": JobFailedError("no"), "state": "failed"}),
        ("one_line", {"error": OSError("no"), "state": "failed"}),
        ("leaves_nothing", {"left": ["3 Dask tasks are left"]}),
    ],
)
def test_a_violation_is_found(played: Played, rule: str, changes: dict[str, Any]) -> None:
    assert rule in [name for name, _ in violations(replace(played, **changes))]


def test_a_wrong_model_and_a_certificate_that_is_too_small_are_found(played: Played) -> None:
    played.arrays["coef"] *= 0.5
    assert [name for name, _ in violations(played)] == ["result"]
    played.arrays["coef"] *= 1.96
    assert (violations(played)) == []
    played.summary["gap"] = 1e-9  # type: ignore[index]
    assert [name for name, _ in violations(played)] == ["result"]


@pytest.mark.parametrize(
    ("examples", "lost_s", "found"),
    [(5, 2.5, []), (5, 2.0 - 1e-6, []), (5, 1.0, ["sums"]), (4, 2.5, ["sums"])],
)
def test_a_sum_without_an_example_or_a_member_is_found(
    played: Played, examples: int, lost_s: float, found: list[str]
) -> None:
    loss = {"event": "MemberLost", "t": lost_s, "member": "1.1", "reason": "closed", "chunks": 1}
    ended = {"event": "ExchangeEnded", "t": 3.0, "start_t": 2.0, "exchange": 1, "operation": "g"}
    ended |= {"contributors": "0x1", "missing": "0x2", "examples": examples}
    story = [loss, ended | {"absent_examples": played.plan.data["rows"] - 5}]
    assert [name for name, _ in violations(replace(played, story=story))] == found


def test_a_job_that_must_fail_needs_its_error(played: Played) -> None:
    plan = replace(played.plan, rules={"fails": r"KeyError.*raising\.py"})
    told = JobFailedError("member 1.1 failed: KeyError: 'no' (raising.py:44 in raise_what)")
    assert (violations(replace(played, plan=plan, error=told))) == []
    other = JobFailedError("member 1.1 failed")
    assert [name for name, _ in violations(replace(played, plan=plan, error=other))] == ["fails"]
    assert [name for name, _ in violations(replace(played, plan=plan))] == ["fails"]


def test_tracebacks_of_elasticml_in_a_log_are_raw_errors(tmp_path: Path) -> None:
    ours = Path(process_campaign.__file__).parents[2] / "elasticml" / "job.py"
    theirs = Path(process_campaign.__file__).parent / "raising.py"
    frame = 'Traceback (most recent call last):\n  File "{}", line 1, in f\n    g()\n{}: no\n'
    text = "INFO\n" + frame.format(ours, "KeyError") + frame.format("/dask.py", "OSError")
    text += f"{frame.format(ours, 'ValueError')}".replace("    g()\n", f'  File "{theirs}"\n')
    (tmp_path / "w0.log").write_text(text)
    assert list(raw_errors(tmp_path)) == ["w0.log: KeyError: no"]
    assert list(raw_errors(tmp_path, "no disk|no$")) == []


def run_program(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a program in place of the one that plays; return what is wrong."""
    (folder / "program.py").write_text(text)
    monkeypatch.setattr(process_campaign, "__name__", "program")
    monkeypatch.setattr(process_campaign, "ROOT", folder)
    monkeypatch.setattr(process_campaign, "Leftovers", partial(Leftovers, patience_s=0.0))
    plan = replace(draw_raising()[0], rules={"ends": 0.0})
    (verdict,) = judge_groups([[plan]], folder)
    assert verdict.plan == plan
    return [f"{rule}: {text}" for rule, text in verdict.violations]


def test_what_a_program_leaves_is_found_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import os, subprocess\n"
    text += "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    text += "open(os.environ['TMPDIR'] + '/file', 'w').close()\n"
    found = run_program(text, tmp_path, monkeypatch)
    assert found[0].startswith("one_line: the program is 0")
    assert found[1] == "leaves_nothing: file in TMPDIR"
    assert found[2].startswith("leaves_nothing: process")
    assert not psutil.pid_exists(int(found[2].split()[2]))
