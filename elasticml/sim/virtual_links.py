"""Links between virtual processes: the real frames over virtual sockets, or frames as they are.

A virtual socket is a connected TCP socket: bytes in order, a send buffer, the end of the stream.
The real ``SocketLink`` reads and writes it. In worlds of thousands of members in which only costs
matter, a ``FrameLink`` passes on the frames themselves, and the network is charged what they
represent.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elasticml.collective.frames import Frame, Kind
from elasticml.collective.socket_link import SocketLink
from elasticml.collective.transport import (
    CONNECT_S_MAX,
    Allocate,
    Link,
    LinkClosedError,
    OnLink,
)
from elasticml.errors import ProtocolError
from elasticml.runtime.frame_payloads import vector_of
from elasticml.sim.cost_only_job import DOWN_VALUES, UP_VALUES
from elasticml.sim.network import Port
from elasticml.sim.virtual_process import VirtualProcess

#: Bytes that the kernel takes before they have left: as much as Linux lets a send buffer grow.
SEND_BUFFER_BYTES = 4 << 20


class SendBuffer:
    """The bytes that a process has sent on a connection and that have not left its host.

    Parameters
    ----------
    process : VirtualProcess
        The sender.
    port : Port
        Its end of the connection.
    """

    def __init__(self, process: VirtualProcess, port: Port) -> None:
        self.port = port
        self.process = process
        self._loop = process.environment.loop
        self._card = process.endpoint.card
        #: When bytes have left, and how many.
        self._leaving: deque[tuple[float, int]] = deque()
        self._unsent_bytes = 0

    def send(self, message: Any, nbytes: int) -> None:
        """Pass a message to the network."""
        self._unsent_bytes += nbytes
        self.process.do(self._carry, message, nbytes)

    def _carry(self, message: Any, nbytes: int) -> None:
        self.port.send(message, nbytes)
        is_near = self._card is self.port.peer.owner.card
        left_s = self._loop.now_s if is_near else self._card.up_free_s
        self._leaving.append((left_s, nbytes))

    def unsent_bytes(self) -> int:
        """Return the bytes that have not left."""
        now_s = self._loop.now_s
        while self._leaving and self._leaving[0][0] <= now_s:
            self._unsent_bytes -= self._leaving.popleft()[1]
        return self._unsent_bytes

    def room_s(self) -> float:
        """Return when the next bytes will have left."""
        return self._leaving[0][0] if self._leaving else self.process.busy_until_s


class VirtualSocket:
    """One end of a connection, with the methods of a socket that a link uses.

    Parameters
    ----------
    process : VirtualProcess
        Its owner.
    port : Port
    """

    def __init__(self, process: VirtualProcess, port: Port) -> None:
        self.process = process
        self.buffer = SendBuffer(process, port)
        self._loop = process.environment.loop
        self._network = process.environment.network
        self._port = port
        self._descriptor = self._loop.register(self)
        self._arrived: deque[memoryview] = deque()
        self._is_ended = False
        self._reader: Callable[[], None] | None = None
        self._writer: Callable[[], None] | None = None
        port.on_message, port.on_closed = self._on_bytes, self._on_end

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def unsent_bytes(self, descriptor: int) -> int:
        """Return the bytes that have not left this host."""
        return self.buffer.unsent_bytes()

    def close(self) -> None:
        """Close this end."""
        self._loop.forget(self._descriptor)
        self._reader = self._writer = None
        self.process.do(self._port.close)

    # --- out ------------------------------------------------------------------------------------

    def sendmsg(self, parts: Sequence[memoryview]) -> int:
        """Send what the buffer has room for; return how many bytes those are."""
        if self._is_ended or not self._port.is_open:
            raise BrokenPipeError("closed by the peer")
        whole = b"".join(parts)
        room = SEND_BUFFER_BYTES - self.buffer.unsent_bytes()
        if room <= 0:
            raise BlockingIOError
        taken = whole[:room]
        self.buffer.send(taken, len(taken))
        return len(taken)

    def watch_writes(self, callback: Callable[[], None] | None) -> bool:
        """Call back while there is room; return whether something was called back before."""
        was, self._writer = self._writer is not None, callback
        if callback is not None:
            self._loop.at(self.buffer.room_s(), self._on_room)
        return was

    def _on_room(self) -> None:
        self._network.perform(self.process.endpoint, self._write)

    def _write(self) -> None:
        if self._writer is not None:
            self.process.enter(self._writer)
            if self._writer is not None:
                self.watch_writes(self._writer)

    # --- in -------------------------------------------------------------------------------------

    def _on_bytes(self, message: bytes) -> None:
        self._arrived.append(memoryview(message))
        self._read()

    def _on_end(self) -> None:
        self._is_ended = True
        self._read()

    def watch_reads(self, callback: Callable[[], None] | None) -> bool:
        """Call back while there is something; return whether something was called back before."""
        was, self._reader = self._reader is not None, callback
        if callback is not None and (self._arrived or self._is_ended):
            self._loop.after(0.0, self._network.perform, self.process.endpoint, self._read)
        return was

    def _read(self) -> None:
        while self._reader is not None and (self._arrived or self._is_ended):
            self.process.enter(self._reader)

    def recv_into(self, room: memoryview) -> int:
        """Receive into a buffer; return how many bytes came, 0 at the end of the stream."""
        arrived, n, size = self._arrived, 0, len(room)
        while arrived and n < size:
            first = arrived[0]
            n_taken = min(len(first), size - n)
            room[n : n + n_taken] = first[:n_taken]
            n += n_taken
            if n_taken == len(first):
                arrived.popleft()
            else:
                arrived[0] = first[n_taken:]
        if n == 0 and not self._is_ended:
            raise BlockingIOError
        return n

    def recv(self, size: int, flags: int) -> bytes:
        """Look at the next bytes."""
        if not self._arrived and not self._is_ended:
            raise BlockingIOError
        return bytes(self._arrived[0][:size]) if self._arrived else b""


# --- frames as they are -------------------------------------------------------------------------

#: An order, an event, or what surrounds the arrays in a frame.
CONTROL_BYTES = 256
#: A chunk's id in a message.
ID_BYTES = 24


class FrameSizes:
    """The bytes that the frames of a job of costs alone represent."""

    def __init__(self) -> None:
        #: Doubles that a partial of an exchange represents.
        self._up_values: dict[int, int] = {}

    def of(self, frame: Frame) -> int:
        """Return the bytes of a frame."""
        payload = 0 if frame.payload is None else frame.payload.nbytes
        if frame.kind is Kind.MODEL:
            parameters = frame.prefix["parameters"]
            up = parameters.get(UP_VALUES)
            if up is not None:
                self._up_values[frame.exchange] = up
            payload = 8 * parameters.get(DOWN_VALUES, payload // 8)
        elif frame.kind is Kind.PARTIAL:
            payload = 8 * self._up_values.get(frame.exchange, payload // 8)
        elif frame.kind is Kind.CONTROL:
            names = frame.prefix.get("chunks") or frame.prefix.get("holdings") or ()
            payload = ID_BYTES * len(names)
        return CONTROL_BYTES + payload


class FrameLink:
    """Passes frames to the other end; see ``transport.Link``.

    Parameters
    ----------
    process : VirtualProcess
        The owner of this end.
    port : Port
    peer : str
        The other end's address.
    hello : mapping
    sizes : FrameSizes
    """

    piece_bytes: int | None = None

    def __init__(
        self,
        process: VirtualProcess,
        port: Port,
        peer: str,
        hello: Mapping[str, Any],
        sizes: FrameSizes,
    ) -> None:
        self.hello = hello
        self.peer = peer
        self.sent_bytes = 0
        self.closed = asyncio.Event()
        self._process = process
        self._port = port
        self._sizes = sizes
        self._arrived: deque[Frame] = deque()
        self._on_frame: Callable[[Frame], None] | None = None
        self._ended: asyncio.Future[Any] | None = None
        port.on_message, port.on_closed = self._arrive, self._end

    @property
    def direct(self) -> FrameLink:
        """This link; see ``transport.Link``."""
        return self

    @property
    def unsent_bytes(self) -> int:
        """Return 0: unknown."""
        return 0

    async def send(self, frame: Frame) -> None:
        """Send a frame; see ``transport.Link``."""
        self.start(frame)

    def start(self, frame: Frame) -> None:
        """Send a frame; see ``transport.Direct``."""
        if not self._port.is_open:
            raise LinkClosedError(f"the link to {self.peer} is closed")
        nbytes = self._sizes.of(frame)
        self.sent_bytes += nbytes
        if frame.payload is not None and frame.kind is not Kind.CHUNK:
            # The sender reuses its memory; only bodies do not change.
            copied = vector_of(frame).copy().data
            frame = Frame(
                kind=frame.kind, exchange=frame.exchange, prefix=frame.prefix, payload=copied
            )
        self._process.do(self._port.send, frame, nbytes)

    async def receive(self, allocate: Allocate) -> Frame:
        """Receive the next frame; see ``transport.Link``."""
        frame: Frame = await self._watch(allocate, self._received)
        return frame

    async def serve(self, allocate: Allocate, on_frame: Callable[[Frame], None]) -> None:
        """Receive all frames; see ``transport.Direct``."""
        await self._watch(allocate, on_frame)

    async def _watch(self, allocate: Allocate, on_frame: Callable[[Frame], None]) -> Any:
        self._on_frame = on_frame
        ended = self._ended = asyncio.get_running_loop().create_future()
        self._hand_over()
        try:
            return await ended
        except BaseException:
            self.close()
            raise
        finally:
            self._on_frame = self._ended = None

    def _received(self, frame: Frame) -> None:
        self._on_frame = None
        assert self._ended is not None
        self._ended.set_result(frame)

    def _arrive(self, frame: Frame) -> None:
        self._arrived.append(frame)
        if self._on_frame is not None:
            self._process.enter(self._hand_over)

    def _hand_over(self) -> None:
        while self._arrived and self._on_frame is not None:
            try:
                self._on_frame(self._arrived.popleft())
            except Exception as fault:
                self._on_frame = None
                if self._ended is not None and not self._ended.done():
                    self._ended.set_exception(fault)
        if not self._port.is_open and not self._arrived:
            self._fail()

    def _end(self) -> None:
        self._process.enter(self._hand_over)

    def _fail(self) -> None:
        self.closed.set()
        self._on_frame = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(LinkClosedError(f"the link to {self.peer} is closed"))

    def close(self) -> None:
        """Close this end."""
        if not self.closed.is_set():
            self._process.do(self._port.close)
            self._arrived.clear()
            self._fail()


class VirtualTransport:
    """Opens links between virtual processes; see ``transport.Transport``.

    Parameters
    ----------
    process : VirtualProcess
    processes : mapping of str to VirtualProcess
        All processes of the world, by address.
    sizes : FrameSizes, optional
        Of a job of costs alone; its frames are passed on as they are.
    """

    def __init__(
        self,
        process: VirtualProcess,
        processes: Mapping[str, VirtualProcess],
        sizes: FrameSizes | None,
    ) -> None:
        self.address = process.name
        self._process = process
        self._processes = processes
        self._sizes = sizes

    async def connect(self, address: str, hello: Mapping[str, Any]) -> Link:
        """Open a link; raise LinkClosedError if no process answers."""
        environment = self._process.environment
        opened = environment.loop.create_future()
        environment.loop.after(
            2 * environment.options.latency_s, self._shake, address, hello, opened
        )
        reason = f"{address} did not answer in time"
        timer = environment.loop.call_later(CONNECT_S_MAX, _fail, opened, reason)
        try:
            link: Link = await opened
            return link
        finally:
            timer.cancel()

    def _shake(self, address: str, hello: Mapping[str, Any], opened: asyncio.Future[Link]) -> None:
        mine, theirs = self._process, self._processes.get(address)
        if opened.done() or not mine.endpoint.is_alive:
            return
        if theirs is None or theirs.accept is None or not theirs.endpoint.is_alive:
            _fail(opened, f"no process listens at {address}")
        elif theirs.endpoint.is_paused:
            theirs.endpoint.backlog.append((self._shake, (address, hello, opened)))
        else:
            network = mine.environment.network
            near, far = network.connect(mine.endpoint, theirs.endpoint)
            copied = json.loads(json.dumps(dict(hello)))
            theirs.enter(theirs.accept, self._link(theirs, far, self.address, copied))
            opened.set_result(self._link(mine, near, address, hello))

    def _link(self, owner: VirtualProcess, port: Port, peer: str, hello: Mapping[str, Any]) -> Link:
        if self._sizes is not None:
            return FrameLink(owner, port, peer, hello, self._sizes)
        sock = VirtualSocket(owner, port)
        pieces = owner.environment.options.piece_bytes
        return SocketLink(sock, peer, hello, pieces, sock.unsent_bytes)  # type: ignore[arg-type]

    def listen(self, on_link: OnLink) -> None:
        """Pass every link that a peer opens to ``on_link``."""

        async def serve(link: Link) -> None:
            try:
                await on_link(link)
            except (LinkClosedError, ProtocolError):
                link.close()

        loop = self._process.environment.loop
        self._process.accept = lambda link: loop.create_task(serve(link))

    def lendable(self, nbytes: int) -> None:
        """Return None: there is no shared memory."""

    def close(self) -> None:
        """Do nothing: links close with the process."""


def _fail(opened: asyncio.Future[Link], reason: str) -> None:
    if not opened.done():
        opened.set_exception(LinkClosedError(reason))
