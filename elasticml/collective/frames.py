"""The frame: a 32-byte header, a short prefix (JSON), and a payload of bytes."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from elasticml.errors import RemoteProtocolError
from elasticml.ids import ExchangeId, Generation, Mask
from elasticml.protocol.events import ExchangeHeader, Shape

_HEADER: Final = struct.Struct("<4sBBHIIQQ")
HEADER_BYTES: Final = 32
MAGIC: Final = b"emlc"
VERSION: Final = 2
#: Set in the kind byte when the payload is a descriptor of the real payload in shared memory.
SHARED_BIT: Final = 0x80
assert _HEADER.size == HEADER_BYTES


class Kind(IntEnum):
    """The content of a frame."""

    CONTROL = 1  #: an event or a command, in the prefix
    MODEL = 2  #: the model of an exchange, downwards
    PARTIAL = 3  #: a partial of an exchange, upwards
    CHUNK = 4  #: one chunk, body and state
    RETURN = 5  #: returned loans of shared memory; internal to the two ends of a link
    MAIL = 6  #: the state of a free-running member, or rows of it, to a peer


#: Longest prefix of each kind, in bytes. Control messages list chunks and carry vocabularies; the
#: first frame of a transfer lists chunks; a partial lists members, a model the arrays in it.
PREFIX_BYTES_MAX: Final = {
    Kind.CONTROL: 256 * 2**20,
    Kind.MODEL: 4 * 2**20,
    Kind.PARTIAL: 16 * 2**20,
    Kind.CHUNK: 64 * 2**20,
    Kind.RETURN: 0,
    Kind.MAIL: 4 * 2**10,
}
#: Faster than calling ``Kind``.
_KINDS: Final = {kind.value: kind for kind in Kind}
#: What reading a foreign value raises if it is not as expected.
_UNREADABLE: Final = (
    *(LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError),
)
#: Memory of this host: no single payload is larger.
_HOST_BYTES: Final = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
_dumps: Final = json.JSONEncoder(separators=(",", ":")).encode
_decode: Final = json.JSONDecoder().decode


class Header(NamedTuple):
    """The fixed part of a frame; all integers little-endian.

    Bytes 0-3 magic, 4 version, 5 kind (128 more when ``shared``), 6-7 attempt, 8-11 piece,
    12-15 prefix length, 16-23 exchange, 24-31 payload length. Job and incarnation are fixed when
    the link opens.
    """

    kind: Kind
    exchange: int
    attempt: int
    piece: int
    prefix_bytes: int
    payload_bytes: int
    #: The payload is a loan of shared memory, for ``SharedLink`` alone.
    shared: bool = False


def unpack(raw: bytes | bytearray | memoryview) -> Header:
    """Unpack a header.

    Raises
    ------
    RemoteProtocolError
        When magic, version or kind are others, or the prefix is longer than its kind's may be.
    """
    magic, version, kind, attempt, piece, prefix_bytes, exchange, payload_bytes = _HEADER.unpack(
        raw
    )
    if magic != MAGIC or version != VERSION:
        raise RemoteProtocolError(
            f"frame starts with {magic!r} version {version}, wanted {MAGIC!r} version {VERSION}: "
            "the peer runs another version of elasticml; install the same one everywhere"
        )
    named_kind = _KINDS.get(kind & ~SHARED_BIT)
    if named_kind is None:
        raise RemoteProtocolError(f"frame of unknown kind {kind}, wanted one of 1 to 6")
    if prefix_bytes > PREFIX_BYTES_MAX[named_kind]:
        raise RemoteProtocolError(
            f"{named_kind.name} frame with a prefix of {prefix_bytes} bytes, wanted at most "
            f"{PREFIX_BYTES_MAX[named_kind]}"
        )
    is_shared = kind & SHARED_BIT != 0
    return Header(named_kind, exchange, attempt, piece, prefix_bytes, payload_bytes, is_shared)


class RepeatedPrefix(dict[str, Any]):
    """The prefix of frames to several peers, which is written as JSON once; do not change it."""

    __slots__ = ("_encoded", "header")

    #: The header of the exchange that it tells of.
    header: ExchangeHeader[Shape]

    def encoded(self) -> bytes:
        """Return it as JSON."""
        try:
            return self._encoded
        except AttributeError:
            self._encoded: bytes = _dumps(self).encode()
            return self._encoded


@dataclass(slots=True, kw_only=True)
class Frame:
    """A frame in memory. Its payload may be shared with the caller: treat it as read-only."""

    kind: Kind
    exchange: int = 0
    attempt: int = 0
    piece: int = 0
    prefix: Mapping[str, Any]
    payload: memoryview | None = None
    #: As in the header.
    shared: bool = False

    def encode(self) -> tuple[bytes, memoryview | None]:
        """Return header and prefix as bytes, and the payload without a copy."""
        # An empty prefix takes no bytes and saves the receiver a read.
        if isinstance(self.prefix, RepeatedPrefix):
            prefix = self.prefix.encoded()
        else:
            prefix = _dumps(self.prefix).encode() if self.prefix else b""
        payload = None if self.payload is None else self.payload.cast("B")
        head = _HEADER.pack(
            MAGIC,
            VERSION,
            self.kind | SHARED_BIT if self.shared else self.kind,
            self.attempt,
            self.piece,
            len(prefix),
            self.exchange,
            0 if payload is None else payload.nbytes,
        )
        return head + prefix, payload


def decode(header: Header, prefix: bytes, payload: memoryview | None) -> Frame:
    """Build a frame from its parts; raises RemoteProtocolError on an invalid prefix."""
    return Frame(
        kind=header.kind,
        exchange=header.exchange,
        attempt=header.attempt,
        piece=header.piece,
        prefix=_loads(prefix) if prefix else {},
        payload=payload,
        shared=header.shared,
    )


def model_frame(header: ExchangeHeader[Shape], packed: memoryview | None) -> Frame:
    """Return the frame that carries the model of an exchange, packed, and its header as prefix."""
    prefix = RepeatedPrefix(
        generation=header.generation,
        moved=None if header.moved is None else hex(header.moved),
        members=header.members,
        operation=header.operation,
        model=header.model,
        returns=header.returns,
        parameters=header.parameters,
        reduce=header.reduce,
        keep=header.keep,
    )
    prefix.header = header
    return Frame(kind=Kind.MODEL, exchange=header.exchange, prefix=prefix, payload=packed)


def header_of(frame: Frame) -> ExchangeHeader[Shape]:
    """Return the header of the exchange whose model a frame carries.

    Raises
    ------
    RemoteProtocolError
        When the prefix is not such a header.
    """
    prefix = frame.prefix
    if isinstance(prefix, RepeatedPrefix):
        return prefix.header  # it was not read from a link
    with reading_prefix("the header of an exchange"):
        return ExchangeHeader(
            exchange=ExchangeId(frame.exchange),
            generation=Generation(prefix["generation"]),
            moved=None if prefix["moved"] is None else Mask(int(prefix["moved"], 16)),
            members=prefix["members"],
            operation=prefix["operation"],
            model=prefix["model"],
            returns={name: tuple(shape) for name, shape in prefix["returns"].items()},
            parameters=prefix["parameters"],
            reduce=prefix["reduce"],
            keep=prefix["keep"],
        )


class reading_prefix:
    """Report what a peer has written wrongly as its error; enclose nothing but the reading of it.

    A class, because a generator with ``contextmanager`` takes four times as long; each frame is
    read within some of them.

    Raises
    ------
    RemoteProtocolError
        When a field is missing or of another type or range.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Begin to read."""

    def __exit__(self, kind: type | None, fault: BaseException | None, trace: object) -> None:
        """Replace what reading a foreign value raises."""
        if isinstance(fault, _UNREADABLE):
            raise RemoteProtocolError(
                f"{self._what} cannot be read from a frame: {type(fault).__name__}: "
                f"{str(fault)[:200]}"
            ) from None


def vector_bytes(shapes: Any) -> int:
    """Return the bytes of the doubles of all arrays, whose shapes came from a peer.

    Raises
    ------
    RemoteProtocolError
        When they are not shapes by name.
    """
    with reading_prefix("the shapes of arrays"):
        sizes = [size for shape in shapes.values() for size in shape]
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError("a size is not a whole number of at least 0")
        n_values: int = sum(math.prod(shape) for shape in shapes.values())
        return 8 * n_values


def check_fits(nbytes: int) -> None:
    """Check what a peer announces against this host's memory.

    Raises
    ------
    RemoteProtocolError
        When it is more.
    """
    if nbytes > _HOST_BYTES:
        raise RemoteProtocolError(f"{nbytes} bytes announced, wanted at most {_HOST_BYTES}")


def check_payload(header: Header, kind: Kind, nbytes: int | None) -> None:
    """Check a header's payload before memory is allocated for it.

    Parameters
    ----------
    kind : Kind
        The only kind of frame that may have a payload here.
    nbytes : int, optional
        What its payload takes; None: at most this host's memory.

    Raises
    ------
    RemoteProtocolError
        When the kind or the number of bytes is another.
    """
    is_right = (
        header.payload_bytes == nbytes
        if nbytes is not None
        else (header.payload_bytes <= _HOST_BYTES)
    )
    if header.kind is not kind or header.shared or not is_right:
        wanted = f"{nbytes} bytes" if nbytes is not None else f"at most {_HOST_BYTES} bytes"
        raise RemoteProtocolError(
            f"{header.kind.name} frame of exchange {header.exchange} with a payload of "
            f"{header.payload_bytes} bytes, wanted {kind.name} with {wanted}"
        )


def _loads(prefix: bytes) -> dict[str, Any]:
    try:
        loaded = _decode(prefix.decode())
    except (ValueError, RecursionError) as fault:
        raise RemoteProtocolError(f"the prefix of a frame is not JSON: {fault}") from None
    if not isinstance(loaded, dict):
        raise RemoteProtocolError(
            f"the prefix of a frame is a {type(loaded).__name__}, wanted an object"
        )
    return loaded
