"""Which chunk states a member accepts, in each world that runs its machine.

A member accepts no state of a chunk that it owns: it may have computed on since. And it accepts
none of an older order than the one before: late frames of a former transfer change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pytest

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.member_machine import Member
from elasticml.data.chunks.chunk import dense_chunk
from elasticml.ids import ChunkId, Generation, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol.events import Event
from elasticml.runtime.chunks.chunk_links import ChunkTransport
from elasticml.runtime.chunks.chunk_store import ChunkStore
from tests.in_memory_network import FaultyNetwork
from tests.pure_world import PureWorld
from tests.unit.runtime.test_chunk_links import perform

GIVER, TAKER = MemberId(0, 1), MemberId(1, 1)


class Stage(Protocol):
    """Two members that hold the body of one chunk."""

    def own(self) -> None:
        """Make the taker own the chunk."""

    def drop(self) -> None:
        """Make the taker drop the chunk."""

    def give(self, order: int, state: int, body: bool = False) -> None:
        """Make the giver send a state to the taker."""

    def state(self) -> int:
        """Return the state that the taker has."""


class Runtime:
    """Transfers of real members on the in-memory network."""

    def __init__(self) -> None:
        self.network = FaultyNetwork(0)
        self.stores = {GIVER: ChunkStore(), TAKER: ChunkStore()}
        self.reports: list[Any] = []
        self.id = ChunkId("s", 0, 0)
        for store in self.stores.values():
            store.put([dense_chunk(self.id, np.zeros(4), np.zeros((4, 3)))])
        self.machines = {m: Member(m, store) for m, store in self.stores.items()}
        self.ends = {m: self._end(m) for m in self.stores}
        self.network.endpoint(str(TAKER)).listen(self.ends[TAKER].receive)

    def _end(self, me: MemberId) -> ChunkTransport:
        endpoint = self.network.endpoint(str(me))

        def feed(event: Event) -> None:
            for command in self.machines[me].handle(event, 0.0):
                perform(command, made, self.reports)

        made = ChunkTransport(me, "job", self.stores[me], endpoint, lambda: 0.0, feed)
        return made

    def own(self) -> None:
        own = cmd.Own(member=TAKER, generation=Generation(2), chunks=(self.id,))
        self.machines[TAKER].handle(own, 0.0)

    def drop(self) -> None:
        self.machines[TAKER].handle(cmd.DropChunks(member=TAKER, chunks=(self.id,)), 0.0)
        self.stores[TAKER].drop([self.id])

    def give(self, order: int, state: int, body: bool = False) -> None:
        self.stores[GIVER].chunks[self.id].state = {"serial": np.array([state])}
        ids = (self.id,)
        value = cmd.GiveChunks(
            member=GIVER,
            target=TAKER,
            address=str(TAKER),
            chunks=ids,
            bodies=ids if body else (),
            order=order,
        )
        LOOP.run_until_complete(self._give(value))

    async def _give(self, order: cmd.GiveChunks) -> None:
        before = len(self.reports)
        await self.ends[GIVER].give(order)
        while len(self.reports) == before:
            await asyncio.sleep(0)

    def state(self) -> int:
        return int(self.stores[TAKER].chunks[self.id].state["serial"][0])


class Pure:
    """Members of the pure world; a state is a number there."""

    def __init__(self) -> None:
        self.world = PureWorld(DriverSettings(n_blocks=2, start_members=2))
        names = [self.world.join() for _ in range(2)]
        # All except the trainer, which would end the job.
        self.world.settle(lambda key: key[2] != "trainer")
        self.lives = {life.me: life for life in map(self.world.life, names)}
        self.id = next(iter(self.lives[GIVER].worker.held))
        self.lives[TAKER].worker.held.add(self.id)
        self.world.feed = lambda event: None  # type: ignore[method-assign]

    def _perform(self, order: cmd.Order) -> None:
        self.lives[order.member].obey(order)
        self.world.settle(lambda key: key[2] != "trainer")

    def own(self) -> None:
        self._perform(cmd.Own(member=TAKER, generation=Generation(9), chunks=(self.id,)))

    def drop(self) -> None:
        self._perform(cmd.DropChunks(member=TAKER, chunks=(self.id,)))

    def give(self, order: int, state: int, body: bool = False) -> None:
        self.lives[GIVER].worker.states[self.id] = state
        ids = (self.id,)
        self._perform(
            cmd.GiveChunks(
                member=GIVER,
                target=TAKER,
                address=self.lives[TAKER].worker.name,
                chunks=ids,
                bodies=ids if body else (),
                order=order,
            )
        )

    def state(self) -> int:
        return self.lives[TAKER].worker.states[self.id]


LOOP = asyncio.new_event_loop()
in_every_world = pytest.mark.parametrize(
    "stage",
    [Runtime, Pure],
)


@in_every_world
def test_an_owner_takes_no_state_of_its_chunks(stage: Callable[[], Stage]) -> None:
    world = stage()
    world.give(1001, 4)
    assert world.state() == 4
    world.own()
    world.give(1002, 5)
    assert world.state() == 4


@in_every_world
def test_a_state_of_an_older_order_changes_nothing(stage: Callable[[], Stage]) -> None:
    world = stage()
    world.give(1008, 4)
    world.give(1007, 3)
    assert world.state() == 4


@in_every_world
def test_a_chunk_that_was_given_away_may_return(stage: Callable[[], Stage]) -> None:
    world = stage()
    world.give(1001, 4)
    world.own()
    world.drop()
    world.give(1002, 6, body=True)
    assert world.state() == 6
