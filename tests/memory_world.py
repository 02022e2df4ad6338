"""A whole job in one process: the real shells and machines on the in-memory network.

Nothing sleeps: time advances when nothing else can happen. A kill closes the links as ``kill -9``
does, a pause stops frames without closing anything.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from elasticml.algorithms.parallel import Serial
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.readers.arrays import from_arrays
from elasticml.ids import chunk_id
from elasticml.protocol.job_record import job_record
from elasticml.runtime.block_registry import BlockRegistry
from elasticml.runtime.checkpoints.attempt_claim import AttemptClaim
from elasticml.runtime.checkpoints.checkpoint_store import checkpoint_of
from elasticml.runtime.driver_agent import DriverAgent, DriverContext
from elasticml.runtime.executors import Runner, contained
from elasticml.runtime.member_host import MemberHost
from elasticml.runtime.scaler import Scaler
from elasticml.runtime.worker_context import WorkerContext
from elasticml.runtime.worker_limits import WorkerLimits
from tests.in_memory_network import FaultyNetwork

#: Turns of the event loop without a frame after which nothing more will happen by itself.
QUIET_TURNS = 12


#: Transports of vectors; "auto" of real links is one of the first two.
TRANSPORTS = ("stream", "shm", "pieces")


def transport_options(transport: str) -> dict[str, Any]:
    """Return the options for a transport: "stream", "shm", or "pieces" of one value."""
    return {"stream": {}, "shm": {"shared": True}, "pieces": {"piece_bytes": 8}}[transport]


class InlineRunner:
    """Calls functions at once on the loop."""

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function."""
        return contained(function, *args)

    def place(self) -> str:
        """Return where the running call is."""
        return ""

    def close(self) -> None:
        """Do nothing."""


def toy_record(**changes: Any) -> dict[str, Any]:
    """Make the record of a toy job."""
    record: dict[str, Any] = {
        "version": 1,
        "job": "toy",
        "name": "toy",
        "chunk_bytes": 512,
        "algorithm": {"name": "tests.toy:ALGORITHM", "rounds": 12},
        "absent": "taylor",
        "stop": {"rounds": None},
        "seed": 0,
        "faults": [],
        "collective": {"topology": "tree", "fan_out": 2},
        "members": {"start": 6, "min": 1},
    }
    return {**record, **changes}


def toy_source(n_rows: int) -> Any:
    """Make rows whose labels are their numbers."""
    return from_arrays(np.ones((n_rows, 1)), np.arange(n_rows, dtype=np.float64))


class World:
    """A driver and members on one network.

    Parameters
    ----------
    record : mapping
        The job record; ``data`` is filled in.
    seed : int
        Of the network's interleaving.
    source : optional
        By default 600 toy rows in memory.
    runner : callable, optional
        The runner of a worker's computations by its address, and of the trainer's steps by
        "driver"; for tests that stop one of them.
    scaler : Scaler, optional
        Starts workers that policies request.
    limit_bytes : int, optional
        Memory of each worker for chunk bodies.
    shared : bool
        Models and partials stay in shared memory.
    piece_bytes : int, optional
        They are sent in pieces of this size.
    """

    def __init__(
        self,
        record: Mapping[str, Any],
        seed: int = 0,
        source: Any = None,
        runner: Callable[[str], Runner] = lambda address: InlineRunner(),
        scaler: Scaler | None = None,
        limit_bytes: int | None = None,
        shared: bool = False,
        piece_bytes: int | None = None,
    ) -> None:
        self.network = FaultyNetwork(seed, shared=shared, piece_bytes=piece_bytes)
        self.now = 0.0
        self._runner = runner
        self._limit_bytes = limit_bytes
        self.hosts: dict[str, MemberHost] = {}
        self._names = itertools.count()
        self._injector = Injector(self)
        self._tasks: list[asyncio.Future[Any]] = []
        source = source if source is not None else toy_source(600)
        n_members = record["members"]["start"]
        bodies: dict[int, list[tuple[str, Any]]] = {}
        summaries: Sequence[BlockSummary] = ()
        if getattr(source, "is_in_memory", False):
            sent = source.chunk_bodies(record["chunk_bytes"], n_members)
            for id, body in zip(sent.ids, sent.bodies, strict=True):
                bodies.setdefault(chunk_id(id).block, []).append((id, body))
            summaries = sent.summaries
        known = job_record(record)
        claim = None if known.checkpoint is None else AttemptClaim(known.job, known.checkpoint)
        resumed = checkpoint_of(known, claim)
        self.shell = DriverAgent(
            job_record({**record, "data": source.spec()}),
            DriverContext(
                transport=self.network.endpoint("driver"),
                runner=runner("driver"),
                clock=self.clock,
                injector=self._injector,
                scaler=scaler,
                io_runner=InlineRunner(),
                claim=claim,
            ),
            source=source,
            blocks=BlockRegistry(bodies, summaries),
            resumed=resumed,
            check_every_event=True,
        )
        if resumed is not None:
            self.shell.driver_session.open(self.shell.now_s())

    def clock(self) -> float:
        """Seconds since the world began."""
        return self.now

    async def pause_s(self, seconds: float) -> None:
        """Wait until this many seconds have passed in the world."""
        until_s = self.now + seconds
        while self.now < until_s:
            await asyncio.sleep(0)

    async def add(self) -> str:
        """Start a worker; return its address."""
        address = f"w{next(self._names)}"
        environment = WorkerContext(
            transport=self.network.endpoint(address),
            compute=self._runner(address),
            reading=InlineRunner(),
            parallel=Serial(),
            clock=self.clock,
            host="here",
            pid=int(address[1:]),
            threads=1,
            pause=self.pause_s,
        )

        async def announce() -> list[str]:
            self.shell.invite(address)
            return [self.shell.job]

        self.hosts[address] = MemberHost(
            environment, announce, WorkerLimits(bodies_bytes=self._limit_bytes)
        )
        await announce()
        return address

    def join(self) -> None:
        """Start a worker from within a turn."""
        self._tasks.append(asyncio.ensure_future(self.add()))

    def notice(self, address: str, grace_s: float) -> None:
        """Give a worker notice from within a turn; it is killed at the deadline."""
        self._tasks.append(asyncio.ensure_future(self._injector.lose([address], "notice", grace_s)))

    def kill(self, address: str) -> None:
        """End a worker as kill -9 does: its links close, it does nothing more."""
        host = self.hosts.pop(address, None)
        if host is None:
            return
        host.closing = True
        self.network.kill(address)
        for agent in host.agents.values():
            agent.close()
        self.network.resume(address)

    def pause(self, address: str) -> None:
        """Stop a worker without closing anything."""
        self.network.pause(address)

    def resume(self, address: str) -> None:
        """Resume a paused worker."""
        self.network.resume(address)

    async def settle(self) -> None:
        """Process everything that can happen without time passing."""
        quiet = 0
        while quiet < QUIET_TURNS:
            before = (len(self.network.deliveries), len(self.shell.journal.story))
            await asyncio.sleep(0)
            moved = before != (len(self.network.deliveries), len(self.shell.journal.story))
            quiet = 0 if moved else quiet + 1

    async def pass_time(self, seconds: float) -> None:
        """Let time pass in one step, then process what follows."""
        self.now += seconds
        self.shell.tick()
        await self.settle()

    async def run(self, turn: Callable[[int], None] | None = None, turns_max: int = 20000) -> None:
        """Run until the job ends; ``turn`` is called with a counter between loop turns."""
        await self.until(self.shell.ended.is_set, turn, turns_max)

    async def until(
        self,
        is_so: Callable[[], bool],
        turn: Callable[[int], None] | None = None,
        turns_max: int = 20000,
    ) -> None:
        """Run until a condition holds; time advances when nothing else can happen."""
        idle = 0
        for k in range(turns_max):
            if is_so():
                return
            if turn is not None:
                turn(k)
            before = (len(self.network.deliveries), len(self.shell.journal.story))
            await asyncio.sleep(0)
            moved = before != (len(self.network.deliveries), len(self.shell.journal.story))
            idle = 0 if moved else idle + 1
            if idle > QUIET_TURNS:
                self.now += 0.5
                self.shell.tick()
                idle = QUIET_TURNS // 2
        raise AssertionError(f"the job hangs:\n{self.tail()}")

    def tail(self, n: int = 25) -> str:
        """Format the end of the story, for messages of failed tests."""
        return "\n".join(str(r) for r in self.shell.journal.story[-n:])

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the story records of these kinds."""
        return [r for r in self.shell.journal.story if r["event"] in names]

    async def close(self) -> None:
        """End everything."""
        for address in list(self.hosts):
            self.kill(address)
        await self.shell.close()


class Injector:
    """Planned faults on the in-memory network."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._leaving: list[asyncio.Future[None]] = []

    async def lose(self, addresses: Sequence[str], how: str, grace_s: float) -> None:
        """Kill, or give notice and kill at the deadline."""
        if how == "kill":
            for address in addresses:
                self.world.kill(address)
            return
        for address in addresses:
            self._leaving.append(asyncio.ensure_future(self._leave(address, grace_s)))

    async def _leave(self, address: str, grace_s: float) -> None:
        host = self.world.hosts.get(address)
        until_s = self.world.now + grace_s
        if host is not None:
            for shell in host.agents.values():
                shell.notice(grace_s, "noticed")
        while self.world.now < until_s and address in self.world.hosts:
            await asyncio.sleep(0)
            if host is not None and all(s.gone.is_set() for s in host.agents.values()):
                break
        self.world.kill(address)

    async def bring_back(self, n: int) -> None:
        """Start workers."""
        for _ in range(n):
            await self.world.add()

    async def prepare(self, n: int) -> None:
        """Do nothing: workers start at once here."""

    async def slow(self, addresses: Sequence[str], factor: float) -> None:
        """Do nothing: no computation takes time here."""
