"""The parts of a pass besides visiting rows: merging copies, model products, work on chunks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from elasticml.algorithms.cocoa.line_search import LineModel
from elasticml.algorithms.cocoa.parallel_epoch import ReplicaArrays, merge_range
from elasticml.algorithms.parallel import NUMBERS_PER_THREAD, Serial, map_chunks
from elasticml.data.chunks.chunk import Chunk
from elasticml.runtime.executors import ThreadParallel
from tests.unit.algorithms.cocoa.local_problem import chunk_of


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("begin", "end"), [(0, 100), (7, 7), (5, 93), (33, 48)])
def test_merging_adds_the_changes_of_all_copies(dtype: Any, begin: int, end: int) -> None:
    rng = np.random.default_rng(0)
    v, whole, shares = rng.normal(size=100), 1.5, np.array([0.5, 0.25])
    dv = rng.normal(size=100)
    rows = np.empty((3, 100), dtype)
    rows[:] = v + whole * dv
    # Two cache lines that no thread changed, and single coordinates.
    is_moved = rng.random((2, 100)) < 0.3
    is_moved[:, 16:48] = False
    rows[1:] += np.where(is_moved, rng.normal(size=(2, 100)), 0.0).astype(dtype)
    step = (rows[1:].astype(np.float64) - rows[0].astype(np.float64)).T @ shares
    step[:begin], step[end:] = 0.0, 0.0
    before, expected = v + whole * dv, rows.copy()
    expected[:, begin:end] = (v + whole * (dv + step))[begin:end]
    expected_dv, sums = dv + step, np.zeros(2)

    merge_range(ReplicaArrays(rows, v, dv, whole, v.size), shares, begin, end, sums)

    np.testing.assert_allclose(dv, expected_dv, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(rows, expected, rtol=2 * np.finfo(dtype).eps)
    np.testing.assert_allclose(sums, [before @ step, step @ step], rtol=1e-12, atol=1e-14)


def test_the_line_search_has_the_same_bits_for_any_number_of_blas_threads() -> None:
    v, dv = np.random.default_rng(1).normal(size=(2, 200_001))

    def found(n_threads: int) -> LineModel:
        with threadpool_limits(n_threads, user_api="blas"):
            return LineModel.of(v, dv, dual=1.0, curvature=1.0, weight=1.0, l2=1.0)

    assert found(1) == found(2) == found(3)


class CountingExecutor(Serial):
    """Record how many tasks run at the same time."""

    n_threads = 4

    def __init__(self) -> None:
        self.n_items = 0

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        self.n_items = len(items)
        return super().map(function, items)


@pytest.fixture
def chunks() -> Sequence[Chunk]:
    X, y = np.ones((6, 2)), np.ones(6)
    return [chunk_of("dense", k, X, y, "float64") for k in range(8)]


@pytest.mark.parametrize(
    ("numbers", "n_runs"),
    [(0, 1), (2 * NUMBERS_PER_THREAD - 1, 1), (2 * NUMBERS_PER_THREAD, 2), (10**9, 4)],
)
def test_chunks_are_split_over_threads_only_for_enough_work(
    chunks: Sequence[Chunk], numbers: int, n_runs: int
) -> None:
    counted = CountingExecutor()
    assert map_chunks(lambda chunk: chunk.id, chunks, numbers, counted) == [c.id for c in chunks]
    assert counted.n_items == n_runs


def test_results_are_in_the_order_of_chunks_for_any_scheduling(chunks: Sequence[Chunk]) -> None:
    pool, at_once = ThreadParallel(2), threading.Barrier(2)
    first_of_each = {chunks[0].id, chunks[len(chunks) // 2].id}

    def made(chunk: Chunk) -> Any:
        if chunk.id in first_of_each:
            at_once.wait()  # both threads are at work
        return chunk.id

    try:
        assert map_chunks(made, chunks, 10**9, pool) == [chunk.id for chunk in chunks]
    finally:
        pool.close()


def test_without_chunks_there_is_no_work() -> None:
    assert map_chunks(lambda chunk: chunk.id, [], 10**9, Serial()) == []
