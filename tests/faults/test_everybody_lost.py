"""Too many are lost to go on; whoever comes in their place has all examples again."""

from __future__ import annotations

import pytest

from tests.faults.stops import N_MEMBERS
from tests.faults.story import finish

pytestmark = pytest.mark.asyncio


async def last_row(jobs, topology: str, *faults: dict) -> dict:
    world = await jobs(topology, faults=list(faults)).train()
    await finish(world)
    return world.shell.journal.rows[-1]


@pytest.mark.parametrize("topology", ["star", "tree"])
@pytest.mark.parametrize("back", [3, 4, 6])
@pytest.mark.parametrize("phase", ["broadcast", "compute", "reduce"])
async def test_everybody_is_back_with_all_examples(phase, back, topology, jobs):
    faults = [
        {"round": 3, "lose": N_MEMBERS, "how": "kill", "phase": phase},
        {"round": back, "return": N_MEMBERS},
    ]
    row = await last_row(jobs, topology, *faults)
    assert (row["absent_examples"], row["members"]) == (0, N_MEMBERS)


async def test_a_return_planned_for_the_first_round_comes_though_there_is_nobody_to_begin_it(jobs):
    # Killed while the data are dealt: there was no round, and the job waited for ever.
    faults = [
        {"round": 0, "lose": N_MEMBERS, "how": "kill", "phase": "load"},
        {"round": 0, "return": N_MEMBERS},
    ]
    row = await last_row(jobs, "tree", *faults)
    assert (row["absent_examples"], row["members"]) == (0, N_MEMBERS)


async def test_rounds_wait_for_a_planned_return_though_they_cannot_begin(jobs):
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
