"""The sampler: each example once a pass, shuffled, for any placement of chunks."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elasticml.algorithms.async_sgd.sampler import POSITION, Sampler
from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.ids import ChunkId
from tests.chunk_states import send_state

MEMBERS = 3


def make_chunks(sizes):
    return [
        dense_chunk(ChunkId("test", 0, k), np.zeros(n), np.zeros((n, 1)))
        for k, n in enumerate(sizes)
    ]


def visited(batch):
    return [(chunk.id.ordinal, int(row)) for chunk, rows in batch.parts for row in rows]


def moved(chunk):
    """Return the chunk at a new owner: the same body, and the state that was sent."""
    arrived = Chunk.from_body(chunk.id, chunk.body)
    if chunk.state:
        send_state(chunk, arrived)
    return arrived


@settings(max_examples=150)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    window=st.integers(1, 4),
    seed=st.integers(0, 5),
    actions=st.lists(
        st.tuples(st.integers(0, MEMBERS - 1), st.integers(0, 5), st.integers(0, 40)),
        max_size=60,
    ),
)
@example(sizes=[2, 1], window=1, seed=0, actions=[(0, 0, 2), (0, 0, 1), (0, 0, 0)])
def test_visits_of_a_chunks_rows_differ_by_one_at_most(sizes, window, seed, actions):
    chunks = make_chunks(sizes)
    owned = [chunks[i::MEMBERS] for i in range(MEMBERS)]
    samplers = [Sampler(some, seed=seed, window=window) for some in owned]
    visits: Counter[tuple[int, int]] = Counter()
    for member, which, size in actions:
        if size:
            drawn = samplers[member].next(size)
            assert drawn.size <= size
            assert (drawn.size > 0) == bool(owned[member])
            visits.update(visited(drawn))
        elif owned[member]:
            to, given_up = (member + 1) % MEMBERS, owned[member].pop(which % len(owned[member]))
            owned[to].append(moved(given_up))
            for i in (member, to):
                samplers[i].change(owned[i])
    for chunk in (chunk for some in owned for chunk in some):
        done, position = chunk.state.get(POSITION, (0, 0))
        counts = [visits[chunk.id.ordinal, row] for row in range(chunk.n_rows)]
        assert sorted(counts) == [done] * (chunk.n_rows - position) + [done + 1] * position
    for sampler, some in zip(samplers, owned, strict=True):
        rows = sum(chunk.n_rows for chunk in some)
        assert sampler.rows == rows
        # A chunk that was taken over may be up to a pass ahead, and waits for the others. So a row
        # is visited twice at most until all are level; then each pass visits every row once.
        seen = Counter()
        while not all(c.state.get(POSITION, (0, 0))[1] == 0 for c in some) or sampler.passes % 1:
            seen.update(visited(sampler.next(7)))
        assert set(seen.values()) <= {1, 2}
        made = sampler.passes
        whole = Counter()
        while rows and sampler.passes < made + 1:
            whole.update(visited(sampler.next(7)))
        assert whole == Counter((c.id.ordinal, r) for c in some for r in range(c.n_rows))


def test_orders_are_shuffled_and_differ_between_passes_and_seeds():
    def order(seed, pass_):
        sampler = Sampler(make_chunks([50]), seed=seed)
        return visited([sampler.next(50) for _ in range(pass_ + 1)][pass_])

    results = [order(0, 0), order(0, 1), order(1, 0)]
    assert order(0, 0) == results[0]
    assert sorted(results[0]) != results[0]
    assert results[0] != results[1] != results[2] != results[0]


def test_a_batch_is_drawn_from_several_chunks():
    sampler = Sampler(make_chunks([100] * 20), seed=0, window=8)
    assert [rows.size for _, rows in sampler.next(64).parts] == [8] * 8


def test_a_member_that_finished_its_passes_visits_new_chunks_once():
    own, taken = make_chunks([20, 30])
    sampler, drawn = Sampler([own], seed=0), []
    while sampler.passes < 3.0:
        sampler.next(10)
    sampler.change([own, taken])
    while sampler.passes < 3.0:
        drawn += [chunk for chunk, _ in visited(sampler.next(10))]
    assert drawn == [1] * 30
