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

    def next(self, batch, queue):
        return 2 * batch if queue.fill else batch // 2


def make_looper(passes, controller=Fixed, rows=40):
    loop = LoopConfig(problem=MeanOfRows(2), controller=controller, batch=10, passes=passes)
    looper = WorkerLoop(loop, seed=0, slot=0)
    looper.own([dense_chunk(ChunkId("s", 0, 0), np.zeros(rows), np.ones((rows, 2)))])
    looper.begin({"w": np.zeros(2)})
    return looper


def run_batches(looper):
    """Run all batches that are due; return their examples."""
    results = []
    while looper.is_due():
        results.append(looper.step())
    return results


def test_a_limit_that_is_lowered_in_the_middle_of_a_pass_is_kept():
    looper = make_looper(5.0)
    assert looper.is_due()
    looper.step()
    looper.limit(0.75)
    assert run_batches(looper) == [10, 10]
    assert looper.has_ended()


def test_a_limit_that_is_raised_is_kept():
    looper = make_looper(0.5)
    assert run_batches(looper) == [10, 10]
    looper.limit(1.125)
    assert run_batches(looper) == [10, 10, 5]


def test_a_batch_size_does_not_grow_beyond_the_available_examples():
    looper = make_looper(None, controller=Doubling)
    for _ in range(10):
        looper.step()
        looper.adapt(1.0, 0.0)
    assert looper.batch == 40
    looper.adapt(0.0, 0.0)
    assert looper.batch == 20


def test_a_fixed_batch_is_not_made_smaller_by_few_examples():
    looper = make_looper(None, rows=4)
    looper.step()
    looper.adapt(0.0, 0.0)
    looper.own([])
    looper.adapt(0.0, 0.0)
    looper.own([dense_chunk(ChunkId("s", 0, 0), np.zeros(40), np.ones((40, 2)))])
    assert looper.batch == 10
    assert looper.step() == 10


def test_a_repeated_limit_processes_no_further_examples():
    for rows in range(30, 60):
        looper = make_looper(10.0, rows=rows)
        # The chunk from a peer is ahead: it is in the eleventh pass, the other in the tenth.
        ahead = dense_chunk(ChunkId("s", 0, 1), np.zeros(23), np.ones((23, 2)))
        ahead.state[POSITION] = np.array([10, 7], np.int64)
        own = dense_chunk(ChunkId("s", 0, 0), np.zeros(rows), np.ones((rows, 2)))
        own.state[POSITION] = np.array([9, 5], np.int64)
        looper.own([own])
        looper.own([own, ahead])
        result = 0
        while looper.is_due():
            result += looper.step()
            looper.limit(10.0)
        assert result == rows - 5 - 7
