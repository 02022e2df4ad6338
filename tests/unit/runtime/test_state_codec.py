"""States of many chunks in one payload survive encoding."""

from __future__ import annotations

import json

import numpy as np
import pytest

from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.errors import RemoteProtocolError
from elasticml.ids import ChunkId
from elasticml.runtime.chunks.state_codec import decode_states, encode_states


def chunk(ordinal: int, rows: int, **state: np.ndarray) -> Chunk:
    made = dense_chunk(ChunkId("s", 0, ordinal), np.zeros(rows), np.zeros((rows, 1)))
    made.state = state
    made.state_version = ordinal + 10
    return made


def there_and_back(chunks: list[Chunk]) -> list[tuple[dict[str, np.ndarray], int]]:
    directory, payload = encode_states(chunks)
    copied = None if payload is None else memoryview(bytearray(payload))
    return decode_states(json.loads(json.dumps(directory)), copied)


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[k], other[k]) and one[k].dtype == other[k].dtype for k in one
    )


def test_states_of_different_shapes_keep_their_versions() -> None:
    rng = np.random.default_rng(0)
    chunks = [
        chunk(0, 3, alpha=rng.normal(size=3), serial=np.array([7])),
        chunk(1, 5, alpha=rng.normal(size=5), flag=np.array([True, False, True])),
        chunk(2, 3, alpha=rng.normal(size=3).astype(np.float32)),
        chunk(3, 2, table=rng.normal(size=(2, 4))[:, ::2], none=np.empty((0, 2))),
    ]
    back = there_and_back(chunks)
    assert [version for _, version in back] == [10, 11, 12, 13]
    assert [same(state, c.state) for (state, _), c in zip(back, chunks, strict=True)] == [True] * 4


def test_chunks_of_equal_shape_share_one_line_of_the_directory() -> None:
    chunks = [chunk(k, 4, alpha=np.ones(4), step=np.ones(4)) for k in range(50)]
    assert len(encode_states(chunks)[0]["looks"]) == 1


@pytest.mark.parametrize("cut", [slice(0, 8), slice(0, 24), slice(0, 0)])
def test_a_payload_of_another_length_is_refused(cut: slice) -> None:
    directory, payload = encode_states([chunk(0, 4, alpha=np.ones(4))])
    assert payload is not None
    with pytest.raises(RemoteProtocolError, match="states of 1 chunks came in"):
        decode_states(directory, payload[cut])


def test_a_state_of_another_type_is_refused() -> None:
    with pytest.raises(ValueError, match="wanted numbers"):
        encode_states([chunk(0, 1, name=np.array(["a"]))])
