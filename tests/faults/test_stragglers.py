"""Deadlines: computing members get reasonable time, and waiting members are not blamed."""

from __future__ import annotations

import pytest

from tests.faults.fault_story import absent_groups, finish, losses, others_computed_once
from tests.faults.phase_stops import EXCHANGE

pytestmark = pytest.mark.asyncio

LONG_S = 40.0


async def hold_computing(jobs, exchange: int, seconds: float):
    """Make one member compute an exchange for this long."""
    job = jobs("tree")
    world = await job.start()
    address = "w1"
    job.runners.stops = lambda at, function, args: (
        at == address and getattr(args[0], "exchange", None) == exchange
    )
    await world.until(job.runners.reached.is_set)
    until_s = world.now + seconds
    await world.until(lambda: world.now >= until_s)
    job.runners.release()
    await finish(world)
    return world


async def test_first_computation_may_take_any_time(jobs):
    world = await hold_computing(jobs, 1, LONG_S)
    assert losses(world) == {}
    assert others_computed_once(world)


async def test_computation_far_beyond_the_median_is_not_waited_for(jobs):
    world = await hold_computing(jobs, EXCHANGE, LONG_S)
    assert losses(world) == {"w1": "deadline"}
    assert len(absent_groups(world)) == 1
    assert others_computed_once(world)


async def test_children_of_a_paused_node_are_not_blamed_for_waiting(jobs):
    stop = await jobs("tree").stopped_in("broadcast")
    stop.world.pause(stop.victim)
    stop.release()
    await finish(stop.world)
    assert losses(stop.world) == {stop.victim: "deadline"}
    assert others_computed_once(stop.world)
