"""A member's order is one random permutation, whatever its chunks; positions are all of its
state.
"""

from __future__ import annotations

import numpy as np

from elasticml.algorithms.local_sgd.sampler import Sampler, order_keys
from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.ids import ChunkId

SEED = 5


def chunks_of(sizes: list[int]) -> list[Chunk]:
    numbers = np.arange(sum(sizes), dtype=np.float64)
    bounds = np.cumsum([0, *sizes])
    return [
        dense_chunk(
            ChunkId("0" * 16, i // 2, i % 2),
            numbers[bounds[i] : bounds[i + 1]],
            numbers[bounds[i] : bounds[i + 1], None],
        )
        for i in range(len(sizes))
    ]


def numbers(chunks: list[Chunk], taken) -> list[float]:
    pairs = zip(taken.chunk, taken.row, strict=True)
    return [float(chunks[chunk].labels[row]) for chunk, row in pairs]


def whole_epoch(chunks: list[Chunk], epoch: int, step: int) -> list[float]:
    sampler, position, result = Sampler(SEED, 0.0), np.zeros(len(chunks), np.int64), []
    while sampler.begin(chunks, position, epoch):
        taken, seen = sampler.take(step)
        position = position + seen
        result += numbers(chunks, taken)
    return result


def test_the_order_follows_the_keys_and_does_not_depend_on_the_steps():
    chunks = chunks_of([7, 1, 12, 5])
    keys = np.concatenate([order_keys(SEED, c.id, 4, c.n_rows) for c in chunks])
    expected = np.argsort(keys).astype(float).tolist()
    assert whole_epoch(chunks, 4, 1) == whole_epoch(chunks, 4, 25) == expected
