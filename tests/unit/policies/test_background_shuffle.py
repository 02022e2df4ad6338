"""Background shuffle: bodies slowly move to random other holders."""

from __future__ import annotations

import dataclasses

from elasticml.control.policy import Discard, Move, Replicate
from elasticml.policies.background_shuffle import GlobalShuffle
from elasticml.policies.reshuffle import Redeal
from tests.policy_world import PolicyWorld, member


def test_about_the_configured_share_of_chunks_is_copied_in_a_round():
    world = PolicyWorld(
        [GlobalShuffle(share=0.1), Redeal()],
        dict.fromkeys(range(8), 1.0),
        n_chunks=512,
        holders=2,
    )
    world.play(40)
    copied = [
        len(suggestion.targets)
        for _, suggestion in world.suggestions
        if isinstance(suggestion, Replicate)
    ]
    # A quarter of the draws hit a member that has the chunk already.
    assert 0.6 * 51 < sum(copied) / 40 < 51
    assert max(copied) < 2 * 51


def test_pairs_of_holders_change_and_stay_pairs():
    world = PolicyWorld(
        [GlobalShuffle(share=0.1), Redeal()],
        dict.fromkeys(range(8), 1.0),
        n_chunks=256,
        holders=2,
    )
    before = {c: set(holders) for c, holders in world.chunks.held.items()}
    world.play(60)
    after = world.chunks.held
    assert sum(before[c] == after[c] for c in before) < 0.15 * 256
    assert max(len(holders) for holders in after.values()) <= 3
    assert min(len(holders) for holders in after.values()) == 2
    assert world.imbalance < 1.1


def test_only_copies_that_no_member_owns_are_discarded():
    world = PolicyWorld(
        [GlobalShuffle(share=0.3), Redeal()],
        dict.fromkeys(range(4), 1.0),
        n_chunks=64,
        holders=2,
    )
    world.play(50)  # the world refuses to discard owned chunks
    assert any(isinstance(suggestion, Discard) for _, suggestion in world.suggestions)
    assert world.moved_bodies == 0


def test_with_one_holder_owners_follow_the_copies_and_members_stay_level():
    world = PolicyWorld([GlobalShuffle(share=0.1)], dict.fromkeys(range(4), 1.0), n_chunks=256)
    before = dict(world.chunks.owners)
    imbalance = world.play(60)
    assert sum(world.chunks.owners[c] != before[c] for c in before) > 0.25 * 256
    assert max(imbalance) < 1.05
    assert world.moved_bodies == 0
    assert any(isinstance(suggestion, Move) for _, suggestion in world.suggestions)


def test_chunk_that_is_being_copied_is_not_copied_again():
    world = PolicyWorld([], dict.fromkeys(range(4), 1.0), n_chunks=64)
    policy, view = GlobalShuffle(share=1.0), world.view()
    first = policy.suggest(view)[0]
    assert isinstance(first, Replicate)
    again = policy.suggest(dataclasses.replace(view, copying=first.targets))
    assert again == []


def test_where_every_member_holds_everything_nothing_is_copied():
    world = PolicyWorld(
        [GlobalShuffle(share=1.0)], dict.fromkeys(range(2), 1.0), n_chunks=16, holders=2
    )
    world.play(5)
    assert world.suggestions == []
    assert world.chunks.held_by(member(0)) == frozenset(world.chunks.infos)


def test_nothing_is_copied_while_a_job_waits():
    world = PolicyWorld([], dict.fromkeys(range(4), 1.0), n_chunks=16)
    world.play(2)
    view = world.view()
    assert GlobalShuffle(share=1.0).suggest(view)
    assert GlobalShuffle(share=1.0).suggest(dataclasses.replace(view, round=view.round + 1)) == []
