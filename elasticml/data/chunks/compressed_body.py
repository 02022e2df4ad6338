"""Compressed chunk bodies: Zstandard with byte shuffling.

Neighbouring bytes of a body are hardly correlated, but bytes at the same position of consecutive
numbers are. So the bytes of stored values, columns and row pointers are shuffled into planes, one
per byte position, before compression, unless that gives a larger result. Labels and weights are a
separate frame, so that they can be read without the rest.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.compiled import kernel
from elasticml.data.chunks.body import (
    ALIGNMENT,
    HEADER_BYTES,
    SECTIONS,
    Header,
    aligned_buffer,
    read_header,
)
from elasticml.data.chunks.checksums import checksum
from elasticml.errors import DataError, one_line

U8 = NDArray[np.uint8]

MAGIC: Final = b"emlpackd"
VERSION: Final = 1
#: Default level. Negative levels decompress at 4 to 5 GB/s per core; positive levels give smaller
#: output and decompress half as fast.
LEVEL: Final = -3
LEVEL_MIN: Final = -7
LEVEL_MAX: Final = 19

#: Magic, version, shuffled or not, bytes and checksum of the body, bytes of both frames.
_FIXED: Final = struct.Struct("<8sHH4xQQQQ16x")
assert _FIXED.size == ALIGNMENT
_FRONT: Final = _FIXED.size + HEADER_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedBody:
    """A compressed body: its frames, and the header, size and checksum of the body."""

    #: The compressed bytes.
    stored: memoryview
    #: Header, size and checksum of the decompressed body.
    header: Header
    nbytes: int
    checksum: int
    is_shuffled: bool
    #: Bytes of the frame of labels and weights, and of the frame of the rest.
    head_bytes: int
    rest_bytes: int

    def head(self) -> memoryview:
        """Return the head of the body: header, labels and weights.

        Raises
        ------
        DataError
            When it is damaged.
        """
        end = _rest_start(self.header)
        head = aligned_buffer(end)
        self._write_head(head)
        return head.toreadonly()

    def _write_head(self, out: memoryview) -> None:
        out[:HEADER_BYTES] = self.stored[_FIXED.size : _FRONT]
        end = _rest_start(self.header)
        frame = self.stored[_FRONT : _FRONT + self.head_bytes]
        np.copyto(
            np.frombuffer(out, np.uint8)[HEADER_BYTES:end], _inflated(frame, end - HEADER_BYTES)
        )

    def unpack(self, out: memoryview) -> None:
        """Decompress the body into a buffer of ``nbytes``.

        Raises
        ------
        DataError
            When it is damaged.
        """
        self._write_head(out)
        start, at = _rest_start(self.header), _FRONT + self.head_bytes
        rest = _inflated(self.stored[at : at + self.rest_bytes], self.nbytes - start)
        body = np.frombuffer(out, np.uint8)
        if not self.is_shuffled:
            np.copyto(body[start:], rest)
            return
        end = start
        for offset, size, width in _sections(self.header):
            body[end:offset] = 0
            end = offset + size
            part = rest[offset - start : end - start]
            if width == 1:
                body[offset:end] = part
            else:
                loop = _unshuffle4 if width == 4 else _unshuffle8
                loop(part, body[offset:end].view(f"<u{width}"))
        body[end:] = 0


def pack(body: memoryview, level: int = LEVEL) -> bytes:
    """Compress a body, whose size is a multiple of 64 bytes.

    Parameters
    ----------
    level : int, from -7 to 19
        Zstandard's level: larger levels compress better and take longer.
    """
    header = read_header(body, "to be packed")
    start, raw = _rest_start(header), np.frombuffer(body, np.uint8)
    head, rest = _deflated(raw[HEADER_BYTES:start], level), _deflated(raw[start:], level)
    shuffled = raw[start:].copy()
    for offset, size, width in _sections(header):
        planes = raw[offset : offset + size].reshape(-1, width).T
        shuffled[offset - start :][:size] = planes.reshape(-1)
    shuffled_frame = _deflated(shuffled, level)
    is_shuffled = len(shuffled_frame) < len(rest)
    if is_shuffled:
        rest = shuffled_frame
    sizes = body.nbytes, checksum(body), len(head), len(rest)
    packed = _FIXED.pack(MAGIC, VERSION, is_shuffled, *sizes) + body[:HEADER_BYTES] + head + rest
    return packed.ljust(-(-len(packed) // ALIGNMENT) * ALIGNMENT, b"\0")


def is_compressed(stored: memoryview) -> bool:
    """Whether these bytes are a compressed body."""
    return bytes(stored[: len(MAGIC)]) == MAGIC


def read_compressed(stored: memoryview, name: str) -> CompressedBody:
    """Parse a compressed body's header, without decompressing; errors call the chunk ``name``.

    Raises
    ------
    DataError
        When it has another version, or is truncated.
    """
    if stored.nbytes < _FRONT:
        raise _damaged(name, "it is cut short")
    _, version, is_shuffled, nbytes, expected, head, rest = _FIXED.unpack_from(stored)
    if version != VERSION:
        raise _damaged(name, f"it is of version {version}, wanted {VERSION}")
    if stored.nbytes < _FRONT + head + rest:
        raise _damaged(name, "it is cut short")
    header = read_header(stored[_FIXED.size : _FRONT], name, nbytes)
    return CompressedBody(
        stored=stored,
        header=header,
        nbytes=nbytes,
        checksum=expected,
        is_shuffled=bool(is_shuffled),
        head_bytes=head,
        rest_bytes=rest,
    )


def _damaged(name: str, why: str) -> DataError:
    return DataError(f"compressed chunk {name} is damaged: {why}; convert again", chunk=name)


def _rest_start(header: Header) -> int:
    """Return the offset of the sections after labels and weights."""
    ends = [header.offsets[key] + header.sizes[key] for key in ("labels", "weights")]
    return -(-max(HEADER_BYTES, *ends) // ALIGNMENT) * ALIGNMENT


def _sections(header: Header) -> list[tuple[int, int, int]]:
    """Return offset, size and item size of each section after labels and weights."""
    width = {"codes": 1, "values": 4 if header.layout.dtype == "float32" else 8}
    return [
        (header.offsets[key], header.sizes[key], width.get(key, 4))
        for key in SECTIONS[2:]
        if header.sizes[key]
    ]


def _deflated(raw: U8, level: int) -> bytes:
    from pyarrow import Codec  # takes 0.1 s to import: only when needed

    return bytes(Codec("zstd", level).compress(raw, asbytes=True)) if raw.size else b""


def _inflated(frame: memoryview, nbytes: int) -> U8:
    if not nbytes:
        return np.empty(0, np.uint8)
    from pyarrow import Codec

    try:
        raw = np.frombuffer(Codec("zstd").decompress(frame, nbytes), np.uint8)
    except (OSError, ValueError) as error:
        raise DataError(f"it cannot be decompressed ({one_line(error)})") from None
    if raw.size != nbytes:
        raise DataError(f"it holds {raw.size} bytes, wanted {nbytes}")
    return raw


@kernel
def _unshuffle4(planes: U8, out: NDArray[np.uint32]) -> None:
    """Assemble 4-byte numbers from planes: all first bytes, then all second bytes, and so on."""
    n = out.size
    a, b, c, d = planes[:n], planes[n : 2 * n], planes[2 * n : 3 * n], planes[3 * n :]
    for i in range(n):
        out[i] = (
            np.uint32(a[i])
            | np.uint32(b[i]) << np.uint32(8)
            | np.uint32(c[i]) << np.uint32(16)
            | np.uint32(d[i]) << np.uint32(24)
        )


@kernel
def _unshuffle8(planes: U8, out: NDArray[np.uint64]) -> None:
    """Assemble 8-byte numbers from planes."""
    n = out.size
    a, b, c, d = planes[:n], planes[n : 2 * n], planes[2 * n : 3 * n], planes[3 * n : 4 * n]
    e, f, g, h = (
        planes[4 * n : 5 * n],
        planes[5 * n : 6 * n],
        planes[6 * n : 7 * n],
        planes[7 * n :],
    )
    for i in range(n):
        out[i] = (
            np.uint64(a[i])
            | np.uint64(b[i]) << np.uint64(8)
            | np.uint64(c[i]) << np.uint64(16)
            | np.uint64(d[i]) << np.uint64(24)
            | np.uint64(e[i]) << np.uint64(32)
            | np.uint64(f[i]) << np.uint64(40)
            | np.uint64(g[i]) << np.uint64(48)
            | np.uint64(h[i]) << np.uint64(56)
        )
