"""The states of many chunks in one payload: a short directory, then the arrays; no pickle.

Chunks whose states look alike share one line of the directory, and each array lies where the one
before it ends, so that a batch costs two copies of its bytes and little else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunk import Chunk
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
    arrays: list[NDArray[Any]] = []
    for chunk in chunks:
        look = _looks(chunk.state)
        kinds.append(looks.setdefault(look, len(looks)))
        arrays += [chunk.state[name] for name, _, _ in look]
    directory = {
        "looks": [[[name, dtype, list(shape)] for name, dtype, shape in look] for look in looks],
        "kinds": kinds,
        "versions": [chunk.state_version for chunk in chunks],
    }
    nbytes = sum(_padded(array.nbytes) for array in arrays)
    if nbytes == 0:
        return directory, None
    buffer = np.zeros(nbytes, np.uint8)
    at = 0
    for array in arrays:
        target = buffer[at : at + array.nbytes].view(array.dtype.newbyteorder("<"))
        target[...] = array.reshape(-1)
        at += _padded(array.nbytes)
    return directory, buffer.data


def decode_states(
    directory: Mapping[str, Any], payload: memoryview | None
) -> list[tuple[State, int]]:
    """Read states and versions back, in the order of the chunks; the arrays are writable copies.

    Raises
    ------
    RemoteProtocolError
        When the payload is not as long as the directory says.
    """
    looks = [[(n, np.dtype(d), tuple(s)) for n, d, s in look] for look in directory["looks"]]
    buffer = np.empty(0, np.uint8) if payload is None else np.frombuffer(payload, np.uint8)
    states: list[tuple[State, int]] = []
    at = 0
    for kind, version in zip(directory["kinds"], directory["versions"], strict=True):
        state: State = {}
        for name, dtype, shape in looks[kind]:
            nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            part = buffer[at : at + nbytes]
            if part.nbytes != nbytes:
                break
            state[name] = part.view(dtype).reshape(shape).astype(dtype.newbyteorder("="))
            at += _padded(nbytes)
        states.append((state, version))
    if at != buffer.nbytes or any(
        len(state) != len(looks[kind])
        for (state, _), kind in zip(states, directory["kinds"], strict=True)
    ):
        raise RemoteProtocolError(
            f"states of {len(states)} chunks came in {buffer.nbytes} bytes, which their directory "
            f"{json.dumps(directory)[:200]} does not describe"
        )
    return states


def _looks(state: Mapping[str, NDArray[Any]]) -> Looks:
    look = []
    for name in sorted(state):
        array = state[name]
        if array.dtype.kind not in "biuf":
            raise ValueError(f"state {name!r} has dtype {array.dtype}, wanted numbers")
        look.append((name, array.dtype.newbyteorder("<").str, array.shape))
    return tuple(look)


def _padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
