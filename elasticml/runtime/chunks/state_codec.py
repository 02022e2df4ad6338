"""The states of many chunks in one payload: a short directory, then the arrays; no pickle.

Chunks whose states look alike share one line of the directory, and each array lies where the one
before it ends, so that a batch costs two copies of its bytes and little else. Numbers travel in the
byte order of their sender, which the directory tells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import RemoteProtocolError

#: Arrays begin on multiples of this.
ALIGNMENT: Final = 8

#: Name, dtype and shape of each array of a state, by name.
Looks = tuple[tuple[str, str, tuple[int, ...]], ...]
State = dict[str, NDArray[Any]]


def encode_states(chunks: Sequence[Chunk]) -> tuple[dict[str, Any], memoryview | None]:
    """Copy the states of chunks into one buffer.

    A chunk without a state is in the directory, too: whoever gets it must forget an older state.

    Returns
    -------
    directory : dict
        JSON-able; for ``decode_states``.
    payload : memoryview or None
        None where no chunk has a state.

    Raises
    ------
    ValueError
        When an array holds something else than numbers.
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
    """Read states and versions back, in the order of the chunks; the arrays are writable copies.

    Raises
    ------
    RemoteProtocolError
        When the payload is not as long as the directory says.
    """
    looks = [[_part(*line) for line in look] for look in directory["looks"]]
    kinds, versions = directory["kinds"], directory["versions"]
    n_bytes = 0 if payload is None else payload.nbytes
    if n_bytes != sum(sum(part.padded for part in looks[kind]) for kind in kinds):
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


@dataclass(frozen=True, slots=True)
class ArraySlice:
    """Where one array of a state lies, and what it is."""

    name: str
    dtype: np.dtype[Any]
    native: np.dtype[Any]
    shape: tuple[int, ...]
    count: int
    padded: int


def _part(name: str, dtype: str, shape: Sequence[int]) -> ArraySlice:
    sent, count = np.dtype(dtype), math.prod(shape)
    nbytes = count * sent.itemsize
    padded = -(-nbytes // ALIGNMENT) * ALIGNMENT
    return ArraySlice(name, sent, sent.newbyteorder("="), tuple(shape), count, padded)


def _check(look: Looks) -> None:
    for name, dtype, _ in look:
        if np.dtype(dtype).kind not in "biuf":
            raise ValueError(f"state {name!r} has dtype {dtype}, wanted numbers")
