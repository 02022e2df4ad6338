"""Fault plans: the same seed gives the same plan, sound jobs pass, and a planted fault is found."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from elasticml.errors import ConfigError
from elasticml.sim.cost_only_job import CostSolver
from tests.play.__main__ import play
from tests.play.campaign import judge, minimal, minimal_plan
from tests.play.plan import Fault, Plan
from tests.play.rules import violations
from tests.play.virtual_plans import RULES, draw_plan
from tests.play.virtual_world import play_plan

ROUND_S, MEMBERS = 60.0, 4


def exact_sums(*faults: Fault) -> Plan:
    """Make a plan of a job that fails as soon as a sum is wrong."""
    return Plan(
        seed=1,
        job={
            "algorithm": {"name": "batch_gradient"},
            "absent": "taylor",
            "seed": 0,
            "collective": {"topology": "tree", "deadline": 200.0, "stuck_factor": 5.0},
            "members": {"start": MEMBERS, "min": 1},
            "checkpoint": {"path": "virtual", "every_s": 0},
            "stop": {"seconds": 20.0 * ROUND_S},
            "data": {"rows": 1000},
        },
        world={
            "compute_s": ROUND_S * MEMBERS / 1000,
            "tick_s": 5.0,
            "start_s": 10.0,
            "costs": {"rows": 1000, "columns": 10, "chunks_per_member": 2, "probes": 0},
        },
        faults=faults,
        rules=RULES,
    )


def several() -> list[Fault]:
    """Return faults of every kind, one after the other."""
    kinds: list[Any] = "pause cut split lag loss throttle slow notice mark kill vanish".split()
    kinds += ["broken_notice", "terminate", "grant"]
    return [
        Fault(kind=kind, at=100.0 + 60.0 * k, who=(k % MEMBERS,), seconds=50.0, amount=0.5)
        for k, kind in enumerate(kinds)
    ]


def test_members_that_cannot_reach_one_that_the_driver_reaches_are_laid_apart_from_it():
    pairs = [(0, 3), (3, 0), (1, 3), (3, 1)]
    cuts = [Fault(kind="one_way", at=130.0, who=pair, seconds=900.0) for pair in pairs]
    played = play_plan(exact_sums(*cuts))
    assert violations(played) == []
    assert played.summary["lost"] == 0
    # One round waits until the broken connection is noticed.
    ends = [r["t"] for r in played.story if r["event"] == "RoundEnded"]
    waits = [late - early > 1.5 * ROUND_S for early, late in itertools.pairwise(ends)]
    assert (len(ends), sum(waits)) == (19, 1)


def test_one_whom_two_cannot_reach_is_lost_once():
    pairs = [(0, 2), (2, 0), (1, 2), (2, 1)]
    cuts = [Fault(kind="one_way", at=130.0, who=pair, seconds=900.0) for pair in pairs]
    plan = exact_sums(*cuts)
    chain = {**plan.job["collective"], "fan_out": 1}
    job = {**plan.job, "members": {"start": 3, "min": 1}, "collective": chain}
    rules = {"ends": 0.0, "sums": True, "losses": 1}
    played = play_plan(replace(plan, job=job, rules=rules))
    assert violations(played) == []
    (lost,) = (r for r in played.story if r["event"] == "MemberLost")
    assert (lost["member"], lost["reason"]) == ("2.1", "unreachable")
    assert violations(replace(played, plan=replace(plan, rules={"losses": 0})))


def test_a_fault_that_virtual_time_cannot_play_is_refused():
    with pytest.raises(ConfigError, match="fault 'deaf' in virtual time"):
        play_plan(exact_sums(Fault(kind="deaf", at=1.0, who=(0,))))


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_gives_the_same_plan_and_json_keeps_it(seed):
    plan = draw_plan(seed)
    assert plan == draw_plan(seed)
    assert Plan.from_json(plan.to_json()) == plan


def test_what_is_no_plan_is_refused():
    with pytest.raises(ConfigError, match="is no plan"):
        Plan.from_json('{"version": 1, "faults": [{"what": 1}]}')


def test_sums_stay_exact_under_every_kind_of_fault():
    verdict = judge(exact_sums(*several()))
    assert verdict.violations == []
    assert len(set(verdict.hits)) == len(several())
    assert verdict.member_seconds > 15.0 * ROUND_S


@pytest.mark.parametrize("phase", ["load", "broadcast", "compute", "reduce"])
def test_a_fault_within_a_round_hits_its_member_alone(phase):
    """In ``reduce`` it has computed, and those below it send their parts to another."""
    fault = Fault(kind="phase", at=0.0 if phase == "load" else 3.0, who=(0,), phase=phase)
    played = play_plan(exact_sums(fault))
    assert violations(played) == []
    assert [hit.kind for hit in played.hits] == ["phase"]
    lost = [(r["member"], r["reason"]) for r in played.story if r["event"] == "MemberLost"]
    assert lost == [("0.1", "closed")]
    injected = next(r for r in played.story if r["event"] == "FaultInjected")
    ended = (r for r in played.story if r["event"] == "ExchangeEnded" and r["round"] == fault.at)
    exchange = next(ended)
    assert (exchange["contributors"], exchange["missing"]) == ("0xe", "0x1")
    assert (injected["t"] - exchange["start_t"] >= ROUND_S) == (phase == "reduce")


# Batch gradient descent, CoCoA, primal CoCoA and asynchronous SGD.
@pytest.mark.parametrize("seed", [2, 23, 48, 52])
def test_a_drawn_plan_violates_no_rule(seed):
    verdict = judge(draw_plan(seed))
    assert verdict.violations == []
    assert len(verdict.hits) > 5


@pytest.mark.parametrize("seed", [2, 22])  # batch gradient descent, asynchronous SGD
def test_a_driver_that_is_killed_resumes_from_its_last_round(seed):
    plan = draw_plan(seed)
    at = 0.5 * plan.job["stop"]["seconds"]
    calm = play_plan(plan.with_faults([]))
    played = play_plan(plan.with_faults([Fault(kind="driver", at=at, seconds=1.0)]))
    (resumed,) = (r for r in played.story if r["event"] == "JobResumed")
    assert resumed["round"] > 2
    assert played.state == "done"
    rounds = [row["round"] for row in played.history]
    assert rounds == list(range(len(rounds)))
    visited = [row.get("examples", 0) for row in played.history]
    assert visited == sorted(visited)
    for name, array in calm.arrays.items():
        np.testing.assert_allclose(played.arrays[name], array, rtol=0.1, atol=0.05)


def test_a_resumed_job_whose_time_is_over_before_a_round_ends_with_the_checkpoint_s_model():
    plan = draw_plan(48).with_faults([])
    calm = play_plan(plan)
    # The time is over just after a round: none is left for the members to load their chunks.
    end_s = [r["t"] for r in calm.story if r["event"] == "RoundEnded"][-2] + 2e-3
    plan = replace(plan, job={**plan.job, "stop": {"seconds": end_s}})
    driver = Fault(kind="driver", at=end_s - 1e-3, seconds=1.0)
    played = play_plan(plan.with_faults([driver]))
    (resumed,) = (r for r in played.story if r["event"] == "JobResumed")
    assert (played.state, played.error) == ("done", None)
    assert played.summary["rounds"] == resumed["round"] > 2
    assert played.summary["stopped_by"].endswith("seconds, with the model of the checkpoint")
    # The next round of the undisturbed job begins with the same model.
    same = calm.snapshots.get(resumed["round"], calm.arrays)
    for name, array in played.arrays.items():
        np.testing.assert_array_equal(array, same[name])
    assert violations(played) == []


def test_a_plan_that_does_not_end_is_a_violation_and_no_error_of_the_code_that_it_plays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stuck(plan: Plan) -> Any:
        with contextlib.suppress(Exception):  # as the driver does around a policy
            threading.Event().wait()
        pytest.fail("the timeout was swallowed")

    monkeypatch.setattr("tests.play.campaign.play_plan", stuck)
    verdict = judge(draw_plan(1), seconds_max=0.01)
    assert verdict.violations == [("PlanTimeoutError", "the plan takes more than 0.01 s")]


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let members that replace others count one example more."""
    made = CostSolver.__init__
    compute = CostSolver.compute

    def counted(self: Any, settings: Any, facts: Any) -> None:
        made(self, settings, facts)
        self.rank = next(ranks)

    def wrong(self: Any, *args: Any) -> Any:
        sums = compute(self, *args)["sums"]
        return {"sums": sums + (self.rank >= MEMBERS) * np.array([1.0, 0.0, 0.0])}

    ranks = itertools.count()
    monkeypatch.setattr(CostSolver, "__init__", counted)
    monkeypatch.setattr(CostSolver, "compute", wrong)
    play = play_plan

    def played(plan: Plan) -> Any:
        nonlocal ranks
        ranks = itertools.count()
        return play(plan)

    monkeypatch.setattr("tests.play.campaign.play_plan", played)


def test_a_planted_fault_is_found_minimised_and_replayed(planted, tmp_path):
    plan = exact_sums(*several())
    (rule, text), *_ = judge(plan).violations
    assert rule == "may_fail"
    assert text.startswith("the job failed: JobFailedError: exchange")
    least = minimal_plan(plan)
    assert len(least.faults) == 1
    file = tmp_path / "plan.json"
    file.write_text(least.to_json())
    done = CliRunner().invoke(play, ["--plan", str(file)])
    assert done.exit_code == 1
    assert "VIOLATION seed 1: costs, absent: taylor, 4 members: may_fail: " in done.output


def test_a_campaign_prints_its_figures_and_writes_them(tmp_path):
    out = tmp_path / "figures.json"
    arguments = ["--plans", "1", "--seed", "23", "--processes", "1", "--out", str(out)]
    done = CliRunner().invoke(play, arguments)
    assert done.exit_code == 0, done.output
    assert "seed 23: " in done.output
    assert "1 plans, " in done.output
    assert " 0 violations; " in done.output
    assert out.exists()


def test_delta_debugging_leaves_what_is_needed():
    assert minimal(range(100), lambda some: {3, 41, 97} <= set(some)) == [3, 41, 97]
    assert minimal([1, 2, 3], lambda some: True) == []


def test_a_member_that_computes_as_fast_and_answers_late_is_a_straggler():
    """A process that gets little of a processor reads and answers late, and computes in one go."""
    plan = exact_sums(Fault(kind="lag", at=3.0, who=(1,), seconds=1e9, amount=4.0))
    job = {
        "policies": [{"name": "straggler"}],
        "collective": {"topology": "star", "deadline": 1e4},
        "stop": {"seconds": 100.0},
    }
    world = {"compute_s": MEMBERS / 1000, "tick_s": 0.5}  # a round takes a second
    plan = replace(plan, job={**plan.job, **job}, world={**plan.world, **world})
    played = play_plan(plan)
    spare = next(r for r in played.story if r["event"] == "MemberSpare")
    assert spare["member"] == "1.1"
    ends = [r["t"] for r in played.story if r["event"] == "RoundEnded"]
    seconds = [b - a for a, b in itertools.pairwise(ends)]
    assert max(seconds) > 4.0
    assert statistics.median(seconds) < 1.6
    assert violations(played) == []
