"""The end of a job's driver: what ends it, and that only its results are left then."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from elasticml.control.policy import Retire
from elasticml.runtime.checkpoints.checkpoint_writer import Checkpointer
from elasticml.runtime.driver_links import DriverLinks
from elasticml.runtime.finished_jobs import FinishedJob
from elasticml.training.driver_session import DriverSession
from tests.play.problems import source_of
from tests.sim.small_jobs import VirtualJob, toy_job
from tests.toy import ALGORITHM, ask


def list_trainer(settings, facts, absent):
    """Request an exchange whose model is a list instead of an array."""
    yield replace(ask("any", False), model={"factor": [1.0] * 4})


LISTS = replace(ALGORITHM, name="lists", trainer=list_trainer)


class Garbled:
    """Makes suggestions that fail when they are executed."""

    name = "garbled"

    def suggest(self, view):
        return [Retire(members=3, why="no tuple")]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"algorithm": {"name": f"{__name__}:LISTS"}}, "AttributeError"),
        ({"policies": [f"{__name__}:Garbled"]}, "TypeError"),
    ],
)
def test_what_cannot_be_performed_ends_the_job_and_does_not_hang(changes, error):
    job = VirtualJob(toy_job(**changes)).end()
    assert job.agent.state == "failed"
    assert f"the driver failed: {error}" in job.agent.error["message"]


@pytest.mark.parametrize(
    ("owner", "name", "n_rounds"),
    [(DriverLinks, "tell", 0), (DriverLinks, "send", 3), (DriverSession, "close", 3)],
)
def test_a_command_that_cannot_be_performed_ends_the_job_and_does_not_hang(
    owner, name, n_rounds, monkeypatch
):
    # The error went to the caller that had fed the event. If that was the clock, the clock stopped:
    # the job stayed as it was, even beyond stop.seconds.
    def fail(*args, **kwargs):
        raise KeyError("a peer")

    job = VirtualJob(toy_job())
    if n_rounds:
        job.until(lambda: len(job.rows) >= n_rounds)
    monkeypatch.setattr(owner, name, fail)
    job.end()
    assert job.agent.state == "failed"
    assert "the driver failed: KeyError: 'a peer'" in job.agent.error["message"]


@pytest.mark.parametrize("n_failing", [1, 10**9])
def test_a_tick_that_fails_is_followed_by_the_next_and_failing_ones_end_the_job(
    n_failing, monkeypatch, tmp_path, caplog
):
    left = n_failing

    def fail(self, now_s):
        nonlocal left
        left -= 1
        if left >= 0:
            raise OSError("no descriptors")

    monkeypatch.setattr(Checkpointer, "look", fail)
    record = toy_job(checkpoint={"path": str(tmp_path), "every_s": 60.0})
    # Ticks that fail are borne for less time than the first round would take.
    world = {"compute_s": 20.0 if n_failing > 1 else 1e-4}
    job = VirtualJob(record, world=world, checkpoints=tmp_path).end()
    assert [r.message for r in caplog.records if "tick" in r.message] == ["job toy: a tick failed"]
    assert job.agent.state == ("done" if n_failing == 1 else "failed")
    if n_failing > 1:
        assert "the driver failed: OSError: no descriptors" in job.agent.error["message"]
        assert 5.0 <= job.events("JobEnded")[0]["t"] < 7.0


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_nothing_of_a_job_that_has_ended_is_left_but_its_results(is_cancelled):
    job = VirtualJob(toy_job())
    if is_cancelled:
        job.until(lambda: len(job.rows) > 2).cancel()
    agent = job.until(lambda: job.agent.ended.is_set()).agent
    session, machine, loop = agent.driver_session, agent.machine, job.world.loop
    finished = FinishedJob.of(agent.record, session, agent.now_s())
    assert finished.state == agent.state == ("cancelled" if is_cancelled else "done")
    assert finished.arrays["coef"].tolist() == session.training.result_arrays()["coef"].tolist()
    assert len(finished.journal.rows) == len(job.rows)
    assert 0 < finished.nbytes < 200_000
    left = [weakref.ref(part) for part in (machine.policy_engine, session.training)]
    del session, machine
    gc.disable()
    try:
        winding = loop.create_task(agent.wind_down())
        loop.run(loop.now_s + 60.0)
        assert winding.done()
        workers = job.world.workers.by_address.values()
        assert all(task.done() for worker in workers for task in worker.endpoint.tasks)
        agent.dismantle()
        assert [ref() for ref in left if ref() is not None] == []
    finally:
        gc.enable()
        job.close()


def test_a_job_cancelled_without_members_reports_the_gap_of_its_model():
    algorithm = {"name": "cocoa", "l2": 1e-2}
    source = source_of(algorithm, {"rows": 240, "columns": 6, "seed": 1})
    changes = {"absent": "auto", "members": {"start": 2, "min": 1}, "evaluate": {"every": 1}}
    job = VirtualJob(toy_job(algorithm=algorithm, **changes), source)
    rows = job.rows
    job.until(lambda: len(rows) > 3)
    for worker in job.world.workers.serving():
        worker.kill()
    job.until(lambda: rows[-1]["members"] == 0)
    known = (rows[-1]["objective"], rows[-1]["gap"])
    job.cancel()
    summary = job.end().result().summary
    assert None not in known
    assert (rows[-1]["objective"], rows[-1]["gap"]) == known
    assert (summary["objective"], summary["gap"]) == known
