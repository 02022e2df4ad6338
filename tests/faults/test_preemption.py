"""Pre-emption in every phase: which member leaves, what is lost, which one survives.

The toy trainer checks in each round that present and absent examples make up the whole, each once.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from elasticml.protocol.notices import (
    ContainerEnded,
    ContainerMarked,
    MarkLifted,
    NodeChanged,
    Notice,
)
from tests.faults.fault_story import (
    absent_groups,
    finish,
    groups_of,
    losses,
    others_computed_once,
    pid,
)
from tests.faults.phase_stops import Stop

pytestmark = pytest.mark.asyncio

PHASES = ["load", "broadcast", "compute", "reduce", "correct", "move", "apply"]

in_every_phase = pytest.mark.parametrize("phase", PHASES)
in_star_and_tree = pytest.mark.parametrize("topology", ["star", "tree"])


def post(stop: Stop, notice: Notice) -> None:
    stop.world.shell.feed(notice)


def mark(stop: Stop, negotiable: bool = True, grace_s: float = 60.0) -> None:
    post(stop, ContainerMarked(address=stop.victim, grace_s=grace_s, negotiable=negotiable))


def losses_since(stop: Stop, before: dict[str, str]) -> dict[str, str]:
    """Return the members lost since, and the causes."""
    return {a: why for a, why in losses(stop.world).items() if a not in before}


def given(stop: Stop) -> Sequence[str | None]:
    return [record["given"] for record in stop.world.events("Reclaimed")]


@in_star_and_tree
@in_every_phase
async def test_pre_empted_container_is_emptied_and_nothing_is_lost(phase, topology, jobs):
    stop = await jobs(topology).stopped_in(phase)
    before = losses(stop.world)
    mark(stop, negotiable=False, grace_s=20.0)
    stop.release()
    await finish(stop.world)
    assert losses_since(stop, before) == {stop.victim: "preempted"}
    assert absent_groups(stop.world) == groups_of(phase, victim_is_lost=False)
    assert others_computed_once(stop.world)


@in_star_and_tree
@in_every_phase
async def test_one_member_is_released_for_a_mark_and_nothing_is_lost(phase, topology, jobs):
    stop = await jobs(topology).stopped_in(phase)
    before = losses(stop.world)
    mark(stop)
    stop.release()
    await finish(stop.world)
    who = losses_since(stop, before)
    assert len(who) == 1
    ((address, reason),) = who.items()
    assert reason == ("preempted" if address == stop.victim else "released")
    assert absent_groups(stop.world) == groups_of(phase, victim_is_lost=False)
    assert others_computed_once(stop.world)


@in_every_phase
async def test_spare_member_is_released_and_the_marked_one_continues(phase, jobs):
    stop = await jobs("star").stopped_in(phase)
    before, world = losses(stop.world), stop.world
    newcomer = await world.add()
    await world.settle()
    mark(stop)
    stop.release()
    await finish(world)
    if phase == "load":
        # No member has chunks yet: releasing any of them is free.
        assert len(losses_since(stop, before)) == 1
        return
    (who,) = losses_since(stop, before)
    assert who != stop.victim
    lost = next(r for r in world.events("MemberLost") if r["reason"] == "released")
    assert lost["chunks"] == 0
    assert absent_groups(world) == groups_of(phase, victim_is_lost=False)
    if phase not in ("move", "correct"):
        assert lost["pid"] == pid(newcomer)


@in_every_phase
async def test_mark_that_is_withdrawn_at_once_changes_nothing(phase, jobs):
    stop = await jobs("tree").stopped_in(phase)
    before = losses(stop.world)
    mark(stop)
    post(stop, MarkLifted(address=stop.victim))
    stop.release()
    await finish(stop.world)
    # A member without chunks has left at once, and does not return by itself.
    is_spare_there = phase in ("load", "move")
    assert len(losses_since(stop, before)) == is_spare_there
    assert stop.victim not in losses_since(stop, before) or phase == "load"
    assert absent_groups(stop.world) == groups_of(phase, victim_is_lost=False)
    assert others_computed_once(stop.world)


@in_every_phase
async def test_marked_member_that_is_killed_is_lost_by_pre_emption_whenever_its_end_is_reported(
    phase, jobs
):
    stop = await jobs("tree").stopped_in(phase)
    before = losses(stop.world)
    mark(stop, negotiable=False, grace_s=2.0)
    stop.world.kill(stop.victim)
    ended = ContainerEnded(
        address=stop.victim, container="container_7", reason="preempted", status=-102
    )
    post(stop, ended)
    stop.release()
    await finish(stop.world)
    assert losses_since(stop, before) == {stop.victim: "preempted"}
    assert [r["container"] for r in stop.world.events("ContainerEnded")] == ["container_7"]
    assert others_computed_once(stop.world)


@in_every_phase
async def test_members_of_a_decommissioned_node_leave_no_chunks_behind(phase, jobs):
    stop = await jobs("tree").stopped_in(phase)
    before = losses(stop.world)
    post(
        stop,
        NodeChanged(node="n", state="decommissioning", grace_s=60.0, addresses=(stop.victim,)),
    )
    stop.release()
    await finish(stop.world)
    assert losses_since(stop, before) == {stop.victim: "node"}
    assert absent_groups(stop.world) == groups_of(phase, victim_is_lost=False)
    assert others_computed_once(stop.world)
