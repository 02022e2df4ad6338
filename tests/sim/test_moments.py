"""One fault at each moment of a round, of a correction, of a move and of the loading of data.

The toy trainer checks in each exchange that present and absent examples make up the whole, each
once. Members that no fault hits survive and compute each exchange once.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from elasticml.control import job_state
from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import simulate
from tests.play.campaign import judge
from tests.play.plan import Fault, Plan, Played
from tests.play.problems import TOY, source_of
from tests.play.rules import violations
from tests.play.virtual_plans import draw_cocoa, draw_exact_sums, draw_nonsense
from tests.play.virtual_world import play_plan

MEMBERS, ROUNDS, ROUND = 5, 14, 4
#: In the tree an inner node, whose child is slot 4; a member of another branch.
INNER, OTHER = 1, 3
#: Seconds after which a computing member is lost; a round takes one.
DEADLINE_S = 10.0
#: Moments of a scene in which a fault is tried: in the tree between phases, too.
MOMENTS = {"tree": 5}
MOMENTS_ELSEWHERE = 3


def toy(*faults: Fault, **changes: Any) -> Plan:
    """Make a plan of a job that fails as soon as a sum is wrong."""
    section = {k: changes.pop(k) for k in ("anchor", "rounds") if k in changes}
    world = {
        "compute_s": 0.4 * MEMBERS / 100,
        "latency_s": 0.08,
        "start_s": 0.3,
        "tick_s": 0.25,
        "read_bandwidth": 600.0,
        **changes.pop("world", {}),
    }
    collective = {
        "topology": changes.pop("topology", "tree"),
        "fan_out": 2,
        "deadline": DEADLINE_S,
    }
    job = {
        "chunk_bytes": 640,
        "algorithm": {"name": TOY, "rounds": ROUNDS, "anchor": "cached", **section},
        "absent": "taylor",
        "stop": {"rounds": None},
        "seed": 0,
        "collective": collective,
        "members": {"start": MEMBERS, "min": 1},
        "data": {"rows": 100},
        **changes,
    }
    rules = {"ends": 0.0, "sums": True, "computed_once": True, "all_back": True}
    return Plan(seed=0, job=job, world=world, faults=faults, rules=rules)


def times(played: Played, event: str, **wanted: Any) -> list[float]:
    """Return the times of the records with these values."""
    return [
        r["t"]
        for r in played.story
        if r["event"] == event and all(r[k] == v for k, v in wanted.items())
    ]


#: Topology and transport, and what happens before the fault.
SCENES: dict[str, Plan] = {
    "load": toy(),
    "star": toy(topology="star"),
    "tree": toy(),
    "pieces": toy(world={"piece_bytes": 8}),
    "correction": toy(Fault(kind="kill", at=5.4, who=(OTHER,), seconds=4.0), anchor="correction"),
    "move": toy(Fault(kind="grant", at=3.0, who=(0,)), topology="star"),
}


@cache
def window(scene: str) -> tuple[float, float]:
    """Return the seconds in which a scene's phases take place."""
    calm = play_plan(SCENES[scene])
    assert violations(calm) == []
    if scene == "load":
        return times(calm, "MemberJoined")[0] + 0.1, times(calm, "DataDealt")[0] - 0.01
    if scene == "correction":
        return 5.41, times(calm, "ExchangeEnded", phase="correct")[0]
    if scene == "move":
        newcomer = f"{MEMBERS}.1"
        return times(calm, "MemberJoined", member=newcomer)[0], times(
            calm, "MemberActive", member=newcomer
        )[0]
    return times(calm, "RoundStarted", round=ROUND)[0], times(calm, "RoundEnded", round=ROUND)[0]


def asked(**options: Any) -> dict[str, Any]:
    """Make an entry of the trace: the container of ``INNER`` is wanted."""
    return {"reclaim": [INNER], "grace": 20.0, "away": 2.0, **options}


#: By name: what hits ``INNER``; reasons of the losses; slots that may be absent.
KINDS: dict[str, tuple[Fault | dict[str, Any], str, str]] = {
    "kill": (Fault(kind="kill", at=0.0, who=(INNER,), seconds=2.0), "closed", "1?"),
    "vanish": (Fault(kind="vanish", at=0.0, who=(INNER,), seconds=4.0), "deadline", "1?"),
    "notice": (Fault(kind="notice", at=0.0, who=(INNER,), grace=20.0, seconds=1.0), "noticed", ""),
    "short notice": (
        Fault(kind="broken_notice", at=0.0, who=(INNER,), grace=1.0, amount=0.3, seconds=1.0),
        "noticed|closed",
        "1?",
    ),
    "pause": (Fault(kind="pause", at=0.0, who=(INNER,), seconds=14.0), "deadline", "1?"),
    "short pause": (Fault(kind="pause", at=0.0, who=(INNER,), seconds=5.0), "", ""),
    "join": (Fault(kind="grant", at=0.0, who=(0,)), "", ""),
    "mark": (asked(), "preempted|released", ""),
    "pre-emption": (asked(negotiable=False), "preempted", ""),
}


@pytest.mark.parametrize(
    ("kind", "scene"),
    [(k, s) for k in KINDS for s in SCENES if s != "pieces" or k in ("kill", "pause", "mark")],
)
def test_a_fault_at_any_moment_costs_its_member_at_most(kind: str, scene: str) -> None:
    fault, lost, absent = KINDS[kind]
    base = SCENES[scene]
    if scene == "correction":
        lost, absent = f"closed (?:{lost})|(?:{lost}) closed|closed", f"3 ?{absent}|{absent} ?3"
    if scene in ("load", "move") and lost == "deadline":
        # Others read its blocks and go on; a move is given twice the time.
        lost = "deadline|closed|"
    begin_s, end_s = window(scene)
    wrong = []
    for at in np.linspace(begin_s, end_s, MOMENTS.get(scene, MOMENTS_ELSEWHERE)).tolist():
        if isinstance(fault, Fault):
            plan = base.with_faults([*base.faults, replace(fault, at=at)])
        else:
            plan = replace(base, world={**base.world, "trace": [{**fault, "at": at}]})
        plan = replace(plan, rules={**plan.rules, "lost": lost, "absent": absent})
        found = violations(play_plan(plan))
        wrong += [f"at {at:.3f} s: {text}" for _, text in found]
    assert wrong == []


@pytest.mark.parametrize("later", [0.02, 0.1, 0.34])
@pytest.mark.parametrize("first", [4, INNER])
def test_the_loss_of_a_child_and_its_parent_is_corrected_unless_the_tree_has_their_partials(
    first: int, later: float
) -> None:
    both = [
        Fault(kind="kill", at=4.5 + k * later, who=(who,), seconds=1.0)
        for k, who in enumerate([first, INNER + 4 - first])
    ]
    played = play_plan(toy(*both))
    assert violations(played) == []
    ended = [r for r in played.story if r["event"] == "ExchangeEnded"]
    opened = [r for r in ended if r["opened"] is not None]
    is_anchored = all(r["anchor"] is not None for r in opened)
    assert is_anchored == ("correct" not in {r["phase"] for r in ended})
    assert is_anchored == (later == 0.02)


@pytest.mark.parametrize(("topology", "at"), [("star", 4.5), ("tree", 4.7)])
@pytest.mark.parametrize("absent", ["taylor", "stall", "reload", "ignore"])
def test_after_the_loss_of_all_members_all_examples_return(
    absent: str, topology: str, at: float
) -> None:
    lost = Fault(kind="kill", at=at, who=tuple(range(MEMBERS)), seconds=3.0)
    plan = toy(lost, topology=topology, absent=absent)
    assert violations(play_plan(plan)) == []


@pytest.mark.parametrize("at", [1.0, 3.9])
def test_only_a_computation_far_beyond_the_median_is_not_waited_for(at: float) -> None:
    slow = Fault(kind="slow", at=at, who=(INNER,), seconds=0.6, amount=75.0)
    plan = toy(slow, rounds=40)
    wanted = "deadline" if at > 1.0 else ""  # the first one may take any time
    rules = {**plan.rules, "lost": wanted, "absent": "1?"}
    assert violations(play_plan(replace(plan, rules=rules))) == []


LOST = {"round": 3, "lose": MEMBERS, "how": "kill"}
#: By name: planned faults, changes of the job, and the slots of the groups.
PLANNED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "placement": ([{"round": 0, "lose": 2, "how": "kill", "phase": "load"}], {}, ""),
    "notice": ([{"round": 3, "lose": [1], "how": "notice", "grace": 60}], {}, ""),
    "all in placement": (
        [{**LOST, "round": 0, "phase": "load"}, {"round": 0, "return": MEMBERS}],
        {},
        "",
    ),
    "all with a notice": (
        [{**LOST, "how": "notice", "grace": 0.0}, {"round": 5, "return": MEMBERS}],
        {},
        "0 1 2 3 4",
    ),
    "stalled": (
        [
            {"round": 2, "lose": 2},
            {"round": 3, "lose": 1},
            {"round": 5, "return": 1},
            {"round": 6, "return": 2},
        ],
        {"absent": "stall"},
        "3 4 2",
    ),
    "all in a reduction": (
        [{**LOST, "phase": "reduce"}, {"round": 4, "return": MEMBERS}],
        {"anchor": "correction"},
        "(0.*4)?",
    ),
}


@pytest.mark.parametrize("name", PLANNED)
def test_planned_faults_happen_in_their_rounds_and_cost_their_members_examples(name: str) -> None:
    faults, changes, slots = PLANNED[name]
    plan = toy(**changes)
    options = options_from_section(plan.world)
    made = {**plan.record.json, "faults": faults}
    source = source_of(plan.record.algorithm, plan.data)
    result = simulate(made, source, options=options, check_every_event=True)
    assert (result.state, result.error) == ("done", None)
    injected = [r for r in result.story if r["event"] == "FaultInjected"]
    assert [r["round"] for r in injected] == [fault["round"] for fault in faults]
    groups = [r["members"] for r in result.story if r["event"] == "ChunksAbsent"]
    absent = " ".join(member.split(".")[0] for group in groups for member in group)
    assert re.fullmatch(slots, absent), absent
    assert result.rows[-1]["absent_examples"] == 0


@pytest.mark.parametrize(
    ("first", "end"), [(0, 4), *(pytest.param(k, k + 10, marks=pytest.mark.slow) for k in (4, 14))]
)
def test_sums_are_exact_under_drawn_faults(first: int, end: int) -> None:
    verdicts = [judge(draw_exact_sums(seed)) for seed in range(first, end)]
    assert [v for v in verdicts if v.violations] == []
    assert sum(len(v.hits) for v in verdicts) > 20


@pytest.mark.parametrize("keeps_places", [False, True])
def test_sums_are_exact_whatever_a_policy_suggests(
    monkeypatch: pytest.MonkeyPatch, keeps_places: bool
) -> None:
    if keeps_places:  # as members do in large trees only
        monkeypatch.setattr(job_state, "LAID_OUT_ANEW_MAX", 0)
    verdicts = [
        judge(draw_nonsense(seed)) for seed in range(4 * keeps_places, 4 * keeps_places + 4)
    ]
    assert [v for v in verdicts if v.violations] == []
    assert sum(len(v.hits) for v in verdicts) > 20


@pytest.mark.parametrize("at", [0.7, 2.0, 4.4])
@pytest.mark.parametrize("absent", ["taylor", "stall", "reload"])
def test_a_job_whose_members_all_go_ends_when_its_time_is_over(absent: str, at: float) -> None:
    gone = Fault(
        kind="vanish" if absent == "stall" else "kill",
        at=at,
        who=tuple(range(MEMBERS)),
        seconds=1e6,
    )
    plan = toy(gone, absent=absent, stop={"seconds": 30.0})
    over = "stop.seconds: 30 s are over, no round has ended"
    played = play_plan(replace(plan, rules={"ends": 0.0, "may_fail": over}))
    assert violations(played) == []
    assert times(played, "JobEnded")[0] >= 30.0


def test_members_that_cannot_compute_alone_finish_a_round_and_then_wait() -> None:
    """The correction of a round waited for more members, which waited for the next round."""
    gone = [Fault(kind="kill", at=at, who=(who,), seconds=6.0) for at, who in ((4.5, 4), (9.1, 3))]
    plan = toy(*gone, anchor="correction", members={"start": MEMBERS, "min": MEMBERS})
    played = play_plan(plan)
    assert violations(played) == []
    ended = [r for r in played.story if r["event"] == "ExchangeEnded"]
    assert "correct" in {r["phase"] for r in ended}


@pytest.mark.parametrize("grace", [40.0, 150.0])
def test_a_member_that_must_go_is_drained_late_and_in_time(grace: float) -> None:
    asks = {"at": 5.0, "reclaim": [INNER], "negotiable": False, "grace": grace, "away": 2.0}
    plan = toy(rounds=200, world={"trace": [asks]})
    rules = {**plan.rules, "lost": "preempted", "absent": ""}
    played = play_plan(replace(plan, rules=rules))
    assert violations(played) == []
    (lost_s,) = times(played, "MemberLost")
    # All but the margin and a few rounds is used.
    assert 5.0 + grace - max(5.0, 0.1 * grace) - 5.0 <= lost_s < 5.0 + grace


@pytest.mark.parametrize(
    ("first", "end"),
    [(0, 1), *(pytest.param(k, k + 6, marks=pytest.mark.slow) for k in (1, 7, 13))],
)
def test_gaps_are_true_and_no_example_is_lost_under_drawn_faults(first: int, end: int) -> None:
    verdicts = [judge(draw_cocoa(seed)) for seed in range(first, end)]
    assert [v for v in verdicts if v.violations] == []
    assert sum(len(v.hits) for v in verdicts) > 15
