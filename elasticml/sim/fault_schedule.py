"""Losses and returns of virtual workers: planned faults, random pre-emptions, and traces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from elasticml.sim.environment import Environment
from elasticml.sim.resource_manager import ResourceManager
from elasticml.sim.virtual_driver import Cluster, DriverProcess
from elasticml.sim.virtual_worker import Worker, Workers
from elasticml.specification.simulator import Asked, Granted, How, Taken
from elasticml.story import records as story


class Faults(Cluster):
    """Ends virtual workers and starts new ones.

    Parameters
    ----------
    environment : Environment
    driver : DriverProcess
    workers : Workers
    rng : Generator
        Draws times, members and durations of random pre-emptions.
    """

    def __init__(
        self,
        environment: Environment,
        driver: DriverProcess,
        workers: Workers,
        rng: np.random.Generator,
    ) -> None:
        self._environment = environment
        self._driver = driver
        self._workers = workers
        self._rng = rng
        self._manager = ResourceManager(environment, driver, workers)
        self._standbys = 0
        #: Granted containers that have not started yet.
        self._starting = 0
        #: Number of actions that are on the clock until the job ends.
        self.timers = 0

    def start(self) -> None:
        """Schedule the entries of the trace and the first random pre-emption."""
        for entry in self._environment.options.trace:
            if isinstance(entry, Granted):
                self._environment.loop.at(entry.at, self._grant, entry.grant)
            elif isinstance(entry, Asked):
                self._environment.loop.at(entry.at, self._ask, entry)
            else:
                self._environment.loop.at(entry.at, self._trace, entry)
        if self._environment.options.preemption is not None:
            self.timers = 1
            self._wait()

    # --- planned faults of the job, see runtime.fault_injection -------------------------------

    async def lose(self, addresses: Sequence[str], how: str, grace_s: float) -> None:
        """End workers."""
        for address in addresses:
            worker = self._workers.by_address[address]
            if worker.endpoint.is_alive:
                self._take(worker, how, grace_s)

    async def bring_back(self, n: int) -> None:
        """Start workers, prepared ones first; return when all offer themselves."""
        options, delay_s = self._environment.options, 0.0
        for _ in range(n):
            seconds = options.standby_s if self._standbys else options.start_s
            self._standbys = max(0, self._standbys - 1)
            delay_s = max(delay_s, seconds)
            self._environment.loop.after(seconds, self._workers.start)
        await asyncio.sleep(delay_s)

    async def prepare(self, n: int) -> None:
        """Prepare containers."""
        self._standbys = max(self._standbys, n)

    async def slow(self, addresses: Sequence[str], factor: float) -> None:
        """Make members compute longer."""
        for address in addresses:
            slot = self._workers.by_address[address].slot
            assert slot is not None
            self._environment.options.slow[slot] = factor

    def _take(self, worker: Worker, how: str, grace_s: float) -> float:
        """End a worker; return the seconds until it is gone."""
        if how == "kill":
            worker.kill()
            return 0.0
        worker.notice(grace_s, "noticed" if how == "notice" else "terminated")
        return grace_s

    # --- pre-emption ----------------------------------------------------------------------------

    def _wait(self) -> None:
        preemption = self._environment.options.preemption
        assert preemption is not None and preemption.rate is not None
        self._environment.loop.after(self._rng.exponential(1 / preemption.rate), self._preempt)

    def _preempt(self) -> None:
        preemption = self._environment.options.preemption
        assert preemption is not None
        serving = self._workers.serving()
        n = min(preemption.count, len(serving) - preemption.spare)
        if n > 0:
            chosen = sorted(self._rng.choice(len(serving), size=n, replace=False))
            away = [float(self._rng.uniform(*preemption.away)) for _ in chosen]
            workers = [serving[k] for k in chosen]
            self._send_away(workers, preemption.how, preemption.grace, away)
        self._wait()

    def _grant(self, count: int) -> None:
        """Grant containers; their workers are offered when they have started."""
        environment = self._environment
        number = self._driver.machine.state.round
        granted = story.Granted(cause="world", round=number, count=count)
        self._driver.write(granted)
        for _ in range(count):
            environment.loop.after(environment.options.start_s, self._workers.start)

    # --- what the job asks the resource manager for, see runtime.scaler -------------------------

    async def request(self, count: int) -> int:
        """Start as many of the requested containers as are free; return all but those refused."""
        environment = self._environment
        granted = wanted = self._manager.wanted(count)
        if environment.options.containers_max is not None:
            taken = (
                sum(w.endpoint.is_alive for w in self._workers.by_address.values()) + self._starting
            )
            granted = min(wanted, max(0, environment.options.containers_max - taken))
        self._starting += granted
        for _ in range(granted):
            environment.loop.after(environment.options.start_s, self._started)
        await asyncio.sleep(environment.options.latency_s)
        return count - (wanted - granted)

    def _started(self) -> None:
        self._starting -= 1
        self._workers.start()

    async def release(self, addresses: Sequence[str]) -> None:
        """Take back the containers of dismissed members."""
        for address in addresses:
            self._workers.by_address[address].kill()
        self._manager.released(addresses)

    def _ask(self, entry: Asked) -> None:
        self._manager.ask(entry, self._chosen(entry.reclaim))

    def _chosen(self, who: int | tuple[int, ...]) -> list[Worker]:
        """Return the workers of these slots, or the last ``who`` workers."""
        serving = self._workers.serving()
        if isinstance(who, int):
            return serving[len(serving) - min(who, len(serving)) :]
        return [w for w in serving if w.slot in who]

    def _trace(self, entry: Taken) -> None:
        workers = self._chosen(entry.lose)
        away = [entry.away] * len(workers)
        self._send_away(workers, entry.how, entry.grace, away)

    def _send_away(
        self, workers: Sequence[Worker], how: How, grace_s: float, away: Sequence[float | None]
    ) -> None:
        environment = self._environment
        self._driver.write(
            story.Preempted(
                cause="world",
                round=self._driver.machine.state.round,
                members=tuple(str(w.me) for w in workers if w.me is not None),
                how=how,
                away_s=tuple(None if a is None else round(a, 6) for a in away),
            ),
        )
        for worker, seconds in zip(workers, away, strict=True):
            if how == "pause":
                environment.network.pause(worker.endpoint)
                if seconds is not None:
                    environment.loop.after(seconds, environment.network.resume, worker.endpoint)
                continue
            gone_s = self._take(worker, how, grace_s)
            if seconds is not None:
                environment.loop.after(gone_s + seconds, self._workers.start)
