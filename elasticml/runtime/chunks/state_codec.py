"""Codec for the states of many chunks in one payload: a directory, then the arrays; no pickle.

Chunks whose states have the same layout share an entry of the directory, and arrays follow each
other without gaps, so a batch costs little more than two copies of its bytes. Arrays have the
sender's byte order, which the directory contains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.collective.frames import reading_prefix
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import RemoteProtocolError

#: Arrays start at multiples of this number of bytes.
ALIGNMENT: Final = 8

#: Name, dtype and shape of each array of a state, by name.
Looks = tuple[tuple[str, str, tuple[int, ...]], ...]
State = dict[str, NDArray[Any]]


def encode_states(chunks: Sequence[Chunk]) -> tuple[dict[str, Any], memoryview | None]:
    """Copy the states of chunks into one buffer.

    Chunks without a state are included: the receiver must drop an older state.

    Returns
    -------
    directory : dict
        JSON-able; for ``decode_states``.
    payload : memoryview or None
        None if no chunk has a state.

    Raises
    ------
    ValueError
        When an array does not contain numbers.
    """
    looks: dict[Looks, int] = {}
    kinds: list[int] = []
    parts: list[Any] = []
    for chunk in chunks:
        arrays = sorted(chunk.state.items())
        look = tuple((name, array.dtype.str, array.shape) for name, array in arrays)
        if look not in looks:
            _check(look)
            looks[look] = len(looks)
        kinds.append(looks[look])
        for _, array in arrays:
            # A bytes object joins contiguous arrays without a copy in between.
            parts.append(array if array.flags.c_contiguous else np.ascontiguousarray(array))
            if array.nbytes % ALIGNMENT:
                parts.append(bytes(-array.nbytes % ALIGNMENT))
    directory = {
        "looks": [[[name, dtype, list(shape)] for name, dtype, shape in look] for look in looks],
        "kinds": kinds,
        "versions": [chunk.state_version for chunk in chunks],
    }
    payload = b"".join(parts)
    return directory, memoryview(payload) if payload else None


def decode_states(
    directory: Mapping[str, Any], payload: memoryview | None
) -> list[tuple[State, int]]:
    """Decode states and versions in the order of the chunks; the arrays are writable copies.

    Raises
    ------
    RemoteProtocolError
        When the payload does not have the length that the directory requires.
    """
    looks, kinds, versions = _read(directory)
    n_bytes = 0 if payload is None else payload.nbytes
    if n_bytes != states_bytes(directory):
        raise RemoteProtocolError(
            f"states of {len(kinds)} chunks came in {n_bytes} bytes, which their directory "
            f"{json.dumps(directory)[:200]} does not describe"
        )
    source = b"" if payload is None else payload
    states: list[tuple[State, int]] = []
    at = 0
    for kind, version in zip(kinds, versions, strict=True):
        state: State = {}
        for part in looks[kind]:
            if part.count:
                array = np.frombuffer(source, part.dtype, part.count, at)
                state[part.name] = array.astype(part.native).reshape(part.shape)
            else:
                state[part.name] = np.empty(part.shape, part.native)
            at += part.padded
        states.append((state, version))
    return states


def states_bytes(directory: Mapping[str, Any] | None) -> int:
    """Return the bytes of the payload that a directory describes; 0 without one.

    Raises
    ------
    RemoteProtocolError
        When it is not a directory.
    """
    if directory is None:
        return 0
    looks, kinds, _ = _read(directory)
    sizes = [sum(part.padded for part in look) for look in looks]
    return sum(sizes[kind] for kind in kinds)


def _read(directory: Mapping[str, Any]) -> tuple[list[list[ArraySlice]], list[int], list[int]]:
    """Return looks, the look of each chunk, and its version."""
    with reading_prefix("the directory of states"):
        looks = [[_part(*line) for line in look] for look in directory["looks"]]
        kinds, versions = directory["kinds"], directory["versions"]
        if len(kinds) != len(versions) or not all(
            type(number) is int and number >= 0 for number in (*kinds, *versions)
        ):
            raise ValueError("kinds and versions are not whole numbers, one of each for a chunk")
        if kinds and max(kinds) >= len(looks):
            raise ValueError(f"kind {max(kinds)} of {len(looks)}")
    return looks, kinds, versions


@dataclass(frozen=True, slots=True)
class ArraySlice:
    """Name, dtype, shape and padded size of an array of a state."""

    name: str
    dtype: np.dtype[Any]
    native: np.dtype[Any]
    shape: tuple[int, ...]
    count: int
    padded: int


def _part(name: str, dtype: str, shape: Sequence[int]) -> ArraySlice:
    sent, count = np.dtype(dtype), math.prod(shape)
    if sent.kind not in "biuf" or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"array {name!r} of dtype {dtype!r} and shape {shape!r}")
    nbytes = count * sent.itemsize
    padded = -(-nbytes // ALIGNMENT) * ALIGNMENT
    return ArraySlice(name, sent, sent.newbyteorder("="), tuple(shape), count, padded)


def _check(look: Looks) -> None:
    for name, dtype, _ in look:
        if np.dtype(dtype).kind not in "biuf":
            raise ValueError(f"state {name!r} has dtype {dtype}, wanted numbers")
