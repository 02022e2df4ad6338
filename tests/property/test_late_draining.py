"""A member whose end is far works on, and has no chunks left when the end comes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.preemption import PUT_OFF_S_MIN, SAFETY_S_MAX
from elasticml.story.records import MemberLost, Reclaimed, ReclaimLifted
from tests.pure_world import PureWorld

#: Messages between two ticks: enough for a round.
MESSAGES = 40
#: Seconds between two ticks, far from the end and near it.
FAR_S, NEAR_S = 3.0, 0.5


def world_of(n: int, holders: int) -> PureWorld:
    world = PureWorld(
        DriverSettings(start_members=n, n_blocks=n, topology="star", holders=holders),
        rounds=100_000,
    )
    for k in range(n):
        world.join(f"w{k}")
    while not world.driver.rounds.has_model:
        world.step(0)
    return world


def pass_time(world: PureWorld, choice: int, seconds: float = FAR_S) -> None:
    world.tick(seconds)
    for k in range(MESSAGES):
        world.step(choice + k)


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(2, 4),
    holders=st.integers(1, 2),
    grace_s=st.floats(PUT_OFF_S_MIN, 200.0),
    choice=st.integers(0, 1000),
)
def test_a_member_is_drained_late_and_in_time(n, holders, grace_s, choice):
    world = world_of(n, holders)
    membership, deadline_s = world.driver.state.membership, world.now + grace_s
    world.mark("w0", grace_s, negotiable=False)
    record = membership.at("w0")
    worked_until_s = world.now
    while membership.at("w0") is not None and world.now < deadline_s:
        if record.stage == "active":
            worked_until_s = world.now
        pass_time(world, choice, FAR_S if world.now < deadline_s - 45.0 else NEAR_S)
    lost = next(r for r in world.story if isinstance(r, MemberLost))
    assert (lost.member, lost.reason, lost.chunks) == (str(record.id), "preempted", 0)
    assert world.now < deadline_s
    # The bodies are small: all but the margin and a few rounds is used.
    assert (
        deadline_s - worked_until_s
        <= min(SAFETY_S_MAX, max(5.0, 0.1 * grace_s)) + 2 * FAR_S + 6 * NEAR_S
    )
    assert not any(r.event == "ChunksAbsent" for r in world.story)


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(2, 4),
    holders=st.integers(1, 2),
    share=st.floats(0.0, 0.8),
    choice=st.integers(0, 1000),
)
def test_a_mark_withdrawn_before_the_drain_changes_nothing(n, holders, share, choice):
    world = world_of(n, holders)
    state, grace_s = world.driver.state, 120.0
    world.mark("w0", grace_s, negotiable=False)
    record = state.membership.at("w0")
    owned = state.ledger.chunks_of(record.id)
    until_s = world.now + share * grace_s
    while world.now < until_s:
        pass_time(world, choice)
    world.lift("w0")
    until_s = world.now + grace_s
    while world.now < until_s:
        pass_time(world, choice)
    assert (record.stage, record.is_marked, record.is_ending) == ("active", False, False)
    assert state.ledger.chunks_of(record.id) == owned
    (reclaimed,) = [r for r in world.story if isinstance(r, Reclaimed)]
    assert reclaimed.given is None
    assert any(isinstance(r, ReclaimLifted) for r in world.story)


def test_an_end_that_is_put_off_stops_the_drain():
    world = world_of(3, 1)
    record = world.driver.state.membership.at("w0")
    world.mark("w0", 10.0, negotiable=False)
    assert record.stage == "leaving"
    world.mark("w0", 3600.0, negotiable=False)
    assert (record.stage, record.is_victim) == ("active", False)
    pass_time(world, 0)
    assert world.driver.state.membership.at("w0") is record
