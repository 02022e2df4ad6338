"""Chunks from one virtual member to another, over a connection per pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from elasticml.control import commands as cmd
from elasticml.control import events as ev
from elasticml.data.chunk import Chunk
from elasticml.sim.network import Port
from elasticml.sim.sizes import CONTROL_BYTES
from elasticml.terms import ChunkId, MemberId

if TYPE_CHECKING:
    from elasticml.sim.member import VirtualMember


@dataclass(frozen=True, slots=True, kw_only=True)
class SentChunk:
    """One chunk on its way: its state, its body, or both."""

    id: ChunkId
    nbytes: int
    has_body: bool = True
    #: A copy, as it was when the order was performed; None: only the body travels.
    state: Mapping[str, NDArray[Any]] | None = None
    state_version: int = 0


@dataclass(frozen=True, slots=True)
class BatchDone:
    """All chunks of an order have been sent."""


class Transfers:
    """Gives and takes chunks for one life of a member."""

    def __init__(self, member: VirtualMember) -> None:
        self._member = member
        self._outgoing: dict[MemberId, Port] = {}
        self._incoming: list[Port] = []

    def give(self, order: cmd.GiveChunks) -> None:
        """Send the chunks of an order, opening the connection first where there is none."""
        port = self._outgoing.get(order.target)
        if port is not None and port.is_open:
            self._send(port, order)
            return
        latency_s = self._member.world.options.latency_s
        self._member.later(2 * latency_s, self._open, order)

    def _open(self, order: cmd.GiveChunks) -> None:
        port = self._outgoing.get(order.target)
        if port is None or not port.is_open:
            member = self._member
            target = member.world.life_of(order.address, order.target)
            if target is None:
                self._fail(order, "nobody is there")
                return
            network = member.world.network
            port, theirs = network.connect(member.worker.endpoint, target.worker.endpoint)
            self._outgoing[order.target] = port
            target.transfers.receive(member.me, theirs)
        self._send(port, order)

    def _send(self, port: Port, order: cmd.GiveChunks) -> None:
        worker = self._member.worker
        if any(id not in worker.chunks for id in order.chunks):
            self._fail(order, "chunks are gone")
            return
        for id in order.chunks:
            sent = _packed(worker.chunks[id], has_body=True)
            port.send(sent, sent.nbytes)
        port.send(BatchDone(), CONTROL_BYTES)
        worker.given.update(order.chunks)

    def _fail(self, order: cmd.GiveChunks, reason: str) -> None:
        me = self._member.me
        self._member.report(
            ev.MoveFailed(
                cause=f"link {me}",
                member=me,
                target=order.target,
                chunks=order.chunks,
                reason=reason,
            )
        )

    def receive(self, source: MemberId, port: Port) -> None:
        """Take in what another member sends; each batch is reported."""
        self._incoming.append(port)
        came: list[SentChunk] = []
        began_s = self._member.world.clock.now_s

        def on_message(message: Any) -> None:
            nonlocal began_s
            if isinstance(message, SentChunk):
                came.append(message)
                return
            self._take_in(source, came, began_s)
            came.clear()
            began_s = self._member.world.clock.now_s

        def on_closed() -> None:
            # What came whole before the sender went is worth having.
            if came:
                self._take_in(source, came, began_s)
                came.clear()

        port.on_message = on_message
        port.on_closed = on_closed

    def _take_in(self, source: MemberId, came: Sequence[SentChunk], began_s: float) -> None:
        member = self._member
        for sent in came:
            member.worker.take(sent.id, sent.has_body, sent.state, sent.state_version)
        ids = tuple(sent.id for sent in came if sent.id in member.worker.chunks)
        member.report(
            ev.ChunksLoaded(
                cause=f"link {member.me}",
                member=member.me,
                chunks=ids,
                source=source,
                nbytes=sum(chunk.nbytes for chunk in came),
                seconds=round(member.world.clock.now_s - began_s, 6),
            )
        )

    def close(self) -> None:
        """Close all connections."""
        for port in [*self._outgoing.values(), *self._incoming]:
            port.close()


def _packed(chunk: Chunk, has_body: bool, has_state: bool = True) -> SentChunk:
    """Copy what travels of a chunk; one of which only the costs are known has no state."""
    nbytes = CONTROL_BYTES + (chunk.nbytes if has_body else 0)
    if not has_state or not isinstance(chunk, Chunk):
        return SentChunk(id=chunk.id, nbytes=nbytes, has_body=has_body)
    state = {name: array.copy() for name, array in chunk.state.items()}
    return SentChunk(
        id=chunk.id,
        nbytes=nbytes + sum(array.nbytes for array in state.values()),
        has_body=has_body,
        state=state,
        state_version=chunk.state_version,
    )
