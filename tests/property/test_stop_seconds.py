"""A job begins with the workers that are left, and ``stop.seconds`` ends it in every stage."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.control.driver_settings import OVERTIME_S_MIN, DriverSettings
from elasticml.protocol.notices import ContainerStopping
from tests.pure_world import PureWorld

SECONDS = 20.0
CHOICES = st.integers(0, 2**20)
EVENTS = st.one_of(
    st.tuples(st.just("message"), CHOICES),
    st.tuples(st.just("messages"), CHOICES),
    st.tuples(st.just("join"), CHOICES),
    st.tuples(st.just("kill"), CHOICES),
    st.tuples(st.just("pause"), CHOICES),
    st.tuples(st.just("notice"), CHOICES),
    st.tuples(st.just("time"), CHOICES),
)


def happen(world: PureWorld, event: str, choice: int) -> None:
    some = sorted(world.workers)[choice % len(world.workers)] if world.workers else None
    match event:
        case "message":
            world.step(choice)
        case "messages":
            for k in range(1, 10):
                world.step(choice // k)
        case "join" if len(world.workers) < 6:
            world.join()
        case "kill" if some is not None:
            world.kill(some)
        case "pause" if some is not None:
            world.workers[some].is_stopped = not world.workers[some].is_stopped
        case "notice" if some is not None:
            world.notice(some, 5.0)
        case "time":
            world.tick(0.5)


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 4),
    members_min=st.integers(1, 2),
    events=st.lists(
        st.tuples(st.sampled_from(["message", "kill", "stopping", "time"]), CHOICES), max_size=30
    ),
)
def test_a_job_does_not_wait_for_replacements_of_workers_that_died_before_it_began(
    n, members_min, events
):
    """One was killed, its replacement was slow, and another was killed before that had come.

    The job waited for as many members as there had been workers, for as long as that went on.
    """
    least = min(n, members_min)
    made = DriverSettings(
        start_members=n,
        members_min=least,
        n_blocks=2,
        topology="star",
        starts_with_present=True,
    )
    world = PureWorld(made)
    for _ in range(n):
        world.join()
    for event, choice in events:
        some = sorted(world.workers)[choice % len(world.workers)] if world.workers else None
        match event:
            case "stopping" if some is not None and len(world.workers) > least:
                world.feed(ContainerStopping(address=some, grace_s=25.0))
                world.kill(some)
            case "kill" if some is not None and len(world.workers) > least:
                world.kill(some)
            case "message":
                world.step(choice)
            case "time":
                world.tick(0.5)
    world.settle()
    assert world.driver.state.stage != "gathering", world.describe()
    world.run(lambda k: k)


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(0, 3),
    start=st.integers(1, 3),
    absent=st.sampled_from(["taylor", "stall", "reload"]),
    members_min=st.integers(1, 2),
    events=st.lists(EVENTS, max_size=80),
)
def test_a_job_ends_when_its_time_is_over(n, start, absent, members_min, events):
    world = PureWorld(
        DriverSettings(
            start_members=start,
            members_min=members_min,
            n_blocks=2,
            topology="star",
            absent=absent,
            seconds_max=SECONDS,
        ),
        rounds=10_000,
    )
    for _ in range(n):
        world.join()
    for event, choice in events:
        happen(world, event, choice)
    while world.ended is None and world.now < 2 * SECONDS:
        # No message arrives any more: the clock alone has to end the job.
        world.tick(0.5)
    assert world.ended is not None, world.describe()
    assert world.now <= SECONDS + OVERTIME_S_MIN + 0.5
    assert world.ended.state in ("done", "failed")
    if world.ended.state == "failed":
        assert not world.driver.rounds.has_model
        assert world.ended.error is not None
        assert "stop.seconds: 20 s are over" in world.ended.reason
