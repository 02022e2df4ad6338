"""Chunk ids as text, and back."""

from hypothesis import given
from hypothesis import strategies as st

from elasticml.ids import ChunkId
from elasticml.protocol.chunk_ranges import format_chunk_ranges, parse_chunk_ranges

ids = st.builds(ChunkId, st.just("s"), st.integers(0, 3), st.integers(0, 9))


@given(st.lists(ids))
def test_any_chunks_are_read_back_in_their_order(chunks):
    assert parse_chunk_ranges(format_chunk_ranges(chunks), "s") == tuple(chunks)


def test_neighbours_are_one_run():
    chunks = [ChunkId("s", 0, k) for k in (0, 1, 2, 5)] + [ChunkId("s", 1, 6)]
    assert format_chunk_ranges(chunks) == "0.0-2 0.5 1.6"
