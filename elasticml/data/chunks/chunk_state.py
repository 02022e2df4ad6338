"""Serialise a chunk's state: one contiguous buffer with a JSON directory and aligned arrays."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.errors import DataError

MAGIC: Final = b"emlstate"
VERSION: Final = 1
ALIGNMENT: Final = 64

#: Magic, version, two reserved bytes, length of the directory, state version, total bytes.
_FIXED: Final = struct.Struct("<8sHHIQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkState:
    """Named per-example arrays, and their version."""

    arrays: dict[str, NDArray[Any]]
    version: int


def encode_state(arrays: Mapping[str, NDArray[Any]], version: int) -> memoryview:
    """Copy named arrays into one read-only buffer.

    Parameters
    ----------
    arrays : mapping of ndarray
        Booleans, integers or floats, of any shape.
    version : int, at least 0

    Raises
    ------
    ValueError
        When an array is not numeric.
    """
    directory: list[tuple[str, str, list[int], int]] = []
    offset = 0
    for name in sorted(arrays):
        array = arrays[name]
        if array.dtype.kind not in "biuf":
            raise ValueError(f"state {name!r} has dtype {array.dtype}, wanted numbers")
        dtype = array.dtype.newbyteorder("<").str
        directory.append((name, dtype, list(array.shape), offset))
        offset += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    text = json.dumps(directory, separators=(",", ":")).encode()
    start = -(-(_FIXED.size + len(text)) // ALIGNMENT) * ALIGNMENT
    buffer = bytearray(start + offset)
    _FIXED.pack_into(buffer, 0, MAGIC, VERSION, 0, len(text), version, len(buffer))
    buffer[_FIXED.size : _FIXED.size + len(text)] = text
    for name, dtype, _, at in directory:
        array = np.ascontiguousarray(arrays[name], dtype=dtype)
        buffer[start + at : start + at + array.nbytes] = array.tobytes()
    return memoryview(buffer).toreadonly()


def decode_state(buffer: bytes | bytearray | memoryview) -> ChunkState:
    """Read a state back; the arrays are writable copies.

    Raises
    ------
    DataError
        When the buffer is not a state of this version, or is truncated.
    """
    view = memoryview(buffer).cast("B")
    if view.nbytes < _FIXED.size or bytes(view[:8]) != MAGIC:
        raise DataError(
            f"chunk state of {view.nbytes} bytes starts with {bytes(view[:8])!r}, wanted {MAGIC!r}"
        )
    _, version, _, n_text, state_version, total = _FIXED.unpack_from(view)
    if version != VERSION or total != view.nbytes:
        raise DataError(
            f"chunk state has version {version} and {view.nbytes} bytes, wanted version {VERSION} "
            f"and {total} bytes: it was cut short, or written by another version of elasticml"
        )
    text = bytes(view[_FIXED.size : _FIXED.size + n_text])
    start = -(-(_FIXED.size + n_text) // ALIGNMENT) * ALIGNMENT
    arrays = {}
    for name, dtype, shape, at in json.loads(text):
        count = int(np.prod(shape, dtype=np.int64))
        array: NDArray[Any] = np.zeros(shape, np.dtype(dtype).newbyteorder("="))
        if count:
            array[...] = np.frombuffer(view, dtype, count, start + at).reshape(shape)
        arrays[name] = array
    return ChunkState(arrays=arrays, version=state_version)
