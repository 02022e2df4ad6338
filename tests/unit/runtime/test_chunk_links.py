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
from elasticml.errors import ConfigError, RemoteProtocolError
from elasticml.ids import ChunkId, Generation, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.runtime.chunks.chunk_links import ChunkTransport
from elasticml.runtime.chunks.chunk_store import ChunkStore
from tests.socket_pair import SocketTransport
from tests.unit.data.chunks.test_lazy_body import damaged_chunk, mapped_chunk, random_chunk

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
        self.now_s = 0.0
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

        return ChunkTransport(member, "job", self.stores[member], endpoint, self.clock, feed)

    def clock(self) -> float:
        return self.now_s

    def feed(self, member: MemberId, event: ev.Event | cmd.Order) -> None:
        """Let a machine handle an event, and perform what it commands of transfers."""
        ends = self.ends[member]
        for command in self.machines[member].handle(event, self.now_s):
            match command:
                case cmd.GiveChunks():
                    self.spawn(ends.give(command))
                case fx.SendCopy():
                    self.spawn(ends.copy(command))
                case fx.After():
                    self.spawn(self.wait(member, command.seconds))
                case _:
                    perform(command, ends, self.reports)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def wait(self, member: MemberId, seconds: float) -> None:
        self.now_s += seconds
        self.feed(member, fx.TimeUp())

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

    async def copy(self, ids: list[int], bytes_per_s: float = 50e6) -> None:
        chunks = tuple(name(k) for k in ids)
        self.feed(
            GIVER,
            cmd.CopyChunks(
                member=GIVER,
                target=TAKER,
                address="1.1",
                chunks=chunks,
                nbytes=(chunk(0).nbytes,) * len(ids),
                order=9,
                bytes_per_s=bytes_per_s,
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


def perform(command: cmd.Command, ends: ChunkTransport, reports: list[ev.Event]) -> None:
    """Perform what a machine commands at the end of a transfer."""
    match command:
        case fx.Report():
            reports.append(command.event)
        case fx.StoreChunks():
            ends.store(command)
        case fx.SetStates():
            ends.set_states(command)
        case _:
            raise AssertionError(command)


def loaded(report: ev.Event) -> tuple[list[int], int | None]:
    assert isinstance(report, ev.ChunksLoaded)
    return [id.ordinal for id in report.chunks], report.order


async def test_a_move_sends_state_and_body_and_leaves_the_giver_its_copy() -> None:
    pair = Pair()
    pair.stores[GIVER].put([chunk(1, **alpha(1)), chunk(2)])
    await pair.give([1, 2], [1, 2])
    (report,) = await pair.reported(1)
    actual, left = pair.stores[TAKER].chunks, pair.stores[GIVER].chunks
    assert loaded(report) == ([1, 2], 1)
    assert bytes(actual[name(1)].body) == bytes(left[name(1)].body)
    assert actual[name(1)].state["alpha"].tolist() == [1.0] * ROWS
    assert actual[name(2)].state == {}
    assert left[name(1)].state["alpha"].tolist() == [1.0] * ROWS


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


async def test_to_a_holder_only_the_states_are_sent() -> None:
    pair = Pair()
    for store in pair.stores.values():
        store.put([chunk(k, **alpha(0)) for k in range(20)])
    for k in range(20):
        pair.stores[GIVER].chunks[name(k)].state = alpha(k)
    await pair.give(list(range(20)), [])
    (report,) = await pair.reported(1)
    assert isinstance(report, ev.ChunksLoaded)
    assert (len(report.chunks), report.nbytes) == (20, 20 * (8 * ROWS + 8))
    states = [pair.stores[TAKER].chunks[name(k)].state["serial"][0] for k in range(20)]
    assert states == list(range(20))


@pytest.mark.parametrize(
    ("given", "held", "is_owner", "bodies", "kept"),
    [
        (None, 7, False, [], None),  # a holder forgets an old state when the owner has none
        (4, 5, True, [], 5),  # an owner accepts no states of its chunks
        (4, 3, False, [1], 4),  # an existing body is kept and gets the new state
    ],
)
async def test_a_holder_has_the_state_of_the_owner(
    given: int | None, held: int, is_owner: bool, bodies: list[int], kept: int | None
) -> None:
    pair, here = Pair(), chunk(1, **alpha(held))
    pair.stores[GIVER].put([chunk(1, **({} if given is None else alpha(given)))])
    pair.stores[TAKER].put([here])
    if is_owner:
        own = cmd.Own(member=TAKER, generation=Generation(1), chunks=(name(1),))
        pair.machines[TAKER].handle(own, 0.0)
    await pair.give([1], bodies)
    await pair.reported(1)
    assert pair.stores[TAKER].chunks[name(1)] is here
    assert [int(k) for k in here.state.get("serial", [])] == ([] if kept is None else [kept])


async def test_a_state_of_an_older_order_than_the_last_changes_nothing() -> None:
    pair = Pair()
    pair.stores[GIVER].put([chunk(1, **alpha(4))])
    pair.stores[TAKER].put([chunk(1)])
    await pair.give([1], [], order=8)
    pair.stores[GIVER].chunks[name(1)].state = alpha(3)
    await pair.give([1], [], order=7)
    await pair.reported(2)
    assert pair.stores[TAKER].chunks[name(1)].state["serial"].tolist() == [4]


async def test_complete_parts_from_a_vanished_giver_are_kept_and_the_rest_is_not() -> None:
    pair = Pair()
    link = await pair.network["0.1"].connect("1.1", {"from": "0.1", "kind": "chunks"})
    sizes = [chunk(k).nbytes for k in (2, 3)]
    prefix = {"order": 1, "chunks": ["s/0/2", "s/0/3"], "bodies": [0, 1], "sizes": sizes}
    await link.send(Frame(kind=Kind.CHUNK, prefix=prefix))
    await link.send(Frame(kind=Kind.CHUNK, prefix={}, payload=chunk(2).stored))
    link.close()
    report, *others = await pair.reported(1)
    assert loaded(report) == ([2], 1)
    of_rest = [other for other in others if other.chunks == (name(3),)]
    assert [type(other) for other in of_rest] == [ev.MoveFailed] * len(of_rest)
    assert sorted(pair.stores[TAKER].chunks) == [name(2)]


async def test_a_giver_with_a_broken_link_reports_the_failed_order_and_keeps_all() -> None:
    pair = Pair()
    pair.stores[GIVER].put([chunk(1)])
    pair.network["1.1"].close()
    await pair.give([1], [1], order=5)
    assert [(type(r), r.order) for r in pair.reports] == [(ev.MoveFailed, 5)]  # type: ignore[attr-defined]
    assert list(pair.stores[GIVER].chunks) == [name(1)]


async def test_a_state_for_a_missing_body_is_no_move() -> None:
    pair = Pair()
    pair.stores[GIVER].put([chunk(1), chunk(2)])
    pair.stores[TAKER].put([chunk(2)])
    await pair.give([1, 2], [])
    failed, done = await pair.reported(2)
    assert isinstance(failed, ev.MoveFailed)
    assert (failed.member, failed.target, failed.chunks) == (GIVER, TAKER, (name(1),))
    assert loaded(done) == ([2], 1)


async def test_a_copy_sends_the_body_alone_and_touches_no_state() -> None:
    pair = Pair()
    here = chunk(1, **alpha(3))
    pair.stores[GIVER].put([chunk(1, **alpha(9)), chunk(2, **alpha(9))])
    pair.stores[TAKER].put([here])
    await pair.copy([1, 2])
    (report,) = await pair.reported(1)
    assert loaded(report) == ([1, 2], 9)
    assert here.state["serial"].tolist() == [3]
    assert pair.stores[TAKER].chunks[name(2)].state == {}


async def test_copies_keep_to_the_rate_of_their_order() -> None:
    pair = Pair()
    pair.stores[GIVER].put([chunk(k) for k in range(10)])
    nbytes = chunk(0).nbytes
    await pair.copy(list(range(10)), bytes_per_s=nbytes / 2.0)
    await pair.reported(1)
    assert (
        17.0 < pair.now_s <= 18.0
    )  # the first begins at once, and the last one was not waited for


async def test_a_move_overtakes_copies_in_transit() -> None:
    pair = Pair()
    pair.stores[GIVER].put([chunk(k) for k in range(30)])
    arrived: list[ev.Event] = pair.reports
    copying = asyncio.ensure_future(pair.copy(list(range(29))))
    await asyncio.sleep(0)
    await pair.give([29], [29])
    await pair.reported(2)
    await copying
    assert [loaded(report)[1] for report in arrived] == [1, 9]


async def test_copies_that_do_not_fit_are_refused_and_the_job_continues() -> None:
    pair = Pair(taker_limit=chunk(0).nbytes)
    pair.stores[GIVER].put([chunk(1), chunk(2)])
    await pair.copy([1, 2])
    (failed,) = await pair.reported(1)
    assert isinstance(failed, ev.MoveFailed)
    assert (failed.member, failed.target, failed.order) == (GIVER, TAKER, 9)
    assert pair.stores[TAKER].chunks == {}


@pytest.mark.parametrize("purpose", ["move", "copy"])
async def test_a_damaged_body_is_a_failed_order_and_the_next_order_has_a_new_link(
    purpose: str, tmp_path: Path
) -> None:
    pair = Pair()
    store = pair.stores[GIVER]
    store.limit_bytes, store.out_of_core = 10, OutOfCoreStore(2**20, tmp_path, lambda: 0)
    sound = mapped_chunk(random_chunk(0))
    store.put([sound, damaged_chunk(1)])
    ids = (sound.id, ChunkId("random", 0, 1))
    order = cmd.GiveChunks(
        member=GIVER, target=TAKER, address="1.1", chunks=ids, bodies=ids, order=1
    )
    again = cmd.GiveChunks(
        member=GIVER, target=TAKER, address="1.1", chunks=ids[:1], bodies=ids[:1], order=2
    )
    if purpose == "copy":
        rate = {"member": GIVER, "target": TAKER, "address": "1.1", "bytes_per_s": 5e7}
        nbytes = tuple(store.chunks[id].nbytes for id in ids)
        order = cmd.CopyChunks(**rate, chunks=ids, nbytes=nbytes, order=1)
        again = cmd.CopyChunks(**rate, chunks=ids[:1], nbytes=nbytes[:1], order=2)
    pair.feed(GIVER, order)
    await pair.sent()
    await pair.reported(1)
    failed = [r for r in pair.reports if isinstance(r, ev.MoveFailed) and r.member == GIVER]
    assert any("DataError" in r.reason and "is damaged" in r.reason for r in failed)
    pair.feed(GIVER, again)
    await pair.sent()
    await pair.until(
        lambda: any(loaded(r)[1] == 2 for r in pair.reports if isinstance(r, ev.ChunksLoaded))
    )
    assert list(pair.stores[TAKER].chunks) == [sound.id]


@pytest.mark.parametrize(
    "error",
    [ConfigError("no stream"), RemoteProtocolError("version 9"), OSError("no descriptors")],
    ids=lambda error: type(error).__name__,
)
async def test_a_link_that_cannot_be_opened_is_a_failed_order_whatever_the_reason(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair()
    pair.stores[GIVER].put([chunk(1)])

    async def refuse(address: str, hello: object) -> None:
        raise error

    with monkeypatch.context() as refused:
        refused.setattr(pair.network["0.1"], "connect", refuse)
        await pair.give([1], [1], order=5)
        (failed,) = await pair.reported(1)
    assert isinstance(failed, ev.MoveFailed)
    assert (failed.order, type(error).__name__ in failed.reason) == (5, True)
    await pair.give([1], [1], order=6)
    assert loaded((await pair.reported(2))[1]) == ([1], 6)


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
