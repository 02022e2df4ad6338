"""The driver's half of a free-running job: it collects reports and never blocks a member.

A round is one report. It reduces the addends of the members' mean and their counters. Lost members
are missing in it, and the new owners of their chunks continue from their own states. The result is
the mean of all states, and additionally one member's own state.

Source: Algorithm 2 of the asynchronous SGD paper, whose result is the first member's state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from elasticml.algorithms.async_sgd.base import Arrays, AsyncPlan
from elasticml.algorithms.async_sgd.lloyd import BatchMember, batch_trainer
from elasticml.algorithms.async_sgd.report_ops import (
    ONE,
    ReportSolver,
    finish_exchange,
    report_exchange,
    state_in,
    value_exchange,
)
from elasticml.algorithms.async_sgd.worker_loop import COUNTS
from elasticml.algorithms.base import (
    Algorithm,
    Exchange,
    Model,
    Outcome,
    Resume,
    RoundEnd,
    Solver,
    Trainer,
)
from elasticml.data.source import DatasetStats
from elasticml.errors import JobFailedError
from elasticml.specification.algorithms import AsyncSGD, absent_rule

#: Maximum attempts to get one member's state, after which the result has the mean only.
ASKED_MAX: Final = 5
#: Prefix of the one member's arrays in the result.
MEMBER: Final = "member_"

#: Maps a job's settings and data statistics to its definition.
PlanBuilder = Callable[[Mapping[str, Any], DatasetStats], AsyncPlan]


def free_running(name: str, planner: PlanBuilder) -> Algorithm:
    """Return an algorithm whose members run without barriers, unless ``mode`` is "batch"."""

    def trainer(
        settings: Mapping[str, Any], facts: DatasetStats, absent: str, resume: Resume | None = None
    ) -> Trainer:
        rule, plan = absent_rule(AsyncSGD.name, absent), planner(settings, facts)
        if settings.get("mode") == "batch":
            return batch_trainer(plan, rule, resume)
        return _train(plan, facts, resume)

    def solver(settings: Mapping[str, Any], facts: DatasetStats) -> Solver:
        is_batch = settings.get("mode") == "batch"
        return (BatchMember if is_batch else ReportSolver)(planner(settings, facts))

    return Algorithm(name=name, trainer=trainer, solver=solver)


def _train(plan: AsyncPlan, facts: DatasetStats, resume: Resume | None) -> Trainer:
    if resume is None:
        start = yield from plan.start()
        state = plan.loop.problem.begin(start)
        following = AsyncTrainer(plan=plan, rows=facts.n_rows, mean=state)
    else:
        state = plan.loop.problem.begin(dict(resume.arrays))
        following = AsyncTrainer(plan=plan, rows=facts.n_rows, mean=state)
        following.go_on(resume)
    while True:
        end = yield from following.report()
        go_on = yield end
        if not go_on or following.has_ended:
            return (yield from following.finish("stopped as asked" if not go_on else "passes"))


@dataclass(slots=True, kw_only=True)
class AsyncTrainer:
    """The trainer's state between two reports."""

    plan: AsyncPlan
    #: Number of examples in the data set.
    rows: int
    #: The mean of the last report's states; the initial state before the first.
    mean: Arrays
    totals: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0.0))
    rounds: int = 0
    has_begun: bool = False
    #: Every loop has completed its passes.
    has_ended: bool = False
    #: Chunks were lost in the last exchange: the next one makes them a group.
    seal: bool = False
    #: Examples visited at the last evaluation of the objective; None: not yet evaluated.
    evaluated_at: float | None = None
    #: Passes made before this trainer resumed the job.
    passes_before: float = 0.0

    def report(self) -> Generator[Exchange, Outcome, RoundEnd]:
        """Run one report; the row's objective is that of the last report's mean."""
        problem, former = self.plan.loop.problem, self.mean
        evaluates = self._is_evaluation_due()
        outcome = yield from self._exchange(
            report_exchange(
                problem,
                former,
                begin=not self.has_begun,
                evaluate=evaluates,
                seal=self.seal,
                passes=self._passes_left(),
            )
        )
        self.has_begun = True
        arrays = outcome.arrays
        self._count(arrays)
        running, ended = float(arrays["running"]), float(arrays["ended"])
        # A member that waits for chunks or for its first state has not ended.
        self.has_ended = running > 0 and ended == outcome.members
        objective = None
        if evaluates and float(arrays["rows"]) > 0:
            self.evaluated_at = self.totals["examples"]
            objective = self._mean_of(float(arrays["value"]), float(arrays["rows"]))
            if not math.isfinite(objective):
                raise JobFailedError(
                    f"the objective is {objective} after {self._passes():.2f} passes, wanted a "
                    "finite one: the steps are too long or the values too large; lower "
                    "algorithm.rate or scale the data",
                    reason="diverged",
                )
        self.rounds += 1
        result = self.plan.result
        return RoundEnd(
            objective=objective,
            objective_kind="exact" if outcome.absent_examples == 0 else "estimated",
            extra=self._columns(float(arrays["batch"]) / running if running else None),
            model=dict(result(former)),
            next_model=dict(result(self.mean)),
            resume=self._resume(),
        )

    def _exchange(self, exchange: Exchange) -> Generator[Exchange, Outcome, Outcome]:
        outcome: Outcome = yield exchange
        self.seal = outcome.opened is not None
        running = round(float(outcome.arrays["running"]))
        if running > 0:
            total = state_in(outcome.arrays)
            self.mean = self.plan.loop.problem.pooled(total, running)
        return outcome

    def _mean_of(self, value: float, rows: float) -> float:
        """Return the mean of the objective from its sum over ``rows`` examples.

        If these are not all examples, it is an estimate.
        """
        weight = self.rows if self.plan.weight is None else self.plan.weight
        return value / (weight * max(rows, 1.0) / self.rows)

    def _is_evaluation_due(self) -> bool:
        """Whether an evaluation of the objective, which visits every example, is due."""
        if self.evaluated_at is None:
            return True
        visited = self.totals["examples"] - self.evaluated_at
        return visited >= self.plan.visits_per_evaluation * self.rows

    def _count(self, arrays: Mapping[str, Any]) -> None:
        for name, value in zip(COUNTS, arrays["counts"], strict=True):
            self.totals[name] += float(value)

    def _passes(self) -> float:
        return self.totals["examples"] / max(self.rows, 1)

    def _passes_left(self) -> float | None:
        passes = self.plan.loop.passes
        return None if passes is None else max(0.0, passes - self.passes_before)

    def _columns(self, batch: float | None) -> dict[str, float | int | str | None]:
        totals = {name: round(total) for name, total in self.totals.items() if name[-2:] != "_s"}
        return {
            "passes": round(self._passes(), 6),
            "batch": batch,
            **totals,
            "stalled_s": round(self.totals["stalled_s"], 6),
        }

    # --- the end --------------------------------------------------------------------------------

    def finish(self, reason: str) -> Generator[Exchange, Outcome, Model]:
        """Stop all loops and return the result: the mean, and one member's own state."""
        problem, result = self.plan.loop.problem, self.plan.result
        one: Arrays | None = None
        for _ in range(ASKED_MAX):
            outcome = yield from self._exchange(finish_exchange(problem, self.mean, seal=self.seal))
            self._count(outcome.arrays)
            # That member may just have been lost, or members may not yet agree on the first one.
            if float(outcome.arrays["ones"]) == 1.0:
                one = {k: np.array(v) for k, v in state_in(outcome.arrays, ONE).items()}
                break
        if self.plan.polish is not None and outcome.absent_examples == 0:
            self.mean = problem.begin((yield from self.plan.polish(self.mean)))
        states = [self.mean] if one is None else [self.mean, one]
        sent = [{name: state[name] for name in problem.shapes()} for state in states]
        outcome = yield value_exchange(sent, seal=self.seal)
        rows = float(outcome.arrays["rows"])
        values = [self._mean_of(float(value), rows) for value in outcome.arrays["values"]]
        arrays = dict(result(self.mean))
        is_whole = outcome.absent_examples == 0
        extra: dict[str, float | int | str | None] = self._columns(None)
        if one is not None:
            arrays |= {MEMBER + name: array for name, array in result(one).items()}
            extra[MEMBER + "objective"] = values[1] if is_whole else None
        return Model(
            arrays=arrays,
            converged=reason == "passes",
            reason=self._why(reason),
            objective=values[0] if is_whole else None,
            extra=extra,
        )

    def _why(self, reason: str) -> str:
        passes = self.plan.loop.passes
        return reason if passes is None or reason != "passes" else f"{passes:g} passes"

    # --- checkpoints ------------------------------------------------------------------------------

    def _resume(self) -> Resume:
        names = self.plan.loop.problem.shapes()
        return Resume(
            arrays={name: self.mean[name] for name in names},
            values={"totals": dict(self.totals), "rounds": self.rounds, "passes": self._passes()},
        )

    def go_on(self, resume: Resume) -> None:
        """Restore the state of another process; its members' positions are lost."""
        self.rounds = int(resume.values["rounds"])
        self.totals.update(resume.values["totals"])
        self.passes_before = float(resume.values["passes"])
