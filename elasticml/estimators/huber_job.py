"""Huber's regression with a scale as elastic jobs: one for each scale that is tried.

For a fixed scale sigma the objective of ``HuberRegressor`` is ``2 / sigma`` times that of a job
with the loss ``huber``, ``delta = epsilon sigma`` and ``l2 = alpha sigma / S``, plus sigma. The
objective is jointly convex, so a job for sigma, the best scale for its model, the next job, and so
on, descend to the minimum. Secant steps on the logarithm of the scale shorten this to some three to
six jobs. Passes over the rows give the best scale, and the gap.

Source: Huber and Ronchetti, Robust Statistics, for the iteration of the scale; the dual is that of
:mod:`elasticml.algorithms.linear.huber_objective`.

Import this inside functions only: it loads everything that jobs need.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from elasticml.algorithms.linear.huber_objective import SCALE_MIN
from elasticml.algorithms.linear.newton import ROUNDED
from elasticml.arrays import F64
from elasticml.data.readers.dask_partitions import matrix_of_part, vector_of_part
from elasticml.data.source import Source
from elasticml.estimators.job_backend import model_vector, run_job
from elasticml.specification.algorithms import BatchGradient
from elasticml.story.summary import summary_from_json

#: The most jobs of a fit.
_JOBS_MAX: Final = 40
#: The most passes for the best scale of a model; most take less than ten.
_PASSES_MAX: Final = 50
#: Relative changes below which a pass leaves the scale as it is, and the jobs end.
_SAME: Final = 1e-15
_FINAL: Final = 1e-10
#: Share of the gradient norm that the gap allows, to which a job goes; then a tenth of that, and so
#: on, if the scale is final and the gap is not; and the least share.
_SHARE: Final = 0.5
_SHARE_MIN: Final = 1e-3
#: Least gradient norm of a job, relative to the zero model's; without a penalty each one's.
_GRADIENT_MIN: Final = 1e-13
_GRADIENT_FREE: Final = 1e-9
#: Longest secant step, in steps of the alternation.
_LONGEST: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HuberProblem:
    """``1/S sum_i s_i (sigma + sigma H(r_i / sigma)) + alpha/S |w|^2``, and who computes it."""

    #: Sums over the rows at a model and a scale, see :func:`huber_sums`.
    sums: Callable[[F64, float], F64]
    data: Source
    client: Any
    d: int
    #: S, the sum of the weights.
    total: float
    epsilon: float
    alpha: float
    intercept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HuberModel:
    """A model with its best scale, and a certified gap in units of the mean; NaN with alpha 0."""

    #: (d,) or, with an intercept, (d + 1,)
    w: F64
    scale: float
    value: float
    gap: float
    #: Norm of the gradient by w and b at this scale.
    slope: float
    rounds: int = 0
    converged: bool = False


def huber_sums(
    X: Any, y: Any, weights: Any, w: F64, sigma: float, epsilon: float, intercept: bool
) -> F64:
    """Return the sums of some rows that value, gradient, best scale and dual need.

    They are the losses over sigma, the squares of inner residuals, the weight of outliers, then for
    the positive and the negative dual variables their sums, sums of squares, products with the
    targets, and images (d,).
    """
    matrix = matrix_of_part(X)
    d = w.size - intercept
    t = np.asarray(vector_of_part(y), np.float64)
    s = np.ones(t.size) if weights is None else np.asarray(vector_of_part(weights), np.float64)
    r = t - np.asarray(matrix @ w[:d], np.float64) - (w[-1] if intercept else 0.0)
    is_outlier = np.abs(r) > epsilon * sigma
    a = np.clip(2.0 * r / sigma, -2.0 * epsilon, 2.0 * epsilon)
    head = [
        s @ (sigma + a * r - 0.25 * sigma * a * a),
        s @ np.where(is_outlier, 0.0, r * r),
        s @ is_outlier,
    ]
    signs = [s * np.maximum(a, 0.0), s * np.minimum(a, 0.0)]
    parts = [[one.sum(), one @ a, one @ t] for one in signs]
    images = [np.asarray(matrix.T @ one, np.float64) for one in signs]
    return np.concatenate([head, *parts, *images]).astype(np.float64)


def fit_huber_as_job(
    problem: HuberProblem, spread: float, *, tol: float, rounds: int
) -> tuple[HuberModel, float]:
    """Fit as jobs on a cluster; return the model, and the gap that was to be reached.

    Parameters
    ----------
    spread : float
        The scale to begin with: the root of the mean square of the targets.
    tol : float
        The gap to reach, in units of the objective of the zero model.
    rounds : int
        The most rounds of a job.

    Raises
    ------
    JobFailedError
        When a job fails.
    """
    zero = np.zeros(problem.d + problem.intercept)
    point = _scaled(problem, zero, max(spread, SCALE_MIN), SCALE_MIN)
    gap = tol * point.value
    floor = max(0.5 * gap, SCALE_MIN)
    first, sigma, share, used = max(point.slope, SCALE_MIN), point.scale, _SHARE, 0
    before: tuple[float, float] | None = None
    for _ in range(_JOBS_MAX):
        limit = _GRADIENT_FREE * first
        if problem.alpha > 0.0:
            # 2 alpha / S is the constant of strong convexity.
            enough = share * math.sqrt(4.0 * problem.alpha / problem.total * gap)
            limit = max(enough, _GRADIENT_MIN * first)
        w, taken = _job(problem, point.w, sigma, limit, rounds)
        used += taken
        point = _scaled(problem, w, sigma, floor)
        moved = math.log(point.scale / sigma)
        is_close = point.gap <= max(gap, ROUNDED * point.value)
        is_final = abs(moved) <= _FINAL
        if is_final:
            share *= 0.1
        is_stuck = is_final and (share < _SHARE_MIN or math.isnan(point.gap))
        if is_close or is_stuck:
            break
        here, sigma = (math.log(sigma), moved), point.scale
        if before is not None and abs(moved) < abs(before[1]):
            step = -moved * (here[0] - before[0]) / (moved - before[1])
            if 0.0 < step * moved < _LONGEST * moved * moved:
                sigma = max(math.exp(here[0] + step), floor)
        before = here
    is_done = is_close or (is_stuck and math.isnan(point.gap))
    return replace(point, rounds=used, converged=is_done), gap


def _job(problem: HuberProblem, w: F64, sigma: float, limit: float, rounds: int) -> tuple[F64, int]:
    """Return the model for a scale, with a gradient norm up to ``limit``, and the rounds taken.

    It is the given model, without a job, if that has such a gradient.
    """
    if _point(problem, w, sigma).slope <= limit:
        return w, 0
    norm_at_zero = _point(problem, np.zeros(w.size), sigma).slope
    algorithm = BatchGradient(
        loss="huber",
        delta=problem.epsilon * sigma,
        l2=problem.alpha * sigma / problem.total,
        optimizer="tron",
        intercept=problem.intercept,
        scale="none",
        tolerance=min(limit / norm_at_zero, 1.0) if norm_at_zero > 0.0 else limit,
    )
    result = run_job(algorithm, problem.data, problem.client, rounds)
    used = summary_from_json(result.summary).rounds
    return model_vector(result.arrays, problem.intercept), used or 0


def _scaled(problem: HuberProblem, w: F64, sigma: float, floor: float) -> HuberModel:
    """Return the model with its best scale, by Huber's iteration from ``sigma``."""
    for _ in range(_PASSES_MAX):
        sums = problem.sums(w, sigma)
        room = problem.total - problem.epsilon**2 * float(sums[2])
        better = math.sqrt(float(sums[1]) / room) if room > 0.0 else 2.0 * sigma
        better = max(better, floor)
        if abs(better - sigma) <= _SAME * sigma:
            break
        sigma = better
    return _point(problem, w, sigma)


def _point(problem: HuberProblem, w: F64, sigma: float) -> HuberModel:
    """Return value, gap and gradient norm at a model and a scale."""
    sums, total, d = problem.sums(w, sigma), problem.total, problem.d
    penalised = 2.0 * problem.alpha / total * w
    penalised[d:] = 0.0
    value = float(sums[0]) / total + 0.5 * float(penalised @ w)
    signs, images = sums[3:9].reshape(2, 3), sums[9:].reshape(2, d)
    gradient = penalised.copy()
    gradient[:d] -= images.sum(axis=0) / total
    gradient[d:] -= signs[:, 0].sum() / total
    gap = math.nan
    if problem.alpha > 0.0:
        factors = np.ones(2)
        if problem.intercept:
            sizes = np.abs(signs[:, 0])
            factors = np.divide(sizes.min(), sizes, out=np.zeros(2), where=sizes > 0.0)
        size = 0.25 * float(factors**2 @ signs[:, 1])
        if size > total:
            factors *= math.sqrt(total / size)
        image = factors @ images
        dual = float(factors @ signs[:, 2]) - 0.25 / problem.alpha * float(image @ image)
        gap = value - dual / total
    slope = float(np.linalg.norm(gradient))
    return HuberModel(w=w, scale=sigma, value=value, gap=gap, slope=slope)
