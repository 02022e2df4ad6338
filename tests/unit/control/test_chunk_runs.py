"""Chunk ids as text, and back."""

from hypothesis import given
from hypothesis import strategies as st

from elasticml.control.chunk_runs import chunks_of, runs_of
from elasticml.terms import ChunkId

ids = st.builds(ChunkId, st.just("s"), st.integers(0, 3), st.integers(0, 9))


@given(st.lists(ids))
def test_any_chunks_are_read_back_in_their_order(chunks):
    assert chunks_of(runs_of(chunks), "s") == tuple(chunks)


def test_neighbours_are_one_run():
    chunks = [ChunkId("s", 0, k) for k in (0, 1, 2, 5)] + [ChunkId("s", 1, 6)]
    assert runs_of(chunks) == "0.0-2 0.5 1.6"
