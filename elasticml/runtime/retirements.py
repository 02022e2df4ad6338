"""Retirements: jobs leave a worker before Dask closes it.

``client.retire_workers``, ``cluster.scale``, ``cluster.adapt``, ``dask worker --lifetime`` and the
scheduler's HTTP route all retire workers through ``Scheduler.retire_workers``. That method removes
a worker without Dask's keys in the same turn of the event loop, so its own hooks come too late to
move chunks. Therefore it is replaced: the workers are marked, all jobs drain them, and then Dask's
method runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import dask
from dask.utils import parse_timedelta
from distributed import Scheduler

from elasticml.control.job_state import JobState
from elasticml.protocol.notices import ContainerMarked, MarkLifted
from elasticml.runtime.dask_methods import replace_method
from elasticml.runtime.preemption_board import PreemptionBoard

logger = logging.getLogger(__name__)

#: Longest wait for jobs to leave workers that are retired; Dask's configuration has precedence.
RETIRE_TIMEOUT: Final = "60s"
RETIRE_TIMEOUT_KEY: Final = "elasticml.retire-timeout"
#: Seconds between two looks at the jobs' members.
LOOK_S: Final = 0.02


class Retirements:
    """Replaces ``retire_workers`` of a scheduler by one that lets jobs leave first.

    Parameters
    ----------
    scheduler : distributed.Scheduler
    board : PreemptionBoard
        Where the retired workers are marked.
    states : callable
        Returns the states of the running jobs.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        board: PreemptionBoard,
        states: Callable[[], Iterable[JobState]],
    ) -> None:
        self._scheduler = scheduler
        self._board = board
        self._states = states
        self._foreign = scheduler.retire_workers
        #: Calls that retire each worker: a failed one must not lift another one's mark.
        self._retiring: dict[str, int] = {}
        self.close = replace_method(scheduler, "retire_workers", self.retire_workers)

    async def retire_workers(
        self,
        workers: Collection[str] | None = None,
        *,
        names: Collection[Any] | None = None,
        close_workers: bool = False,
        remove: bool = True,
        stimulus_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Retire workers as ``Scheduler.retire_workers`` does, after all jobs have left them.

        Jobs get at most ``elasticml.retire-timeout`` (60 s). A job that has members on these
        workers only is not waited for: its chunks have nowhere to go.
        """
        rest: dict[str, Any] = {"close_workers": close_workers, "remove": remove}
        rest["stimulus_id"] = stimulus_id
        if sum(given is not None for given in (workers, names, options or None)) > 1:
            return await self._foreign(workers, names=names, **rest, **options)  # a TypeError
        listed = names if workers is None else workers
        if listed is None:
            addresses = self._scheduler.workers_to_close(**options)
        else:
            addresses = self._addresses(listed)
        if not addresses:
            return {}
        grace_s = parse_timedelta(dask.config.get(RETIRE_TIMEOUT_KEY, RETIRE_TIMEOUT))
        self._mark(addresses, grace_s)
        retired: Collection[str] = ()
        try:
            await self._drained(addresses, grace_s)
            if workers is not None and self._is_close(workers, addresses):
                # Dask does nothing here, as no key has anywhere to go. Its message to a worker
                # waits up to 5 ms for others: the cluster may have begun to close the worker.
                retired, answer = addresses, {}
            else:
                retired = answer = await self._foreign(workers=addresses, **rest)
        finally:
            self._settle(addresses, retired)
        return answer

    def _addresses(self, workers: Iterable[Any]) -> list[str]:
        """Return the addresses of workers that are given by address or by name.

        ``SpecCluster`` passes names as ``workers``; Dask's own method ignores those, and the
        cluster then closes the processes of workers that were never retired.
        """
        present = self._scheduler.workers
        by_name = {str(state.name): address for address, state in present.items()}
        addresses = (w if w in present else by_name.get(str(w)) for w in workers)
        return list(dict.fromkeys(address for address in addresses if address is not None))

    def _is_close(self, workers: Collection[Any], addresses: Collection[str]) -> bool:
        """Return whether a ``SpecCluster`` names all workers: it closes them next."""
        present = self._scheduler.workers
        return set(addresses) == set(present) and not any(w in present for w in workers)

    def _mark(self, addresses: Iterable[str], grace_s: float) -> None:
        for address in addresses:
            self._retiring[address] = self._retiring.get(address, 0) + 1
            if self._retiring[address] == 1:
                mark = ContainerMarked(
                    cause=f"retire {address}", address=address, grace_s=grace_s, reason="retired"
                )
                self._board.post(mark)

    async def _drained(self, addresses: Collection[str], wait_s: float) -> None:
        """Wait until no job can move chunks off these workers."""
        until_s = time.monotonic() + wait_s
        while any(_can_leave(state, addresses) for state in self._states()):
            if time.monotonic() >= until_s:
                logger.warning(
                    "retired before all jobs have left: %s; set %s above %g s if they need longer",
                    *(", ".join(sorted(addresses)), RETIRE_TIMEOUT_KEY, wait_s),
                )
                return
            await asyncio.sleep(LOOK_S)

    def _settle(self, addresses: Iterable[str], retired: Collection[str]) -> None:
        """Lift the marks of workers that Dask could not retire: they hold the only copy of keys."""
        for address in addresses:
            self._retiring[address] -= 1
            if self._retiring[address]:
                continue
            del self._retiring[address]
            if address not in retired and address in self._scheduler.workers:
                self._board.post(MarkLifted(address=address))


def _can_leave(state: JobState, addresses: Collection[str]) -> bool:
    """Return whether a job has members on these workers, and others that can take their chunks."""
    members = state.membership.members.values()
    if not any(record.address in addresses for record in members):
        return False
    return any(r.address not in addresses and r.stage != "leaving" for r in members)
