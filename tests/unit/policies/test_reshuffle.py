"""Reshuffle: chunks change owners before every round, and loads stay balanced."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from elasticml.control.policy import Move
from elasticml.errors import ConfigError
from elasticml.policies.reshuffle import Redeal
from tests.policy_world import PolicyWorld, member


def test_every_owner_is_drawn_among_the_holders_and_no_body_travels():
    world = PolicyWorld([Redeal()], dict.fromkeys(range(8), 1.0), n_chunks=512, holders=2)
    imbalance = world.play(10)
    assert world.moved_bodies == 0
    assert max(imbalance) <= 1 + 1 / 64 + 1e-9


def test_about_half_of_the_chunks_change_owner_in_a_round():
    world = PolicyWorld([Redeal()], dict.fromkeys(range(8), 1.0), n_chunks=512, holders=2)
    world.play(10)
    shares = [len(suggestion.targets) / 512 for _, suggestion in world.suggestions]
    assert len(shares) == 10
    assert all(0.35 < share < 0.65 for share in shares)


def test_of_many_small_chunks_a_part_is_drawn_every_few_rounds():
    """Moving the states of 3,000 of 6,000 chunks took a hundred times as long as a round.

    Members prepare all their chunks again after a move: 8 rounds' moves are made together.
    """
    world = PolicyWorld([Redeal()], dict.fromkeys(range(2), 1e-6), n_chunks=2048, holders=2)
    world.play(16)
    moved = [len(suggestion.targets) for _, suggestion in world.suggestions]
    assert len(moved) == 2
    assert all(0.35 < n / (8 * 2 * 64) < 0.65 for n in moved)


def test_long_rounds_have_time_to_draw_all_chunks():
    world = PolicyWorld([Redeal()], dict.fromkeys(range(2), 1.0), n_chunks=2048, holders=2)
    world.play(11)
    # The members are not measured before the first round.
    shares = [len(suggestion.targets) / 2048 for _, suggestion in world.suggestions[1:]]
    assert len(shares) == 10
    assert all(0.35 < share < 0.65 for share in shares)


def test_every_holder_owns_a_chunk_about_half_of_the_time():
    world = PolicyWorld([Redeal()], dict.fromkeys(range(4), 1.0), n_chunks=64, holders=2)
    owned = Counter()
    for _ in range(200):
        world.play(1)
        owned.update(world.chunks.owners.items())
    assert len(owned) == 128
    assert min(owned.values()) > 50


def test_share_limits_what_is_drawn():
    world = PolicyWorld([Redeal(share=0.25)], dict.fromkeys(range(4), 1.0), n_chunks=64, holders=2)
    world.play(10)
    assert 0 < max(len(suggestion.targets) for _, suggestion in world.suggestions) <= 16


def test_share_of_zero_does_nothing_until_it_is_tuned():
    world = PolicyWorld([Redeal(share=0)], dict.fromkeys(range(4), 1.0), n_chunks=64, holders=2)
    world.play(3)
    assert world.suggestions == []
    world.tuned["redeal_share"] = 0.5
    world.play(1)
    assert isinstance(world.suggestions[0][1], Move)


def test_nothing_is_reshuffled_while_a_job_waits():
    world = PolicyWorld([Redeal()], dict.fromkeys(range(4), 1.0), n_chunks=64, holders=2)
    world.play(2)
    view = world.view()
    assert Redeal().suggest(view)
    assert Redeal().suggest(replace(view, round=view.round + 1)) == []


def test_draws_are_balanced_by_speed():
    cost = dict.fromkeys(range(8), 1.0) | {3: 1.5}
    world = PolicyWorld([Redeal()], cost, n_chunks=512, holders=2)
    imbalance = world.play(11)
    assert imbalance[0] > 1.3
    assert max(imbalance[2:]) < 1.05


def test_eight_fast_and_eight_slow_members_reach_the_papers_relative_round_time():
    cost = {slot: 1.5 if slot % 2 else 1.0 for slot in range(16)}
    world = PolicyWorld([Redeal()], cost, n_chunks=16 * 64, holders=2)
    world.play(6)
    assert max(world.times().values()) / 6400 == pytest.approx(1.2, rel=0.02)
    assert world.moved_bodies == 0


def test_with_one_holder_a_share_changes_owners_with_its_bodies():
    world = PolicyWorld([Redeal(share=0.1)], dict.fromkeys(range(4), 1.0), n_chunks=200)
    imbalance = world.play(20)
    assert max(imbalance) <= 1 + 1 / 50 + 1e-9
    assert world.moved_bodies == 20 * 20
    assert all(len(holders) == 1 for holders in world.chunks.held.values())


def test_with_one_holder_the_automatic_share_costs_a_tenth_of_a_round():
    world = PolicyWorld([Redeal()], dict.fromkeys(range(4), 1e-4), n_chunks=200)
    world.play(2)
    # A round takes 0.5 s; a tenth of it sends all of 50 kB at 1 MB/s, so a quarter is the limit.
    assert world.moved_bodies == 50
    slow = PolicyWorld([Redeal()], dict.fromkeys(range(4), 1e-5), n_chunks=200)
    slow.play(2)
    assert slow.moved_bodies == 20


def test_no_member_is_emptied():
    world = PolicyWorld([Redeal()], {0: 1.0, 1: 100.0}, n_chunks=6, holders=2)
    world.play(20)
    assert world.chunks.of(member(1))


def test_members_with_one_chunk_each_keep_it():
    world = PolicyWorld([Redeal()], dict.fromkeys(range(4), 1.0), n_chunks=4, holders=2)
    assert {len(world.chunks.of(member(slot))) for slot in range(4)} == {1}
    assert Redeal().suggest(world.view()) == []
    # With one chunk more there are different partitions.
    world = PolicyWorld([Redeal()], dict.fromkeys(range(4), 1.0), n_chunks=5, holders=2)
    assert any(Redeal().suggest(replace(world.view(), round=r)) for r in range(20))


def test_draws_depend_on_round_and_seed_only():
    world = PolicyWorld([], dict.fromkeys(range(4), 1.0), n_chunks=64, holders=2)
    first = Redeal().suggest(world.view())
    assert first == Redeal().suggest(world.view())
    world.round = 1
    second = Redeal().suggest(world.view())
    world.seed = 1
    assert first[0].targets != second[0].targets != Redeal().suggest(world.view())[0].targets


def test_settings_out_of_range_are_named():
    for share in ("all", 1.5, True, None):
        with pytest.raises(ConfigError, match=r"redeal.share: got"):
            Redeal(share=share)
