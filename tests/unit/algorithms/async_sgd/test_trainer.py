"""The driver's half of an asynchronous job; a fake answers for the members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.report_ops import LoopReport, ReportSolver
from elasticml.algorithms.async_sgd.trainer import free_running
from elasticml.algorithms.async_sgd.worker_loop import WorkerLoop
from elasticml.algorithms.base import Exchange, Model, Outcome, Proceed, RoundEnd
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.body import Layout
from elasticml.data.chunks.chunk import Chunk, dense_chunk
from elasticml.data.dataset_stats import BlockSummary, merge_summaries
from elasticml.errors import JobFailedError
from elasticml.ids import ChunkId, ExchangeId
from elasticml.protocol.events import ExchangeHeader
from tests.async_toy import plan

ROWS = 30
X = np.random.default_rng(2).normal(size=(2 * ROWS, 3)) + 2.0


def chunks() -> list[Chunk]:
    """Make the chunks of the two members; none has been visited."""
    return [
        dense_chunk(ChunkId("s", 0, k), np.zeros(ROWS), X[k * ROWS : (k + 1) * ROWS])
        for k in range(2)
    ]


SUMMARY = BlockSummary(
    block=0,
    rows=2 * ROWS,
    n_columns=3,
    layout=Layout(kind="dense", dtype="float64", n_columns=3),
    continuous=True,
    weight_sum=2.0 * ROWS,
    n_chunks=2,
    nbytes=sum(c.nbytes for c in chunks()),
)
FACTS = merge_summaries([SUMMARY])
BEST = float(((X - X.mean(axis=0)) ** 2).sum() / len(X))
ALGORITHM = free_running("toy", plan)


class Member:
    """A member that runs this many batches before each report."""

    def __init__(self, chunks: Sequence[Chunk], settings: dict[str, Any], is_first: bool) -> None:
        self.solver = ReportSolver(plan(settings, FACTS))
        self.worker_loop = WorkerLoop(self.solver.plan.loop, seed=0, slot=int(not is_first))
        self.worker_loop.own(chunks)
        self.chunks = chunks
        self.is_first = is_first
        self.is_stopped = False
        self.solver.running = self

    def standing(self, start: Any, begin: bool) -> LoopReport:
        if begin:
            self.worker_loop.begin(start)
        return LoopReport(
            state=self.worker_loop.copy(),
            counts=self.worker_loop.take_counts(),
            batch=self.worker_loop.batch,
            has_ended=self.worker_loop.has_ended(),
            is_first=self.is_first,
        )

    def limit(self, passes: float) -> None:
        self.worker_loop.passes = passes

    def stop(self) -> None:
        self.is_stopped = True

    def turn(self, n: int) -> None:
        for _ in range(n):
            if self.worker_loop.is_due() and not self.is_stopped:
                self.worker_loop.step()


def members(**settings: Any) -> list[Member]:
    return [Member([chunk], settings, is_first=k == 0) for k, chunk in enumerate(chunks())]


def run_exchange(exchange: Exchange, there: Sequence[Member], opened: int | None = None) -> Outcome:
    """Run an exchange over these members."""
    total: dict[str, Any] = {}
    for member in there:
        work = ExchangeHeader(
            exchange=ExchangeId(1),
            operation=exchange.operation,
            model=exchange.model,
            parameters=exchange.parameters,
            returns=exchange.returns,
        )
        part = member.solver.compute(work, member.chunks, Serial())
        assert {k: np.shape(v) for k, v in part.items()} == dict(exchange.returns)
        total = {k: total.get(k, 0.0) + v for k, v in part.items()}
    examples = sum(c.n_rows for m in there for c in m.chunks)
    return Outcome(
        exchange=ExchangeId(1),
        arrays=total,
        examples=examples,
        absent_examples=2 * ROWS - examples,
        opened=opened,
        members=len(there),
    )


def run(there: list[Member], turns: int, rounds: int, **settings: Any) -> tuple[list, Model, list]:
    """Run a job to its end; return its round ends, its model and its exchanges."""
    trainer = ALGORITHM.trainer(settings, FACTS, "reload")
    ends: list[RoundEnd] = []
    exchanges: list[Exchange] = []
    request = next(trainer)
    try:
        while True:
            if isinstance(request, RoundEnd):
                ends.append(request)
                request = trainer.send(Proceed(go_on=len(ends) < rounds))
                continue
            exchanges.append(request)
            for member in there:
                member.turn(turns if request.paced else 0)
            request = trainer.send(run_exchange(request, there))
    except StopIteration as stop:
        return ends, stop.value, exchanges


def test_the_mean_is_the_result_and_one_members_state_is_evaluated_beside_it():
    there = members(batch=10)
    ends, model, exchanges = run(there, turns=6, rounds=3, batch=10)
    assert model.objective == pytest.approx(BEST)
    assert np.allclose(model.arrays["w"], X.mean(axis=0))
    assert np.allclose(model.arrays["member_w"], X[:ROWS].mean(axis=0))
    assert model.extra["member_objective"] > BEST
    assert [e.operation for e in exchanges][-2:] == ["async_finish", "async_value"]
    assert [e.paced for e in exchanges] == [False, True, True, False, False]
    assert all(m.is_stopped for m in there)
    assert [e.extra["examples"] for e in ends] == [0, 120, 240]
    assert ends[2].extra["passes"] == 4.0


def test_a_rows_objective_is_that_of_the_mean_at_the_start_of_the_round():
    ends, _, _ = run(members(batch=10, start=5.0), turns=6, rounds=2, batch=10, start=5.0)
    assert ends[0].objective == pytest.approx(((X - 5.0) ** 2).sum() / len(X))
    assert ends[1].model["w"].tolist() == ends[0].next_model["w"].tolist()


def test_the_objective_is_omitted_until_enough_examples_are_visited():
    settings = {"batch": 10, "visits": 4.0}
    ends, _, _ = run(members(**settings), turns=6, rounds=5, **settings)
    # Two passes a round: after the first row, every second report has an objective.
    assert [e.objective is not None for e in ends] == [True, False, False, True, False]


def test_the_mean_is_kept_while_no_member_answers():
    there = members()
    trainer = ALGORITHM.trainer({"start": 4.0}, FACTS, "reload")
    request = next(trainer)
    for member in there:
        member.worker_loop.state = None
    arrays = {k: np.zeros(shape) for k, shape in request.returns.items()}
    no_answer = Outcome(
        exchange=ExchangeId(1), arrays=arrays, examples=0, absent_examples=2 * ROWS, opened=1
    )
    end = trainer.send(no_answer)
    assert end.next_model["w"].tolist() == [4.0, 4.0, 4.0]
    assert end.objective is None


def test_a_resumed_job_runs_only_the_remaining_passes():
    settings = {"batch": 10, "passes": 3.0}
    ends, _, _ = run(members(**settings), turns=3, rounds=2, **settings)
    resume = ends[1].resume
    trainer = ALGORITHM.trainer(settings, FACTS, "reload", resume=resume)
    request = next(trainer)
    assert request.parameters["passes"] == pytest.approx(3.0 - ends[1].extra["passes"])
    assert request.model["state.w"].tolist() == ends[1].next_model["w"].tolist()
    end = trainer.send(run_exchange(request, members(**settings)))
    assert end.extra["examples"] == ends[1].extra["examples"]


def test_a_non_finite_objective_ends_the_job():
    settings = {"start": 1e200}
    trainer = ALGORITHM.trainer(settings, FACTS, "reload")
    with (
        np.errstate(over="ignore"),
        pytest.raises(JobFailedError, match=r"the objective is inf after 0\.00 passes"),
    ):
        trainer.send(run_exchange(next(trainer), members(**settings)))
