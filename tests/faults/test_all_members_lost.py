"""All members are lost; newcomers get all examples again."""

from __future__ import annotations

import pytest

from tests.faults.fault_story import finish
from tests.faults.phase_stops import N_MEMBERS

pytestmark = pytest.mark.asyncio


async def last_row(jobs, topology: str, *faults: dict) -> dict:
    world = await jobs(topology, faults=list(faults)).train()
    await finish(world)
    return world.shell.journal.rows[-1]


@pytest.mark.parametrize("topology", ["star", "tree"])
@pytest.mark.parametrize("back", [3, 4, 6])
@pytest.mark.parametrize("phase", ["broadcast", "compute", "reduce"])
async def test_after_the_loss_of_all_members_all_examples_return(phase, back, topology, jobs):
    faults = [
        {"round": 3, "lose": N_MEMBERS, "how": "kill", "phase": phase},
        {"round": back, "return": N_MEMBERS},
    ]
    row = await last_row(jobs, topology, *faults)
    assert (row["absent_examples"], row["members"]) == (0, N_MEMBERS)


async def test_a_return_planned_for_the_first_round_comes_without_a_member_to_start_it(jobs):
    # Killed during initial placement: there was no round, and the job waited for ever.
    faults = [
        {"round": 0, "lose": N_MEMBERS, "how": "kill", "phase": "load"},
        {"round": 0, "return": N_MEMBERS},
    ]
    row = await last_row(jobs, "tree", *faults)
    assert (row["absent_examples"], row["members"]) == (0, N_MEMBERS)


async def test_rounds_wait_for_a_planned_return_even_if_they_cannot_start(jobs):
    faults = [
        {"round": 3, "lose": N_MEMBERS, "how": "notice", "grace": 0.0},
        {"round": 5, "return": N_MEMBERS},
    ]
    row = await last_row(jobs, "star", *faults)
    assert (row["absent_examples"], row["members"]) == (0, N_MEMBERS)


async def test_losses_and_returns_come_in_order_while_a_job_stalls(jobs):
    # The second loss waited for a round with an exchange, until after its return.
    job = jobs(
        "tree",
        faults=[
            {"round": 2, "lose": 2, "how": "kill"},
            {"round": 3, "lose": 1, "how": "kill"},
            {"round": 5, "return": 1},
            {"round": 6, "return": 2},
        ],
    )
    job.record["absent"] = "stall"
    world = await job.train()
    await finish(world)
    injected = world.events("FaultInjected")
    assert [(r["round"], r["kind"]) for r in injected] == [
        (2, "lose"),
        (3, "lose"),
        (5, "return"),
        (6, "return"),
    ]
    assert world.shell.journal.rows[-1]["absent_examples"] == 0
