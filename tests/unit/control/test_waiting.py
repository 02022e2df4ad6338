"""Waits: what a job lacks, since when, and what would help."""

from __future__ import annotations

from typing import Any

from elasticml.control.driver import Driver
from elasticml.control.driver_settings import DriverSettings
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Command, Record
from elasticml.story.records import WaitEnded, Waiting
from tests.sim.small_jobs import arrival, begun


def waits(commands: list[Command]) -> list[Any]:
    records = [c.record for c in commands if isinstance(c, Record)]
    return [r for r in records if isinstance(r, Waiting | WaitEnded)]


def test_an_empty_cluster_is_waited_for_and_the_wait_ends() -> None:
    driver = Driver(DriverSettings(start_members=2, n_blocks=2), ())

    def tick(now_s: float) -> list[Any]:
        return waits(driver.handle(ev.Ticked(), now_s))

    assert tick(1.0) == tick(1.9) == []  # a short wait is not recorded
    (waiting,) = tick(2.0)
    assert (waiting.what, waiting.have, waiting.need, waiting.since_s) == ("members", 0, 2, 1.0)
    assert waiting.remedy == "no worker is connected; start 2 more, or call cluster.scale(2)"
    driver.handle(arrival(1), 3.0)
    assert tick(6.9) == []  # nor is each change of a longer one
    (waiting,) = tick(7.0)
    assert waiting.have == 1
    assert waiting.remedy.endswith("members.start: 1 would do with what is here")
    driver.handle(arrival(2), 8.0)
    (ended,) = tick(9.0)
    assert (ended.what, ended.seconds) == ("members", 8.0)
    # Now it waits for the blocks.
    (waiting,) = tick(10.0)
    assert (waiting.what, waiting.have, waiting.need) == ("blocks", 0, 2)
    assert waiting.who == ("0.1", "1.1")
    driver.handle(ev.BlockRead(member=driver.state.living()[0], block=0, chunks=()), 11.0)
    (waiting,) = tick(15.0)
    assert (waiting.have, waiting.who) == (1, ("1.1",))


def test_late_partials_are_waited_for_until_they_come_and_not_only_while_members_are_asked() -> (
    None
):
    """Members compute on after they were asked; the wait ended then, and was none for 10 s."""
    simulation, driver = begun(exchange=1)  # the first computation may take any time
    run = driver.exchanges.running
    assert run is not None
    seen = []
    for k in range(40):
        seen += waits(driver.handle(ev.Ticked(), 1.0 + k))
        for member in run.participants:
            answer = ev.StatusReported(member=member, exchange=run.id, stage="computing")
            driver.handle(answer, 1.0 + k)
    (waiting,) = seen
    assert (waiting.what, waiting.have, waiting.need) == ("partials", 0, 3)
    assert "were asked for their status" in waiting.remedy
    busy = ev.StatusReported(
        member=min(run.participants), exchange=run.id, stage="computing", busy_with="other-1"
    )
    driver.handle(busy, 41.0)
    (waiting,) = waits(driver.handle(ev.Ticked(), 42.0))
    assert "compute for job other-1" in waiting.remedy
    simulation.close()
