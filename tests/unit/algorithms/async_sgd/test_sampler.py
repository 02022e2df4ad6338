"""The sampler: each example once a pass, shuffled, wherever its chunk is."""

from __future__ import annotations

import numpy as np

from elasticml.algorithms.async_sgd.sampler import Sampler
from elasticml.data.chunks.chunk import dense_chunk
from elasticml.ids import ChunkId


def make_chunks(sizes):
    ids = (ChunkId("test", 0, k) for k in range(len(sizes)))
    return [
        dense_chunk(id, np.zeros(n), np.zeros((n, 1))) for id, n in zip(ids, sizes, strict=True)
    ]


def visits(batches):
    return [(c.id.ordinal, int(r)) for batch in batches for c, rows in batch.parts for r in rows]


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


def draws(sampler, until, size=10):
    """Draw rows until this many passes are complete; return their chunk numbers."""
    results = []
    while sampler.passes < until:
        results += [chunk for chunk, _ in visits([sampler.next(size)])]
    return results


def test_a_member_that_finished_its_passes_visits_new_chunks_once():
    own, taken = make_chunks([20]), make_chunks([20, 30])[1:]
    sampler = Sampler(own, seed=0)
    draws(sampler, 3.0)
    sampler.change(own + taken)
    assert draws(sampler, 3.0) == [1] * 30


def test_a_sampler_without_chunks_draws_an_empty_batch():
    sampler = Sampler([], seed=0)
    assert sampler.next(10).size == 0
    assert sampler.passes == 0.0
    sampler.change(make_chunks([3]))
    assert sampler.next(10).size == 3
