"""Transfers of chunks between virtual members, over one connection per pair.

States are sent first, then the bodies that the target lacks. The member machine decides which parts
of a transfer it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from elasticml.control import effects as fx
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import ElasticmlError
from elasticml.ids import ChunkId, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.sim.message_sizes import CONTROL_BYTES
from elasticml.sim.network import Port
from elasticml.sim.virtual_worker import Worker

State = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentState:
    """A chunk's state on the network: a copy from the time of the order."""

    order: int
    id: ChunkId
    state: State | None
    version: int
    #: The body follows.
    has_body: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBody:
    """A chunk's body on the network."""

    order: int
    id: ChunkId


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderDone:
    """Everything that an order names has been sent."""

    order: int


@dataclass(slots=True, kw_only=True)
class IncomingOrder:
    """What has arrived of one order."""

    began_s: float
    nbytes: int = 0
    states: dict[ChunkId, SentState] = field(default_factory=dict)
    bodies: set[ChunkId] = field(default_factory=set)


class ChunkTransport:
    """Sends and receives chunks for one member.

    Parameters
    ----------
    me : MemberId
    worker : Worker
    feed : callable
        Takes events for the member machine.
    later : callable
        Calls a function after some seconds, unless the member is over by then.
    """

    def __init__(
        self,
        me: MemberId,
        worker: Worker,
        feed: Callable[[ev.Event], None],
        later: Callable[..., None],
    ) -> None:
        self._me = me
        self._worker = worker
        self._environment = worker.environment
        self._feed = feed
        self._later = later
        self._outgoing: dict[MemberId, Port] = {}
        self._incoming: list[Port] = []

    # --- sending ----------------------------------------------------------------------------

    def give(self, order: cmd.GiveChunks) -> None:
        """Send the chunks of an order."""
        self._with_port(order, self._send_move, order)

    def copy(self, command: fx.SendCopy) -> None:
        """Send one body to a further holder."""
        self._with_port(command.order, self._send_copy, command)

    def _with_port(
        self, order: cmd.GiveChunks | cmd.CopyChunks, send: Callable[[Port, Any], None], what: Any
    ) -> None:
        """Send on the connection to the target of an order, opening it first if necessary."""
        port = self._outgoing.get(order.target)
        if port is not None and port.is_open:
            send(port, what)
        else:
            latency_s = self._environment.options.latency_s
            self._later(2 * latency_s, self._open, order, send, what)

    def _open(
        self, order: cmd.GiveChunks | cmd.CopyChunks, send: Callable[[Port, Any], None], what: Any
    ) -> None:
        port = self._outgoing.get(order.target)
        if port is None or not port.is_open:
            port = self._worker.connect("chunks", self._me, order.address, order.target)
            if port is None:
                self._fail(order, "no member is at its address")
                return
            self._outgoing[order.target] = port
        send(port, what)

    def _send_move(self, port: Port, order: cmd.GiveChunks) -> None:
        held = self._worker.chunks
        if any(id not in held for id in order.chunks):
            self._fail(order, "chunks are gone")
            return
        bodies = frozenset(order.bodies)
        for id in order.chunks:
            (state, version), nbytes = _copied_state(held[id])
            sent = SentState(
                order=order.order, id=id, state=state, version=version, has_body=id in bodies
            )
            port.send(sent, nbytes)
        for id in order.bodies:
            port.send(SentBody(order=order.order, id=id), CONTROL_BYTES + held[id].nbytes)
        port.send(OrderDone(order=order.order), CONTROL_BYTES)
        self._feed_when_sent(fx.GiveSent(order=order.order))

    def _send_copy(self, port: Port, command: fx.SendCopy) -> None:
        order, held = command.order, self._worker.chunks
        if any(id not in held for id in order.chunks):
            self._fail(order, "chunks are gone")
            return
        id = order.chunks[command.k]
        port.send(SentBody(order=order.order, id=id), CONTROL_BYTES + held[id].nbytes)
        if command.k + 1 == len(order.chunks):
            port.send(OrderDone(order=order.order), CONTROL_BYTES)
        self._feed_when_sent(fx.CopySent(order=order.order))

    def _feed_when_sent(self, event: ev.Event) -> None:
        """Feed an event when what has been sent so far has left this process."""
        left_s = self._worker.endpoint.card.up_free_s - self._environment.clock.now_s
        self._later(left_s, self._feed, event)

    def _fail(self, order: cmd.GiveChunks | cmd.CopyChunks, reason: str) -> None:
        self._feed(
            fx.SendFailed(
                target=order.target, chunks=order.chunks, order=order.order, reason=reason
            )
        )

    # --- receiving --------------------------------------------------------------------------

    def receive(self, source: MemberId, port: Port) -> None:
        """Receive chunks from another member; report each order when it is done."""
        self._incoming.append(port)
        clock = self._environment.clock
        orders: dict[int, IncomingOrder] = {}

        def on_message(message: SentState | SentBody | OrderDone) -> None:
            intake = orders.setdefault(message.order, IncomingOrder(began_s=clock.now_s))
            if isinstance(message, SentState):
                if not intake.states:
                    arriving = fx.MoveArriving(source=source, order=message.order)
                    self._feed(arriving)
                intake.states[message.id] = message
            elif isinstance(message, SentBody):
                intake.bodies.add(message.id)
            else:
                del orders[message.order]
                self._arrived(source, message.order, intake)

        def on_closed() -> None:
            for order, intake in orders.items():
                self._arrived(source, order, intake)

        port.on_message = on_message
        port.on_closed = on_closed

    def _arrived(self, source: MemberId, order: int, intake: IncomingOrder) -> None:
        environment, states = self._environment, intake.states
        nbytes = environment.library.chunk_bytes(intake.bodies)
        for sent in states.values():
            if sent.state is not None:
                nbytes += sum(array.nbytes for array in sent.state.values())
        self._feed(
            fx.ChunksArrived(
                source=source,
                order=order,
                chunks=tuple(sorted(intake.bodies | states.keys())),
                missing=frozenset(id for id, sent in states.items() if sent.has_body)
                - intake.bodies,
                states=frozenset(states),
                nbytes=nbytes,
                seconds=round(environment.clock.now_s - intake.began_s, 6),
                content=intake,
            )
        )

    def store(self, arrival: fx.ChunksArrived) -> None:
        """Store the bodies that have arrived."""
        intake = arrival.content
        assert isinstance(intake, IncomingOrder)
        try:
            self._worker.hold(sorted(intake.bodies))
        except ElasticmlError as error:
            self._feed(fx.StoreFailed(arrival=arrival, error=error))
            return
        self._feed(fx.ChunksStored(arrival=arrival))

    def set_states(self, command: fx.SetStates) -> None:
        """Set the states that have arrived."""
        intake = command.arrival.content
        assert isinstance(intake, IncomingOrder)
        for id in command.chunks:
            sent, chunk = intake.states[id], self._worker.chunks[id]
            if sent.state is not None:
                chunk.state, chunk.state_version = dict(sent.state), sent.version

    def close(self) -> None:
        """Close all connections."""
        for port in [*self._outgoing.values(), *self._incoming]:
            port.close()


def _copied_state(chunk: Chunk) -> tuple[tuple[State | None, int], int]:
    """Copy a chunk's state and version, and return their size; a chunk without bytes has none."""
    held: State | None = getattr(chunk, "state", None)
    if held is None:
        return (None, 0), CONTROL_BYTES
    state = {name: array.copy() for name, array in held.items()}
    nbytes = CONTROL_BYTES + sum(array.nbytes for array in state.values())
    return (state, chunk.state_version), nbytes
