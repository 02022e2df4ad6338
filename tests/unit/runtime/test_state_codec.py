"""States of many chunks in one payload survive encoding."""

from __future__ import annotations

import json

import numpy as np

from elasticml.data.chunks.chunk import dense_chunk
from elasticml.ids import ChunkId
from elasticml.runtime.chunks.state_codec import decode_states, encode_states


def test_states_of_different_shapes_and_types_keep_their_versions() -> None:
    states = [
        {"alpha": np.arange(3.0), "serial": np.array([7])},
        {"flag": np.array([True, False, True]), "alpha": np.arange(5.0)},
        {"small": np.arange(3, dtype=np.float32), "alpha": np.arange(2.0)},
        {"table": np.arange(8.0).reshape(2, 4)[:, ::2], "none": np.empty((0, 2))},
    ]
    chunks = [dense_chunk(ChunkId("s", 0, k), np.zeros(3), np.zeros((3, 1))) for k in range(4)]
    for k, (made, state) in enumerate(zip(chunks, states, strict=True)):
        made.state, made.state_version = state, 10 + k
    directory, payload = encode_states(chunks)
    back = decode_states(json.loads(json.dumps(directory)), memoryview(bytearray(payload or b"")))
    assert [version for _, version in back] == [10, 11, 12, 13]
    for (got, _), sent in zip(back, states, strict=True):
        assert got.keys() == sent.keys()
        for name, array in sent.items():
            np.testing.assert_array_equal(got[name], array, strict=True)
