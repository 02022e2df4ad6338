"""Ways of one exchange without compute, with both sides of each: see ``exchange.py``.

In every way the model arrives at every worker (the answer depends on its first and last value), the
partial exists there already, and the root adds the partials in the order of the workers.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from distributed.core import ConnectionPool
from distributed.protocol import to_serialize
from numpy.typing import NDArray

from elasticml.collective.frames import Frame, Header, Kind
from elasticml.collective.shared_memory import SHARED_BYTES_MIN
from elasticml.collective.transport import Link
from elasticml.runtime.driver_agent import SUM_THREADS
from elasticml.runtime.executors import parallel
from elasticml.runtime.peer import Peer
from elasticml.training.array_buffers import merge_all

Vector = NDArray[np.float64]
Parts = dict[int, Vector]
Lendable = Callable[[int], Vector | None]

SIZE = struct.Struct("<q")


def ready_part(index: int, size: int) -> Vector:
    """Return the partial of worker ``index``."""
    return np.arange(size, dtype=float) + index


def answer(model: Vector, part: Vector) -> Vector:
    """Copy the first and last value of the model into the partial."""
    part[0], part[-1] = model[0], model[-1]
    return part


#: Vectors up to this length are added one by one as they arrive; longer ones together, which reads
#: memory only once.
EAGER_BYTES_MAX = 2**20


class Way(Protocol):
    """One way of exchanging."""

    async def exchange(self, model: Vector, total: Vector) -> float:
        """Send the model to all workers, sum their partials in ``total``; return the seconds."""
        ...


# --- Links of ours: streams -----------------------------------------------------


async def serve_link(link: Link, parts: Parts) -> None:
    """Answer every model on a link with the partial, until it closes."""
    models = {size: np.empty(size) for size in parts}

    def allocate(header: Header, prefix: Any) -> memoryview:
        return memoryview(models[header.payload_bytes // 8])

    def on_model(peer: Peer, frame: Frame) -> None:
        assert frame.payload is not None
        size = frame.payload.nbytes // 8
        peer.send(partial_of(frame, answer(models[size], parts[size])))

    await Peer(link, allocate, on_model, no_more).run()


async def serve_shared(link: Link, parts: Parts, lendable: Lendable) -> None:
    """Answer every model on a link with the partial, which is in shared memory already."""
    filled: dict[int, Vector] = {}
    ready = {size: ready_slot(part, filled, lendable) for size, part in parts.items()}

    def on_model(peer: Peer, frame: Frame) -> None:
        assert frame.payload is not None
        size = frame.payload.nbytes // 8
        peer.send(partial_of(frame, answer(np.frombuffer(frame.payload), ready.pop(size))))
        ready[size] = ready_slot(parts[size], filled, lendable)

    await Peer(link, buffer_for, on_model, no_more).run()


def partial_of(model: Frame, part: Vector) -> Frame:
    """Return the frame that answers a model."""
    payload = memoryview(part)
    return Frame(kind=Kind.PARTIAL, exchange=model.exchange, prefix={}, payload=payload)


def no_more(peer: Peer, reason: str) -> None:
    """Ignore the end of a link."""


def buffer_for(header: Header, prefix: Any) -> memoryview:
    """Return a buffer for a vector that comes through the link: only short ones do."""
    assert header.payload_bytes < SHARED_BYTES_MIN
    return memoryview(np.empty(header.payload_bytes // 8))


def ready_slot(vector: Vector, ready: dict[int, Vector], lendable: Lendable) -> Vector:
    """Return the vector in a shared slot, which ``ready`` records as filled; short ones unchanged.

    A slot that was filled before contains the same vector except for its first and last value.
    """
    slot = lendable(vector.nbytes)
    if slot is None:
        assert vector.nbytes < SHARED_BYTES_MIN
        return vector
    address = slot.ctypes.data
    if ready.get(address) is not vector:
        slot[:] = vector
        ready[address] = vector
    return slot


class SharedLinks:
    """A star of links between processes that share memory; vectors are summed in place."""

    def __init__(self, links: Sequence[Link], lendable: Lendable) -> None:
        self._lendable = lendable
        self._parallel = parallel(SUM_THREADS)
        self._ready: dict[int, Vector] = {}
        self._parts: list[Vector | None] = []
        self._n_missing = self._n_added = 0
        self._total = np.empty(0)
        self._exchange = 0
        self._complete = asyncio.get_running_loop().create_future()
        self._peers = [Peer(link, buffer_for, self._on_partial, no_more) for link in links]
        self._place_of = {peer: k for k, peer in enumerate(self._peers)}
        self._serving = [asyncio.create_task(peer.run()) for peer in self._peers]

    async def exchange(self, model: Vector, total: Vector) -> float:
        """See ``Way``; the model is put into its slot before, as a trainer packs it there."""
        slot = answer(model, ready_slot(model, self._ready, self._lendable))
        begin = time.perf_counter()
        self._exchange += 1
        self._parts, self._n_missing = [None] * len(self._peers), len(self._peers)
        self._n_added, self._total = 0, total
        self._complete = asyncio.get_running_loop().create_future()
        frame = Frame(kind=Kind.MODEL, exchange=self._exchange, prefix={}, payload=memoryview(slot))
        for peer in self._peers:
            peer.send(frame)
        await self._complete
        if total.nbytes > EAGER_BYTES_MAX:
            merge_all(
                [part for part in self._parts if part is not None], "sum", total, self._parallel
            )
        seconds = time.perf_counter() - begin
        self._parts, self._total = [], np.empty(0)
        return seconds

    def _on_partial(self, peer: Peer, frame: Frame) -> None:
        assert frame.payload is not None
        self._parts[self._place_of[peer]] = np.frombuffer(frame.payload)
        self._n_missing -= 1
        if self._total.nbytes <= EAGER_BYTES_MAX:
            self._add()
        if self._n_missing == 0:
            self._complete.set_result(None)

    def _add(self) -> None:
        """Add what has arrived, in the order of the workers, while others are still arriving."""
        n, parts, total = self._n_added, self._parts, self._total
        while n < len(parts) and (part := parts[n]) is not None:
            if n == 1:
                np.add(parts[0], part, out=total)
            elif n > 1 or len(parts) == 1:
                merge_all([part] if n == 0 else [total, part], "sum", total)
            n += 1
        self._n_added = n


class Links:
    """A star of links with the root in this process and a reader per link."""

    def __init__(self, links: Sequence[Link], sizes: Sequence[int]) -> None:
        self._parts = {size: [np.empty(size) for _ in links] for size in sizes}
        self._here = [False] * len(links)
        self._n_added = 0
        self._exchange = 0
        self._total = np.empty(0)
        self._summed = asyncio.get_running_loop().create_future()
        self._peers = [self._peer(k, link) for k, link in enumerate(links)]
        self._serving = [asyncio.create_task(peer.run()) for peer in self._peers]

    async def exchange(self, model: Vector, total: Vector) -> float:
        """See ``Way``."""
        begin = time.perf_counter()
        self._exchange += 1
        self._here = [False] * len(self._peers)
        self._n_added, self._total = 0, total
        self._summed = asyncio.get_running_loop().create_future()
        frame = Frame(
            kind=Kind.MODEL, exchange=self._exchange, prefix={}, payload=memoryview(model)
        )
        for peer in self._peers:
            peer.send(frame)
        await self._summed
        return time.perf_counter() - begin

    def _peer(self, k: int, link: Link) -> Peer:
        def allocate(header: Header, prefix: Any) -> memoryview:
            return memoryview(self._parts[header.payload_bytes // 8][k] if k else self._total)

        def on_partial(peer: Peer, frame: Frame) -> None:
            self._here[k] = True
            self._add()

        return Peer(link, allocate, on_partial, no_more)

    def _add(self) -> None:
        """Add what has arrived, in the order of the workers; the first is in the total."""
        parts = self._parts[self._total.size]
        while self._n_added < len(self._here) and self._here[self._n_added]:
            if self._n_added:
                self._total += parts[self._n_added]
            self._n_added += 1
        if self._n_added == len(self._here):
            self._summed.set_result(None)


# --- Direct RPC -----------------------------------------------------------------------------------


def rpc_handler(parts: Parts) -> Any:
    """Return the handler that a worker registers as ``bench_partial``."""

    async def bench_partial(model: Vector) -> dict[str, Any]:
        return {"partial": to_serialize(answer(model, parts[model.size]))}

    return bench_partial


class Rpc:
    """Calls of a handler on each worker over pooled comms."""

    def __init__(self, pool: ConnectionPool, addresses: Sequence[str]) -> None:
        self._pool, self._addresses = pool, addresses

    async def exchange(self, model: Vector, total: Vector) -> float:
        """See ``Way``."""
        begin = time.perf_counter()
        replies = await asyncio.gather(
            *(self._pool(a).bench_partial(model=to_serialize(model)) for a in self._addresses)
        )
        add_all([reply["partial"] for reply in replies], total)
        return time.perf_counter() - begin


def add_all(parts: Sequence[Vector], total: Vector) -> None:
    """Sum the parts in ``total``."""
    total[:] = parts[0]
    for part in parts[1:]:
        total += part


# --- Bare sockets ---------------------------------------------------------------------------------


def serve_socket(address: tuple[str, int], index: int, parts: Parts) -> None:
    """Answer every model on a blocking socket, until it closes; runs in a thread."""
    models = {size: np.empty(size) for size in parts}
    head = bytearray(SIZE.size)
    with socket.create_connection(address) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.sendall(SIZE.pack(index))
        while read_exactly(peer, memoryview(head)):
            (size,) = SIZE.unpack(head)
            if not read_exactly(peer, memoryview(models[size]).cast("B")):
                return
            peer.sendall(memoryview(answer(models[size], parts[size])).cast("B"))


def read_exactly(peer: socket.socket, buffer: memoryview) -> bool:
    """Fill the buffer; False when the peer has closed."""
    start = 0
    while start < len(buffer):
        n = peer.recv_into(buffer[start:], flags=socket.MSG_WAITALL)
        if n == 0:
            return False
        start += n
    return True


class Bare:
    """Blocking sockets from one thread; no event loop, and a size instead of frames."""

    def __init__(self, peers: Sequence[socket.socket], sizes: Sequence[int]) -> None:
        self._peers = peers
        self._parts = {size: np.empty(size) for size in sizes}

    async def exchange(self, model: Vector, total: Vector) -> float:
        """See ``Way``; the time is that in the thread, without the switch to it."""
        return await asyncio.to_thread(self._exchange, model, total)

    def _exchange(self, model: Vector, total: Vector) -> float:
        begin = time.perf_counter()
        head, payload = SIZE.pack(model.size), memoryview(model).cast("B")
        for peer in self._peers:
            n = peer.sendmsg([head, payload]) - len(head)
            if n < len(payload):
                peer.sendall(payload[n:])
        part = self._parts[model.size]
        read_exactly(self._peers[0], memoryview(total).cast("B"))
        for peer in self._peers[1:]:
            read_exactly(peer, memoryview(part).cast("B"))
            total += part
        return time.perf_counter() - begin
