"""Segmented vectors in a tree: forwarded before they are whole, counted only when committed.

In the tree of five the driver's children are slots 0 and 1, the child of slot 1 is slot 4. A model
has four values, a sum three; a piece is one value.
"""

from __future__ import annotations

import pytest
import pytest_asyncio

from elasticml.collective.frames import Kind
from elasticml.collective.segmentation import TRAILER
from elasticml.ids import MemberId
from tests.faults.fault_story import absent_groups, finish, losses, others_computed_once
from tests.faults.phase_stops import EXCHANGE, INNER, Jobs

pytestmark = pytest.mark.asyncio

LEAF = MemberId(4, 1)


@pytest_asyncio.fixture
async def job():
    made = Jobs("tree", transport="pieces")
    await made.train()
    yield made
    await made.world.close()


def trailer_of(job: Jobs, kind: Kind, **ends: str):
    """Stop the frame that commits a vector of the exchange."""
    return job.world.network.gate(
        kind=kind, exchange=EXCHANGE, where=lambda header, _: header.piece == TRAILER, **ends
    )


def pieces(job: Jobs, kind: Kind, source: str, target: str) -> list[int]:
    """List the pieces of the exchange's vector that have arrived on a link."""
    return [
        d.piece
        for d in job.world.network.deliveries
        if (d.kind, d.exchange, d.source, d.target) == (kind, EXCHANGE, source, target)
    ]


async def test_model_is_forwarded_before_it_is_whole(job):
    inner, leaf = job.address(INNER), job.address(LEAF)
    gate = trailer_of(job, Kind.MODEL, target=inner)
    await job.world.until(gate.reached.is_set)
    await job.world.settle()
    assert pieces(job, Kind.MODEL, inner, leaf) == [1, 2, 3, 4]
    gate.release()
    await finish(job.world)
    assert pieces(job, Kind.MODEL, inner, leaf) == [1, 2, 3, 4, TRAILER]
    assert others_computed_once(job.world)


async def test_sum_is_forwarded_before_a_childs_partial_is_committed(job):
    inner, leaf = job.address(INNER), job.address(LEAF)
    gate = trailer_of(job, Kind.PARTIAL, source=leaf)
    await job.world.until(gate.reached.is_set)
    await job.world.settle()
    assert pieces(job, Kind.PARTIAL, inner, "driver") == [1, 2, 3]
    gate.release()
    await finish(job.world)
    assert pieces(job, Kind.PARTIAL, inner, "driver") == [1, 2, 3, TRAILER]


async def test_sum_restarts_without_a_child_that_never_committed(job):
    inner, leaf = job.address(INNER), job.address(LEAF)
    gate = trailer_of(job, Kind.PARTIAL, source=leaf)
    await job.world.until(gate.reached.is_set)
    await job.world.settle()
    job.world.kill(leaf)
    gate.release()
    await finish(job.world)
    # The part already sent with the vanished child's share was never committed.
    assert pieces(job, Kind.PARTIAL, inner, "driver") == [1, 2, 3, 1, 2, 3, TRAILER]
    assert losses(job.world) == {leaf: "closed"}
    assert absent_groups(job.world) == [[LEAF.slot]]
    assert others_computed_once(job.world)


async def test_partial_of_an_inner_node_that_never_committed_counts_for_nothing(job):
    inner, leaf = job.address(INNER), job.address(LEAF)
    gate = trailer_of(job, Kind.PARTIAL, source=inner)
    await job.world.until(gate.reached.is_set)
    job.world.kill(inner)
    gate.release()
    await finish(job.world)
    assert TRAILER not in pieces(job, Kind.PARTIAL, inner, "driver")
    # The orphan resends to the driver what it had sent to its parent, and computes nothing.
    assert pieces(job, Kind.PARTIAL, leaf, "driver") == [1, 2, 3, TRAILER]
    assert absent_groups(job.world) == [[INNER.slot]]
    assert others_computed_once(job.world)


async def test_incomplete_model_comes_again_from_the_next_parent(job):
    inner, leaf = job.address(INNER), job.address(LEAF)
    gate = trailer_of(job, Kind.MODEL, source=inner)
    await job.world.until(gate.reached.is_set)
    job.world.kill(inner)
    gate.release()
    await finish(job.world)
    assert pieces(job, Kind.MODEL, "driver", leaf) == [1, 2, 3, 4, TRAILER]
    assert absent_groups(job.world) == [[INNER.slot]]
    assert others_computed_once(job.world)
