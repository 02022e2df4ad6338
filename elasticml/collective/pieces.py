"""Vectors in pieces, so that each hop of a tree costs latency and not bandwidth.

Between hosts a long vector travels as an attempt: pieces in order, then a trailer which commits
them, and which says of a partial whose contributions it holds. A hop passes pieces on before it has
the trailer. What is not committed counts for nothing: where an input changes, a newer attempt takes
the place of the older one, and a closed link takes all its attempts along.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from elasticml.collective.frames import Frame, Header, Kind
from elasticml.errors import RemoteProtocolError

#: Bytes of a piece between hosts. Shorter ones cost the processor, longer ones time at each hop.
PIECE_BYTES: Final = 512 * 1024
#: Number of the frame that commits an attempt; pieces count from 1, whole frames have 0.
TRAILER: Final = 2**32 - 1
#: Attempts on a link count from 1 to this, and again; 0 is a whole frame.
ATTEMPT_MAX: Final = 2**16 - 1
#: What is cut; chunks are small, and go whole.
CUT: Final = (Kind.MODEL, Kind.PARTIAL)


def is_cut(frame: Frame, piece_bytes: int | None) -> bool:
    """Whether a frame travels in pieces; one of less than two pieces goes whole."""
    if piece_bytes is None or frame.payload is None or frame.kind not in CUT:
        return False
    return frame.payload.nbytes >= 2 * piece_bytes


class Attempt:
    """The frames of one attempt, as its sender makes them.

    Parameters
    ----------
    frame : Frame
        Kind, exchange, and for a model the prefix, which must be there before its first piece can
        be passed on; the payload is not looked at.
    number : int
        1 to ``ATTEMPT_MAX``, newer than the one before on this link.
    whole_bytes : int
        Of the vector.
    """

    def __init__(self, frame: Frame, number: int, whole_bytes: int) -> None:
        self.number = number
        self.whole_bytes = whole_bytes
        #: Bytes of the pieces made so far.
        self.n_bytes = 0
        self._frame = frame
        self._n_pieces = 0

    def piece(self, payload: memoryview) -> Frame:
        """Make the next piece."""
        self._n_pieces += 1
        self.n_bytes += payload.nbytes
        prefix: dict[str, Any] = {}
        if self._n_pieces == 1:
            prefix = {"whole": self.whole_bytes}
            if self._frame.kind is Kind.MODEL:
                prefix["of"] = dict(self._frame.prefix)
        return self._made(self._n_pieces, prefix, payload)

    def trailer(self, prefix: Mapping[str, Any]) -> Frame:
        """Make the frame that commits what was sent."""
        assert self.n_bytes == self.whole_bytes, "an attempt is committed before it is whole"
        is_model = self._frame.kind is Kind.MODEL
        return self._made(TRAILER, {} if is_model else prefix, None)

    def _made(self, piece: int, prefix: Mapping[str, Any], payload: memoryview | None) -> Frame:
        return Frame(
            kind=self._frame.kind,
            exchange=self._frame.exchange,
            attempt=self.number,
            piece=piece,
            prefix=prefix,
            payload=payload,
        )


def cut(frame: Frame, number: int, piece_bytes: int) -> Iterator[Frame]:
    """Cut a frame into an attempt, trailer included."""
    assert frame.payload is not None
    payload = frame.payload.cast("B")
    attempt = Attempt(frame, number, payload.nbytes)
    for start in range(0, payload.nbytes, piece_bytes):
        yield attempt.piece(payload[start : start + piece_bytes])
    yield attempt.trailer(frame.prefix)


@dataclass(slots=True, eq=False)
class Arriving:
    """An attempt on its way in."""

    kind: Kind
    exchange: int
    number: int
    #: A model's prefix; empty for a partial, whose trailer brings it.
    prefix: Mapping[str, Any]
    #: The whole vector's buffer.
    buffer: memoryview
    n_bytes: int = 0
    n_pieces: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all pieces are here; the trailer may not be."""
        return self.n_bytes == self.buffer.nbytes


class Arrivals:
    """The attempts that are on their way in on one link, the newest one of each vector."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._attempts: dict[tuple[Kind, int], Arriving] = {}

    def buffer_of(self, header: Header, prefix: Mapping[str, Any], allocate: Any) -> memoryview:
        """Say where a piece goes; the first one of an attempt makes room for the vector.

        Raises
        ------
        RemoteProtocolError
            When a piece is missing before this one, or does not fit.
        """
        if header.piece == 1:
            self._begin(header, prefix, allocate)
        arriving = self._attempts.get((header.kind, header.exchange))
        if (
            arriving is None
            or arriving.number != header.attempt
            or arriving.n_pieces + 1 != header.piece
        ):
            raise self._wrong(header, f"the next piece of {arriving}")
        end = arriving.n_bytes + header.payload_bytes
        if end > arriving.buffer.nbytes:
            raise self._wrong(header, f"at most {arriving.buffer.nbytes} bytes in all")
        return arriving.buffer[arriving.n_bytes : end]

    def _begin(self, header: Header, prefix: Mapping[str, Any], allocate: Any) -> None:
        match prefix:
            case {"whole": int() as whole} if whole >= header.payload_bytes:
                of = prefix.get("of") or {}
            case _:
                raise self._wrong(header, "the vector's length with the first piece")
        whole_header = Header(
            kind=header.kind,
            exchange=header.exchange,
            attempt=0,
            piece=0,
            prefix_bytes=0,
            payload_bytes=whole,
        )
        buffer = allocate(whole_header, of).cast("B")
        key = (header.kind, header.exchange)
        self._attempts[key] = Arriving(header.kind, header.exchange, header.attempt, of, buffer)

    def piece(self, frame: Frame) -> Arriving:
        """Count a piece that has been read into its place."""
        arriving = self._attempts[frame.kind, frame.exchange]
        assert frame.payload is not None
        arriving.n_bytes += frame.payload.nbytes
        arriving.n_pieces += 1
        return arriving

    def commit(self, trailer: Frame) -> tuple[Frame, Arriving]:
        """Make the whole frame that a trailer commits.

        Older vectors of its kind that were never committed are given up.

        Raises
        ------
        RemoteProtocolError
            When the attempt is not the newest one, or not whole.
        """
        arriving = self._attempts.pop((trailer.kind, trailer.exchange), None)
        if arriving is None or arriving.number != trailer.attempt or not arriving.is_whole:
            raise RemoteProtocolError(
                f"{self._peer} commits attempt {trailer.attempt} of exchange {trailer.exchange}, "
                f"and what is here is {arriving}"
            )
        for kind, exchange in list(self._attempts):
            if kind is trailer.kind and exchange < trailer.exchange:
                del self._attempts[kind, exchange]
        prefix = arriving.prefix if trailer.kind is Kind.MODEL else trailer.prefix
        frame = Frame(
            kind=trailer.kind, exchange=trailer.exchange, prefix=prefix, payload=arriving.buffer
        )
        return frame, arriving

    def _wrong(self, header: Header, wanted: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"{self._peer} sent piece {header.piece} of attempt {header.attempt} of exchange "
            f"{header.exchange}, {header.payload_bytes} bytes; wanted {wanted}"
        )


def attempt_numbers() -> Iterator[int]:
    """Count attempts."""
    return itertools.cycle(range(1, ATTEMPT_MAX + 1))
