"""Pieces on their way through a member: a model down before it is whole, a sum up while it grows.

The member machine sees whole models and partials only. What is passed on here before that is never
counted by anybody without its trailer, which is sent when the machine says so, and only if the sum
that it wants is the very one that has been sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticml.collective.frames import Frame, Kind
from elasticml.collective.segmentation import IncomingVector, OutgoingVector
from elasticml.control.reduce_node import ReduceNode
from elasticml.ids import MemberId
from elasticml.runtime.frame_payloads import bytes_of
from elasticml.runtime.peer import Peer
from elasticml.training.array_buffers import Buffers, Vector, merge_all


@dataclass(slots=True, eq=False)
class Relay:
    """One model on its way down: the attempts by which it is passed on."""

    arriving: IncomingVector
    attempts: dict[Peer, OutgoingVector] = field(default_factory=dict)

    def advance(self) -> None:
        """Pass on what is here."""
        for peer, attempt in self.attempts.items():
            start, end = attempt.n_bytes, self.arriving.n_bytes
            if end > start:
                peer.post(attempt.piece(self.arriving.buffer[start:end]))

    def commit(self, peer: Peer) -> bool:
        """Commit what was passed on to a child; False where that is not the whole model."""
        attempt = self.attempts.pop(peer, None)
        if attempt is None or attempt.n_bytes < attempt.whole_bytes:
            return False
        peer.post(attempt.trailer({}))
        return True


@dataclass(slots=True, eq=False)
class Source:
    """One child's partial, which may still be on its way: which one, and how far it is here."""

    #: An attempt that is arriving, or has arrived; a handle where it came whole.
    which: object
    values: Vector
    n_values: int


@dataclass(slots=True, eq=False)
class SumStream:
    """The sum of one exchange on its way up, piece by piece.

    Parameters
    ----------
    peer : Peer
        The parent.
    exchange : int
    own : Vector
        This member's share; it is not changed.
    reduce : str
    out : Vector
        The sum.
    """

    peer: Peer
    exchange: int
    own: Vector
    reduce: str
    out: Vector
    sources: tuple[object, ...] = ()
    attempt: OutgoingVector | None = None
    n_values: int = 0
    #: Attempts that were begun; more than one where an input changed.
    n_attempts: int = 0

    def advance(self, sources: Sequence[Source], piece_values: int) -> None:
        """Add and send what all sources have; begin anew where they are not the ones before."""
        which = tuple(source.which for source in sources)
        if self.attempt is None or which != self.sources:
            frame = Frame(kind=Kind.PARTIAL, exchange=self.exchange, prefix={})
            self.attempt = self.peer.begin(frame, self.own.nbytes)
            self.sources, self.n_values = which, 0
            self.n_attempts += 1
        there = min((source.n_values for source in sources), default=self.own.size)
        while self.n_values < there:
            end = min(self.n_values + piece_values, self.own.size)
            if end > there:
                return
            part = slice(self.n_values, end)
            inputs = [self.own[part], *(source.values[part] for source in sources)]
            merge_all(inputs, self.reduce, self.out[part])
            self.n_values = end
            payload = bytes_of(self.out[part])
            assert payload is not None
            self.peer.post(self.attempt.piece(payload))

    def is_of(self, peer: Peer | None, exchange: int, own: Vector) -> bool:
        """Whether this is the sum that goes to that parent, of that exchange and share."""
        return self.peer is peer and self.exchange == exchange and self.own is own

    def commit(self, frame: Frame) -> None:
        """Send the trailer; everything has been sent."""
        assert self.attempt is not None
        self.peer.post(self.attempt.trailer(frame.prefix))


class PipelinedTransfer:
    """What is on its way through a member, down and up.

    Parameters
    ----------
    node : Node
        Says who the children are, and whom the sum waits for.
    buffers : Buffers
        Have the partials that came whole.
    """

    def __init__(self, node: ReduceNode, buffers: Buffers) -> None:
        self._node = node
        self._buffers = buffers
        self._relay: Relay | None = None
        self._stream: SumStream | None = None
        #: Children's partials that are not whole, and the attempts by which whole ones came.
        self._coming: dict[MemberId, IncomingVector] = {}
        self._came_as: dict[int, IncomingVector] = {}

    # --- down --------------------------------------------------------------------------------

    def model_piece(self, arriving: IncomingVector, children: Mapping[MemberId, Peer]) -> None:
        """Pass a piece of a model on to the children that lack it."""
        node, relay = self._node, self._relay
        if node.gather is not None and arriving.exchange <= node.gather.exchange:
            return
        if relay is None or relay.arriving is not arriving:
            relay = self._relay = Relay(arriving)
            frame = Frame(kind=Kind.MODEL, exchange=arriving.exchange, prefix=arriving.prefix)
            for child in sorted(node.children & node.attached_with.keys() & children.keys()):
                peer = children[child]
                is_new = node.attached_with[child] < arriving.exchange
                if is_new and peer.link.piece_bytes is not None:
                    relay.attempts[peer] = peer.begin(frame, arriving.buffer.nbytes)
        relay.advance()

    def commit_model(self, peer: Peer, exchange: int, model: Vector) -> bool:
        """Commit what a child has of a model; False where it must be sent whole."""
        relay = self._relay
        if relay is None or relay.arriving.exchange != exchange:
            return False
        passed_on: object = relay.arriving.buffer.obj
        return passed_on is model and relay.commit(peer)

    # --- up ----------------------------------------------------------------------------------

    def partial_piece(self, child: MemberId, arriving: IncomingVector) -> None:
        """Take note of a piece of a child's partial."""
        self._coming[child] = arriving

    def came(self, child: MemberId, handle: int, arrived: IncomingVector | None) -> None:
        """Take note of a child's whole partial, and of how it came."""
        if arrived is not None:
            self._came_as[handle] = arrived
        self._coming.pop(child, None)

    def lost(self, child: MemberId) -> None:
        """Give up what was on its way from a child."""
        self._coming.pop(child, None)

    def forget(self, handles: Iterable[int]) -> None:
        """Forget how partials came that are needed no more."""
        for handle in handles:
            self._came_as.pop(handle, None)

    def stream_up(self, peer: Peer | None, own: Vector, reduce: str) -> None:
        """Send what can be said already of the sum that is under way."""
        gather = self._node.gather
        size = None if peer is None else peer.link.piece_bytes
        if peer is None or size is None or gather is None or own.nbytes < 2 * size:
            return
        sources = []
        for sender in sorted({*gather.inputs, *self._node.waits_for()}):
            if sender in gather.inputs:
                sources.append(self._whole(gather.inputs[sender].handle))
                continue
            arriving = self._coming.get(sender)
            if arriving is None or arriving.exchange != gather.exchange:
                return
            values: Any = arriving.buffer.obj
            sources.append(Source(arriving, values, arriving.n_bytes // 8))
        stream = self._stream
        if stream is None or not stream.is_of(peer, gather.exchange, own):
            out = self._buffers.take(own.nbytes)
            stream = self._stream = SumStream(peer, gather.exchange, own, reduce, out)
        stream.advance(sources, size // 8)

    def finish(self, peer: Peer | None, own: Vector, handles: Sequence[int]) -> SumStream | None:
        """Send the rest of the sum of these partials; None where another one is on its way."""
        stream = self._stream
        gather, self._stream = self._node.gather, None
        if stream is None or gather is None or not stream.is_of(peer, gather.exchange, own):
            return None
        sources = [self._whole(handle) for handle in handles]
        if tuple(source.which for source in sources) != stream.sources:
            return None
        size = stream.peer.link.piece_bytes
        assert size is not None
        stream.advance(sources, size // 8)
        return stream

    def _whole(self, handle: int) -> Source:
        values = self._buffers[handle]
        return Source(self._came_as.get(handle, handle), values, values.size)
