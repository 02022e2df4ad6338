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
from numpy.typing import NDArray

from elasticml.collective.frames import Frame, Header, Kind
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


# --- Links of ours ---------------------------------------------------------------------------


def no_slot(nbytes: int) -> None:
    """Lend nothing, as a link without shared memory."""


async def serve_links(link: Link, parts: Parts, lendable: Lendable) -> None:
    """Answer every model on a link with the partial, in shared memory where the link lends it."""
    models = {size: np.empty(size) for size in parts}
    filled: dict[int, Vector] = {}
    ready = {size: ready_slot(part, filled, lendable) for size, part in parts.items()}

    def allocate(header: Header, prefix: Any) -> memoryview:
        return memoryview(models[header.payload_bytes // 8])

    def on_model(peer: Peer, frame: Frame) -> None:
        assert frame.payload is not None
        model = np.frombuffer(frame.payload)
        payload = memoryview(answer(model, ready.pop(model.size)))
        peer.send(Frame(kind=Kind.PARTIAL, exchange=frame.exchange, prefix={}, payload=payload))
        ready[model.size] = ready_slot(parts[model.size], filled, lendable)

    await Peer(link, allocate, on_model, no_more).run()


def no_more(peer: Peer, reason: str) -> None:
    """Ignore the end of a link."""


def ready_slot(vector: Vector, ready: dict[int, Vector], lendable: Lendable) -> Vector:
    """Return the vector in a shared slot, which ``ready`` records as filled, or as it is.

    A slot that was filled before contains the same vector except for its first and last value.
    """
    slot = lendable(vector.nbytes)
    if slot is None:
        return vector
    address = slot.ctypes.data
    if ready.get(address) is not vector:
        slot[:] = vector
        ready[address] = vector
    return slot


class Links:
    """A star of links with the root in this process; with shared memory vectors stay in place."""

    def __init__(self, links: Sequence[Link], sizes: Sequence[int], lendable: Lendable) -> None:
        self._lendable = lendable
        # Through a stream long vectors arrive one after the other, and are added meanwhile.
        self._eager_bytes_max = np.inf if lendable is no_slot else EAGER_BYTES_MAX
        self._parallel = parallel(SUM_THREADS)
        self._ready: dict[int, Vector] = {}
        self._buffers = {size: [np.empty(size) for _ in links] for size in sizes}
        self._parts: list[Vector | None] = []
        self._n_missing = self._n_added = self._exchange = 0
        self._total = np.empty(0)
        self._complete = asyncio.get_running_loop().create_future()
        self._peers = [self._peer(k, link) for k, link in enumerate(links)]
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
        if total.nbytes > self._eager_bytes_max:
            merge_all(
                [part for part in self._parts if part is not None], "sum", total, self._parallel
            )
        seconds = time.perf_counter() - begin
        self._parts, self._total = [], np.empty(0)
        return seconds

    def _peer(self, k: int, link: Link) -> Peer:
        def allocate(header: Header, prefix: Any) -> memoryview:
            return memoryview(self._buffers[header.payload_bytes // 8][k])

        def on_partial(peer: Peer, frame: Frame) -> None:
            assert frame.payload is not None
            self._parts[k] = np.frombuffer(frame.payload)
            self._n_missing -= 1
            if self._total.nbytes <= self._eager_bytes_max:
                self._add()
            if self._n_missing == 0:
                self._complete.set_result(None)

        return Peer(link, allocate, on_partial, no_more)

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
