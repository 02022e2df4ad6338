"""A member's worker loop: batches, and a pass limit that changes in the middle of a pass."""

from __future__ import annotations

import numpy as np

from elasticml.algorithms.async_sgd.base import LoopConfig
from elasticml.algorithms.async_sgd.batch_controllers import Fixed
from elasticml.algorithms.async_sgd.sampler import POSITION
from elasticml.algorithms.async_sgd.worker_loop import WorkerLoop
from elasticml.data.chunks.chunk import dense_chunk
from elasticml.ids import ChunkId
from tests.async_toy import MeanOfRows


class Doubling:
    """Double the batch while messages wait, else halve it."""

    def next(self, batch, fill):
        return 2 * batch if fill else batch // 2


def make_worker_loop(passes, controller=Fixed, rows=40):
    loop = LoopConfig(problem=MeanOfRows(2), controller=controller, batch=10, passes=passes)
    worker_loop = WorkerLoop(loop, seed=0, slot=0)
    worker_loop.own([dense_chunk(ChunkId("s", 0, 0), np.zeros(rows), np.ones((rows, 2)))])
    worker_loop.begin({"w": np.zeros(2)})
    return worker_loop


def run_batches(worker_loop):
    """Run all batches that are due; return their examples."""
    results = []
    while worker_loop.is_due():
        results.append(worker_loop.step())
    return results


def test_a_limit_that_is_lowered_in_the_middle_of_a_pass_or_raised_is_kept():
    worker_loop = make_worker_loop(5.0)
    assert worker_loop.is_due()
    worker_loop.step()
    worker_loop.limit(0.75)
    assert run_batches(worker_loop) == [10, 10]
    assert worker_loop.has_ended()
    worker_loop.limit(1.375)
    assert run_batches(worker_loop) == [10, 10, 5]


def test_a_batch_size_does_not_grow_beyond_the_available_examples():
    worker_loop = make_worker_loop(None, controller=Doubling)
    for _ in range(10):
        worker_loop.step()
        worker_loop.adapt(1.0)
    assert worker_loop.batch == 40
    worker_loop.adapt(0.0)
    assert worker_loop.batch == 20


def test_a_fixed_batch_is_not_made_smaller_by_few_examples():
    worker_loop = make_worker_loop(None, rows=4)
    worker_loop.step()
    worker_loop.adapt(0.0)
    worker_loop.own([])
    worker_loop.adapt(0.0)
    worker_loop.own([dense_chunk(ChunkId("s", 0, 0), np.zeros(40), np.ones((40, 2)))])
    assert worker_loop.batch == 10
    assert worker_loop.step() == 10


def test_a_repeated_limit_processes_no_further_examples():
    for rows in range(30, 60):
        worker_loop = make_worker_loop(10.0, rows=rows)
        # The chunk from a peer is ahead: it is in the eleventh pass, the other in the tenth.
        ahead = dense_chunk(ChunkId("s", 0, 1), np.zeros(23), np.ones((23, 2)))
        ahead.state[POSITION] = np.array([10, 7], np.int64)
        own = dense_chunk(ChunkId("s", 0, 0), np.zeros(rows), np.ones((rows, 2)))
        own.state[POSITION] = np.array([9, 5], np.int64)
        worker_loop.own([own])
        worker_loop.own([own, ahead])
        result = 0
        while worker_loop.is_due():
            result += worker_loop.step()
            worker_loop.limit(10.0)
        assert result == rows - 5 - 7
