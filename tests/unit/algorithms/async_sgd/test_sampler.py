"""The sampler: each example once a pass, shuffled, wherever its chunk is."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.sampler import Sampler
from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.ids import ChunkId
from tests.chunk_states import send_state


def make_chunks(sizes):
    ids = (ChunkId("test", 0, k) for k in range(len(sizes)))
    return [
        dense_chunk(id, np.zeros(n), np.zeros((n, 1))) for id, n in zip(ids, sizes, strict=True)
    ]


def visits(batches):
    return [(c.id.ordinal, int(r)) for batch in batches for c, rows in batch.parts for r in rows]


def everything(chunks):
    return sorted((c.id.ordinal, r) for c in chunks for r in range(c.n_rows))


@pytest.mark.parametrize("size", [1, 7, 64, 1000, float("inf")])
@pytest.mark.parametrize("window", [1, 3, 16])
def test_every_pass_visits_every_example_once(size, window):
    chunks = make_chunks([10, 30, 1, 25, 8])
    sampler = Sampler(chunks, seed=3, window=window)
    for made in (1.0, 2.0, 3.0):
        batches = []
        while sampler.passes < made:
            batches.append(sampler.next(size))
            assert 1 <= batches[-1].size <= size
        assert sorted(visits(batches)) == everything(chunks)
        assert sampler.passes == made


def test_orders_are_shuffled_and_differ_between_passes_and_seeds():
    def order(seed, pass_):
        sampler = Sampler(make_chunks([50]), seed=seed)
        return visits([sampler.next(50) for _ in range(pass_ + 1)][pass_:])

    results = [order(0, 0), order(0, 1), order(1, 0)]
    assert order(0, 0) == results[0]
    assert sorted(results[0]) != results[0]
    assert results[0] != results[1] != results[2] != results[0]


def test_a_batch_is_drawn_from_several_chunks():
    sampler = Sampler(make_chunks([100] * 20), seed=0, window=8)
    sizes = [rows.size for _, rows in sampler.next(64).parts]
    assert sizes == [8] * 8


def test_a_moved_chunk_continues_where_it_stopped():
    chunks = make_chunks([40, 40, 40])
    giver, taker = Sampler(chunks, seed=5), Sampler([], seed=5)
    seen = [giver.next(33)]
    moved = Chunk.from_body(chunks[1].id, chunks[1].body)
    send_state(chunks[1], moved)
    giver.change([chunks[0], chunks[2]])
    taker.change([moved])
    for sampler in (giver, taker):
        while sampler.passes < 1.0:
            seen.append(sampler.next(9))
    assert sorted(visits(seen)) == everything(chunks)


def draws(sampler, until, size=10):
    """Draw rows until this many passes are complete; return their chunk numbers."""
    results = []
    while sampler.passes < until:
        results += [chunk for chunk, _ in visits([sampler.next(size)])]
    return results


def test_chunks_that_are_taken_over_join_the_pass_of_their_new_owner():
    own, taken = make_chunks([20]), make_chunks([20, 30])[1:]
    sampler = Sampler(own, seed=0)
    assert len(draws(sampler, 7.0)) == 140
    sampler.next(5)
    sampler.change(own + taken)
    # 15 rows are left of the first chunk's eighth pass, and all of the other chunk, which is as
    # far.
    assert sampler.passes == (7 * 50 + 5) / 50
    result = draws(sampler, 8.0)
    assert sorted(result) == [0] * 15 + [1] * 30
    assert 0 in result[:10]
    assert sorted(draws(sampler, 9.0)) == [0] * 20 + [1] * 30


def test_chunks_that_have_been_visited_more_often_wait_for_one_pass_at_most():
    slow, fast = make_chunks([20, 20]), make_chunks([20, 20])
    giver, taker = Sampler(fast[1:], seed=0), Sampler(slow[:1], seed=0)
    draws(giver, 6.5)
    taker.next(5)
    taker.change([slow[0], fast[1]])
    result = draws(taker, 2.0, size=5)
    assert result[:15] == [0] * 15
    assert sorted(result[15:]) == [0] * 20 + [1] * 10


def test_a_member_that_finished_its_passes_visits_new_chunks_once():
    own, taken = make_chunks([20]), make_chunks([20, 30])[1:]
    sampler = Sampler(own, seed=0)
    draws(sampler, 3.0)
    sampler.change(own + taken)
    assert draws(sampler, 3.0) == [1] * 30


def test_all_chunks_of_a_newcomer_are_as_far_as_the_most_advanced():
    chunks = make_chunks([20, 20, 20])
    draws(Sampler(chunks[:1], seed=0), 5.5)
    draws(Sampler(chunks[1:2], seed=0), 3.0)
    sampler = Sampler(chunks, seed=0)
    assert sampler.passes == 5.0 + 10 / 60
    assert sorted(draws(sampler, 6.0)) == [0] * 10 + [1] * 20 + [2] * 20


def test_a_sampler_without_chunks_draws_an_empty_batch():
    sampler = Sampler([], seed=0)
    assert sampler.next(10).size == 0
    assert sampler.passes == 0.0
    sampler.change(make_chunks([3]))
    assert sampler.next(10).size == 3
