"""``mode: batch``: Lloyd's algorithm in synchronous rounds over all data: the paper's BATCH.

K-Means by MapReduce: members map their examples to sums by nearest centre, the driver reduces the
sums and moves every centre to its mean. It is the baseline of a free-running job on the same
members.

Source: the baseline "MapReduce based BATCH" of the asynchronous SGD paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from elasticml.algorithms.async_sgd.async_plan import AsyncPlan
from elasticml.algorithms.async_sgd.lloyd import moved
from elasticml.algorithms.async_sgd.nearest_centres import nearest_of, whole
from elasticml.algorithms.async_sgd.trainer import PlanBuilder
from elasticml.algorithms.base import (
    Algorithm,
    Exchange,
    Model,
    Parallel,
    Resume,
    RoundEnd,
    Solver,
    Trainer,
    Work,
)
from elasticml.algorithms.base import Arrays as Named
from elasticml.algorithms.parallel import runs
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.source import DatasetStats
from elasticml.errors import ConfigError
from elasticml.specification.algorithms import resolve_absent

#: Down: centres. Up: sums and weights of the rows nearest to each, and the inertia.
PASS: Final = "async_pass"


def with_batch(free: Algorithm, planner: PlanBuilder) -> Algorithm:
    """Return an algorithm that runs BATCH if a job's mode is "batch", else ``free``."""

    def trainer(
        settings: Mapping[str, Any], facts: DatasetStats, absent: str, resume: Resume | None = None
    ) -> Trainer:
        if settings.get("mode") != "batch":
            return free.trainer(settings, facts, absent, resume=resume)
        if resolve_absent(absent, free.name) != "reload":
            raise ConfigError(
                f"absent is {absent!r}, wanted reload with algorithm.mode: batch, whose passes go "
                "over all examples"
            )
        return _train(planner(settings, facts), resume)

    def solver(settings: Mapping[str, Any], facts: DatasetStats) -> Solver:
        if settings.get("mode") != "batch":
            return free.solver(settings, facts)
        return PassSolver(planner(settings, facts))

    return Algorithm(name=free.name, trainer=trainer, solver=solver)


class PassSolver:
    """A member's half: sums over its examples, and the exchanges of the initialization.

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: AsyncPlan) -> None:
        self._plan = plan

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Named:
        """Compute an exchange; see :class:`elasticml.algorithms.base.Solver`."""
        if work.operation != PASS:
            return self._plan.answer(work, chunks, parallel)
        centres = work.model["centres"]

        def run(part: Sequence[Chunk]) -> Named:
            rows = whole(part)
            statistics = nearest_of(centres, rows).statistics(rows, squares=True)
            inertia = np.array(statistics.inertia)
            return {"sums": statistics.sums, "counts": statistics.counts, "inertia": inertia}

        parts = parallel.map(run, runs(chunks, parallel.n_threads))
        return {
            name: np.asarray(sum((part[name] for part in parts), np.zeros(shape)))
            for name, shape in work.returns.items()
        }


def _pass_over(centres: F64) -> Exchange:
    return Exchange(
        operation=PASS,
        model={"centres": np.ascontiguousarray(centres, np.float64)},
        returns={"sums": centres.shape, "counts": (len(centres),), "inertia": ()},
        # Without a member's examples the means would be those of other data.
        require="everybody",
    )


def _train(plan: AsyncPlan, resume: Resume | None) -> Trainer:
    initial = (yield from plan.start()) if resume is None else resume.arrays
    centres: F64 = plan.loop.problem.begin(dict(initial))["centres"]
    passes = 0 if resume is None else int(resume.values["passes"])
    passes_max = plan.loop.passes
    # The checkpoint may be that of the last round: then no pass is left.
    is_done, is_still = passes_max is not None and passes >= passes_max, False
    while not is_done:
        outcome = yield _pass_over(centres)
        counts = outcome.arrays["counts"]
        objective = _mean(plan, outcome.arrays, outcome.examples)
        following = moved(centres, outcome.arrays["sums"], counts)
        is_still = np.array_equal(following, centres)
        passes += 1
        go_on = yield RoundEnd(
            objective=objective,
            extra={"passes": passes},
            model={"centres": centres},
            next_model={"centres": following, "counts": counts},
            next_objective=objective if is_still else None,
            resume=Resume(arrays={"centres": following}, values={"passes": passes}),
        )
        centres = following
        is_done = passes_max is not None and passes >= passes_max
        if not go_on or is_still:
            break
    if not is_still:
        outcome = yield _pass_over(centres)
    reason = "no centre moves" if is_still else f"{passes} passes"
    return Model(
        arrays={"centres": centres, "counts": outcome.arrays["counts"]},
        converged=is_still or is_done,
        reason=reason if is_still or is_done else "stopped as asked",
        objective=_mean(plan, outcome.arrays, outcome.examples),
        extra={"passes": passes},
    )


def _mean(plan: AsyncPlan, arrays: Named, examples: int) -> float:
    return float(arrays["inertia"]) / (examples if plan.weight is None else plan.weight)
