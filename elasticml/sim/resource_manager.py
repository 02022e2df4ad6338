"""The resource manager of a virtual world: it marks, pre-empts and grants containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from elasticml.protocol.marks import MarkStore
from elasticml.protocol.notices import ContainerEnded, ContainerMarked
from elasticml.sim.environment import Environment
from elasticml.sim.virtual_driver import DriverProcess
from elasticml.sim.virtual_worker import Worker, Workers
from elasticml.specification.simulator import Asked
from elasticml.story.records import ContainersAsked

#: Seconds from SIGTERM to SIGKILL in a container.
KILL_S = 0.25
#: Interval in seconds at which the resource manager checks its queues.
INTERVAL_S = 3.0
#: The exit status of a pre-empted container.
PREEMPTED = -102


@dataclass(slots=True, kw_only=True)
class Demand:
    """A demand of another queue for containers."""

    entry: Asked
    marked: tuple[Worker, ...]
    #: Number of containers that it still lacks.
    lacking: int


class ResourceManager:
    """Pre-empts as a capacity scheduler does: it marks containers, and later takes those it lacks.

    Parameters
    ----------
    environment : Environment
    driver : DriverProcess
    workers : Workers
    """

    def __init__(self, environment: Environment, driver: DriverProcess, workers: Workers) -> None:
        self._environment = environment
        self._driver = driver
        self._workers = workers
        self._demands: list[Demand] = []
        self._marks = MarkStore()
        #: Containers that other queues have taken, and the number of them that this job requests:
        #: the application itself requests replacements for those taken or released in their place.
        self._elsewhere = 0
        self._wanted = 0

    def ask(self, entry: Asked, workers: Sequence[Worker]) -> None:
        """Mark containers; after the grace, take those that are still lacking."""
        environment = self._environment
        demand = Demand(entry=entry, marked=tuple(workers), lacking=len(workers))
        self._demands.append(demand)
        asked = ContainersAsked(
            cause="world",
            round=self._driver.machine.state.round,
            members=tuple(str(w.me) for w in workers if w.me is not None),
            grace_s=entry.grace,
            negotiable=entry.negotiable,
        )
        self._driver.write(asked)
        life_s = 2 * entry.grace + INTERVAL_S
        for worker in workers:
            marked = ContainerMarked(
                cause="world",
                address=worker.address,
                grace_s=entry.grace,
                life_s=life_s,
                reason=entry.reason,
                negotiable=entry.negotiable,
            )
            self._marks.add(marked, environment.loop.now_s)
            self._driver.feed(marked)
        environment.loop.after(entry.grace, self._take, demand)
        environment.loop.after(life_s, self._withdraw, demand)

    def _take(self, demand: Demand) -> None:
        """Stop as many marked containers as are lacking."""
        for worker in demand.marked:
            if demand.lacking and worker.endpoint.is_alive:
                demand.lacking -= 1
                worker.notice(KILL_S, "terminated")
                self._environment.loop.after(KILL_S, self._ended, worker, demand.entry)

    def _ended(self, worker: Worker, entry: Asked) -> None:
        ended = ContainerEnded(
            cause="world",
            address=worker.address,
            container=f"container_{worker.number}",
            reason="preempted",
            status=PREEMPTED,
            message="Container preempted by scheduler",
        )
        self._marks.remove(ended.container, ended.address, self._environment.loop.now_s)
        # The exit status comes through the resource manager, later than the loss is detected.
        options = self._environment.options
        self._environment.loop.after(options.detect_s + options.latency_s, self._driver.feed, ended)
        self._gone(entry)
        self._wanted += 1

    def _gone(self, entry: Asked) -> None:
        self._elsewhere += 1
        if entry.away is not None:
            self._environment.loop.after(entry.away, self._returned)

    def _returned(self) -> None:
        self._elsewhere -= 1
        if self._wanted:
            self._wanted -= 1
            self._environment.loop.after(self._environment.options.start_s, self._workers.start)

    def _withdraw(self, demand: Demand) -> None:
        """End a demand; lift the marks that have expired.

        Workers that were emptied for a mark but not taken are offered again.
        """
        self._demands.remove(demand)
        for lifted in self._marks.expire(self._environment.loop.now_s):
            self._driver.feed(replace(lifted, cause="world"))
            worker = self._workers.by_address[lifted.address]
            is_here = worker.endpoint.is_alive and not worker.is_closing
            if is_here and not worker.has_member:
                worker.offer()

    def released(self, addresses: Sequence[str]) -> None:
        """Record containers that the job has released; no mark outlives its container."""
        for address in addresses:
            self._marks.remove("", address, self._environment.loop.now_s)
            demand = next((d for d in self._demands if d.lacking), None)
            if demand is not None:
                demand.lacking -= 1
                self._gone(demand.entry)
                self._wanted += 1

    def wanted(self, count: int) -> int:
        """Record a request for containers; return the number that other queues do not have."""
        kept = min(count, self._elsewhere - self._wanted)
        self._wanted += kept
        return count - kept
