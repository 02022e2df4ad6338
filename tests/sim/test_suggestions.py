"""What becomes of each kind of suggestion of a policy: in the ledger, in the sums, in the story."""

from __future__ import annotations

from typing import Any

import pytest

from elasticml.control.driver import Driver
from elasticml.sim.simulation import SimResult
from tests.sim.says import SUGGESTIONS, A, C
from tests.sim.small_jobs import VirtualJob, play, records_of, toy_job


def says(*what: str, too: bool = False, **at: int) -> list[dict[str, Any]]:
    """Make the entry of a policy that suggests things before round 1, or before others."""
    rounds = dict.fromkeys(what, 1) | {name.replace("_", " "): k for name, k in at.items()}
    return [{"name": f"tests.sim.says:Says{'Too' if too else ''}", "what": rounds}]


def run(
    policies: list[dict[str, Any]], world: dict[str, Any] | None = None, **changes: Any
) -> tuple[SimResult, Driver]:
    """Run a job of exact sums on three members; return its result and the machine at its end."""
    star = {"members": {"start": 3, "min": 1}, "collective": {"topology": "star"}, "holders": 1}
    made = toy_job(8, policies=policies, **{**star, **changes})
    job = VirtualJob(made, world={"compute_s": 1e-3, **(world or {})})
    machine, result = job.agent.machine, job.end().result()
    assert result.state == ("failed" if result.error else "done")
    return result, machine


def decided(result: SimResult) -> list[str]:
    return [r["suggestion"] for r in records_of(result, "PolicyDecided") if r["policy"] == "says"]


def moved(result: SimResult) -> list[tuple[Any, ...]]:
    """Return round, giver, receiver and chunks of the moves after the initial placement."""
    return [
        (r["round"], r["source"], r["target"], r["chunks"])
        for r in records_of(result, "ChunksMoved")
        if r["round"]
    ]


def holders(machine: Driver) -> list[int]:
    return sorted({len(h) for h in machine.state.ledger.holders.values()})


def test_a_round_waits_for_a_move_and_the_giver_drops_its_copy() -> None:
    result, machine = run(says("move"))
    assert decided(result) == ["Move"]
    assert moved(result) == [(1, "0.1", "1.1", 1)]
    (started,) = (r for r in records_of(result, "RoundStarted") if r["round"] == 1)
    before = next(r for r in records_of(result, "RoundStarted") if r["round"] == 0)["rows"]
    assert started["rows"]["1"] > before["1"]
    assert started["t"] >= next(r["t"] for r in records_of(result, "ChunksMoved") if r["round"])
    assert holders(machine) == [1]
    # A round's story has the examples of each slot only when they have changed.
    told = [r["round"] for r in records_of(result, "RoundStarted") if r.get("rows")]
    assert told == [0, 1]


@pytest.mark.parametrize("what", ["replicate", "replicate everything"])
def test_every_chunk_gets_two_holders_and_surplus_copies_are_dropped(what: str) -> None:
    result, machine = run(says(what), holders=2)
    assert holders(machine) == [2]
    assert any(r["policy"] == "replicas" for r in records_of(result, "PolicyDecided"))


def test_a_copy_can_be_discarded_but_neither_the_last_one_nor_an_owned_one() -> None:
    result, machine = run(says("replicate", discard=4, discard_the_last=4))
    assert decided(result) == ["Replicate", "Discard"]
    assert holders(machine) == [1]
    assert len(machine.state.ledger.owned[A]) == len(machine.state.ledger.held[A])


@pytest.mark.parametrize(("what", "takers"), [("retire", {"0.1", "2.1"}), ("retire to C", {"2.1"})])
def test_a_retired_member_is_emptied_and_released(what: str, takers: set[str]) -> None:
    result, _ = run(says(what))
    (lost,) = records_of(result, "MemberLost")
    assert (lost["member"], lost["reason"], lost["chunks"]) == ("1.1", "retired", 0)
    assert {target for _, source, target, _ in moved(result) if source == "1.1"} == takers
    assert {row["absent_examples"] for row in result.rows} == {0}
    assert [row["members"] for row in result.rows[:4]] == [3, 2, 2, 2]


@pytest.mark.parametrize("members_min", [1, 3])
def test_not_all_members_can_be_retired(members_min: int) -> None:
    result, _ = run(says("retire all"), members={"start": 3, "min": members_min})
    assert (decided(result), result.summary["lost"]) == ([], 0)


@pytest.mark.parametrize(("most", "count"), [(None, 9), (5, 2), (3, None)])
def test_no_more_members_are_requested_than_the_job_may_have(
    most: int | None, count: int | None
) -> None:
    members = {"start": 3, "min": 1} | ({} if most is None else {"max": most})
    result, machine = run(
        says("request 9"), {"start_s": 0.01, "containers_max": 4}, members=members
    )
    found = [r["count"] for r in records_of(result, "PolicyDecided") if r["policy"] == "says"]
    assert found == ([] if count is None else [count])
    joined = [r for r in records_of(result, "MemberJoined") if r["round"]]
    refused = sum(r["count"] for r in records_of(result, "MembersRefused"))
    assert (len(joined), refused) == ((0, 0) if count is None else (1, count - 1))
    assert machine.state.requested == 0


def test_a_tuned_setting_goes_to_the_trainer_once() -> None:
    algorithm = {"name": "cocoa", "loss": "squared_hinge", "l2": 1e-2, "tolerance": 0.0}
    stop, more = {"rounds": 6}, {"algorithm": algorithm, "absent": "reload", "holders": 1}
    calm = play(stop=stop, **more)
    result = play(stop=stop, policies=says("tune"), **more)
    assert decided(result) == ["Tune"]
    gaps = [[row["gap"] for row in r.rows] for r in (calm, result)]
    assert [a == b for a, b in zip(*gaps, strict=True)][:3] == [True, True, False]


@pytest.mark.parametrize("what", [name for name in SUGGESTIONS if name.startswith("void")])
def test_void_suggestions_are_dropped_silently(what: str) -> None:
    result, _ = run(says(what))
    assert (decided(result), moved(result), result.summary["lost"]) == ([], [], 0)


def test_the_first_of_two_policies_gets_the_chunk() -> None:
    result, _ = run([*says("move two"), *says("move otherwise", too=True)])
    assert sorted(moved(result)) == [(1, "0.1", "1.1", 1), (1, "0.1", "2.1", 1)]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("fail", "policy says failed: ZeroDivisionError: division by zero"),
        ("nonsense", "policy says suggested 'more', wanted one of Readmit"),
    ],
)
def test_a_policy_that_fails_or_suggests_nonsense_ends_the_job_with_its_name(
    what: str, message: str
) -> None:
    result, _ = run(says(what))
    assert result.error is not None
    assert result.error["message"].startswith(message)


@pytest.mark.parametrize("holders", [1, 2])
def test_a_group_whose_copies_survivors_hold_returns_without_reading(holders: int) -> None:
    world = {"trace": [{"at": 0.15, "lose": [1]}]}
    result, machine = run([], world, holders=holders, absent="reload")
    (readmitted,) = records_of(result, "GroupReadmitted")
    assert (readmitted["why"] == "copies") == (holders == 2)
    assert set(machine.state.ledger.owned) <= {A, C}
