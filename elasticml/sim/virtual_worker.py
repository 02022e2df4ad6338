"""The worker processes of a virtual world: the real host of members in each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import Chunk
from elasticml.ids import ChunkId, MemberId
from elasticml.runtime.member_agent import MemberAgent
from elasticml.runtime.member_host import MemberHost
from elasticml.runtime.numa import node_cores
from elasticml.runtime.worker_context import WorkerContext
from elasticml.runtime.worker_limits import WorkerLimits
from elasticml.sim.environment import Environment
from elasticml.sim.virtual_links import FrameSizes, VirtualTransport
from elasticml.sim.virtual_process import (
    ChargedSlowdown,
    VirtualAsyncLoop,
    VirtualProcess,
    VirtualRunner,
)
from elasticml.training.fingerprint import blas_threads, cpu_class


class Worker:
    """One worker, from its start to its end.

    Parameters
    ----------
    workers : Workers
        All workers of the world.
    number : int
        Unique among them.
    """

    def __init__(self, workers: Workers, number: int) -> None:
        self._workers = workers
        self.number = number
        self.address = f"sim://{number}"
        self.environment = environment = workers.environment
        host = f"host{number % environment.options.hosts}"
        self.process = VirtualProcess(environment, self.address, host)
        self.endpoint = self.process.endpoint
        self.host: MemberHost
        workers.processes[self.address] = self.process
        self.process.enter(self._start)

    def _start(self) -> None:
        process, job = self.process, self._workers.job
        transport = VirtualTransport(process, self._workers.processes, self._workers.sizes)
        context = WorkerContext(
            transport=transport,
            compute=VirtualRunner(process),
            reading=VirtualRunner(process),
            parallel=Serial(),
            clock=process.clock,
            host=process.host,
            pid=self.number,
            threads=self._workers.threads,
            **self._workers.hardware,
            pause=asyncio.sleep,
            slowness=ChargedSlowdown(process),
            make_loop=lambda worker, context: VirtualAsyncLoop(worker, context, process),
        )

        async def announce() -> list[str]:
            self.offer()
            return [job]

        limits = WorkerLimits(bodies_bytes=self.environment.options.limit_bytes)
        self.host = MemberHost(context, announce, limits)
        self.offer()

    def offer(self) -> None:
        """Offer the worker: the driver opens a link to it."""
        if self.endpoint.is_alive and not self.is_closing:
            self.environment.loop.after(
                self.environment.options.latency_s, self._workers.invite, self.address
            )

    # --- its member -----------------------------------------------------------------------------

    @property
    def agent(self) -> MemberAgent | None:
        """The agent of its last member; None before the first."""
        return next(iter(self.host.agents.values()), None)

    @property
    def me(self) -> MemberId | None:
        """Its last member; None before the first welcome."""
        return None if self.agent is None else self.agent.me

    @property
    def slot(self) -> int | None:
        """The slot of its last member."""
        return None if self.agent is None else self.agent.slot

    @property
    def has_member(self) -> bool:
        """Whether it has a member that has not ended."""
        return self.me is not None and self.host.is_serving

    @property
    def chunks(self) -> dict[ChunkId, Chunk]:
        """The chunks that it holds, owned or not."""
        return {id: c for store in self.host.stores for id, c in store.chunks.items()}

    @property
    def computed_on(self) -> list[Chunk]:
        """The chunks that its member computes on."""
        agent = self.agent
        return [] if agent is None or agent.collective is None else agent.collective.chunks

    @property
    def is_closing(self) -> bool:
        """Whether it is about to stop and is not offered again."""
        return self.host.closing

    @property
    def is_serving(self) -> bool:
        """Whether it has a living member and is not about to stop."""
        is_up = self.endpoint.is_alive and not self.endpoint.is_paused
        return is_up and not self.is_closing and self.has_member

    # --- the end of the process -----------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process."""
        if self.endpoint.is_alive:
            self.environment.network.kill(self.endpoint)
            self._workers.keep(self.process)
            detect_s = self.environment.options.detect_s
            self.environment.loop.after(2 * detect_s, self._workers.gone, self.address)

    def notice(self, grace_s: float, reason: str) -> None:
        """Announce its end; kill it when all is given away, at the latest after the grace."""
        self.environment.network.perform(
            self.endpoint, self.process.enter, self._give_notice, grace_s, reason
        )
        self.environment.loop.after(grace_s, self.kill)

    def _give_notice(self, grace_s: float, reason: str) -> None:
        async def leave() -> None:
            await self.host.notice(grace_s, reason)
            self.environment.loop.after(0.0, self.kill)

        self.environment.loop.create_task(leave())


class Workers:
    """The workers of a world.

    Parameters
    ----------
    environment : Environment
    job : str
    threads : int
        Of each worker.
    processes : dict of str to VirtualProcess
        All processes of the world, by address.
    sizes : FrameSizes, optional
        Of a job of costs alone.
    invite, gone : callable (str)
        Tell the driver that a worker offers itself, or that its process has ended.
    """

    def __init__(
        self,
        environment: Environment,
        job: str,
        threads: int,
        processes: dict[str, VirtualProcess],
        sizes: FrameSizes | None,
        invite: Callable[[str], None],
        gone: Callable[[str], None],
    ) -> None:
        self.environment = environment
        self.job = job
        self.threads = threads
        self.processes = processes
        self.sizes = sizes
        self.invite = invite
        self.gone = gone
        #: The same for all of them.
        self.hardware: Mapping[str, Any] = {
            "node_cores": node_cores(),
            "cpu": cpu_class(),
            "blas_threads": blas_threads(),
        }
        self.by_address: dict[str, Worker] = {}
        #: Tasks of dead processes: one that is collected would run its ``finally``.
        self._kept: list[asyncio.Task[object]] = []

    def start(self) -> None:
        """Start a new worker, which offers itself to the driver."""
        worker = Worker(self, len(self.by_address))
        self.by_address[worker.address] = worker

    def keep(self, process: VirtualProcess) -> None:
        """Keep the tasks of a process that has died."""
        self._kept += process.endpoint.tasks

    def serving(self) -> list[Worker]:
        """Return the workers with a member that are not about to end, by slot."""
        serving = [w for w in self.by_address.values() if w.is_serving]
        return sorted(serving, key=lambda w: w.slot or 0)
