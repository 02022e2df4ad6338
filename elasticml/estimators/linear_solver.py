"""Fit a penalised linear model for an estimator: in this process or as a job.

In this process: by dual coordinate descent, for many values by CoCoA with several threads, by
Newton steps on the model, or by proximal Newton steps on working sets of columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from elasticml.algorithms.base import Algorithm
from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.dual_descent import DualDescent
from elasticml.algorithms.linear.interior_point import InteriorPoint, passes_of
from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.newton import Minimum, minimise
from elasticml.algorithms.linear.sparse_classifier import SparseClassifier
from elasticml.algorithms.linear.working_sets import SparseFit
from elasticml.algorithms.local_runner import train_locally
from elasticml.arrays import F64
from elasticml.estimators.backend_choice import STEP_VALUES_MIN, stored_values
from elasticml.estimators.row_table import RowTable

if TYPE_CHECKING:
    from elasticml.algorithms.linear.softmax_objective import SoftmaxObjective

#: Not looked up in the registry, which would load the code of every algorithm.
#: Loss of the zero model in classification; for the squared loss it is half the mean square.
_AT_ZERO: Final = {"hinge": 1.0, "squared_hinge": 1.0, "logistic": math.log(2.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearProblem:
    """``sum_i s_i loss_i + strength / 2 |w|^2``, where w includes the intercept's column.

    With ``is_sparse`` the penalty is ``strength |w|_1``.
    """

    loss: str
    strength: float
    #: None for no intercept.
    intercept_scaling: float | None
    #: The gap to reach, relative to the zero model's objective.
    tol: float
    rounds: int
    seed: int
    #: Newton steps on the model instead of dual coordinate ascent; not for the hinge loss.
    is_primal: bool = False
    #: Proximal Newton steps on working sets of columns; in a job, on each member's columns.
    is_sparse: bool = False
    #: Number of the offset's column, whose coefficient is 1.
    fixed: int | None = None

    def section(self, total_weight: float, gap: float) -> dict[str, Any]:
        """Return the ``algorithm`` section of a job, in units of the mean."""
        scaling = self.intercept_scaling
        return {
            "name": "cocoa",
            "loss": self.loss,
            "l2": self.strength / total_weight,
            "intercept": scaling is not None,
            "intercept_scaling": 1.0 if scaling is None else scaling,
            "scale": "none",
            "tolerance": gap,
            "gap_every": "target",
            "seed": self.seed,
            # On a GPU the order of additions varies, and the same seed must give the same bits.
            "device": "cpu",
            **({} if self.fixed is None else {"offset": self.fixed}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearSolution:
    """A model with its duality gap; gaps are in units of the sum over rows."""

    #: (d,)
    coef: F64
    intercept: float
    gap: float
    target_gap: float
    rounds: int
    #: How it was found in this process, in the estimators' words.
    method: str = "dual"


def solve(
    problem: LinearProblem, table: RowTable, targets: F64, weights: F64 | None, client: Any
) -> LinearSolution:
    """Solve a problem over these rows.

    Parameters
    ----------
    table : Table
        The rows, and the threads for one problem; it caches its conversions for further problems.
    targets : ndarray (n,)
        -1 and +1, or values for the squared loss.
    weights : ndarray (n,), optional
        None if all are one.
    client : distributed.Client or None
        None: fit in this process.

    Raises
    ------
    ValueError
        When all weights are 0.
    JobFailedError
        When the job fails.
    """
    total = float(targets.size if weights is None else weights.sum())
    if total <= 0.0:
        raise ValueError("the weights of all rows are 0, wanted some above 0")
    target_gap = problem.tol * _loss_at_zero(problem.loss, targets, weights, total)
    section = problem.section(total, target_gap)
    if client is not None and problem.is_sparse:
        from elasticml.data.readers.arrays import from_arrays

        columns = table.columns(problem.intercept_scaling)
        source = from_arrays(columns, targets, weights, by="columns")
        return _as_column_job(problem, target_gap, source, total, client)
    if client is not None:
        from elasticml.data.readers.arrays import from_arrays

        source = from_arrays(table.X, targets, weights)
        return _as_job(problem, section, target_gap, source, client, total)
    if problem.is_primal:
        return _by_newton(problem, target_gap, table, targets, weights)
    if problem.is_sparse:
        return _by_columns(problem, target_gap * total, table, targets, weights)
    if is_by_descent(problem, table):
        return _by_descent(problem, target_gap * total, table, targets, weights)
    # Imported here: with the settings of jobs they take as long as everything else here.
    from elasticml.algorithms.cocoa.rows import make_trainer
    from elasticml.algorithms.cocoa.solver import CocoaSolver

    data = table.chunked.with_labels(targets, weights)
    trained = train_locally(
        Algorithm(name="cocoa", trainer=make_trainer, solver=CocoaSolver),
        section,
        data.facts,
        data.chunks,
        rounds=problem.rounds,
        parallel=table.parallel,
    )
    gap = math.nan if trained.model.gap is None else trained.model.gap
    # If only rounding errors are left of the gap, the fit counts as converged.
    target_gap = max(target_gap, gap) if trained.model.converged else target_gap
    return _solution(trained.model.arrays, gap * total, target_gap * total, trained.rounds)


def solve_where_held(
    problem: LinearProblem, data: Any, total: float, client: Any
) -> LinearSolution:
    """Solve a classification problem as a job on rows that only the members can read.

    Parameters
    ----------
    data : Source
        Labels are -1 and +1. If the problem is sparse, by columns, and the intercept's is the last.
    total : float
        Sum of the weights.

    Raises
    ------
    ValueError
        When all weights are 0.
    JobFailedError
        When the job fails.
    """
    if total <= 0.0:
        raise ValueError("the weights of all rows are 0, wanted some above 0")
    target_gap = problem.tol * _AT_ZERO[problem.loss]
    if problem.is_sparse:
        return _as_column_job(problem, target_gap, data, total, client)
    section = problem.section(total, target_gap)
    return _as_job(problem, section, target_gap, data, client, total)


def minimum_of(
    function: LinearObjective | SoftmaxObjective,
    rows: tuple[Any, F64, F64 | None],
    client: Any,
    start: F64,
    *,
    gap: float,
    steps: int,
    factored: bool = False,
) -> Minimum:
    """Minimise a smooth objective over these rows in this process, or as a job of a client.

    Parameters
    ----------
    rows : tuple
        X, targets (of several classes their numbers), and weights or None.
    start : ndarray (n_model,)
        The first model in this process.
    factored : bool
        Whether factors of the Hessian serve the steps in this process where that pays.
    """
    if client is not None:
        # Imported here: loading what jobs need takes longer than most fits.
        from elasticml.data.readers.arrays import from_arrays
        from elasticml.estimators.job_backend import minimise_by_jobs

        return minimise_by_jobs(
            function.at,
            function.zero(),
            from_arrays(*rows),
            client,
            loss=function.loss,
            l2=function.l2,
            intercept=function.has_intercept,
            fixed=getattr(function, "fixed", None),
            gap=gap,
            rounds=steps,
        )
    if factored:
        return function.minimum(start, gap=gap, steps=steps)
    return minimise(function, start, gap=gap, steps=steps)


def _by_newton(
    problem: LinearProblem, target_gap: float, table: RowTable, targets: F64, weights: F64 | None
) -> LinearSolution:
    total = float(targets.size if weights is None else weights.sum())
    function = LinearObjective(
        table.blocks,
        targets,
        weights,
        loss=problem.loss,
        l2=problem.strength / total,
        intercept_scaling=problem.intercept_scaling,
        is_free=False,
        fixed=problem.fixed,
    )
    minimum = function.minimum(function.zero(), gap=target_gap, steps=problem.rounds)
    gap, w = max(minimum.point.gap, 0.0), minimum.point.w
    scaling = problem.intercept_scaling
    return LinearSolution(
        coef=w[: table.blocks.d].copy(),
        intercept=0.0 if scaling is None else scaling * float(w[-1]),
        gap=gap * total,
        target_gap=(max(target_gap, gap) if minimum.converged else target_gap) * total,
        rounds=minimum.steps,
    )


def _by_columns(
    problem: LinearProblem, target_gap: float, table: RowTable, targets: F64, weights: F64 | None
) -> LinearSolution:
    columns = table.columns(problem.intercept_scaling)
    solver = SparseClassifier(columns, targets, weights, loss=problem.loss, intercept=False)
    fit = solver.solve(Penalty(a1=problem.strength, a2=0.0), target_gap, problem.rounds)
    return _of_columns(problem, fit, target_gap)


def is_by_descent(problem: LinearProblem, table: RowTable) -> bool:
    """Whether dual coordinate ascent needs only one thread, and so no chunks; without an offset."""
    is_few = stored_values(table.X) < STEP_VALUES_MIN
    return is_few and problem.loss in _AT_ZERO and problem.fixed is None


def _by_descent(
    problem: LinearProblem, target_gap: float, table: RowTable, targets: F64, weights: F64 | None
) -> LinearSolution:
    d, scaling = table.X.shape[1], problem.intercept_scaling
    solver = DualDescent(
        table.memory,
        d,
        targets,
        weights,
        loss=problem.loss,
        strength=problem.strength,
        constant=scaling,
        seed=problem.seed,
    )
    is_other = problem.loss == "hinge" and (weights is None or bool(weights.all()))
    fit = solver.solve(target_gap, problem.rounds, passes_of(table.X) if is_other else math.inf)
    method, w, gap, rounds = "dual", fit.w, fit.gap, fit.passes
    if fit.is_slow:
        interior = InteriorPoint(
            table.blocks, targets, weights, strength=problem.strength, constant=scaling
        ).solve(target_gap, w)
        rounds += interior.steps
        if interior.gap <= target_gap:
            method, w, gap = "interior point", interior.w, interior.gap
        else:
            fit = solver.solve(target_gap, max(1, problem.rounds - rounds))
            w, gap, rounds = fit.w, fit.gap, rounds + fit.passes
    return LinearSolution(
        coef=w[:d].copy(),
        intercept=0.0 if scaling is None else scaling * float(w[d]),
        gap=gap,
        # If only rounding errors are left of the gap, the fit counts as converged.
        target_gap=max(target_gap, gap) if fit.converged else target_gap,
        rounds=rounds,
        method=method,
    )


def prepare(problem: LinearProblem, table: RowTable) -> None:
    """Convert the rows for a problem, before several threads request the conversion at once."""
    if problem.is_sparse:
        table.columns(problem.intercept_scaling)
    elif not problem.is_primal and is_by_descent(problem, table):
        _ = table.memory
    else:
        _ = table.blocks if problem.is_primal else table.chunked


def _as_job(
    problem: LinearProblem,
    section: dict[str, Any],
    target_gap: float,
    data: Any,
    client: Any,
    total: float,
) -> LinearSolution:
    from elasticml.estimators.job_backend import run_job
    from elasticml.specification.algorithms import AnyAlgorithm, BatchGradient, CoCoA
    from elasticml.story.summary import summary_from_json

    algorithm: AnyAlgorithm
    if problem.loss == "squared_hinge":
        # Newton steps, in variables that make columns of unequal size alike.
        algorithm = BatchGradient(
            loss="squared_hinge",
            l2=problem.strength / total,
            optimizer="auto",
            intercept=problem.intercept_scaling is not None,
            intercept_scaling=problem.intercept_scaling,
            scale="standard",
            penalise="raw",
            tolerance=0.0,
            offset=problem.fixed,
        )
    else:
        algorithm = CoCoA(**{key: value for key, value in section.items() if key != "name"})
    is_newton = isinstance(algorithm, BatchGradient)
    gap_to_reach = target_gap if is_newton else None
    result = run_job(algorithm, data, client, problem.rounds, gap=gap_to_reach)
    summary = summary_from_json(result.summary)
    gap = math.nan if summary.gap is None else summary.gap
    target_gap = max(target_gap, gap) if summary.converged else target_gap
    rounds = len(result.history) if summary.rounds is None else summary.rounds
    solution = _solution(result.arrays, gap * total, target_gap * total, rounds)
    return replace(solution, method="newton") if is_newton else solution


def _as_column_job(
    problem: LinearProblem, target_gap: float, data: Any, total: float, client: Any
) -> LinearSolution:
    # Imported here: loading what jobs need takes longer than most fits.
    from elasticml.estimators.job_backend import fit_columns_as_job

    fit = fit_columns_as_job(
        data,
        None,
        client,
        Penalty(a1=problem.strength, a2=0.0),
        total,
        loss="squared_hinge",
        # As in LIBLINEAR, the intercept is an ordinary column.
        intercept=False,
        gap=target_gap * total,
        rounds=problem.rounds,
        seed=problem.seed,
    )
    return _of_columns(problem, fit, target_gap * total)


def _of_columns(problem: LinearProblem, fit: SparseFit, target_gap: float) -> LinearSolution:
    """Return a fit in which the intercept is the last column."""
    scaling = problem.intercept_scaling
    d = fit.w.size - (scaling is not None)
    return LinearSolution(
        coef=fit.w[:d],
        intercept=0.0 if scaling is None else scaling * float(fit.w[d]),
        gap=fit.gap,
        target_gap=max(target_gap, fit.gap) if fit.converged else target_gap,
        rounds=fit.steps,
    )


def _solution(arrays: Any, gap: float, target_gap: float, rounds: int) -> LinearSolution:
    return LinearSolution(
        coef=np.array(arrays["coef"][0]),
        intercept=float(arrays["intercept"][0]),
        gap=gap,
        target_gap=target_gap,
        rounds=rounds,
    )


def _loss_at_zero(loss: str, targets: F64, weights: F64 | None, total: float) -> float:
    if loss in _AT_ZERO:
        return _AT_ZERO[loss]
    squares = targets * targets if weights is None else weights * targets * targets
    return 0.5 * float(squares.sum()) / total
