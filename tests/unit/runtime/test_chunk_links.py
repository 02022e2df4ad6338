"""Chunks from member to member: complete parts count, incomplete ones stay with the giver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.collective.frames import Frame, Kind
from elasticml.control import effects as fx
from elasticml.control.member_machine import Member
from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.data.out_of_core.store import OutOfCoreStore
from elasticml.ids import ChunkId, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.runtime.chunks.chunk_links import ChunkTransport
from elasticml.runtime.chunks.chunk_store import ChunkStore
from tests.socket_pair import SocketTransport
from tests.unit.data.chunks.test_chunk import damaged_chunk, mapped_chunk, random_chunk

pytestmark = pytest.mark.asyncio

GIVER, TAKER = MemberId(0, 1), MemberId(1, 1)
ROWS = 4


def name(k: int) -> ChunkId:
    return ChunkId("s", 0, k)


def chunk(k: int, **state: np.ndarray) -> Chunk:
    made = dense_chunk(name(k), np.full(ROWS, float(k)), np.full((ROWS, 3), float(k)))
    made.state = state
    return made


def alpha(k: int) -> dict[str, np.ndarray]:
    return {"alpha": np.full(ROWS, float(k)), "serial": np.array([k])}


class Pair:
    """A giver and a taker on one network."""

    def __init__(self, taker_limit: int | None = None) -> None:
        self.network: dict[str, SocketTransport] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.reports: list[ev.Event] = []
        self.stores = {GIVER: ChunkStore(), TAKER: ChunkStore(taker_limit)}
        self.machines = {m: Member(m, store) for m, store in self.stores.items()}
        self.ends = {member: self._end(member) for member in (GIVER, TAKER)}
        self.network["1.1"].listen(self.ends[TAKER].receive)

    def _end(self, member: MemberId) -> ChunkTransport:
        endpoint = SocketTransport(str(member), self.network)

        def feed(event: ev.Event) -> None:
            self.feed(member, event)

        return ChunkTransport(member, "job", self.stores[member], endpoint, lambda: 0.0, feed)

    def feed(self, member: MemberId, event: ev.Event | cmd.Order) -> None:
        """Let a machine handle an event, and perform what it commands of transfers."""
        ends = self.ends[member]
        for command in self.machines[member].handle(event, 0.0):
            match command:
                case cmd.GiveChunks():
                    self.spawn(ends.give(command))
                case fx.Report():
                    self.reports.append(command.event)
                case fx.StoreChunks():
                    ends.store(command)
                case fx.SetStates():
                    ends.set_states(command)
                case _:
                    raise AssertionError(command)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def sent(self) -> None:
        """Wait until no order is being performed."""
        while self.tasks:
            await asyncio.wait(self.tasks)

    async def give(self, ids: list[int], bodies: list[int], order: int = 1) -> None:
        self.feed(
            GIVER,
            cmd.GiveChunks(
                member=GIVER,
                target=TAKER,
                address="1.1",
                chunks=tuple(name(k) for k in ids),
                bodies=tuple(name(k) for k in bodies),
                order=order,
            ),
        )
        await self.sent()

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            await asyncio.sleep(0)

    async def reported(self, n: int) -> list[ev.Event]:
        await self.until(lambda: len(self.reports) >= n)
        for _ in range(20):
            await asyncio.sleep(0)
        return self.reports


def loaded(report: ev.Event) -> tuple[list[int], int | None]:
    assert isinstance(report, ev.ChunksLoaded)
    return [id.ordinal for id in report.chunks], report.order


async def test_out_of_core_chunks_move_with_their_states(tmp_path: Path) -> None:
    pair = Pair(taker_limit=10)
    for member, store in pair.stores.items():
        store.limit_bytes, store.out_of_core = 10, OutOfCoreStore(2**20, tmp_path, lambda: 0)
        assert store.is_out_of_core is False, member
    pair.stores[GIVER].put([chunk(k, **alpha(k)) for k in range(5)])
    await pair.give([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    (report,) = await pair.reported(1)
    actual, left = pair.stores[TAKER].chunks, pair.stores[GIVER].chunks
    assert loaded(report) == ([0, 1, 2, 3, 4], 1)
    for k in range(5):
        assert actual[name(k)].out_of_core is pair.stores[TAKER].out_of_core
        assert left[name(k)].is_mapped
        assert bytes(actual[name(k)].body) == bytes(left[name(k)].body)
        assert actual[name(k)].state["alpha"].tolist() == [float(k)] * ROWS
    pair.stores[GIVER].drop([name(k) for k in range(5)])
    assert actual[name(4)].values.tolist() == [[4.0] * 3] * ROWS
    assert list(tmp_path.iterdir()) == []


async def test_a_state_of_an_older_order_than_the_last_changes_nothing() -> None:
    pair = Pair()
    pair.stores[GIVER].put([chunk(1, **alpha(4))])
    pair.stores[TAKER].put([chunk(1)])
    await pair.give([1], [], order=8)
    pair.stores[GIVER].chunks[name(1)].state = alpha(3)
    await pair.give([1], [], order=7)
    await pair.reported(2)
    assert pair.stores[TAKER].chunks[name(1)].state["serial"].tolist() == [4]


async def test_a_state_for_a_missing_body_is_no_move() -> None:
    pair = Pair()
    pair.stores[GIVER].put([chunk(1), chunk(2)])
    pair.stores[TAKER].put([chunk(2)])
    await pair.give([1, 2], [])
    failed, done = await pair.reported(2)
    assert isinstance(failed, ev.MoveFailed)
    assert (failed.member, failed.target, failed.chunks) == (GIVER, TAKER, (name(1),))
    assert loaded(done) == ([2], 1)


async def test_a_damaged_body_is_a_failed_order_and_the_next_order_has_a_new_link(
    tmp_path: Path,
) -> None:
    pair = Pair()
    store = pair.stores[GIVER]
    store.limit_bytes, store.out_of_core = 10, OutOfCoreStore(2**20, tmp_path, lambda: 0)
    sound = mapped_chunk(random_chunk(0))
    store.put([sound, damaged_chunk(1)])
    ids = (sound.id, ChunkId("random", 0, 1))
    for order, some in ((1, ids), (2, ids[:1])):
        give = cmd.GiveChunks(
            member=GIVER, target=TAKER, address="1.1", chunks=some, bodies=some, order=order
        )
        pair.feed(GIVER, give)
        await pair.sent()
        await pair.reported(order)
    failed = [r for r in pair.reports if isinstance(r, ev.MoveFailed) and r.member == GIVER]
    assert any("DataError" in r.reason and "is damaged" in r.reason for r in failed)
    await pair.until(
        lambda: any(loaded(r)[1] == 2 for r in pair.reports if isinstance(r, ev.ChunksLoaded))
    )
    assert list(pair.stores[TAKER].chunks) == [sound.id]


async def test_a_body_against_the_protocol_is_reported_although_its_sender_has_sent_all() -> None:
    pair = Pair()
    link = await pair.network["0.1"].connect("1.1", {"from": "0.1", "kind": "chunks"})
    body = chunk(1).stored
    prefix = {"order": 3, "chunks": ["s/0/1"], "bodies": [0], "sizes": [9]}
    await link.send(Frame(kind=Kind.CHUNK, prefix=prefix))
    await link.send(Frame(kind=Kind.CHUNK, prefix={}, payload=body))
    (failed,) = await pair.reported(1)
    assert isinstance(failed, ev.MoveFailed)
    assert (failed.member, failed.order) == (GIVER, 3)
    assert "RemoteProtocolError" in failed.reason
