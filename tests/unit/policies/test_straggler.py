"""Straggler: a member far beyond the others' round time is relieved at once."""

from __future__ import annotations

import pytest

from elasticml.control.policy import Move
from elasticml.policies.rebalance import Rebalance
from elasticml.policies.straggler import Straggler
from tests.policy_world import PolicyWorld, member


def world_with_straggler(*policies, n_chunks: int = 256) -> PolicyWorld:
    world = PolicyWorld(list(policies), dict.fromkeys(range(4), 1.0), n_chunks=n_chunks)
    world.play(3)
    world.cost[1] = 8.0
    return world


def test_straggler_gives_at_once_all_chunks_beyond_the_median_time():
    world = world_with_straggler(Straggler())
    world.play(2)
    assert world.suggestions == []
    before = len(world.chunks.of(member(1)))
    world.play(1)
    assert before == 64
    # The others take 64 chunks' time, in which the straggler does 8.
    assert len(world.chunks.of(member(1))) == 8
    assert [len(world.chunks.of(member(s))) for s in (0, 2, 3)] == [83, 83, 82]
    world.play(10)
    assert len(world.suggestions) == 1


def test_one_slow_round_is_not_enough():
    world = world_with_straggler(Straggler())
    world.play(1)
    world.cost[1] = 1.0
    world.play(5)
    assert world.suggestions == []


def test_the_factor_sets_the_threshold():
    world = PolicyWorld([Straggler(factor=3.0)], {0: 1.0, 1: 2.9, 2: 1.0}, n_chunks=63)
    world.play(6)
    assert world.suggestions == []


@pytest.mark.parametrize(("cost", "n_left"), [(150.0, 1), (1e6, 0)])
def test_straggler_keeps_a_chunk_unless_that_takes_it_three_times_the_median(cost, n_left):
    world = world_with_straggler(Straggler())
    world.cost[1] = cost
    world.play(6)
    assert len(world.chunks.of(member(1))) == n_left


def test_with_rebalancing_the_rest_evens_out():
    world = world_with_straggler(Straggler(), Rebalance())
    world.play(12)
    assert world.imbalance < 1.1
    assert any(
        isinstance(suggestion, Move) and "rounds in a row" in suggestion.why
        for _, suggestion in world.suggestions
    )
