"""Pipelined broadcast and reduction: long vectors are forwarded in pieces before they are complete.

The member machine handles whole models and partials only. A receiver discards pieces that come
without a trailer. The trailer is sent when the machine commands it, and only if the machine's sum
has the same inputs as the one whose pieces were sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticml.collective.frames import Frame, Kind
from elasticml.collective.segmentation import IncomingVector, OutgoingVector
from elasticml.control.tree_node import TreeNode
from elasticml.ids import MemberId
from elasticml.runtime.frame_payloads import bytes_of
from elasticml.runtime.peer import Peer
from elasticml.training.array_buffers import Buffers, Vector, merge_all


@dataclass(slots=True, eq=False)
class Relay:
    """A model that is being forwarded to children while it arrives."""

    arriving: IncomingVector
    attempts: dict[Peer, OutgoingVector] = field(default_factory=dict)

    def advance(self) -> None:
        """Forward what has arrived."""
        for peer, attempt in self.attempts.items():
            start, end = attempt.n_bytes, self.arriving.n_bytes
            if end > start:
                peer.post(attempt.piece(self.arriving.buffer[start:end]))

    def commit(self, peer: Peer) -> bool:
        """Commit a child's attempt; return False if it does not contain the whole model."""
        attempt = self.attempts.pop(peer, None)
        if attempt is None or attempt.n_bytes < attempt.whole_bytes:
            return False
        peer.post(attempt.trailer({}))
        return True


@dataclass(slots=True, eq=False)
class Source:
    """A child's partial, possibly incomplete."""

    #: Identifies the partial: its attempt, or its handle if it was not sent in pieces.
    key: object
    values: Vector
    #: Number of values that have arrived.
    n_values: int


@dataclass(slots=True, eq=False)
class SumStream:
    """The sum of one exchange, sent to the parent piece by piece.

    Parameters
    ----------
    peer : Peer
        The parent.
    exchange : int
    own : Vector
        This member's partial; it is not changed.
    reduce : str
    out : Vector
        Receives the sum.
    """

    peer: Peer
    exchange: int
    own: Vector
    reduce: str
    out: Vector
    keys: tuple[object, ...] = ()
    attempt: OutgoingVector | None = None
    n_values: int = 0

    def advance(self, sources: Sequence[Source], piece_values: int) -> None:
        """Add and send the values that all sources have; start over if the sources changed."""
        keys = tuple(source.key for source in sources)
        if self.attempt is None or keys != self.keys:
            frame = Frame(kind=Kind.PARTIAL, exchange=self.exchange, prefix={})
            self.attempt = self.peer.begin(frame, self.own.nbytes)
            self.keys, self.n_values = keys, 0
        n_arrived = min((source.n_values for source in sources), default=self.own.size)
        while self.n_values < n_arrived:
            end = min(self.n_values + piece_values, self.own.size)
            if end > n_arrived:
                return
            part = slice(self.n_values, end)
            inputs = [self.own[part], *(source.values[part] for source in sources)]
            merge_all(inputs, self.reduce, self.out[part])
            self.n_values = end
            payload = bytes_of(self.out[part])
            assert payload is not None
            self.peer.post(self.attempt.piece(payload))

    def is_of(self, peer: Peer | None, exchange: int, own: Vector) -> bool:
        """Whether this sum is for that parent and exchange, with that own partial."""
        return self.peer is peer and self.exchange == exchange and self.own is own

    def commit(self, frame: Frame) -> None:
        """Send the trailer, after all pieces."""
        assert self.attempt is not None
        self.peer.post(self.attempt.trailer(frame.prefix))


class PipelinedTransfer:
    """Forwards pieces of models to children and pieces of sums to the parent.

    Parameters
    ----------
    node : TreeNode
        Knows the children and the members that the sum waits for.
    buffers : Buffers
        Hold the complete partials.
    """

    def __init__(self, node: TreeNode, buffers: Buffers) -> None:
        self._node = node
        self._buffers = buffers
        self._relay: Relay | None = None
        self._stream: SumStream | None = None
        #: Incomplete partials of children; the attempts of complete ones, by handle.
        self._incomplete: dict[MemberId, IncomingVector] = {}
        self._attempts: dict[int, IncomingVector] = {}

    # --- down --------------------------------------------------------------------------------

    def model_piece(self, arriving: IncomingVector, children: Mapping[MemberId, Peer]) -> None:
        """Forward a piece of a model to the children that lack it."""
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
        """Commit the pieces that a child has; return False if the model must be sent whole."""
        relay = self._relay
        if relay is None or relay.arriving.exchange != exchange:
            return False
        forwarded: object = relay.arriving.buffer.obj
        return forwarded is model and relay.commit(peer)

    # --- up ----------------------------------------------------------------------------------

    def partial_piece(self, child: MemberId, arriving: IncomingVector) -> None:
        """Record a piece of a child's partial."""
        self._incomplete[child] = arriving

    def came(self, child: MemberId, handle: int, arrived: IncomingVector | None) -> None:
        """Record a child's complete partial, with its attempt if it came in pieces."""
        if arrived is not None:
            self._attempts[handle] = arrived
        self._incomplete.pop(child, None)

    def lost(self, child: MemberId) -> None:
        """Drop the incomplete partial of a lost child."""
        self._incomplete.pop(child, None)

    def forget(self, handles: Iterable[int]) -> None:
        """Drop the attempts of partials that are no longer needed."""
        for handle in handles:
            self._attempts.pop(handle, None)

    def stream_up(self, peer: Peer | None, own: Vector, reduce: str) -> None:
        """Send the part of the current sum whose inputs have arrived."""
        gather = self._node.gather
        size = None if peer is None else peer.link.piece_bytes
        if peer is None or size is None or gather is None or own.nbytes < 2 * size:
            return
        sources = []
        for sender in sorted({*gather.inputs, *self._node.waits_for()}):
            if sender in gather.inputs:
                sources.append(self._whole(gather.inputs[sender].handle))
                continue
            arriving = self._incomplete.get(sender)
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
        """Send the rest of the sum of these partials; None if the stream has other inputs."""
        stream = self._stream
        gather, self._stream = self._node.gather, None
        if stream is None or gather is None or not stream.is_of(peer, gather.exchange, own):
            return None
        sources = [self._whole(handle) for handle in handles]
        if tuple(source.key for source in sources) != stream.keys:
            return None
        size = stream.peer.link.piece_bytes
        assert size is not None
        stream.advance(sources, size // 8)
        return stream

    def _whole(self, handle: int) -> Source:
        values = self._buffers[handle]
        return Source(self._attempts.get(handle, handle), values, values.size)
