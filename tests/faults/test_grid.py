"""Every fault in every phase, in a star and in a tree whose inner node is the victim.

The toy trainer checks in each round that present and absent examples make up the whole, each once;
a job that ends has kept its sums exact. Members that are no fault's target must survive in one
incarnation and compute each exchange once.
"""

from __future__ import annotations

import pytest

from tests.faults.fault_story import (
    absent_groups,
    finish,
    groups_of,
    losses,
    others_computed_once,
    pid,
)

pytestmark = pytest.mark.asyncio

PHASES = ["load", "broadcast", "compute", "reduce", "correct", "move", "apply"]
#: Virtual seconds: less and more than a round's deadline of 10.
SHORT_S, LONG_S = 8.0, 40.0

in_every_phase = pytest.mark.parametrize("phase", PHASES)
in_star_and_tree = pytest.mark.parametrize("topology", ["star", "tree"])


@in_star_and_tree
@in_every_phase
async def test_kill_costs_only_the_killed_member(phase, topology, jobs):
    stop = await jobs(topology).stopped_in(phase)
    before = losses(stop.world)
    stop.world.kill(stop.victim)
    stop.release()
    await finish(stop.world)
    assert losses(stop.world) == {**before, stop.victim: "closed"}
    assert absent_groups(stop.world) == groups_of(phase, victim_is_lost=True)
    assert others_computed_once(stop.world)
    # The loss was detected at once: no member waited for a deadline.
    assert stop.world.now < SHORT_S


@in_star_and_tree
@in_every_phase
async def test_member_with_a_notice_goes_and_leaves_all_examples_behind(phase, topology, jobs):
    stop = await jobs(topology).stopped_in(phase)
    before = losses(stop.world)
    stop.world.notice(stop.victim, 60.0)
    await stop.world.settle()
    stop.release()
    await finish(stop.world)
    assert losses(stop.world) == {**before, stop.victim: "noticed"}
    assert absent_groups(stop.world) == groups_of(phase, victim_is_lost=False)
    assert others_computed_once(stop.world)
    assert stop.victim not in stop.world.hosts


@in_star_and_tree
@in_every_phase
async def test_paused_member_is_found_by_the_deadline_and_comes_back_when_it_goes_on(
    phase, topology, jobs
):
    stop = await jobs(topology).stopped_in(phase)
    before, world = losses(stop.world), stop.world
    world.pause(stop.victim)
    stop.release()
    await world.until(lambda: stop.victim in losses(world))
    assert losses(world) == {**before, stop.victim: "deadline"}
    assert world.now >= LONG_S / 4
    world.resume(stop.victim)
    await finish(world)
    assert losses(world) == {**before, stop.victim: "deadline"}
    assert absent_groups(world) == groups_of(phase, victim_is_lost=True)
    assert others_computed_once(world)
    assert [r["pid"] for r in world.events("MemberJoined")].count(pid(stop.victim)) == 2


@in_star_and_tree
@in_every_phase
async def test_slow_member_within_the_deadline_is_waited_for(phase, topology, jobs):
    stop = await jobs(topology).stopped_in(phase)
    before, world = losses(stop.world), stop.world
    until_s = world.now + SHORT_S
    await world.until(lambda: world.now >= until_s)
    stop.release()
    await finish(world)
    assert losses(world) == before
    assert absent_groups(world) == groups_of(phase, victim_is_lost=False)
    assert others_computed_once(world)


@in_star_and_tree
@in_every_phase
async def test_member_that_joins_gets_chunks_after_the_round(phase, topology, jobs):
    stop = await jobs(topology).stopped_in(phase)
    before, world = losses(stop.world), stop.world
    newcomer = await world.add()
    await world.settle()
    stop.release()
    await finish(world)
    assert losses(world) == before
    assert others_computed_once(world)
    joined = next(r["member"] for r in world.events("MemberJoined") if r["pid"] == pid(newcomer))
    active = [r for r in world.events("MemberActive") if r["member"] == joined]
    assert len(active) == 1
    assert active[0]["examples"] > 0
    assert world.shell.journal.rows[-1]["absent_examples"] == 0
