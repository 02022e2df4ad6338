"""The content of the reports of an asynchronous member."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np

from elasticml.algorithms.async_sgd.async_plan import AsyncPlan
from elasticml.algorithms.async_sgd.base import Batch, LoopConfig
from elasticml.algorithms.async_sgd.batch_controllers import Fixed
from elasticml.algorithms.async_sgd.report_ops import ReportSolver
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import dense_chunk
from elasticml.ids import ChunkId, MemberId
from elasticml.runtime.async_mode.async_member import AsyncMember
from elasticml.runtime.worker_context import WorkerContext
from tests.async_toy import MeanOfRows
from tests.socket_pair import SocketTransport
from tests.toy import InlineRunner

START = {"w": np.zeros(2), "mass": np.zeros(()), "twin": np.zeros(2)}


class Gated(MeanOfRows):
    """On request, a mini-batch lasts until it is released."""

    def __init__(self) -> None:
        super().__init__(2)
        self.reached = threading.Event()
        self.release = threading.Event()
        self.waits = False

    def step(self, state: Any, batch: Batch) -> None:
        if self.waits:
            self.reached.set()
            self.release.wait()
        super().step(state, batch)


def test_a_report_during_a_mini_batch_has_the_last_reported_batch_size():
    problem, failed = Gated(), []

    def scene(member: AsyncMember) -> Any:
        try:
            first = member.standing(START, begin=True)
            problem.waits = True
            problem.reached.wait()
            return first, member.standing(START, begin=False)
        finally:
            problem.release.set()

    async def run() -> Any:
        loop = asyncio.get_running_loop()
        context = WorkerContext(
            transport=SocketTransport("w", {}),
            compute=InlineRunner(),
            reading=InlineRunner(),
            parallel=Serial(),
            clock=loop.time,
            host="h",
            pid=1,
            threads=1,
        )
        plan = LoopConfig(problem=problem, controller=Fixed, batch=10)
        solver = ReportSolver(AsyncPlan(loop=plan, start=iter))
        me = MemberId(0, 1)
        member = AsyncMember(me, solver, {}, 0, context, lambda event: None, failed.append)
        member.own([dense_chunk(ChunkId("s", 0, 0), np.zeros(40), np.ones((40, 2)))])
        try:
            return await asyncio.to_thread(scene, member)
        finally:
            member.close()
            await asyncio.to_thread(member.join)

    first, late = asyncio.run(run())
    assert failed == []
    assert late.batch == first.batch == 10.0
    assert late.state is first.state
    assert not late.counts.any()
