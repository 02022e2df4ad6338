"""The choice of members to release."""

from __future__ import annotations

from elasticml.policies.scale_in import cheapest, pause_seconds, removal_costs
from tests.policy_world import PolicyWorld, chunk, member


def test_member_whose_chunks_others_hold_is_the_cheapest():
    world = PolicyWorld([], dict.fromkeys(range(4), 1.0), n_chunks=16)
    for c in world.chunks.of(member(2)):
        world.chunks.held[c].add(member(0))
    assert cheapest(world.view(), 1) == (member(2),)
    assert [result.moving_s for result in removal_costs(world.view())] == [0.0, 0.004, 0.004, 0.004]


def test_among_equals_the_slowest_is_released_first():
    world = PolicyWorld([], {0: 1.0, 1: 1.5, 2: 1.0}, n_chunks=30)
    world.play(1)
    assert cheapest(world.view(), 2) == (member(1), member(2))
    assert removal_costs(world.view())[0].slowness == 1.5


def test_pause_is_the_longest_transfer_of_any_member():
    world = PolicyWorld([], dict.fromkeys(range(4), 1.0), n_chunks=16)
    # Each sends 4 kB at 1 MB/s; one receives all of 12 kB, or two 4 kB each.
    assert pause_seconds(world.view(), 1) == 0.012
    assert pause_seconds(world.view(), 2) == 0.004
    world.chunks.held[chunk(15)].add(member(0))
    assert pause_seconds(world.view(), 1) == 0.011
