"""Segmented vectors: splitting, reassembly by attempts, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.collective.frames import Frame, Kind, decode, unpack
from elasticml.collective.segmentation import TRAILER, IncomingVectors, cut
from elasticml.errors import RemoteProtocolError

PIECE = 80
VECTOR = np.arange(35.0)


def frame(exchange: int = 3, vector: np.ndarray = VECTOR) -> Frame:
    payload = vector.data.cast("B")
    return Frame(kind=Kind.PARTIAL, exchange=exchange, prefix={"of": "0x5"}, payload=payload)


def fresh(header, prefix) -> memoryview:
    return np.empty(header.payload_bytes // 8).data.cast("B")


class Receiver:
    """Handle frames like a link's reader: request a buffer, fill it, hand it over."""

    def __init__(self) -> None:
        self.arrivals = IncomingVectors("there")

    def take(self, sent: Frame) -> Frame | None:
        head, payload = sent.encode()
        header = unpack(head[:32])
        actual = decode(header, head[32:], None)
        if actual.piece == TRAILER:
            return self.arrivals.commit(actual)[0]
        buffer = self.arrivals.buffer_of(header, actual.prefix, fresh)
        buffer[:] = payload
        actual.payload = buffer
        self.arrivals.piece(actual)
        return None


def test_newer_attempt_replaces_one_that_was_not_committed():
    there = Receiver()
    stale = list(cut(frame(vector=-VECTOR), 1, PIECE))
    for piece in stale[:3]:
        there.take(piece)
    whole = [there.take(piece) for piece in cut(frame(), 2, PIECE)][-1]
    assert np.array_equal(whole.payload.obj, VECTOR)


def test_trailer_discards_older_vectors_that_were_never_committed():
    there = Receiver()
    old = list(cut(frame(exchange=2), 1, PIECE))
    there.take(old[0])
    for piece in cut(frame(), 2, PIECE):
        there.take(piece)
    with pytest.raises(RemoteProtocolError, match="wanted the next piece of None"):
        there.take(old[1])


OLD, NEW = (list(cut(frame(vector=sign * VECTOR), k, PIECE)) for k, sign in ((1, -1), (2, 1)))


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ([OLD[0], OLD[2]], "piece 3 of attempt 1"),
        ([OLD[0], OLD[1], OLD[3]], "piece 4 of attempt 1"),
        ([OLD[-1]], "commits attempt 1 of exchange 3"),
        ([*OLD[:3], OLD[-1]], "commits attempt 1 of exchange 3"),
        ([*OLD[:-1], *NEW[:-1], OLD[-1]], "commits attempt 1"),
    ],
)
def test_pieces_are_taken_in_order_and_a_trailer_of_a_whole_vector(sent, words):
    there = Receiver()
    for piece in sent[:-1]:
        there.take(piece)
    with pytest.raises(RemoteProtocolError, match=words):
        there.take(sent[-1])


def test_more_bytes_than_announced_are_refused():
    there = Receiver()
    sent = list(cut(frame(), 1, PIECE))
    there.take(sent[0])
    sent[1].payload = np.zeros(80).data.cast("B")
    with pytest.raises(RemoteProtocolError, match="at most 280 bytes"):
        there.take(sent[1])
