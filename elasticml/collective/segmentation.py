"""Segmentation of long vectors, so that transfers over several hops of a tree are pipelined.

Between hosts a long vector is sent as an attempt: its pieces in order, then a trailer that commits
them and, for a partial, lists the contributors. A hop forwards pieces before it has the trailer, so
that each hop adds latency instead of the transfer time. Uncommitted pieces are discarded: if an
input changes, a newer attempt replaces the older one, and a closed link drops all its attempts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from elasticml.collective.frames import Frame, Header, Kind
from elasticml.errors import RemoteProtocolError

#: Bytes of a piece between hosts. Shorter pieces cost CPU time, longer ones latency at each hop.
PIECE_BYTES: Final = 512 * 1024
#: Piece number of the trailer; pieces are numbered from 1, unsegmented frames have 0.
TRAILER: Final = 2**32 - 1
#: Attempts on a link are numbered cyclically from 1 to this; unsegmented frames have 0.
ATTEMPT_MAX: Final = 2**16 - 1
#: Kinds of frames that are segmented; chunks are small and are not.
CUT: Final = (Kind.MODEL, Kind.PARTIAL)


def is_cut(frame: Frame, piece_bytes: int | None) -> bool:
    """Whether a frame is sent in pieces; this takes at least two."""
    if piece_bytes is None or frame.payload is None or frame.kind not in CUT:
        return False
    return frame.payload.nbytes >= 2 * piece_bytes


class OutgoingVector:
    """An attempt on the sending side; makes its frames.

    Parameters
    ----------
    frame : Frame
        Provides kind, exchange and, for a model, the prefix, which travels with the first piece so
        that hops can forward it. Its payload is ignored.
    number : int
        1 to ``ATTEMPT_MAX``, the successor of the last one on this link.
    whole_bytes : int
        Length of the vector.
    """

    def __init__(self, frame: Frame, number: int, whole_bytes: int) -> None:
        self.number = number
        self.whole_bytes = whole_bytes
        #: Bytes in the pieces made so far.
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
        return self._make(self._n_pieces, prefix, payload)

    def trailer(self, prefix: Mapping[str, Any]) -> Frame:
        """Make the frame that commits the pieces."""
        assert self.n_bytes == self.whole_bytes, "an attempt is committed before it is complete"
        is_model = self._frame.kind is Kind.MODEL
        return self._make(TRAILER, {} if is_model else prefix, None)

    def _make(self, piece: int, prefix: Mapping[str, Any], payload: memoryview | None) -> Frame:
        return Frame(
            kind=self._frame.kind,
            exchange=self._frame.exchange,
            attempt=self.number,
            piece=piece,
            prefix=prefix,
            payload=payload,
        )


def cut(frame: Frame, number: int, piece_bytes: int) -> Iterator[Frame]:
    """Split a frame into the frames of an attempt, including the trailer."""
    assert frame.payload is not None
    payload = frame.payload.cast("B")
    attempt = OutgoingVector(frame, number, payload.nbytes)
    for start in range(0, payload.nbytes, piece_bytes):
        yield attempt.piece(payload[start : start + piece_bytes])
    yield attempt.trailer(frame.prefix)


@dataclass(slots=True, eq=False)
class IncomingVector:
    """An attempt on the receiving side."""

    kind: Kind
    exchange: int
    number: int
    #: A model's prefix; empty for a partial, whose prefix is in the trailer.
    prefix: Mapping[str, Any]
    #: The buffer of the whole vector.
    buffer: memoryview
    n_bytes: int = 0
    n_pieces: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all pieces have arrived; the trailer may be missing."""
        return self.n_bytes == self.buffer.nbytes


class IncomingVectors:
    """The incomplete attempts on one link, the newest one of each vector."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._attempts: dict[tuple[Kind, int], IncomingVector] = {}

    def buffer_of(self, header: Header, prefix: Mapping[str, Any], allocate: Any) -> memoryview:
        """Return the buffer of a piece; the first piece of an attempt allocates the vector.

        Raises
        ------
        RemoteProtocolError
            When an earlier piece is missing, or the piece does not fit.
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
        self._attempts[key] = IncomingVector(
            header.kind, header.exchange, header.attempt, of, buffer
        )

    def piece(self, frame: Frame) -> IncomingVector:
        """Count a piece that has been read into its buffer."""
        arriving = self._attempts[frame.kind, frame.exchange]
        assert frame.payload is not None
        arriving.n_bytes += frame.payload.nbytes
        arriving.n_pieces += 1
        return arriving

    def commit(self, trailer: Frame) -> tuple[Frame, IncomingVector]:
        """Return the whole frame that a trailer commits.

        Older uncommitted vectors of the same kind are dropped.

        Raises
        ------
        RemoteProtocolError
            When the attempt is not the newest one, or incomplete.
        """
        arriving = self._attempts.pop((trailer.kind, trailer.exchange), None)
        if arriving is None or arriving.number != trailer.attempt or not arriving.is_whole:
            raise RemoteProtocolError(
                f"{self._peer} commits attempt {trailer.attempt} of exchange {trailer.exchange}, "
                f"but has sent {arriving}"
            )
        for kind, exchange in list(self._attempts):
            if kind is trailer.kind and exchange < trailer.exchange:
                del self._attempts[kind, exchange]
        prefix = arriving.prefix if trailer.kind is Kind.MODEL else trailer.prefix
        frame = Frame(
            kind=trailer.kind, exchange=trailer.exchange, prefix=prefix, payload=arriving.buffer
        )
        return frame, arriving

    def _wrong(self, header: Header, expected: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"{self._peer} sent piece {header.piece} of attempt {header.attempt} of exchange "
            f"{header.exchange}, {header.payload_bytes} bytes; wanted {expected}"
        )


def attempt_numbers() -> Iterator[int]:
    """Iterate over the numbers of a link's attempts."""
    return itertools.cycle(range(1, ATTEMPT_MAX + 1))
