"""Solve the problem of a linear estimator: in this process, or as an elastic job on a cluster.

The modules of each engine are imported where it is called: a fit loads no other, and what jobs need
takes longer to load than most fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.linear.problem import Problem
from elasticml.algorithms.parallel import FixedPieces
from elasticml.arrays import F64
from elasticml.errors import JobFailedError
from elasticml.estimators.backend_choice import STEP_VALUES_MIN, stored_values
from elasticml.estimators.rows import ArrayRows, Targets
from elasticml.objectives.loss_kernels import loss_named
from elasticml.objectives.penalty_kernels import Penalty, make_penalty

if TYPE_CHECKING:
    from elasticml.algorithms.linear.fit import Fit
    from elasticml.algorithms.linear.linear_objective import LinearObjective
    from elasticml.algorithms.linear.softmax_objective import SoftmaxObjective
    from elasticml.data.source import Source
    from elasticml.estimators.dask_rows import DaskRows
    from elasticml.jobs.result import Result
    from elasticml.specification.algorithms import AnyAlgorithm, BatchGradient

#: The most passes of dual ascent for the logistic loss, with few values and with many; Newton steps
#: continue from the model.
DESCENT_PASSES_MAX: Final = 300
PASSES_MAX: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A model with its duality gap."""

    #: (n_models, d)
    coef: F64
    #: (n_models,)
    intercept: F64
    #: NaN without a certificate.
    gap: float
    rounds: int
    #: The gap is small enough or rounding; or there is none, and steps no longer gain.
    converged: bool
    #: How it was found, in the estimators' words.
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem, what it is fitted to, and the first model: coefficients and intercepts."""

    problem: Problem
    targets: Targets
    start: tuple[F64, F64] | None = None


def solve_all(cases: Sequence[Case], rows: ArrayRows | DaskRows, pool: Parallel) -> list[Solution]:
    """Solve problems over the same rows; single ones share their work, and jobs follow each other.

    Raises
    ------
    ValueError
        When all weights are 0.
    JobFailedError
        When a job fails.
    """
    if any(not case.targets.total > 0.0 for case in cases):
        raise ValueError("the weights of all rows are 0, wanted some above 0")
    if not isinstance(rows, ArrayRows) or rows.client is not None:
        return [_solve_as_job(rows, case) for case in cases]
    if len(cases) == 1:
        rows.parallel = pool
        return [_solve(rows, cases[0])]
    return FixedPieces(pool).map(lambda case: _solve(rows, case), cases)


def _solve(rows: ArrayRows, case: Case) -> Solution:
    engine = {
        "columns": _by_columns,
        "dual": _by_dual,
        "newton": _by_newton,
        "equations": _by_equations,
    }
    return engine[case.problem.method](rows, case)


# --- engines in this process ----------------------------------------------------------------------


def _by_columns(rows: ArrayRows, case: Case) -> Solution:
    problem, targets = case.problem, case.targets
    total, gap = targets.total, problem.gap * targets.total
    penalty = make_penalty(problem.l1 * total, problem.l2 * total, problem.terms)
    if problem.loss == "squared":
        from elasticml.algorithms.linear.column_matrix import ColumnMatrix
        from elasticml.algorithms.linear.elastic_net import ElasticNetSolver

        centred = problem.intercept is not None
        matrix = ColumnMatrix(rows.X, targets.y, targets.weights, centred=centred)
        start = None if case.start is None else case.start[0][0]
        solver = ElasticNetSolver(
            matrix, start, by_products=penalty.is_l1 and takes_products(matrix, 1)
        )
        fit = solver.solve(penalty, gap, problem.rounds)
        return _solution(problem, replace(fit, b=matrix.intercept(fit.w)), "columns", total)
    constant = None if problem.is_free else problem.intercept
    columns, is_free = rows.columns(constant), problem.is_free and problem.intercept is not None
    if problem.classes > 2:
        from elasticml.algorithms.linear.sparse_softmax import SparseSoftmax

        classifier: SparseClassifier = SparseSoftmax(columns, targets.y, targets.weights, problem)
    else:
        from elasticml.algorithms.linear.sparse_classifier import SparseClassifier

        by_rows = constant is None and hasattr(rows.X, "indptr") and penalty.is_l1
        classifier = SparseClassifier(
            columns,
            targets.y,
            targets.weights,
            loss=loss_named(problem.loss),
            intercept=is_free,
            rows=rows.blocks if by_rows else None,
        )
    if case.start is not None:
        W, b = case.start
        classifier.begin(*((W, b) if problem.classes > 2 else (W[0], b[0])))
    return _solution(problem, classifier.solve(penalty, gap, problem.rounds), "columns", total)


def takes_products(matrix: Any, n_penalties: int) -> bool:
    """Whether computing the Gram matrix of all columns costs less than passes over the rows.

    The Gram matrix costs ``d / 2`` passes, and a fit for one penalty takes some tens of passes.
    """
    columns = min(1500, 100 if n_penalties < 10 else matrix.d)
    return bool(matrix.d <= min(columns, matrix.n))


def _by_dual(rows: ArrayRows, case: Case) -> Solution:
    """Make passes of coordinate ascent, with threads by CoCoA."""
    problem, is_few = case.problem, stored_values(rows.X) < STEP_VALUES_MIN
    is_logistic = problem.loss == "logistic"
    if is_logistic:
        most = DESCENT_PASSES_MAX if is_few else PASSES_MAX
        problem = replace(problem, rounds=min(problem.rounds, most))
    engine = _by_descent if is_few and problem.fixed is None else _by_cocoa
    solution = engine(rows, replace(case, problem=problem))
    if solution.converged or not is_logistic:
        return solution
    start = solution.coef, solution.intercept
    return _by_newton(rows, replace(case, start=start))


def _by_descent(rows: ArrayRows, case: Case) -> Solution:
    from elasticml.algorithms.linear.dual_descent import DualDescent
    from elasticml.algorithms.linear.interior_point import InteriorPoint, passes_of

    problem, targets = case.problem, case.targets
    y, weights, target_gap = targets.y, targets.weights, problem.gap * targets.total
    solver = DualDescent(rows.memory, rows.shape[1], y, weights, problem)
    is_other = problem.loss == "hinge" and (weights is None or bool(weights.all()))
    fit = solver.solve(target_gap, problem.rounds, passes_of(rows.X) if is_other else math.inf)
    method = "dual"
    if not fit.converged and fit.steps < problem.rounds:  # the other is expected to be faster
        method, done = "interior point", fit.steps
        other = InteriorPoint(rows.blocks, y, weights, problem)
        fit = other.solve(target_gap, fit.w)
        done += fit.steps
        if not fit.converged:
            method, fit = "dual", solver.solve(target_gap, max(1, problem.rounds - done))
            done += fit.steps
        fit = replace(fit, steps=done)
    return _solution(problem, fit, method, targets.total)


def _by_cocoa(rows: ArrayRows, case: Case) -> Solution:
    from elasticml.algorithms.base import Algorithm
    from elasticml.algorithms.cocoa.rows import make_trainer
    from elasticml.algorithms.cocoa.solver import CocoaSolver
    from elasticml.algorithms.local_runner import train_locally

    data = rows.chunked.with_labels(case.targets.y, case.targets.weights)
    trained = train_locally(
        Algorithm(name="cocoa", trainer=make_trainer, solver=CocoaSolver),
        {"name": "cocoa", **_cocoa(case.problem)},
        data.facts,
        data.chunks,
        rounds=case.problem.rounds,
        parallel=rows.parallel,
    )
    model = trained.model
    rounds, converged = trained.rounds, model.converged
    return _of_arrays(case.problem, model.arrays, model.gap, rounds, converged, "dual")


def _cocoa(problem: Problem) -> dict[str, Any]:
    """Return the settings of CoCoA by rows."""
    scaling = problem.intercept
    return {
        "loss": problem.loss,
        "l2": problem.l2,
        "intercept": scaling is not None,
        "intercept_scaling": 1.0 if scaling is None else scaling,
        "scale": "none",
        "tolerance": problem.gap,
        "gap_every": "target",
        "seed": problem.seed or 0,
        # On a GPU the order of additions varies, and the same seed must give the same bits.
        "device": "cpu",
        **({} if problem.fixed is None else {"offset": problem.fixed}),
    }


def objective(
    rows: ArrayRows, problem: Problem, targets: Targets
) -> LinearObjective | SoftmaxObjective:
    """Return a smooth problem as a function with a gap."""
    from elasticml.algorithms.linear.linear_objective import LinearObjective
    from elasticml.algorithms.linear.softmax_objective import SoftmaxObjective

    kind = SoftmaxObjective if problem.classes > 2 else LinearObjective
    return kind(rows.blocks, targets.y, targets.weights, problem)


def _by_newton(rows: ArrayRows, case: Case) -> Solution:
    from elasticml.algorithms.linear.newton import minimise

    problem, function = case.problem, objective(rows, case.problem, case.targets)
    start = function.zero()
    if case.start is not None:
        parts = (case.start[0], case.start[1][:, np.newaxis])
        given = np.hstack(parts if problem.intercept is not None else parts[:1]).ravel()
        # Badly misclassified rows have almost no curvature: steps from there lead nowhere.
        if function.at(given).value <= function.at(start).value:
            start = given
        if problem.fixed is not None:
            start[problem.fixed] = 1.0
    fit = minimise(function, start, gap=problem.gap, steps=problem.rounds)
    return _solution(problem, fit, "newton")


def _by_equations(rows: ArrayRows, case: Case) -> Solution:
    """Solve the normal equations: those of columns from sparse rows where that applies."""
    from elasticml.algorithms.linear.column_matrix import ColumnMatrix
    from elasticml.algorithms.linear.elastic_net import ElasticNetSolver
    from elasticml.algorithms.linear.fit import Fit
    from elasticml.algorithms.linear.normal_equations import solve_columns, solve_rows

    X, problem, targets, centred = rows.X, case.problem, case.targets, case.problem.intercept
    y, weights, alpha = targets.y, targets.weights, problem.l2 * targets.total
    found = None
    if X.shape[0] >= X.shape[1]:
        found = solve_rows(rows.blocks, y, weights, alpha, centred=centred is not None)
    if found is not None:
        w = found[0] if centred is None else np.append(*found)
        gap = objective(rows, problem, targets).at(w).gap
        return _solution(problem, Fit(w=w, gap=gap, steps=1, converged=True), "equations")
    matrix = ColumnMatrix(X, y, weights, centred=centred is not None)
    w = solve_columns(matrix, alpha)
    gap = ElasticNetSolver(matrix, w).gap(Penalty(a1=0.0, a2=alpha)) if alpha > 0.0 else math.nan
    fit = Fit(w=w, gap=gap, steps=1, converged=True, b=matrix.intercept(w))
    return _solution(problem, fit, "equations", targets.total)


# --- as a job -------------------------------------------------------------------------------------


def run_job(
    algorithm: AnyAlgorithm,
    data: Source,
    client: Any,
    rounds: int,
    warm_start: Mapping[str, Any] | None = None,
    gap: float | None = None,
) -> Result:
    """Train a model as a job on a cluster, in at most ``rounds`` rounds or to a certified gap.

    Raises
    ------
    JobFailedError
        When the job fails, or ends without a model.
    """
    from elasticml.job import Job
    from elasticml.jobs.follow import follow
    from elasticml.specification.sections import Stop

    job = Job(
        algorithm,
        data,
        name="estimator",
        stop=Stop(rounds=rounds, gap=gap),
        warm_start=warm_start,
        # Rounds with stand-ins would use up max_iter while a killed worker comes back.
        absent="reload",
        evaluate=False,
    )
    # The estimator itself warns of a model that misses its own tolerance.
    result = follow(job.start(client), cancels=True)
    if result.model is None:
        raise JobFailedError("the job ended before its first round", reason="no model")
    return result


def _solve_as_job(rows: ArrayRows | DaskRows, case: Case) -> Solution:
    from elasticml.specification.algorithms import CoCoA, PrimalCoCoA

    problem, targets = case.problem, case.targets
    if problem.method == "columns":
        constant = None if problem.is_free else problem.intercept
        by_columns = PrimalCoCoA(
            loss=problem.loss,
            l1=problem.l1,
            l2=problem.l2,
            positive=problem.terms.positive,
            intercept=problem.is_free and problem.intercept is not None,
            tolerance=problem.gap,
            seed=problem.seed,
        )
        start = None
        if case.start is not None:
            start = {"coef": case.start[0][0], "intercept": np.zeros(1)}
        data = rows.column_source(targets, constant)
        return _trained(problem, by_columns, data, rows.client, problem.rounds, start=start)
    data = rows.source(targets)
    if problem.loss == "hinge":
        return _trained(problem, CoCoA(**_cocoa(problem)), data, rows.client, problem.rounds)
    # A goal of 0, that of constant targets, ends a job where only rounding errors are left.
    gap = max(problem.gap, float(np.finfo(float).tiny)) if problem.l2 > 0.0 else None
    return _trained(problem, _batch_gradient(problem), data, rows.client, problem.rounds, gap=gap)


def _batch_gradient(problem: Problem) -> BatchGradient:
    """Return the job that minimises a smooth problem; without a penalty it certifies no gap."""
    from elasticml.specification.algorithms import BatchGradient

    return BatchGradient(
        loss=problem.loss,
        l2=problem.l2,
        optimizer="auto",
        intercept=problem.intercept is not None,
        intercept_scaling=None if problem.is_free else problem.intercept,
        # Variables that make columns of unequal size alike.
        scale="standard",
        penalise="raw",
        tolerance=0.0 if problem.l2 > 0.0 else min(problem.gap, 1.0),
        offset=problem.fixed,
    )


def _trained(
    problem: Problem,
    algorithm: AnyAlgorithm,
    data: Source,
    client: Any,
    rounds: int,
    *,
    start: Mapping[str, Any] | None = None,
    gap: float | None = None,
) -> Solution:
    from elasticml.algorithms.linear.newton import ROUNDED
    from elasticml.story.summary import summary_from_json

    result = run_job(algorithm, data, client, rounds, start, gap)
    summary = summary_from_json(result.summary)
    used = len(result.history) if summary.rounds is None else summary.rounds
    # If only rounding errors are left of the gap, the fit counts as converged.
    rounded = ROUNDED * abs(summary.objective or 0.0)
    converged = bool(summary.converged) or (summary.gap is not None and summary.gap <= rounded)
    method = {"cocoa": "dual", "primal_cocoa": "columns"}.get(algorithm.name, "newton")
    return _of_arrays(problem, result.arrays, summary.gap, used, converged, method)


def _of_arrays(
    problem: Problem,
    arrays: Mapping[str, Any],
    gap: float | None,
    rounds: int,
    converged: bool,
    method: str,
) -> Solution:
    from elasticml.algorithms.linear.fit import Fit

    gap = math.nan if gap is None else gap
    b = None if method == "columns" and not problem.is_free else arrays["intercept"]
    converged = converged or gap <= problem.gap
    fit = Fit(w=arrays["coef"], gap=gap, steps=rounds, converged=converged, b=b)
    return _solution(problem, fit, method)


def _solution(problem: Problem, fit: Fit, method: str, unit: float = 1.0) -> Solution:
    """Return a solution, whose gap is that of the fit over ``unit``."""
    n = problem.n_models
    coef, intercept = np.array(fit.w, np.float64).reshape(n, -1), np.zeros(n)
    if fit.b is not None:
        intercept = np.array(fit.b, np.float64).reshape(-1)[:n]
    elif problem.intercept is not None:
        coef, intercept = coef[:, :-1].copy(), problem.intercept * coef[:, -1]
    return Solution(
        coef=coef,
        intercept=intercept,
        gap=float(np.maximum(fit.gap / unit, 0.0)),
        rounds=fit.steps,
        converged=fit.converged,
        method=method,
    )
