"""The driver process of a virtual world: the real agent of the driver in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from elasticml.algorithms.kernel_modules import kernel_modules, warm_up, warms_up
from elasticml.control.driver import Driver
from elasticml.data.readers.arrays import chunks_in_memory
from elasticml.data.source import Source
from elasticml.protocol import events as ev
from elasticml.protocol.job_record import JobRecord
from elasticml.runtime.block_registry import BlockRegistry
from elasticml.runtime.driver_agent import DriverAgent, DriverContext
from elasticml.runtime.fault_injection import FaultInjector
from elasticml.runtime.scaler import Scaler
from elasticml.sim.environment import Environment
from elasticml.sim.virtual_links import FrameSizes, VirtualTransport
from elasticml.sim.virtual_process import VirtualProcess, VirtualRunner
from elasticml.story.records import StoryRecord
from elasticml.training.checkpoint import Checkpoint


class Cluster(FaultInjector, Scaler, Protocol):
    """What a driver requests of its cluster."""


class DriverProcess:
    """The process of a job's driver.

    Parameters
    ----------
    environment : Environment
    processes : dict of str to VirtualProcess
        All processes of the world, by address.
    sizes : FrameSizes, optional
        Of a job of costs alone.
    """

    def __init__(
        self,
        environment: Environment,
        processes: dict[str, VirtualProcess],
        sizes: FrameSizes | None,
    ) -> None:
        self.environment = environment
        self.process = processes["driver"] = VirtualProcess(environment, "driver", "")
        self._transport = VirtualTransport(self.process, processes, sizes)
        self.agent: DriverAgent

    def start(
        self,
        record: JobRecord,
        source: Source,
        cluster: Cluster,
        *,
        resumed: Checkpoint | None,
        check_every_event: bool,
        writes: bool,
    ) -> None:
        """Make the agent.

        Parameters
        ----------
        writes : bool
            Whether it writes the checkpoints that the record asks for.
        """
        options = self.environment.options
        name = record.algorithm_name
        if warms_up(name):
            warm_up(kernel_modules([name]))  # now: what a process has loaded changes no run
        context = DriverContext(
            transport=self._transport,
            runner=VirtualRunner(self.process),
            clock=self.process.clock,
            injector=cluster,
            scaler=cluster,
            io_runner=VirtualRunner(self.process) if writes else None,
            adjusted=lambda settings: replace(
                settings,
                copy_bytes_per_s=min(settings.copy_bytes_per_s, options.copy_bandwidth),
                warms_up=options.warm_up_s > 0,
            ),
            # A run that is simulated from costs cannot be replayed.
            tells_chunks=options.costs is None,
            key="virtual",
        )
        self.agent = self.process.enter(
            lambda: DriverAgent(
                record,
                context,
                source=source,
                blocks=_blocks(record, source),
                resumed=resumed,
                check_every_event=check_every_event,
            )
        )

    @property
    def machine(self) -> Driver:
        """The driver's machine."""
        return self.agent.machine

    @property
    def has_ended(self) -> bool:
        """Whether the job is over."""
        return self.agent.ended.is_set()

    def feed(self, event: ev.Event) -> None:
        """Let the machine handle an event."""
        self.process.enter(self.agent.feed, event)

    def cancel(self) -> None:
        """End the job now."""
        self.process.enter(self.agent.cancel)

    def write(self, record: StoryRecord) -> None:
        """Append a record of the world to the story."""
        self.process.enter(self.agent.write, record)

    def tick(self) -> None:
        """Report the time to the machine."""
        self.process.enter(self.agent.tick)

    def invite(self, address: str) -> None:
        """Open a link to a worker that has offered itself."""
        self.process.enter(self.agent.invite, address)

    def gone(self, address: str) -> None:
        """Stop connecting to a worker whose process has ended; members are seen by their links."""
        if self.machine.state.membership.at(address) is None:
            self.process.enter(self.agent.worker_removed, address)


def _blocks(record: JobRecord, source: Any) -> BlockRegistry | None:
    """Return the chunks of a source in memory, which the driver sends to the members."""
    if not getattr(source, "is_in_memory", False):
        return None
    chunks, summaries = chunks_in_memory(source, record.chunk_bytes, record.members.start)
    bodies: dict[int, list[tuple[str, Any]]] = {}
    for chunk in chunks:
        bodies.setdefault(chunk.id.block, []).append((str(chunk.id), chunk.body))
    return BlockRegistry(bodies, summaries)
