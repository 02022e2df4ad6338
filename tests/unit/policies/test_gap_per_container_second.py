"""Gap per container-second: the number of members follows from the progress that they buy."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from elasticml.control.policy import Request, Retire
from elasticml.errors import ConfigError
from elasticml.policies.gap_per_container_second import GapPerContainerSecond
from tests.policy_world import PolicyWorld, member


def world_of(policy, members: int, brings, **more) -> PolicyWorld:
    """Rounds of 6.4 s divided by the number of members."""
    cost = dict.fromkeys(range(members), 1e-3)
    return PolicyWorld([policy], cost, brings=brings, **more)


def sizes(world: PolicyWorld) -> list[int]:
    results = [p.members for p in world.history]
    return [n for i, n in enumerate(results) if i == 0 or n != results[i - 1]]


def faster_progress_with_fewer(members: int, gap: float, tuned: dict) -> float:
    """Decades per round: the same data in fewer parts gain more, as with CoCoA."""
    return {16: 0.1, 4: 0.2, 1: 0.5}[members]


def test_scale_in_is_kept_where_a_container_second_gains_more():
    world = world_of(GapPerContainerSecond(), 16, faster_progress_with_fewer)
    world.play(40)
    assert sizes(world) == [16, 4, 1]


def test_scale_in_is_undone_where_a_container_second_gains_less():
    brings = lambda members, gap, tuned: 0.1 if members == 16 else 0.05  # noqa: E731
    world = world_of(GapPerContainerSecond(), 16, brings)
    world.play(12)
    assert sizes(world) == [16, 4, 16]
    first, second = (suggestion for _, suggestion in world.suggestions)
    assert isinstance(first, Retire)
    assert isinstance(second, Request)
    assert second.count == 12


def test_failed_trials_are_repeated_ever_more_rarely():
    brings = lambda members, gap, tuned: 0.1 if members == 16 else 0.05  # noqa: E731
    world = world_of(GapPerContainerSecond(avoid=[]), 16, brings)
    world.play(300)
    tried = [round for round, suggestion in world.suggestions if isinstance(suggestion, Retire)]
    pauses = [b - a for a, b in itertools.pairwise(tried)]
    assert len(tried) >= 3
    assert all(b > 1.5 * a for a, b in itertools.pairwise(pauses))
    few = sum(p.members == 4 for p in world.history)
    assert few < 0.1 * 300


def test_for_seconds_members_that_shorten_rounds_are_kept():
    """Fewer members gain more per container-second, but not per second, and there is no knee."""
    policy = GapPerContainerSecond(objective="seconds")
    world = world_of(policy, 16, faster_progress_with_fewer)
    world.play(60)
    assert sizes(world) == [16]


def test_for_seconds_more_members_are_requested_and_kept_where_they_help():
    policy = GapPerContainerSecond(objective="seconds", maximum=16)
    world = world_of(policy, 16, lambda members, gap, tuned: 0.1)
    few = [member(slot) for slot in range(4)]
    world.members = few
    world.chunks.owners = {c: few[i % 4] for i, c in enumerate(world.chunks.owners)}
    world.chunks.held = {c: {m} for c, m in world.chunks.owners.items()}
    world.play(30)
    assert sizes(world) == [4, 16]


def test_for_seconds_more_members_are_released_where_they_do_not_help():
    policy = GapPerContainerSecond(objective="seconds", maximum=16)
    world = world_of(policy, 16, lambda members, gap, tuned: {4: 0.1, 16: 0.02}.get(members, 0))
    few = [member(slot) for slot in range(4)]
    world.members = few
    world.chunks.owners = {c: few[i % 4] for i, c in enumerate(world.chunks.owners)}
    world.chunks.held = {c: {m} for c, m in world.chunks.owners.items()}
    world.play(16)
    assert sizes(world) == [4, 16, 4]


def test_for_seconds_fewer_members_are_tried_at_a_knee():
    def kinked(members: int, gap: float, tuned: dict) -> float:
        return (0.5 if gap > 1e-3 else 0.01) if members == 16 else 0.5

    world = world_of(GapPerContainerSecond(objective="seconds"), 16, kinked)
    world.play(30)
    assert sizes(world)[:2] == [16, 4]
    assert isinstance(world.suggestions[0][1], Retire)


def test_near_the_target_nothing_is_tried():
    far = world_of(GapPerContainerSecond(target=1e-30), 16, faster_progress_with_fewer)
    far.play(7)
    assert [type(suggestion) for _, suggestion in far.suggestions] == [Retire]
    # 6.4 MB a member take 6.4 s at 1 MB/s, a round 0.4 s: six rounds are left.
    near = world_of(
        GapPerContainerSecond(target=1e-1), 16, faster_progress_with_fewer, chunk_bytes=1_600_000
    )
    near.play(7)
    assert near.suggestions == []


def test_the_reason_names_the_rates_and_the_prediction():
    world = world_of(GapPerContainerSecond(target=1e-6), 16, faster_progress_with_fewer)
    world.play(6)
    assert world.suggestions[0][1].why == (
        "16 members bring 0.25 decades/s, 0.0156 a container-second; 4 members would do with "
        "0.0568 decades/s, 0.012 s to move, 22 s to the target"
    )


def test_nothing_is_decided_while_members_join_or_leave():
    world = world_of(GapPerContainerSecond(), 16, faster_progress_with_fewer)
    world.policies = []
    world.play(6)
    view = world.view()
    assert GapPerContainerSecond().suggest(view) != []
    assert GapPerContainerSecond().suggest(dataclasses.replace(view, requested=1)) == []
    leaver = dataclasses.replace(view.working[0], stage="leaving")
    assert GapPerContainerSecond().suggest(dataclasses.replace(view, leaving=(leaver,))) == []


def test_minimum_and_memory_are_respected():
    world = world_of(GapPerContainerSecond(minimum=4), 16, faster_progress_with_fewer)
    world.play(40)
    assert sizes(world) == [16, 4]
    world = world_of(GapPerContainerSecond(), 16, faster_progress_with_fewer, limit_bytes=16_000)
    world.play(40)
    assert sizes(world) == [16, 4]


def test_settings_out_of_range_are_named():
    with pytest.raises(ConfigError, match=r"maximum: got 2, wanted at least 4"):
        GapPerContainerSecond(minimum=4, maximum=2)
    with pytest.raises(ConfigError, match=r"objective: got 'second'; did you mean 'seconds'"):
        GapPerContainerSecond(objective="second")
