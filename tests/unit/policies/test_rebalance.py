"""Rebalancing: chunks move from slow to fast members until all take equally long."""

from __future__ import annotations

import pytest

from elasticml.control.policy import Move
from elasticml.errors import ConfigError
from elasticml.policies.rebalance import Rebalance
from tests.policy_world import PolicyWorld, member


def moves(world: PolicyWorld) -> list[int]:
    """Return how many chunks each round moved."""
    by_round = [0] * world.round
    for round, suggestion in world.suggestions:
        assert isinstance(suggestion, Move)
        by_round[round] += len(suggestion.targets)
    return by_round


@pytest.mark.parametrize("members", [2, 4, 8])
def test_imbalance_of_one_member_half_as_slow_again_falls_below_a_tenth_in_ten_rounds(members):
    cost = dict.fromkeys(range(members), 1.0) | {0: 1.5}
    world = PolicyWorld([Rebalance()], cost, n_chunks=64 * members)
    imbalance = world.play(11)
    assert imbalance[0] > 1.1
    assert max(imbalance[10:]) < 1.1


def test_member_that_becomes_slower_in_mid_run_is_relieved_within_ten_rounds():
    world = PolicyWorld([Rebalance()], dict.fromkeys(range(4), 1.0), n_chunks=256)
    assert world.play(8) == [1.0] * 8
    assert world.moved_bodies == 0
    world.cost[2] = 1.5
    assert world.play(1)[0] > 1.3
    assert world.play(10)[-1] < 1.1


def test_eight_fast_and_eight_slow_members_reach_the_papers_relative_round_time():
    cost = {slot: 1.5 if slot % 2 else 1.0 for slot in range(16)}
    world = PolicyWorld([Rebalance()], cost, n_chunks=16 * 64)
    world.play(12)
    # The unit is the round of 16 fast members; 1.2 is the optimum of any partition.
    assert max(world.times().values()) / (64 * 100) == pytest.approx(1.2, rel=0.02)


def test_moves_are_gradual_and_end():
    world = PolicyWorld([Rebalance(share=0.25)], {0: 1.5, 1: 1.0}, n_chunks=128)
    world.play(30)
    moved = moves(world)
    # 12.8 chunks are misplaced, and a quarter of them moves at first.
    assert moved[0] == 0
    assert moved[1] == 4
    assert sum(moved) == pytest.approx(13, abs=2)
    assert moved[20:] == [0] * 10


def test_nothing_moves_where_the_difference_is_less_than_a_chunk():
    world = PolicyWorld([Rebalance()], {0: 1.2, 1: 1.0, 2: 1.0}, n_chunks=9)
    world.play(10)
    assert world.suggestions == []


def test_noise_does_not_keep_chunks_moving():
    world = PolicyWorld([Rebalance(tolerance=0.1)], dict.fromkeys(range(4), 1.0), n_chunks=256)
    for round in range(20):
        world.cost.update(
            {slot: 1 + 0.05 * ((7 * round + 3 * slot) % 5 - 2) / 2 for slot in range(4)}
        )
        world.play(1)
    assert world.suggestions == []


def test_member_that_holds_the_body_comes_first():
    world = PolicyWorld([Rebalance()], {0: 4.0, 1: 1.0, 2: 1.0}, n_chunks=60, holders=2)
    world.chunks.held = {c: {m, member(2)} for c, m in world.chunks.owners.items()}
    world.play(8)
    first = next(suggestion for _, suggestion in world.suggestions if isinstance(suggestion, Move))
    assert set(first.targets.values()) == {member(2)}
    assert world.imbalance < 1.1


@pytest.mark.parametrize(("cost", "n_left"), [(10.0, 1), (50.0, 0)])
def test_a_member_is_emptied_only_if_one_chunk_takes_it_three_times_as_long(cost, n_left):
    world = PolicyWorld([Rebalance()], {0: cost, 1: 1.0}, n_chunks=8)
    world.play(20)
    assert len(world.chunks.of(member(0))) == n_left


def test_same_view_gives_the_same_answer():
    world = PolicyWorld([], {0: 1.5, 1: 1.0}, n_chunks=64)
    world.play(3)
    assert Rebalance().suggest(world.view()) == Rebalance().suggest(world.view()) != []


def test_settings_out_of_range_are_named():
    with pytest.raises(ConfigError, match=r"rebalance.share: got 0, wanted more than 0"):
        Rebalance(share=0)
    with pytest.raises(ConfigError, match=r"rebalance.rounds: got 1.5, wanted a whole number"):
        Rebalance(rounds=1.5)
