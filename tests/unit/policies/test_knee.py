"""Knee: release members when the gap falls more slowly than before."""

from __future__ import annotations

import pytest

from elasticml.control.policy import Request, Retire, Tune
from elasticml.errors import ConfigError
from elasticml.policies.knee import ScaleInAtKnee, partitions_for
from elasticml.policies.reshuffle import Redeal
from tests.policy_world import PolicyWorld, member


def gap_with_knee(members: int, gap: float, tuned: dict) -> float:
    """Fast to a gap that is lower with fewer members, and a quarter as fast below it."""
    knee = {16: 1e-2, 4: 1e-4, 1: 1e-6}[members]
    return 0.5 if gap > knee else 0.1


def world_of(policy, members: int = 16, brings=gap_with_knee, **more) -> PolicyWorld:
    return PolicyWorld([policy], dict.fromkeys(range(members), 1.0), brings=brings, **more)


def sizes(world: PolicyWorld) -> list[int]:
    """The distinct numbers of members, in order."""
    results = [p.members for p in world.history]
    return [n for i, n in enumerate(results) if i == 0 or n != results[i - 1]]


def test_sixteen_members_become_four_and_then_one():
    world = world_of(ScaleInAtKnee())
    world.play(60)
    assert sizes(world) == [16, 4, 1]
    assert [round for round, _ in world.suggestions] == [6, 10]


def test_members_stay_while_the_gap_is_a_straight_line():
    world = world_of(ScaleInAtKnee(), brings=lambda members, gap, tuned: 0.3)
    world.play(60)
    assert world.suggestions == []


def test_on_the_linear_gap_a_straight_line_is_a_knee_at_epochs_4_and_7():
    world = world_of(ScaleInAtKnee(gap="linear"), brings=lambda members, gap, tuned: 0.3)
    world.play(30)
    assert sizes(world) == [16, 4, 1]
    # The first decision is made on the gaps of four rounds, the second on three more.
    assert [round for round, _ in world.suggestions] == [4, 7]


def test_the_minimum_stops_scale_in_even_at_two():
    world = world_of(
        ScaleInAtKnee(minimum=2), brings=lambda k, gap, tuned: gap_with_knee(max(k, 4), gap, tuned)
    )
    world.play(60)
    assert sizes(world) == [16, 4, 2]


def test_sizes_of_two_and_three_can_be_skipped():
    assert first_size(ScaleInAtKnee(), 8) == 1
    assert first_size(ScaleInAtKnee(avoid=[]), 8) == 2
    assert first_size(ScaleInAtKnee(factor=2), 8) == 4
    assert first_size(ScaleInAtKnee(), 12) == 1
    assert first_size(ScaleInAtKnee(to=[3, 1]), 8) == 3


def first_size(policy, members: int, **more) -> int | None:
    """The first number of members that a job with a knee goes to."""
    brings = lambda k, gap, tuned: 0.5 if gap > 1e-2 else 0.1  # noqa: E731
    world = world_of(policy, members, brings, **more)
    world.play(20)
    return next((n for n in sizes(world) if n != members), None)


def test_enough_members_stay_to_hold_the_data():
    # 64 chunks of 1000 B: 16 kB hold four members' worth, 8 kB eight's.
    assert first_size(ScaleInAtKnee(), 16, limit_bytes=64_000) == 4
    assert first_size(ScaleInAtKnee(), 16, limit_bytes=8_000) == 8
    assert first_size(ScaleInAtKnee(), 8, limit_bytes=32_000) == 4
    assert first_size(ScaleInAtKnee(), 8, limit_bytes=8_000) is None


def test_a_ladder_of_sizes_is_descended_step_by_step():
    world = world_of(ScaleInAtKnee(to=[4, 1]))
    world.play(60)
    assert sizes(world) == [16, 4, 1]


def test_occasional_gaps_are_enough():
    world = world_of(ScaleInAtKnee(), brings=lambda k, gap, tuned: gap_with_knee(k, gap, tuned) / 5)
    world.gap_every = 5
    world.play(300)
    assert sizes(world) == [16, 4, 1]
    assert all(round % 5 == 0 for round, _ in world.suggestions)


def test_chunks_of_released_members_are_spread_evenly():
    world = world_of(ScaleInAtKnee())
    world.play(8)
    assert [len(world.chunks.of(m)) for m in world.members] == [16] * 4


def test_partitions_move_whole_to_a_neighbour():
    world = world_of(ScaleInAtKnee(layout="partitions"))
    before = {slot: world.chunks.of(member(slot)) for slot in range(16)}
    world.play(8)
    assert [m.slot for m in world.members] == [0, 4, 8, 12]
    for first in (0, 4, 8, 12):
        theirs = sum((before[slot] for slot in range(first, first + 4)), ())
        assert world.chunks.of(member(first)) == theirs


def test_slow_members_get_less_of_the_chunks():
    world = world_of(ScaleInAtKnee(to=[4]))
    world.cost[3] = 2.0
    world.play(3)
    world.members.sort()
    world.play(10)
    assert world.imbalance < 1.1


def test_partitions_are_the_least_common_multiple():
    assert partitions_for(16, [4, 1]) == 16
    assert partitions_for(16, [6, 2]) == 48
    assert partitions_for(7, []) == 7


def test_reshuffling_is_the_first_remedy():
    world = world_of(ScaleInAtKnee(redeal_first=True))
    world.policies = [*world.policies, Redeal(share=0)]
    # Every share helps for a decade, and no longer.
    world.brings = knee_after_every_remedy
    world.play(80)
    shares = [
        suggestion.value for _, suggestion in world.suggestions if isinstance(suggestion, Tune)
    ]
    assert shares[:4] == [0.05, 0.2, 0.8, 1.0]
    lost = [round for round, suggestion in world.suggestions if isinstance(suggestion, Retire)]
    values = [round for round, suggestion in world.suggestions if isinstance(suggestion, Tune)]
    assert lost
    assert min(lost) > max(values)


def knee_after_every_remedy(members: int, gap: float, tuned: dict) -> float:
    reach = {0: 1e-1, 0.05: 1e-2, 0.2: 1e-3, 0.8: 1e-4, 1.0: 1e-5}[tuned.get("redeal_share", 0)]
    return 0.25 if gap > reach else 0.02


def test_with_a_full_reshuffle_that_remedy_is_spent():
    policy = ScaleInAtKnee(redeal_first=True, redeal_share=1.0)
    world = world_of(policy)
    world.play(60)
    assert sizes(world) == [16, 4, 1]


def test_scale_in_that_makes_it_worse_is_undone_once_and_then_delayed():
    def worse_with_fewer(members: int, gap: float, tuned: dict) -> float:
        return (0.5 if gap > 1e-2 else 0.1) if members == 16 else 0.01

    world = world_of(ScaleInAtKnee(to=[4], revert=True), brings=worse_with_fewer)
    world.play(40)
    assert sizes(world) == [16, 4, 16]
    back = next(
        suggestion for _, suggestion in world.suggestions if isinstance(suggestion, Request)
    )
    assert back.count == 12
    assert "back to 16" in back.why


def test_scale_in_that_helps_is_kept():
    world = world_of(
        ScaleInAtKnee(to=[4], revert=True),
        brings=lambda k, gap, tuned: gap_with_knee(k, gap, tuned) * (16 / k),
    )
    world.play(40)
    assert sizes(world) == [16, 4]


def test_reason_names_the_rates():
    world = world_of(ScaleInAtKnee())
    world.play(8)
    assert world.suggestions[0][1].why == (
        "knee (decades per round: 0.3 over the last 2 gaps, 0.42 since round 1 with 16 members): "
        "16 members become 4"
    )


def test_settings_out_of_range_are_named():
    with pytest.raises(ConfigError, match=r"knee.gap: got 'lgo'; did you mean 'log'"):
        ScaleInAtKnee(gap="lgo")
    with pytest.raises(ConfigError, match=r"knee.ratio: got 1, wanted more than 1"):
        ScaleInAtKnee(ratio=1)
    with pytest.raises(ConfigError, match=r"knee.to: got 4, wanted a list"):
        ScaleInAtKnee(to=4)
