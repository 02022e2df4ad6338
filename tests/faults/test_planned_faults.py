"""Planned faults and returns happen in their round and phase."""

from __future__ import annotations

import pytest

from tests.faults.fault_story import absent_groups, finish, losses

pytestmark = pytest.mark.asyncio

LOST, BACK = 3, 6


def plan(**changes) -> list[dict]:
    lose = {"round": LOST, "lose": 2, "how": "kill", **changes}
    return [lose, {"round": BACK, "return": 2}]


async def run(jobs, topology: str, faults: list[dict]):
    world = await jobs(topology, faults=faults).train()
    await finish(world)
    return world


def first(world, event: str) -> int:
    return world.events(event)[0]["round"]


@pytest.mark.parametrize("topology", ["star", "tree"])
@pytest.mark.parametrize("phase", ["broadcast", "compute", "reduce"])
async def test_members_killed_in_a_round_have_all_examples_again_from_the_round_of_their_return(
    phase, topology, jobs
):
    world = await run(jobs, topology, plan(phase=phase))
    assert [r["round"] for r in world.events("FaultInjected")] == [LOST, BACK]
    # Two groups if the partial of one of them had arrived before the kill.
    assert sorted(slot for group in absent_groups(world) for slot in group) == [3, 4]
    absent = [row["absent_examples"] > 0 for row in world.shell.journal.rows]
    assert absent[BACK:] == [False] * len(absent[BACK:])
    # Members killed after their partial arrived are missed one round later.
    assert absent[:LOST] == [False] * LOST
    assert all(absent[LOST + 1 : BACK])
    assert first(world, "GroupReturned") == BACK


async def test_members_killed_after_a_round_are_missing_from_the_next(jobs):
    world = await run(jobs, "tree", plan(phase="apply"))
    missing = next(r for r in world.events("ExchangeEnded") if r["opened"] is not None)
    assert missing["round"] == LOST + 1
    assert first(world, "GroupReturned") == BACK


async def test_members_killed_during_initial_placement_cost_no_examples(jobs):
    world = await run(jobs, "tree", [{"round": 0, "lose": 2, "how": "kill", "phase": "load"}])
    assert len(losses(world)) == 2
    assert absent_groups(world) == []


async def test_second_loss_meets_the_correction_of_the_first(jobs):
    job = jobs("tree", faults=[*plan(lose=[4]), {"round": LOST, "lose": [1], "phase": "correct"}])
    job.record["algorithm"]["anchor"] = "correction"
    world = await job.train()
    await finish(world)
    corrections = [r for r in world.events("ExchangeEnded") if r["phase"] == "correct"]
    # One that meets a loss, and one that ends without new losses.
    assert [r["missing"] for r in corrections] == ["0x2", "0x0"]
    assert absent_groups(world) == [[1, 4]]


async def test_slots_with_a_notice_leave_without_any_absence(jobs):
    world = await run(jobs, "tree", [{"round": LOST, "lose": [1], "how": "notice", "grace": 60}])
    assert list(losses(world).values()) == ["noticed"]
    assert absent_groups(world) == []
