"""References that a job's driver keeps after the end: its results, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticml.control.policy import Retire
from tests.memory_world import InlineRunner, World, toy_record
from tests.toy import ALGORITHM, ask

pytestmark = pytest.mark.asyncio


class WatchedRunner(InlineRunner):
    """Records whether its thread, if it had one, could end."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_thread_and_chunks_are_released_at_the_end_of_a_job_and_its_model_is_kept(
    is_cancelled,
):
    runner = WatchedRunner()
    world = World(toy_record(), runner=lambda at: runner if at == "driver" else InlineRunner())
    for _ in range(6):
        await world.add()
    await world.until(lambda: len(world.shell.journal.rows) > 2)
    assert not runner.is_closed
    if is_cancelled:
        world.shell.cancel()
    await world.run()
    assert runner.is_closed
    assert list(world.shell._blocks.frames([0])) == []
    assert world.shell.state == ("cancelled" if is_cancelled else "done")
    assert world.shell.driver_session.training.last_arrays()
    await world.close()


def list_trainer(settings, facts, absent):
    """Request an exchange whose model is a list instead of an array."""
    yield replace(ask("any", False), model={"factor": [1.0] * 4})


LISTS = replace(ALGORITHM, name="lists", trainer=list_trainer)


async def test_a_request_that_cannot_be_packed_ends_the_job_and_does_not_hang():
    world = World(toy_record(algorithm={"name": f"{__name__}:LISTS"}))
    for _ in range(6):
        await world.add()
    await world.run()
    assert world.shell.state == "failed"
    assert "the driver failed: AttributeError" in world.shell.error["message"]
    await world.close()


class Garbled:
    """Makes suggestions that fail when they are executed."""

    name = "garbled"

    def suggest(self, view):
        return [Retire(members=3, why="no tuple")]


async def test_a_suggestion_that_cannot_be_executed_ends_the_job_and_does_not_hang():
    record = {**toy_record(), "policies": [f"{__name__}:Garbled"]}
    world = World(record)
    for _ in range(6):
        await world.add()
    await world.run()
    assert world.shell.state == "failed"
    assert "the driver failed: TypeError" in world.shell.error["message"]
    await world.close()
