"""What a member holds: never more than its memory, and nothing that it was told to drop."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.data.chunk import Chunk, dense_chunk
from elasticml.errors import DataError
from elasticml.runtime.chunk_store import ChunkStore
from elasticml.terms import ChunkId


def chunk(ordinal: int) -> Chunk:
    return dense_chunk(ChunkId("s", 0, ordinal), np.zeros(4), np.zeros((4, 4)))


def test_chunks_that_do_not_fit_are_refused_whole() -> None:
    store = ChunkStore(limit_bytes=3 * chunk(0).nbytes)
    store.put([chunk(0), chunk(1)])
    with pytest.raises(DataError, match="its limit is"):
        store.put([chunk(2), chunk(3)])
    assert (len(store.chunks), store.held_bytes) == (2, 2 * chunk(0).nbytes)
    store.put([chunk(1), chunk(2)])
    assert len(store.chunks) == 3


def test_dropped_chunks_make_room_and_may_be_dropped_twice() -> None:
    store = ChunkStore(limit_bytes=chunk(0).nbytes)
    store.put([chunk(0)])
    store.drop([chunk(0).id, chunk(5).id])
    store.drop([chunk(0).id])
    store.put([chunk(1)])
    assert store.held_bytes == chunk(1).nbytes


def test_others_chunks_stay_as_copies_with_their_states() -> None:
    store = ChunkStore()
    given, kept = chunk(0), chunk(1)
    given.state = {"alpha": np.ones(4)}
    store.put([given, kept])
    assert store.own([kept.id]) == [kept]
    assert store.chunks[given.id].state["alpha"].tolist() == [1.0] * 4
