"""How many members a job has: released at a knee, or as long as a container-second gains more."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from elasticml.control.policy import Retire, Tune
from elasticml.policies.convergence import Point, extrapolated_slope, slope
from elasticml.policies.gap_per_container_second import GapPerContainerSecond
from elasticml.policies.knee import ScaleInAtKnee
from elasticml.policies.reshuffle import Redeal
from elasticml.policies.scale_in import cheapest, removal_costs
from tests.policy_world import PolicyWorld, member

# --- decades of the gap that a round brings, by members and gap -----------------------------------


def knees(members: int, gap: float, tuned: dict) -> float:
    """Fast to a gap that is lower with fewer members, and a fifth as fast below it."""
    return 0.5 if gap > {16: 1e-2, 4: 1e-4, 2: 1e-4, 1: 1e-6}[members] else 0.1


def knees_in_slow_rounds(members: int, gap: float, tuned: dict) -> float:
    return knees(members, gap, tuned) / 5


def knees_that_pay(members: int, gap: float, tuned: dict) -> float:
    return knees(members, gap, tuned) * (16 / members)


def one_knee(members: int, gap: float, tuned: dict) -> float:
    return 0.5 if gap > 1e-2 else 0.1


def a_straight_line(members: int, gap: float, tuned: dict) -> float:
    return 0.3


def worse_with_fewer(members: int, gap: float, tuned: dict) -> float:
    return (0.5 if gap > 1e-2 else 0.1) if members == 16 else 0.01


def better_with_fewer(members: int, gap: float, tuned: dict) -> float:
    """The same data in fewer parts gain more in a round, as with CoCoA."""
    return {16: 0.1, 4: 0.2, 1: 0.5}[members]


def half_with_fewer(members: int, gap: float, tuned: dict) -> float:
    return 0.1 if members == 16 else 0.05


def kinked(members: int, gap: float, tuned: dict) -> float:
    return (0.5 if gap > 1e-3 else 0.01) if members == 16 else 0.5


def the_same_with_any(members: int, gap: float, tuned: dict) -> float:
    return 0.1


def a_fifth_with_more(members: int, gap: float, tuned: dict) -> float:
    return {4: 0.1, 16: 0.02}.get(members, 0.0)


def world_of(policy, brings, members: int = 16, of: int | None = None, **more) -> PolicyWorld:
    """Rounds of 6.4 s divided by the number of members; ``of`` members could be had."""
    world = PolicyWorld([policy], dict.fromkeys(range(of or members), 1e-3), brings=brings, **more)
    if of is not None:
        world.members = [member(slot) for slot in range(members)]
        world.chunks.owners = {c: member(c.ordinal % members) for c in world.chunks.owners}
        world.chunks.held = {c: {m} for c, m in world.chunks.owners.items()}
    return world


def sizes(world: PolicyWorld) -> list[int]:
    """The distinct numbers of members, in order."""
    results = [p.members for p in world.history]
    return [n for i, n in enumerate(results) if i == 0 or n != results[i - 1]]


Gap = GapPerContainerSecond
#: Policy, progress, rounds, options of the world, and the numbers of members.
SIZES = [
    (ScaleInAtKnee(), knees, 60, {}, [16, 4, 1]),
    (ScaleInAtKnee(), a_straight_line, 60, {}, [16]),
    (ScaleInAtKnee(gap="linear"), a_straight_line, 30, {}, [16, 4, 1]),
    (ScaleInAtKnee(minimum=2), knees, 60, {}, [16, 4, 2]),
    (ScaleInAtKnee(), knees_in_slow_rounds, 300, {"gap_every": 5}, [16, 4, 1]),
    (ScaleInAtKnee(to=[4], revert=True), worse_with_fewer, 40, {}, [16, 4, 16]),
    (ScaleInAtKnee(to=[4], revert=True), knees_that_pay, 40, {}, [16, 4]),
    # Sizes of two and three are skipped.
    (ScaleInAtKnee(), one_knee, 20, {"members": 8}, [8, 1]),
    (ScaleInAtKnee(factor=2), one_knee, 10, {"members": 8}, [8, 4]),
    (ScaleInAtKnee(to=[3, 1]), one_knee, 10, {"members": 8}, [8, 3]),
    # Enough members stay to hold the data: 64 chunks of 1000 B.
    (ScaleInAtKnee(), one_knee, 20, {"limit_bytes": 8_000}, [16, 8]),
    (ScaleInAtKnee(), one_knee, 20, {"members": 8, "limit_bytes": 8_000}, [8]),
    (Gap(), better_with_fewer, 40, {}, [16, 4, 1]),
    (Gap(), half_with_fewer, 12, {}, [16, 4, 16]),
    (Gap(minimum=4), better_with_fewer, 40, {}, [16, 4]),
    (Gap(), better_with_fewer, 40, {"limit_bytes": 16_000}, [16, 4]),
    # Fewer members gain more per container-second, but not per second, and there is no knee.
    (Gap(objective="seconds"), better_with_fewer, 60, {}, [16]),
    (Gap(objective="seconds"), kinked, 12, {}, [16, 4]),
    (
        Gap(objective="seconds", maximum=16),
        the_same_with_any,
        30,
        {"members": 4, "of": 16},
        [4, 16],
    ),
    (
        Gap(objective="seconds", maximum=16),
        a_fifth_with_more,
        16,
        {"members": 4, "of": 16},
        [4, 16, 4],
    ),
]


@pytest.mark.parametrize(("policy", "brings", "rounds", "more", "expected"), SIZES)
def test_the_number_of_members_follows_the_progress(policy, brings, rounds, more, expected):
    world = world_of(policy, brings, **more)
    world.play(rounds)
    assert sizes(world) == expected


@pytest.mark.parametrize(
    ("policy", "brings", "rounds"),
    [
        (ScaleInAtKnee(), knees, [6, 10]),
        # The first decision is made on the gaps of four rounds, the second on three more.
        (ScaleInAtKnee(gap="linear"), a_straight_line, [4, 7]),
    ],
)
def test_decisions_come_as_soon_as_the_gaps_show_a_knee(policy, brings, rounds):
    world = world_of(policy, brings)
    world.play(30)
    assert [round for round, _ in world.suggestions] == rounds


def test_failed_trials_are_repeated_ever_more_rarely():
    world = world_of(Gap(avoid=[]), half_with_fewer)
    world.play(300)
    tried = [round for round, suggestion in world.suggestions if isinstance(suggestion, Retire)]
    pauses = [b - a for a, b in itertools.pairwise(tried)]
    assert len(tried) >= 3
    assert all(b > 1.5 * a for a, b in itertools.pairwise(pauses))
    assert sum(p.members == 4 for p in world.history) < 0.1 * 300


def test_near_the_target_nothing_is_tried():
    far = world_of(Gap(target=1e-30), better_with_fewer)
    far.play(7)
    assert [type(suggestion) for _, suggestion in far.suggestions] == [Retire]
    # 6.4 MB a member take 6.4 s at 1 MB/s, a round 0.4 s: six rounds are left.
    near = world_of(Gap(target=1e-1), better_with_fewer, chunk_bytes=1_600_000)
    near.play(7)
    assert near.suggestions == []


def test_nothing_is_decided_while_members_join_or_leave():
    world = world_of(Gap(), better_with_fewer)
    world.policies = []
    world.play(6)
    view = world.view()
    assert Gap().suggest(view) != []
    leaver = replace(view.working[0], stage="leaving")
    for changes in ({"requested": 1}, {"leaving": (leaver,)}):
        assert Gap().suggest(replace(view, **changes)) == []


# --- which members go, and where their chunks go --------------------------------------------------


def test_chunks_of_released_members_are_spread_evenly_or_by_speed_or_move_whole():
    world = world_of(ScaleInAtKnee(), knees)
    world.play(8)
    assert [len(world.chunks.of(m)) for m in world.members] == [16] * 4
    world = world_of(ScaleInAtKnee(to=[4]), knees)
    world.cost[3] = 2e-3
    world.play(13)
    assert world.imbalance < 1.1
    world = world_of(ScaleInAtKnee(layout="partitions"), knees)
    before = {slot: world.chunks.of(member(slot)) for slot in range(16)}
    world.play(8)
    assert [m.slot for m in world.members] == [0, 4, 8, 12]
    for first in (0, 4, 8, 12):
        theirs = sum((before[slot] for slot in range(first, first + 4)), ())
        assert world.chunks.of(member(first)) == theirs


def test_reshuffling_is_the_first_remedy():
    def knee_after_every_remedy(members: int, gap: float, tuned: dict) -> float:
        # Every share helps for a decade, and no longer.
        lowest = {0: 1e-1, 0.05: 1e-2, 0.2: 1e-3, 0.8: 1e-4, 1.0: 1e-5}
        return 0.25 if gap > lowest[tuned.get("redeal_share", 0)] else 0.02

    world = world_of(ScaleInAtKnee(redeal_first=True), knee_after_every_remedy)
    world.policies = [*world.policies, Redeal(share=0)]
    world.play(80)
    tuned = {round: s.value for round, s in world.suggestions if isinstance(s, Tune)}
    lost = [round for round, s in world.suggestions if isinstance(s, Retire)]
    assert [*tuned.values()][:4] == [0.05, 0.2, 0.8, 1.0]
    assert min(lost) > max(tuned)


def test_the_cheapest_members_go_and_among_equals_the_slowest():
    world = PolicyWorld([], dict.fromkeys(range(4), 1.0), n_chunks=16)
    for c in world.chunks.of(member(2)):
        world.chunks.held[c].add(member(0))
    assert cheapest(world.view(), 1) == (member(2),)
    assert [result.moving_s for result in removal_costs(world.view())] == [0.0, 0.004, 0.004, 0.004]
    world = PolicyWorld([], {0: 1.0, 1: 1.5, 2: 1.0}, n_chunks=30)
    world.play(1)
    assert cheapest(world.view(), 2) == (member(1), member(2))
    assert removal_costs(world.view())[0].slowness == 1.5


# --- the slope of the gap -------------------------------------------------------------------------


def points(gaps, seconds: float = 2.0) -> list[Point]:
    return [Point(rounds=i, seconds=seconds * i, gap=gap) for i, gap in enumerate(gaps)]


def test_a_fading_slope_is_extrapolated_and_a_straight_line_is_not():
    straight = points([10.0**-i for i in range(5)], 1.0)
    assert extrapolated_slope(straight, 4) == pytest.approx(1.0)
    # 2 decades in two seconds, 1 in the next two: over the next four, a quarter of 3/4.
    bent = points([10.0**-d for d in (0.0, 1.0, 2.0, 2.5, 3.0)], 1.0)
    assert extrapolated_slope(bent, 4) == pytest.approx(0.75 / 4)
    assert extrapolated_slope(bent[::-1], 4) == slope(bent[::-1])
    assert extrapolated_slope([], 4) == 0.0
