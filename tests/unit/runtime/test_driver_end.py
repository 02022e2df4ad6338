"""References that a job's driver keeps after the end: its results, and nothing else."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from elasticml.control.policy import Retire
from elasticml.runtime.checkpoints.checkpoint_writer import Checkpointer
from elasticml.runtime.finished_jobs import FinishedJob
from tests.memory_world import InlineRunner, World, toy_record
from tests.play.problems import source_of
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


@pytest.mark.parametrize("stage", ["loading", "running", "end"])
async def test_a_command_that_cannot_be_performed_ends_the_job_and_does_not_hang(
    stage, monkeypatch
):
    # The error went to the caller that had fed the event. If that was the clock, the clock stopped:
    # the job stayed as it was, even beyond stop.seconds.
    world = World(toy_record())

    def fail(*args, **kwargs):
        raise KeyError("a peer")

    if stage == "loading":
        monkeypatch.setattr(world.shell, "_order", fail)
    for _ in range(6):
        await world.add()
    if stage == "running":
        await world.until(lambda: len(world.shell.journal.rows) > 2)
        monkeypatch.setattr(world.shell._links, "send", fail)
    if stage == "end":
        await world.until(lambda: len(world.shell.journal.rows) > 2)
        monkeypatch.setattr(world.shell.driver_session, "close", fail)
    await world.run()
    assert world.shell.state == "failed"
    assert "the driver failed: KeyError: 'a peer'" in world.shell.error["message"]
    await world.close()


@pytest.mark.parametrize("n_failing", [1, 10**9])
async def test_a_tick_that_fails_is_followed_by_the_next_and_failing_ones_end_the_job(
    n_failing, monkeypatch, tmp_path, caplog
):
    left = n_failing

    def fail(self, now_s):
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError("no descriptors")

    monkeypatch.setattr(Checkpointer, "look", fail)
    checkpoint = {"path": str(tmp_path / "place"), "every_s": 60.0}
    world = World(toy_record(checkpoint=checkpoint, members={"start": 7, "min": 1}))
    for _ in range(6):
        await world.add()
    await world.until(lambda: left < 0 or world.shell.ended.is_set())
    assert [r.message for r in caplog.records if "tick" in r.message] == ["job toy: a tick failed"]
    if n_failing == 1:
        assert world.shell.state == "loading"
    else:
        assert world.shell.state == "failed"
        assert "the driver failed: OSError: no descriptors" in world.shell.error["message"]
        assert 5.0 <= world.now < 7.0
    await world.close()


async def test_a_job_that_the_scheduler_has_closed_takes_no_more_events():
    world = World(toy_record())
    for _ in range(6):
        await world.add()
    await world.until(lambda: len(world.shell.journal.rows) > 2)
    await world.shell.close()
    n_told = len(world.shell.journal.story)
    world.shell.worker_removed("w0")
    world.shell.cancel()
    world.shell.tick()
    assert (world.shell.state, len(world.shell.journal.story)) == ("running", n_told)
    await world.close()


async def test_nothing_of_a_dismantled_job_is_left_but_its_results():
    world = World(toy_record())
    for _ in range(6):
        await world.add()
    await world.run()
    session, machine = world.shell.driver_session, world.shell.machine
    finished = FinishedJob.of(world.shell.record, session, world.shell.now_s())
    arrays = session.training.result_arrays()
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: array.tolist() for name, array in finished.arrays.items()
    }
    del arrays
    parts = (machine.state, machine.policy_engine, session.training, world.shell._buffers)
    left = [weakref.ref(part) for part in parts if hasattr(type(part), "__weakref__")]
    del session, machine, parts
    gc.disable()
    try:
        await world.shell.wind_down()
        world.shell.dismantle()
        assert [ref() for ref in left if ref() is not None] == []
    finally:
        gc.enable()
    assert finished.state == "done"
    assert len(finished.journal.rows) == 13
    assert 0 < finished.nbytes < 100_000


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


async def test_a_job_cancelled_without_members_reports_the_gap_of_its_model():
    algorithm = {"name": "cocoa", "l2": 1e-2}
    source = source_of(algorithm, {"rows": 240, "columns": 6, "seed": 1})
    changes = {"absent": "auto", "members": {"start": 2}, "evaluate": {"every": 1}}
    world = World(toy_record(algorithm=algorithm, **changes), source=source)
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
    summary = world.shell.driver_session.summary
    assert None not in known
    assert (rows[-1]["objective"], rows[-1]["gap"]) == known
    assert (summary["objective"], summary["gap"]) == known
    await world.close()
