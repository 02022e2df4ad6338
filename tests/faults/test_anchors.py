"""With cached anchors no correction is needed for partials that the tree still has.

The toy trainer uses an anchor as the stand-in of the vanished members and checks it to the last
unit, so that a job that ends had exact ones.
"""

from __future__ import annotations

import pytest

from elasticml.collective.frames import Kind
from elasticml.ids import MemberId
from tests.faults.fault_story import absent_groups, finish, losses, others_computed_once
from tests.faults.phase_stops import EXCHANGE

pytestmark = pytest.mark.asyncio

#: In the tree of five: a leaf, an inner node, and an inner node together with its child.
LEAF, INNER, BRANCH = [MemberId(4, 1)], [MemberId(1, 1)], [MemberId(1, 1), MemberId(4, 1)]


async def lose_together(jobs, topology: str, victims: list[MemberId]):
    """Lose members in the same exchange, before any of them has sent its partial."""
    job = jobs(topology)
    world = await job.train()
    addresses = [job.address(member) for member in victims]
    gates = [
        world.network.gate(kind=Kind.PARTIAL, exchange=EXCHANGE, source=address)
        for address in addresses
    ]
    # A parent does not send before its child has: waiting for the last one of the list is enough.
    await world.until(gates[-1].reached.is_set)
    for address in addresses:
        world.kill(address)
    await finish(world)
    return world


@pytest.mark.parametrize("topology", ["star", "tree"])
@pytest.mark.parametrize("victims", [LEAF, INNER, BRANCH], ids=["leaf", "inner", "branch"])
async def test_no_correction_takes_place_when_the_tree_has_the_last_partials(
    victims, topology, jobs
):
    world = await lose_together(jobs, topology, victims)
    ended = world.events("ExchangeEnded")
    assert {r["phase"] for r in ended} == {"compute"}
    opened = next(r for r in ended if r["opened"] is not None)
    assert (opened["exchange"], opened["anchor"]) == (EXCHANGE, EXCHANGE - 1)
    assert absent_groups(world) == [[m.slot for m in victims]]
    assert world.shell.journal.rows[-2]["anchored"] == 1
    assert others_computed_once(world)


async def test_correction_takes_place_when_the_holder_of_the_last_partial_is_lost_too(jobs):
    job = jobs("tree")
    world = await job.train()
    child, parent = job.address(MemberId(4, 1)), job.address(MemberId(1, 1))
    # The child vanishes; its parent has its last partial, but never gets to send it.
    partial = world.network.gate(kind=Kind.PARTIAL, exchange=EXCHANGE, source=child)
    anchor = world.network.gate(
        kind=Kind.PARTIAL, source=parent, where=lambda header, prefix: "anchor_of" in prefix
    )
    await world.until(partial.reached.is_set)
    world.kill(child)
    await world.until(anchor.reached.is_set)
    world.kill(parent)
    await finish(world)
    opened = next(r for r in world.events("ExchangeEnded") if r["opened"] is not None)
    assert opened["anchor"] is None
    assert "correct" in {r["phase"] for r in world.events("ExchangeEnded")}
    assert set(losses(world)) == {child, parent}


async def test_a_correction_follows_when_an_anchor_does_not_arrive(jobs):
    job = jobs("tree")
    world = await job.train()
    child, parent = job.address(MemberId(4, 1)), job.address(MemberId(1, 1))
    partial = world.network.gate(kind=Kind.PARTIAL, exchange=EXCHANGE, source=child)
    anchor = world.network.gate(
        kind=Kind.PARTIAL, source=parent, where=lambda header, prefix: "anchor_of" in prefix
    )
    await world.until(partial.reached.is_set)
    world.kill(child)
    await world.until(anchor.reached.is_set)
    await world.until(lambda: len(world.events("ExchangeEnded")) == EXCHANGE)
    anchor.release()
    await finish(world)
    assert world.events("ExchangeEnded")[EXCHANGE - 1]["anchor"] is None
    assert world.events("ExchangeEnded")[EXCHANGE]["phase"] == "correct"
    assert set(losses(world)) == {child}
