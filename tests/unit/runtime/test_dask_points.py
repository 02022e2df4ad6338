"""The points of Dask that are not documented and that elasticml relies on, each by itself.

A failure here means that Dask has changed; the message says what depends on it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

import dask
import pytest
from distributed import Client, LocalCluster, Scheduler
from distributed.deploy.spec import SpecCluster

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.runtime.dask_demand import CLIENT, DaskDemand
from elasticml.runtime.dask_methods import replace_method

pytestmark = pytest.mark.asyncio

#: Wrapped by ``replace_method``.
METHODS = ("adaptive_target", "workers_to_close", "retire_workers")


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(60.0):
        while not is_so():
            await asyncio.sleep(0.01)


def state_of(members_max: int | None = None, start: int = 1) -> JobState:
    settings = DriverSettings(start_members=start, members_max=members_max)
    return JobState(settings, stage="training")


def in_process(n_workers: int, **scheduler: object) -> LocalCluster:
    return LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        processes=False,
        asynchronous=True,
        dashboard_address=":0",
        silence_logs=50,
        scheduler_kwargs=scheduler,
    )


async def test_methods_are_called_as_attribute_and_as_handler() -> None:
    async with in_process(0) as cluster:
        scheduler: Scheduler = cluster.scheduler
        for name in METHODS:
            assert scheduler.handlers[name] == getattr(scheduler, name), name
        put_back = replace_method(scheduler, "adaptive_target", lambda *_, **__: 7)
        assert await cluster.scheduler_comm.adaptive_target() == 7
        assert scheduler.adaptive_target() == 7
        put_back()
        assert await cluster.scheduler_comm.adaptive_target() == 0
        assert scheduler.adaptive_target() == 0


async def test_spec_cluster_passes_names_where_addresses_are_wanted() -> None:
    """``Retirements`` takes both: else ``cluster.scale`` closes workers that were not retired."""
    called: list[list[object]] = []
    async with in_process(2) as cluster:

        async def retire_workers(workers: list[object], **options: object) -> None:
            called.append(workers)

        replace_method(cluster.scheduler, "retire_workers", retire_workers)
        cluster.scale(1)
        await until(lambda: called)
    assert called[0] == [1]  # then those that remain, at the end
    source = inspect.getsource(SpecCluster._correct_state_internal)
    assert "retire_workers(workers=list(to_close))" in source


async def test_workers_to_close_asks_the_plugins() -> None:
    """Without it Dask would choose the workers to close by their Dask tasks, of which none run."""
    async with in_process(2) as cluster:
        states = [state_of(members_max=2)]
        demand = DaskDemand(cluster.scheduler, lambda: states)
        assert cluster.scheduler.adaptive_target() == 2
        assert len(demand.workers_to_close(n=1)) == 1
        states.clear()
        assert cluster.scheduler.adaptive_target() == 0
        await demand.close()
        assert cluster.scheduler.adaptive_target.__self__ is cluster.scheduler


async def test_a_placeholder_keeps_the_scheduler_busy_and_leaves_nothing() -> None:
    with dask.config.set({"distributed.scheduler.validate": True}):
        async with (
            in_process(1) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            scheduler: Scheduler = cluster.scheduler
            demand = DaskDemand(scheduler, lambda: [])
            demand.started("a")
            (task,) = scheduler.tasks.values()
            assert (task.state, list(scheduler.unrunnable)) == ("no-worker", [task])
            for _ in range(3):
                assert scheduler.check_idle() is None
            assert scheduler.clients[CLIENT].wants_what == {task}
            assert await client.submit(int, 3) == 3  # other tasks run
            demand.ended("a")
            await until(lambda: not scheduler.tasks and not scheduler.unrunnable)
            assert demand.adaptive_target() == 0
            scheduler.check_idle()
            assert scheduler.check_idle() is not None


async def test_a_placeholder_comes_again_after_its_timeout_and_after_a_restart() -> None:
    with dask.config.set({"distributed.scheduler.no-workers-timeout": "50ms"}):
        async with in_process(1) as cluster, Client(cluster, asynchronous=True) as client:
            scheduler: Scheduler = cluster.scheduler
            demand = DaskDemand(scheduler, lambda: [])
            demand.started("a")
            first = scheduler.tasks["elasticml-job-a"]

            def is_another() -> bool:
                task = scheduler.tasks.get("elasticml-job-a")
                return task is not None and task is not first and task.state == "no-worker"

            await until(is_another)
            scheduler.no_workers_timeout = None
            first = scheduler.tasks["elasticml-job-a"]
            await client.restart(wait_for_workers=False)
            await until(is_another)
            demand.ended("a")
            await until(lambda: not scheduler.tasks)
