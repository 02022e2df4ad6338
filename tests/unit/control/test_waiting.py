"""Waits: what a job lacks, since when, and what would help."""

from __future__ import annotations

from collections.abc import Callable

from elasticml.control.driver_settings import DriverSettings
from elasticml.errors import NotEnoughMembersError
from elasticml.protocol.events import StatusReported
from elasticml.story.records import WaitEnded, Waiting
from tests.pure_world import PureWorld


def world_of(**changes) -> PureWorld:
    defaults = {"start_members": 2, "n_blocks": 2, "topology": "star"}
    return PureWorld(DriverSettings(**{**defaults, **changes}), rounds=10_000)


def waits(world: PureWorld) -> list[Waiting | WaitEnded]:
    return [r for r in world.story if isinstance(r, Waiting | WaitEnded)]


def step_until(world: PureWorld, is_so: Callable[[], bool]) -> None:
    while not is_so():
        assert world.step(0), world.describe()


def is_loading(world: PureWorld) -> bool:
    return world.driver.state.stage != "gathering"


def test_an_empty_cluster_is_waited_for_and_the_wait_ends():
    world = world_of()
    for _ in range(3):
        world.tick(1.0)
    (waiting,) = waits(world)
    assert (waiting.what, waiting.have, waiting.need, waiting.since_s) == ("members", 0, 2, 1.0)
    assert waiting.remedy == "no worker is connected; start 2 more, or call cluster.scale(2)"
    world.join()
    step_until(world, lambda: bool(world.driver.state.membership.members))
    world.tick(5.0)
    assert waits(world)[-1].have == 1
    assert "members.start: 1 would do" in waits(world)[-1].remedy
    world.join()
    step_until(world, lambda: is_loading(world))
    world.tick(1.0)
    ended = next(r for r in waits(world) if isinstance(r, WaitEnded))
    assert (ended.what, ended.seconds) == ("members", 8.0)


def test_a_short_wait_is_not_recorded():
    world = world_of()
    world.tick(0.9)
    world.join()
    world.join()
    step_until(world, lambda: is_loading(world))
    world.tick(0.01)
    assert waits(world) == []


def test_readers_of_blocks_are_named():
    world = world_of()
    world.join()
    world.join()
    step_until(world, lambda: is_loading(world))
    world.tick(1.0)
    world.tick(1.0)
    (waiting,) = waits(world)
    assert (waiting.what, waiting.have, waiting.need) == ("blocks", 0, 2)
    assert waiting.who == ("0.1", "1.1")


def test_lost_members_are_waited_for_between_rounds():
    world = world_of(members_min=2, seconds_max=30.0)
    world.join("a")
    world.join("b")
    step_until(world, lambda: world.driver.rounds.has_model)
    world.kill("b")
    while world.step(0):
        pass
    for _ in range(3):
        world.tick(1.0)
    waiting = waits(world)[-1]
    assert (waiting.what, waiting.have, waiting.need) == ("members", 1, 2)
    while world.ended is None:
        world.tick(1.0)
    assert (world.ended.state, world.ended.reason) == ("done", "30 seconds")
    assert world.now <= 31.0


def test_a_job_without_members_fails_when_its_time_is_over():
    world = world_of(seconds_max=5.0)
    while world.ended is None:
        world.tick(0.5)
    assert world.now == 5.5
    error = world.ended.error
    assert isinstance(error, NotEnoughMembersError)
    assert (error.fields["have"], error.fields["need"], error.fields["waited_s"]) == (0, 2, 5.0)
    assert world.ended.reason.startswith(
        "stop.seconds: 5 s are over, no round has ended, and the job has 0 of 2 members: "
    )


def test_late_partials_are_waited_for_until_they_come_and_not_only_while_members_are_asked():
    """Members compute on after they were asked; the wait ended then, and was none for 10 s."""
    world = world_of()
    world.join()
    world.join()
    driver = world.driver
    step_until(world, lambda: driver.exchanges.running is not None)
    run = driver.exchanges.running
    seen = []
    for _ in range(40):
        world.tick(1.0)
        for member in run.participants:
            world.feed(StatusReported(member=member, exchange=run.id, stage="computing"))
        seen.append(driver.waits.need(None))
    assert driver.exchanges.running is run
    first = next(k for k, need in enumerate(seen) if need is not None)
    assert {need and need.what for need in seen[first:]} == {"partials"}
    assert all("were asked for their status" in need.remedy for need in seen[first:])
    member = min(run.participants)
    busy = StatusReported(member=member, exchange=run.id, stage="computing", busy_with="other-1")
    world.feed(busy)
    assert "compute for job other-1" in driver.waits.need(None).remedy
    assert [type(record) for record in waits(world)] == [Waiting]
