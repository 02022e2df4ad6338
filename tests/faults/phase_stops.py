"""Places at which a job in the in-memory world can be stopped, one per phase, to inject a fault."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elasticml.collective.frames import Kind
from elasticml.ids import MemberId
from tests.memory_world import World, toy_record, toy_source, transport_options

N_MEMBERS = 5
#: Enough for chunks that are reread during rounds to return before the last one.
ROUNDS = 16
#: These make 25 chunks, five for each member.
N_ROWS, CHUNK_BYTES = 100, 640
#: The exchange in which phases of an exchange are stopped: members have a history by then.
EXCHANGE = 4
#: An inner node of the tree, with a child below it; any member of a star.
INNER = MemberId(1, 1)
#: Another member, which is lost first if a fault is to meet a correction.
OTHER = MemberId(3, 1)

Stops = Callable[[str, Callable[..., Any], tuple[Any, ...]], bool]


class GatedRunners:
    """Runners for a world, of which one call is stopped until it is released."""

    def __init__(self) -> None:
        self.stops: Stops = lambda address, function, args: False
        self.reached = asyncio.Event()
        self._released = asyncio.Event()

    def release(self) -> None:
        self._released.set()

    def __call__(self, address: str) -> GatedRunner:
        return GatedRunner(self, address)

    async def pass_through(self, address: str, function: Callable[..., Any], args: Any) -> None:
        if not self._released.is_set() and self.stops(address, function, args):
            self.reached.set()
            await self._released.wait()


class GatedRunner:
    def __init__(self, gates: GatedRunners, address: str) -> None:
        self._gates = gates
        self._address = address

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        await self._gates.pass_through(self._address, function, args)
        return function(*args)

    def close(self) -> None:
        pass


@dataclass(slots=True, kw_only=True)
class Stop:
    """A job that is stopped in the middle of a phase."""

    world: World
    #: Address of the member at which it is stopped.
    victim: str
    release: Callable[[], None]


class Jobs:
    """Toy jobs that are stopped in a phase; closes all of them."""

    def __init__(self, topology: str, *, transport: str = "stream", **changes: Any) -> None:
        record = toy_record(
            members={"start": N_MEMBERS},
            collective={"topology": topology, "fan_out": 2},
            chunk_bytes=CHUNK_BYTES,
            **changes,
        )
        record["algorithm"] = {**record["algorithm"], "rounds": ROUNDS, "anchor": "cached"}
        self.record = record
        self.transport = transport

    async def start(self) -> World:
        self.runners = GatedRunners()
        self.world = World(
            self.record,
            source=toy_source(N_ROWS),
            runner=self.runners,
            **transport_options(self.transport),
        )
        for _ in range(N_MEMBERS):
            await self.world.add()
        return self.world

    async def train(self) -> World:
        """Start a job and run it to its first round."""
        world = await self.start()
        await world.until(lambda: bool(world.events("DataDealt")))
        return world

    def address(self, member: MemberId) -> str:
        return self.world.shell.machine.state.membership.members[member].address

    async def stopped_in(self, phase: str) -> Stop:
        """Start a job and run it to the middle of a phase."""
        return await getattr(self, f"_{phase}")()

    async def at(self, gate: Any, victim: str) -> Stop:
        await self.world.until(gate.reached.is_set)
        return Stop(world=self.world, victim=victim, release=gate.release)

    async def _load(self) -> Stop:
        world = await self.start()
        gate = world.network.gate(
            kind=Kind.CONTROL, where=lambda header, prefix: prefix.get("type") == "BlockRead"
        )
        await world.until(gate.reached.is_set)
        reader = next(m for m in world.shell.machine.loading.pending.values() if m is not None)
        return await self.at(gate, self.address(reader))

    async def _broadcast(self) -> Stop:
        world = await self.train()
        victim = self.address(INNER)
        gate = world.network.gate(kind=Kind.MODEL, exchange=EXCHANGE, target=victim)
        return await self.at(gate, victim)

    async def _compute(self) -> Stop:
        await self.train()
        victim = self.address(INNER)
        self.runners.stops = lambda address, function, args: (
            address == victim and args[0].exchange == EXCHANGE
        )
        return await self.at(self.runners, victim)

    async def _reduce(self) -> Stop:
        world = await self.train()
        victim = self.address(INNER)
        gate = world.network.gate(kind=Kind.PARTIAL, exchange=EXCHANGE, source=victim)
        return await self.at(gate, victim)

    async def _correct(self) -> Stop:
        self.record["algorithm"]["anchor"] = "correction"
        world = await self.train()
        victim, other = self.address(INNER), self.address(OTHER)
        before = world.network.gate(kind=Kind.PARTIAL, exchange=EXCHANGE, source=other)
        gate = world.network.gate(kind=Kind.MODEL, exchange=EXCHANGE + 1, target=victim)
        await world.until(before.reached.is_set)
        world.kill(other)
        return await self.at(gate, victim)

    async def _move(self) -> Stop:
        world = await self.train()
        victim, newcomer = self.address(INNER), await world.add()
        gate = world.network.gate(kind=Kind.CHUNK, source=victim, target=newcomer)
        return await self.at(gate, victim)

    async def _apply(self) -> Stop:
        world = await self.train()
        victim = self.address(INNER)
        self.runners.stops = lambda address, function, args: (
            address == "driver"
            and function.__name__ == "proceed"
            and world.shell.machine.state.round == EXCHANGE
        )
        return await self.at(self.runners, victim)
