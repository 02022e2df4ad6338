"""The frame: a 32-byte header, a short prefix (JSON), and a payload of bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from elasticml.errors import RemoteProtocolError
from elasticml.ids import ExchangeId, Generation
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


#: Faster than calling ``Kind``.
_KINDS: Final = {kind.value: kind for kind in Kind}
_dumps: Final = json.JSONEncoder(separators=(",", ":")).encode


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
    """Unpack a header; raises RemoteProtocolError on another magic, version or kind."""
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
    is_shared = kind & SHARED_BIT != 0
    return Header(named_kind, exchange, attempt, piece, prefix_bytes, payload_bytes, is_shared)


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
    prefix = {
        "generation": header.generation,
        "members": header.members,
        "operation": header.operation,
        "model": header.model,
        "returns": header.returns,
        "parameters": header.parameters,
        "reduce": header.reduce,
        "keep": header.keep,
    }
    return Frame(kind=Kind.MODEL, exchange=header.exchange, prefix=prefix, payload=packed)


def header_of(frame: Frame) -> ExchangeHeader[Shape]:
    """Return the header of the exchange whose model a frame carries."""
    prefix = frame.prefix
    return ExchangeHeader(
        exchange=ExchangeId(frame.exchange),
        generation=Generation(prefix["generation"]),
        members=prefix["members"],
        operation=prefix["operation"],
        model=prefix["model"],
        returns={name: tuple(shape) for name, shape in prefix["returns"].items()},
        parameters=prefix["parameters"],
        reduce=prefix["reduce"],
        keep=prefix["keep"],
    )


def _loads(prefix: bytes) -> dict[str, Any]:
    try:
        loaded = json.loads(prefix)
    except ValueError as fault:
        raise RemoteProtocolError(f"the prefix of a frame is not JSON: {fault}") from None
    if not isinstance(loaded, dict):
        raise RemoteProtocolError(
            f"the prefix of a frame is a {type(loaded).__name__}, wanted an object"
        )
    return loaded
