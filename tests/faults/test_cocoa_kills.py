"""CoCoA under random faults: it ends at a true gap with every example, or reports why not."""

from __future__ import annotations

import pytest

from tests.faults.cocoa_faults import FULL, CocoaRun, cocoa_run, data
from tests.memory_world import World, toy_record

pytestmark = pytest.mark.asyncio

#: Seeds in one test, so that a failure names few of them.
BATCH = 6


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(BATCH, 30, BATCH))]
)
async def test_gaps_are_true_and_no_example_is_lost_under_random_faults(first):
    runs: list[CocoaRun] = [await cocoa_run(seed) for seed in range(first, first + BATCH)]
    assert [run for run in runs if not run.is_good] == []
    assert sum(run.faults["killed"] for run in runs) > 0


async def test_data_that_do_not_fit_the_members_end_the_job_and_do_not_hang_it():
    record = toy_record(algorithm={"name": "cocoa"}, absent="auto", members={"start": 3})
    world = World(record, source=data(), limit_bytes=4096)
    for _ in range(3):
        await world.add()
    await world.run()
    assert (world.shell.state, FULL in world.shell.error["message"]) == ("failed", True)
    await world.close()


async def test_job_cancelled_without_members_reports_the_gap_of_its_model():
    record = toy_record(algorithm={"name": "cocoa", "l2": 1e-2}, absent="auto")
    world = World({**record, "members": {"start": 2}, "evaluate": {"every": 1}}, source=data())
    for _ in range(2):
        await world.add()
    rows = world.shell.journal.rows
    await world.until(lambda: len(rows) > 3)
    for address in list(world.hosts):
        world.kill(address)
    await world.until(lambda: rows[-1]["members"] == 0)
    known = (rows[-1]["objective"], rows[-1]["gap"])
    world.shell.cancel()
    await world.run()
    assert None not in known
    assert (rows[-1]["objective"], rows[-1]["gap"]) == known
    assert (
        world.shell.driver_session.summary["objective"],
        world.shell.driver_session.summary["gap"],
    ) == known
    await world.close()
