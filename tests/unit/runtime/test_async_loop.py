"""The loop's thread: requests between mini-batches, a full queue, the end, errors."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.base import LoopConfig, Mailbox
from elasticml.algorithms.async_sgd.worker_loop import WorkerLoop
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import dense_chunk
from elasticml.errors import JobFailedError
from elasticml.ids import ChunkId
from elasticml.runtime.async_mode.async_gossip import SendQueue
from elasticml.runtime.async_mode.async_loop import AsyncLoop, LoopContext
from elasticml.runtime.fault_injection import FaultSlowdown
from tests.async_toy import FixedBatch, MeanOfRows

WAIT_S = 20.0


class Bench:
    """A loop and its environment."""

    def __init__(self, problem: Any = None, *, has_peers: bool = True, **settings: Any) -> None:
        self.problem = problem or MeanOfRows(2)
        chosen = {"controller": FixedBatch, "batch": 5, "queue": 2, **settings}
        plan = LoopConfig(problem=self.problem, **chosen)
        self.posted = threading.Event()
        self.ended = threading.Event()
        self.errors: list[BaseException] = []
        self.has_peers = has_peers
        self.failed = threading.Event()
        self.send_queue = SendQueue(plan.queue, self.posted.set)
        self.mailbox = Mailbox()
        self.loop = AsyncLoop(
            WorkerLoop(plan, seed=0, slot=0),
            LoopContext(
                mailbox=self.mailbox,
                send_queue=self.send_queue,
                shapes=self.problem.shapes(),
                newest=plan.newest,
                sends=lambda: plan.sends > 0 and self.has_peers,
                clock=lambda: 0.0,
                slowness=FaultSlowdown(),
                parallel=Serial(),
                on_ended=self.ended.set,
                on_error=self.error,
            ),
        )
        self.loop.start()

    def error(self, error: BaseException) -> None:
        self.errors.append(error)
        self.failed.set()

    def begin(self) -> None:
        chunk = dense_chunk(ChunkId("s", 0, 0), np.zeros(40), np.ones((40, 2)))
        self.loop.request(lambda worker_loop: worker_loop.own([chunk]))
        self.loop.request(lambda worker_loop: worker_loop.begin({"w": np.zeros(2)})).result(WAIT_S)

    def counts(self) -> dict[str, float]:
        result: dict[str, float] = self.loop.request(
            lambda worker_loop: dict(worker_loop.counts)
        ).result(WAIT_S)
        return result


@pytest.fixture
def benches() -> Generator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        bench.loop.end()
        bench.loop.join()


def test_a_loop_makes_its_passes_reports_them_and_restarts_with_new_limits(benches):
    bench = Bench(passes=2.0, sends=0)
    benches.append(bench)
    bench.begin()
    assert bench.ended.wait(WAIT_S)
    assert bench.counts()["examples"] == 80
    bench.ended.clear()

    bench.loop.request(lambda worker_loop: worker_loop.limit(3.0))
    assert bench.ended.wait(WAIT_S)
    assert bench.counts()["examples"] == 120


def test_while_waiting_for_a_blocking_queue_requests_are_handled(benches):
    bench = Bench(passes=5.0, newest=False)
    benches.append(bench)
    bench.begin()
    sent = 0
    while not bench.ended.is_set():
        assert bench.counts()["posted"] <= sent + 2
        if bench.send_queue.take() is not None:
            sent += 1
            bench.send_queue.done()
    assert bench.counts()["posted"] == 40
    assert bench.counts()["skipped"] == 0


def test_an_error_in_a_step_is_reported_and_ends_all_waiting(benches):
    class Broken(MeanOfRows):
        def step(self, state: Any, batch: Any) -> None:
            raise ZeroDivisionError("no rows")

    bench = Bench(Broken(2))
    benches.append(bench)
    bench.begin()
    assert bench.failed.wait(WAIT_S)
    assert [type(error) for error in bench.errors] == [ZeroDivisionError]
    bench.loop.join()
    with pytest.raises(JobFailedError):
        bench.loop.request(lambda worker_loop: worker_loop.copy()).result(WAIT_S)
