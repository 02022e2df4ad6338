"""What running jobs ask of a Dask cluster: workers that come, workers that stay, a busy scheduler.

A job's rounds are no Dask tasks, so Dask takes a cluster with a running job for an idle one:
``cluster.adapt`` closes its workers, ``--idle-timeout`` its scheduler. Three things correct that.

* ``adaptive_target`` is at least what the jobs desire (:mod:`elasticml.control.demand`).
* ``valid_workers_downscaling`` offers the workers for closing that cost the jobs least.
* Each job has a placeholder task that no worker can run: a scheduler with such a task is not idle,
  for itself as for dask-gateway, and the task takes no thread and outlives every worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import dask
from dask._task_spec import Task
from dask.utils import parse_timedelta
from distributed import Scheduler
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import WorkerState

from elasticml.control.demand import closing_costs, desired_members, required_members
from elasticml.control.job_state import JobState
from elasticml.runtime.dask_methods import replace_method

#: The resource that the placeholder tasks need and that no worker has.
RESOURCE: Final = "elasticml"
#: Dask's own client: it owns tasks whose results go to no client, and it does not disconnect.
CLIENT: Final = "fire-and-forget"
#: Without a question about the demand for this long, no cluster follows it. The slowest asker is
#: dask-kubernetes, which asks every few seconds.
FOLLOWED_S: Final = 30.0
#: Longest wait for workers from a cluster that follows the demand; Dask's configuration has
#: precedence.
REQUEST_TIMEOUT: Final = "300s"
REQUEST_TIMEOUT_KEY: Final = "elasticml.request-timeout"
#: Seconds between two looks at the workers that have come.
LOOK_S: Final = 0.1
#: Why a request failed.
UNFOLLOWED: Final = (
    "this cluster starts no workers for a job; call cluster.adapt(), make the client from the "
    "cluster object, or use cluster: {kind: factory}"
)
SLOW: Final = "the cluster has started no more workers within {:g} s"


class DaskDemand(SchedulerPlugin):
    """The demand of the running jobs, as Dask and its clusters ask for it.

    Parameters
    ----------
    scheduler : distributed.Scheduler
    states : callable
        Returns the states of the running jobs.
    clock : callable
        Seconds, monotonic.
    """

    name = "elasticml-demand"

    def __init__(
        self,
        scheduler: Scheduler,
        states: Callable[[], Iterable[JobState]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._states = states
        self._clock = clock
        #: When a cluster last asked.
        self._asked_s = -FOLLOWED_S
        #: Workers that the running call of ``workers_to_close`` has to name; None: it chooses.
        self._n_to_close: int | None = None
        self._placeholders: set[str] = set()
        self._adaptive_target = scheduler.adaptive_target
        self._workers_to_close = scheduler.workers_to_close
        self._put_back = [
            replace_method(scheduler, "adaptive_target", self.adaptive_target),
            replace_method(scheduler, "workers_to_close", self.workers_to_close),
        ]
        scheduler.add_plugin(self)

    async def close(self) -> None:
        """Put Dask's methods back."""
        for put_back in self._put_back:
            put_back()

    # --- how many ------------------------------------------------------------------------

    def adaptive_target(self, target_duration: Any = None) -> int:
        """Return the number of workers that Dask's tasks and the jobs need."""
        self._asked_s = self._clock()
        target: int = self._adaptive_target(target_duration)
        return max(target, self._desired())

    def _desired(self) -> int:
        # All jobs have members on all workers: their demands do not add up.
        return max(map(desired_members, self._states()), default=0)

    async def asked(self) -> dict[str, Any]:
        """Answer a client that scales its cluster for the jobs.

        Returns
        -------
        dict
            ``running``: number of jobs; ``workers``: number of workers that they require;
            ``idle``: names of workers without a member.
        """
        self._asked_s = self._clock()
        states = list(self._states())
        used = {address for state in states for address in closing_costs(state)}
        workers = self._scheduler.workers.items()
        return {
            "running": len(states),
            "workers": max(map(required_members, states), default=0),
            "idle": [state.name for address, state in workers if address not in used],
        }

    async def more_workers(self, count: int) -> tuple[int, str]:
        """Wait for ``count`` more workers.

        Returns
        -------
        came : int
            Number of workers that have come.
        reason : str
            Why it is not more.
        """
        before = set(self._scheduler.workers)
        began_s = self._clock()
        wait_s = parse_timedelta(dask.config.get(REQUEST_TIMEOUT_KEY, REQUEST_TIMEOUT))
        while True:
            came = len(self._scheduler.workers.keys() - before)
            now_s = self._clock()
            if came >= count:
                return count, ""
            if now_s - max(began_s, self._asked_s) >= FOLLOWED_S:
                return came, UNFOLLOWED
            if now_s - began_s >= wait_s:
                return came, SLOW.format(wait_s)
            await asyncio.sleep(LOOK_S)

    # --- which ---------------------------------------------------------------------------

    def workers_to_close(
        self,
        memory_ratio: float | None = None,
        n: int | None = None,
        *,
        target: int | None = None,
        **options: Any,
    ) -> Any:
        """Return workers to close, as Dask's method does: those that cost the jobs least."""
        present = len(self._scheduler.workers)
        self._n_to_close = n if n is not None or target is None else max(0, present - target)
        try:
            return self._workers_to_close(memory_ratio=memory_ratio, n=n, target=target, **options)
        finally:
            self._n_to_close = None

    def valid_workers_downscaling(
        self, scheduler: Scheduler, workers: list[WorkerState]
    ) -> list[WorkerState]:
        """Leave out the workers that are worth keeping: those that cost most to close."""
        states = list(self._states())
        kept = self._desired()
        if self._n_to_close is not None:
            kept = min(kept, max(0, len(scheduler.workers) - self._n_to_close))
        if not states or not kept:
            return workers
        costs: dict[str, int] = {}
        for state in states:
            for address, cost in closing_costs(state).items():
                costs[address] = costs.get(address, 0) + cost
        spared = sorted(costs, key=lambda address: (costs[address], address))[-kept:]
        return [worker for worker in workers if worker.address not in spared]

    # --- the placeholder tasks -----------------------------------------------------------

    def started(self, job: str) -> None:
        """Show a job to Dask as a task that waits for a resource."""
        key = _key(job)
        self._placeholders.add(key)
        self._put(key)

    def ended(self, job: str) -> None:
        """Remove the task of a job that has ended."""
        key = _key(job)
        self._placeholders.discard(key)
        self._drop(key)

    def _put(self, key: str) -> None:
        scheduler = self._scheduler
        if key in scheduler.tasks:
            return
        task = scheduler.new_task(key, Task(key, _never), "released")
        task.resource_restrictions = {RESOURCE: 1}
        scheduler.client_desires_keys([key], CLIENT)
        scheduler.transitions({key: "waiting"}, stimulus_id=key)

    def _drop(self, key: str) -> None:
        if key in self._scheduler.tasks:
            self._scheduler.client_releases_keys([key], CLIENT, stimulus_id=key)

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        """Put a placeholder up again that ``no-workers-timeout`` has ended."""
        if finish == "erred" and key in self._placeholders:
            # Not now: Dask is in the middle of a transition.
            asyncio.get_running_loop().call_soon(self._renew, key)

    def _renew(self, key: str) -> None:
        self._drop(key)
        if key in self._placeholders:
            self._put(key)

    def restart(self, scheduler: Scheduler) -> None:
        """Put the placeholders up again: ``client.restart()`` has removed all tasks."""
        for key in sorted(self._placeholders):
            self._put(key)


def _key(job: str) -> str:
    return f"elasticml-job-{job}"


def _never() -> None:
    raise AssertionError("a placeholder task does not run")
