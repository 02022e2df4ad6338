"""Segmented vectors: splitting, reassembly by attempts, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.collective.frames import Frame, Kind, decode, unpack
from elasticml.collective.segmentation import (
    ATTEMPT_MAX,
    TRAILER,
    IncomingVectors,
    attempt_numbers,
    cut,
    is_cut,
)
from elasticml.errors import RemoteProtocolError

PIECE = 80
VECTOR = np.arange(35.0)


def frame(kind: Kind = Kind.PARTIAL, exchange: int = 3, vector: np.ndarray = VECTOR) -> Frame:
    return Frame(kind=kind, exchange=exchange, prefix={"of": "0x5"}, payload=vector.data.cast("B"))


def fresh(header, prefix) -> memoryview:
    return np.empty(header.payload_bytes // 8).data.cast("B")


class Receiver:
    """Handle frames like a link's reader: request a buffer, fill it, hand it over."""

    def __init__(self) -> None:
        self.arrivals = IncomingVectors("there")
        self.requests: list[tuple[int, dict]] = []

    def allocate(self, header, prefix) -> memoryview:
        self.requests.append((header.payload_bytes, dict(prefix)))
        return fresh(header, prefix)

    def take(self, sent: Frame) -> Frame | None:
        head, payload = sent.encode()
        header = unpack(head[:32])
        actual = decode(header, head[32:], None)
        if actual.piece == TRAILER:
            return self.arrivals.commit(actual)[0]
        buffer = self.arrivals.buffer_of(header, actual.prefix, self.allocate)
        buffer[:] = payload
        actual.payload = buffer
        self.arrivals.piece(actual)
        return None


@pytest.mark.parametrize("kind", [Kind.MODEL, Kind.PARTIAL])
def test_segmented_vector_arrives_whole_with_its_trailer(kind):
    there = Receiver()
    *pieces, trailer = cut(frame(kind), 1, PIECE)
    assert [there.take(piece) for piece in pieces] == [None] * 4
    whole = there.take(trailer)
    assert (whole.kind, whole.exchange, whole.prefix) == (kind, 3, {"of": "0x5"})
    assert np.array_equal(whole.payload.obj, VECTOR)


def test_first_segment_reserves_the_whole_and_contains_a_models_prefix():
    there = Receiver()
    for piece in list(cut(frame(Kind.MODEL), 1, PIECE))[:2]:
        there.take(piece)
    assert there.requests == [(VECTOR.nbytes, {"of": "0x5"})]


def test_contributors_of_a_partial_are_known_only_with_the_trailer():
    *pieces, trailer = cut(frame(), 1, PIECE)
    assert all("of" not in piece.prefix for piece in pieces)
    assert trailer.prefix == {"of": "0x5"}


def test_newer_attempt_replaces_one_that_was_not_committed():
    there = Receiver()
    stale = list(cut(frame(vector=-VECTOR), 1, PIECE))
    for piece in stale[:3]:
        there.take(piece)
    whole = [there.take(piece) for piece in cut(frame(), 2, PIECE)][-1]
    assert np.array_equal(whole.payload.obj, VECTOR)


def test_attempts_of_two_exchanges_may_alternate():
    there = Receiver()
    one, two = (list(cut(frame(exchange=e), e, PIECE)) for e in (4, 5))
    for a, b in zip(one[:-1], two[:-1], strict=True):
        there.take(a)
        there.take(b)
    assert there.take(one[-1]).exchange == 4
    assert there.take(two[-1]).exchange == 5


def test_trailer_discards_older_vectors_that_were_never_committed():
    there = Receiver()
    old = list(cut(frame(exchange=2), 1, PIECE))
    there.take(old[0])
    for piece in cut(frame(), 2, PIECE):
        there.take(piece)
    with pytest.raises(RemoteProtocolError, match="wanted the next piece of None"):
        there.take(old[1])


@pytest.mark.parametrize("missing", [1, 2])
def test_missing_segment_is_refused(missing):
    there = Receiver()
    sent = list(cut(frame(), 1, PIECE))
    for piece in sent[:missing]:
        there.take(piece)
    with pytest.raises(RemoteProtocolError, match=f"piece {missing + 2} of attempt 1"):
        there.take(sent[missing + 1])


@pytest.mark.parametrize("n_pieces", [0, 3])
def test_trailer_of_an_incomplete_vector_is_refused(n_pieces):
    there = Receiver()
    sent = list(cut(frame(), 1, PIECE))
    for piece in sent[:n_pieces]:
        there.take(piece)
    with pytest.raises(RemoteProtocolError, match="commits attempt 1 of exchange 3"):
        there.take(sent[-1])


def test_trailer_of_an_older_attempt_is_refused():
    there = Receiver()
    old, new = (list(cut(frame(), number, PIECE)) for number in (1, 2))
    for piece in (*old[:-1], *new[:-1]):
        there.take(piece)
    with pytest.raises(RemoteProtocolError, match="commits attempt 1"):
        there.take(old[-1])


def test_more_bytes_than_announced_are_refused():
    there = Receiver()
    sent = list(cut(frame(), 1, PIECE))
    there.take(sent[0])
    sent[1].payload = np.zeros(80).data.cast("B")
    with pytest.raises(RemoteProtocolError, match="at most 280 bytes"):
        there.take(sent[1])


def test_only_long_models_and_partials_on_remote_links_are_segmented():
    assert is_cut(frame(), VECTOR.nbytes // 2)
    assert not is_cut(frame(), VECTOR.nbytes // 2 + 1)
    assert not is_cut(frame(), None)
    assert not is_cut(frame(Kind.CHUNK), 8)
    assert not is_cut(Frame(kind=Kind.PARTIAL, prefix={}), 8)


def test_attempt_numbers_wrap_around_to_one():
    numbers = attempt_numbers()
    seen = [next(numbers) for _ in range(ATTEMPT_MAX + 1)]
    assert (seen[0], seen[-2], seen[-1]) == (1, ATTEMPT_MAX, 1)
