"""The error about a model that is not finite names the round, the members and the chunk."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.base import (
    Algorithm,
    Arrays,
    Exchange,
    Model,
    Parallel,
    RoundEnd,
    Trainer,
    Work,
)
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.source import DatasetStats
from tests.sim.small_jobs import VirtualJob, toy_job


class DividingSolver:
    """Sums labels; from round 3 on one row of them divides by zero."""

    at_fault = ""
    computed = 0

    def __init__(self, settings: Mapping[str, Any], facts: DatasetStats) -> None:
        self.row = float(settings["row"])
        self.keeps = bool(settings["keeps"])

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the sum; an algorithm that keeps states stores it with each chunk."""
        total = np.zeros(1)
        DividingSolver.computed += 1
        for chunk in chunks:
            wrong = work.model["round"][0] >= 3 and self.row in chunk.labels
            value = np.inf if wrong else chunk.labels.sum()
            if wrong:
                DividingSolver.at_fault = str(chunk.id)
            if self.keeps:
                chunk.state["sum"] = np.full(chunk.n_rows, value)
            total += value
        return {"sum": total}


def trainer(settings: Mapping[str, Any], facts: DatasetStats, absent: str) -> Trainer:
    """Take each sum as the model; a trial that nothing takes is infinite in every round."""
    for n in range(6):
        for round_, is_taken in ((9, False), (n, True)):
            outcome = yield Exchange(
                operation="sum",
                model={"round": np.array([float(round_)])},
                returns={"sum": (1,)},
                require="everybody",
            )
            assert is_taken or not np.isfinite(outcome.arrays["sum"]).all()
        yield RoundEnd(objective=1.0, model={}, next_model={"w": outcome.arrays["sum"]})
    return Model(arrays={"w": np.zeros(1)}, converged=True, reason="done")


ALGORITHM = Algorithm(name="dividing", trainer=trainer, solver=DividingSolver)


def unknown_trainer(settings: Mapping[str, Any], facts: DatasetStats, absent: str) -> Trainer:
    """Ask in each round for a number that members do not know."""
    for _ in range(12):
        yield Exchange(operation="sum", model={"round": np.full(1, 9.0)}, returns={"sum": (1,)})
        yield RoundEnd(objective=1.0, model={}, next_model={"w": np.zeros(1)})
    return Model(arrays={"w": np.zeros(1)}, converged=True, reason="done")


UNKNOWN = Algorithm(name="unknown", trainer=unknown_trainer, solver=DividingSolver)


def job_of(algorithm: str, keeps: bool = False) -> VirtualJob:
    options = {"name": f"{__name__}:{algorithm}", "row": 100, "keeps": keeps}
    return VirtualJob(toy_job(algorithm=options, members={"start": 3, "min": 1})).end()


@pytest.mark.parametrize("keeps", [False, True])
def test_the_error_names_round_member_and_chunk(keeps: bool) -> None:
    job = job_of("ALGORITHM", keeps)
    assert job.agent.state == "failed"
    error = job.agent.error
    assert error["fields"]["reason"] == "diverged"
    assert "not finite after round 3" in error["message"]
    chunk = re.escape(DividingSolver.at_fault)
    assert re.search(rf"the partial of member \d\.1 over chunk {chunk} has NaN", error["message"])


def test_what_is_unknown_in_every_round_is_looked_into_once() -> None:
    DividingSolver.computed = 0
    job = job_of("UNKNOWN")
    assert job.agent.state == "done"
    n_chunks = len(job.agent.machine.state.ledger.info)
    assert 3 * 12 < DividingSolver.computed <= 3 * 12 + n_chunks
