"""Asynchronous SGD and its baselines on real processes of this machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from distributed import Client
from numpy.typing import NDArray
from support.asgd_figures import Line, Panel
from support.asgd_reference import centre_error
from support.asgd_study import BATCH, OURS, PAPER, SGD, Budget, Figure, number
from support.asgd_virtual import LARGE, SMALL, Shape
from support.elastic_comparison import markdown

import elasticml as em
from elasticml.algorithms.async_sgd.kmeans import inertia
from elasticml.algorithms.async_sgd.plus_plus import plus_plus
from elasticml.jobs.result import Result

F64 = NDArray[np.float64]

#: The data of the experiments, by name.
REAL = {"real-small": SMALL, "real-large": LARGE}
#: Passes after which the result of an asynchronous run is evaluated: each is a separate job.
PASSES = (0.1, 0.5, 2.0)
ITERATIONS = 4


class Problem:
    """The data of one seed, which members generate themselves, and the start of all methods."""

    def __init__(self, shape: Shape, rows: int, seed: int) -> None:
        self.shape, self.rows, self.seed = shape, rows, seed
        self.source = shape.source(rows, seed)
        self.truth = self.source.centres()
        sums, sample = 0.0, None
        for block in self.source.blocks():
            chunks = self.source.read(block.index, 2**20, 1)[0]
            sums += inertia(self.truth, chunks)
            if sample is None:
                sample = np.ascontiguousarray(chunks[0].values[: 30 * shape.clusters])
        assert sample is not None
        self.best = sums / rows
        rng = np.random.default_rng([21, seed])
        self.start = plus_plus(sample, np.ones(len(sample)), shape.clusters, rng)

    def run(self, client: Client, **settings: Any) -> Result:
        """Run a job on it."""
        job = em.Job(
            em.AsyncSGD("kmeans", k=self.shape.clusters, **settings),
            self.source,
            warm_start={"centres": self.start},
            stop=em.Stop(seconds=120),
            seed=self.seed,
            placement="contiguous",  # rows are in random order
            chunk_size="256 KiB",
            evaluate=False,
        )
        return job.run(client)

    def excess(self, objective: float | None) -> float:
        """Return percent above the inertia at the true centres, over all rows."""
        return math.nan if objective is None else 100.0 * (objective / self.best - 1.0)


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """The result of a method after some seconds."""

    seconds: float
    #: Of the method's result: member 1's, or the only one.
    excess: float
    error: float
    mean_excess: float


def free(problem: Problem, result: Result) -> MethodResult:
    """Read an asynchronous run, from its first report, when the loops start, to its end."""
    reports = [r for r in result.story if r.get("operation") == "async_report"]
    one = result.arrays.get("member_centres", result.arrays["centres"])
    return MethodResult(
        seconds=reports[-1]["start_t"] - reports[0]["start_t"],
        excess=problem.excess(result.summary.get("member_objective")),
        error=centre_error(one, problem.truth),
        mean_excess=problem.excess(result.summary["objective"]),
    )


def passes(problem: Problem, result: Result) -> list[MethodResult]:
    """Read BATCH: before its first pass, and after each."""
    records = [r for r in result.story if r.get("operation") == "async_pass"]
    ends_s = [0.0, *(r["t"] - records[0]["start_t"] for r in records)]
    values = [problem.excess(row["objective"]) for row in result.history]
    return [
        MethodResult(seconds=t, excess=value, error=math.nan, mean_excess=value)
        for t, value in zip(ends_s, values, strict=False)
    ]


def real_figure(name: str, budget: Budget, members: int) -> Figure:
    """Run one of ``REAL``."""
    with em.LocalCluster(members) as cluster, Client(cluster, set_as_default=False) as client:
        return _methods(REAL[name], budget, client, members)


FREE: dict[str, dict[str, Any]] = {
    PAPER: {"mode": "paper", "batch": 500},
    OURS: {},
    SGD: {"mode": "paper", "batch": "inf"},
}


def _methods(shape: Shape, budget: Budget, client: Client, members: int) -> Figure:
    rows = budget.few(1_000_000 if shape is SMALL else 200_000, 20_000)
    Problem(shape, min(rows, 20_000), 99).run(client, passes=1)  # loads compiled code
    results: dict[tuple[str, str], list[MethodResult]] = {}
    for seed in budget.each(f"real processes, {shape.name}"):
        problem = Problem(shape, rows, seed)
        for name, settings in FREE.items():
            for n in PASSES:
                answer = free(problem, problem.run(client, passes=n, **settings))
                results.setdefault((name, f"{n:g} passes"), []).append(answer)
        batch = passes(problem, problem.run(client, mode="batch", passes=ITERATIONS))
        for i, answer in enumerate(batch):
            results.setdefault((BATCH, f"{i} passes"), []).append(answer)
    table = [
        [
            name,
            at,
            number(1e3 * _middle(some, "seconds")),
            f"{_middle(some, 'mean_excess' if name == SGD else 'excess'):.3f}",
            f"{_middle(some, 'mean_excess'):.3f}",
        ]
        for (name, at), some in results.items()
    ]
    lines: dict[str, Line] = {}
    for (name, _), some in results.items():
        mean = name in (SGD, BATCH)
        point = (_middle(some, "seconds"), _middle(some, "mean_excess" if mean else "excess"))
        if point[0] > 0:
            lines[name] = [*lines.get(name, []), point]
    return Figure(
        title=(
            f"{members} real processes: {shape.name}, {rows:,} examples, median of {budget.done}"
        ),
        panels=(
            Panel(
                title=f"{members} processes",
                x="seconds",
                y="excess %",
                lines=lines,
            ),
        ),
        tables=(
            (
                "Excess over the true centres' inertia, all rows",
                markdown(["method", "after", "ms", "excess %", "of the mean"], table),
            ),
        ),
    )


def _middle(answers: list[MethodResult], what: str) -> float:
    return median(float(getattr(answer, what)) for answer in answers)
