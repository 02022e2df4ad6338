"""Assignment of chunks to groups: even, independent of order, and stable when a chunk leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticml.algorithms.cocoa.solver_groups import assign_chunks
from elasticml.ids import ChunkId

CHUNKS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 1000)), max_size=60, unique_by=lambda x: x[0]
)


def ids_of(numbers: list[int]) -> list[ChunkId]:
    return [ChunkId("0" * 16, 0, number) for number in numbers]


@given(CHUNKS, st.integers(1, 6), st.randoms(use_true_random=False))
def test_chunks_are_assigned_evenly_and_independently_of_their_order(
    chunks: list[tuple[int, int]], n: int, random: Any
) -> None:
    numbers, sizes = [c[0] for c in chunks], [float(c[1]) for c in chunks]
    groups = assign_chunks(ids_of(numbers), sizes, n)
    loads = np.bincount(groups, sizes, n) if chunks else np.zeros(n)
    assert loads.max() <= sum(sizes) / n + max(sizes, default=0.0)
    random.shuffle(chunks)
    again = assign_chunks(ids_of([c[0] for c in chunks]), [float(c[1]) for c in chunks], n)
    assert dict(zip(numbers, groups, strict=True)) == dict(
        zip([c[0] for c in chunks], again, strict=True)
    )


@pytest.mark.parametrize("n", [2, 4])
def test_a_leaving_chunk_moves_few_others_to_another_group(n: int) -> None:
    rng = np.random.default_rng(1)
    moved = []
    for _ in range(40):
        numbers = rng.choice(1000, 64, replace=False).tolist()
        sizes = [1000.0 + float(x) for x in rng.integers(0, 20, 64)]
        groups = assign_chunks(ids_of(numbers), sizes, n)
        lost = int(rng.integers(64))
        kept = [k for k in range(64) if k != lost]
        left = assign_chunks(ids_of([numbers[k] for k in kept]), [sizes[k] for k in kept], n)
        moved.append(sum(groups[k] != new for k, new in zip(kept, left, strict=True)))
    # A new assignment would move (n - 1) / n of the 63.
    assert np.mean(moved) <= 3.0
    assert max(moved) <= 8
