"""Quantile regression on Dask collections: linear programs of the rows near the model.

Only rows whose residual may change its sign matter to the quantile loss. A pass over all rows
returns those near the model, and of the others in each partition the weighted mean of the ones
above and of the ones below, as one row each. Since ``rho(sum_i s_i r_i) <= sum_i s_i rho(r_i)``,
the optimum of these rows is a lower bound of the whole problem's, whatever the model is; it is
reached when all rows of each mean have residuals of one sign. So every pass certifies a gap: the
objective at the model, minus the best lower bound. While the gap is too large the next program is
that of the rows near its solution, twice as far if the last one did not help.

Tasks have no state between passes: those of a killed worker run again elsewhere.

Source: Portnoy and Koenker (1997), The Gaussian hare and the Laplacian tortoise, section 5, the
preprocessing with globs; the bound and the gap are ours.

Import this inside functions only: it loads Dask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy.sparse

from elasticml.algorithms.linear.quantile_program import QuantileFit, QuantileProgram
from elasticml.arrays import F64
from elasticml.data.readers.dask_partitions import matrix_of_part, vector_of_part
from elasticml.estimators.dask_rows import DaskRows

#: The most passes with programs of near rows; each doubles the distance if it does not help.
_PASSES_MAX: Final = 60
#: A program helps if it leaves at most this share of the gap.
_HELPS: Final = 0.1
#: Rows of a sample for each column, at least.
_ROWS_PER_COLUMN: Final = 10
#: Share of the gap to reach that a program may leave.
_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileModel:
    """A model with a certified gap, in units of the mean."""

    #: (d,)
    w: F64
    intercept: float
    gap: float
    #: Steps of all programs.
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileRule:
    """``1/S sum_i s_i rho(y_i - w.x_i - b) + alpha |w|_1``, and when to stop."""

    quantile: float
    alpha: float
    intercept: bool
    #: The gap to reach, in units of the objective of the zero model.
    tol: float
    #: The most steps of a program.
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Some rows, and the sum of all rows' losses where they were selected by a model."""

    X: Any
    y: F64
    weights: F64
    loss: float = 0.0


def fit_quantile(rows: DaskRows, rule: QuantileRule) -> tuple[QuantileModel, float]:
    """Fit on the cluster; return the model, and the gap that was to be reached.

    Raises
    ------
    ValueError
        When all weights are 0.
    """
    n, total, at_zero = rows.sums(_sizes, rule.quantile)
    if total <= 0.0:
        raise ValueError("the weights of all rows are 0, wanted some above 0")
    target = max(rule.tol * float(at_zero / total), np.finfo(float).tiny)
    size = _sample_size(n, rows.n_columns + rule.intercept)
    sample = _joined(rows.collected(_sample, min(1.0, size / n)))
    fit = _solved(sample, rule, sample.weights.sum(), target)
    width = float(np.quantile(np.abs(_residuals(sample.X, sample.y, fit)), min(1.0, size / n)))
    best, bound, last, steps = np.inf, -np.inf, np.inf, fit.steps
    model = fit
    for number in range(_PASSES_MAX + 1):
        near = _joined(rows.collected(_near, fit.w, fit.intercept, width, rule.quantile))
        value = near.loss / total + rule.alpha * float(np.abs(fit.w).sum())
        if value < best:
            best, model = value, fit
        gap = best - bound
        if gap <= target or number == _PASSES_MAX:
            break
        width, last = width if gap <= _HELPS * last else 2.0 * width, gap
        fit = _solved(near, rule, total, target)
        bound, steps = max(bound, fit.value - fit.gap), steps + fit.steps
    gap = max(best - bound, 0.0)
    return QuantileModel(w=model.w, intercept=model.intercept, gap=gap, steps=steps), target


def _sample_size(n: float, columns: int) -> float:
    """Return the rows of a sample, about as many as are then near its model.

    Residuals move by about ``sqrt(columns / size)`` times their spread.
    """
    near: float = (2.0 * n) ** (2.0 / 3.0) * columns ** (1.0 / 3.0)
    return max(near, _ROWS_PER_COLUMN * columns)


def _solved(rows: _Rows, rule: QuantileRule, total: float, target: float) -> QuantileFit:
    """Solve the program of some rows, whose weights are shares of ``total``."""
    y = rows.y
    centre = float(np.median(y)) if rule.intercept else 0.0
    # In units of a mean residual, so that rows of any scale are solved alike.
    unit = float(np.average(np.abs(y - centre), weights=rows.weights)) or 1.0
    program = QuantileProgram(
        rows.X,
        (y - centre) / unit,
        rows.weights / total,
        quantile=rule.quantile,
        alpha=rule.alpha,
        intercept=rule.intercept,
    )
    fit = program.solve(_SHARE * target / unit, rule.steps)
    return QuantileFit(
        w=unit * fit.w,
        intercept=centre + unit * fit.intercept,
        value=unit * fit.value,
        gap=unit * fit.gap,
        steps=fit.steps,
    )


def _residuals(X: Any, y: F64, fit: QuantileFit) -> F64:
    residuals: F64 = y - np.asarray(X @ fit.w, np.float64) - fit.intercept
    return residuals


def _joined(parts: Sequence[_Rows]) -> _Rows:
    """Join the rows of all partitions."""
    filled = [part for part in parts if part.y.size]
    if any(scipy.sparse.issparse(part.X) for part in filled):
        X = scipy.sparse.vstack([part.X for part in filled], format="csr")
    else:
        X = np.concatenate([part.X for part in filled])
    return _Rows(
        X=X,
        y=np.concatenate([part.y for part in filled]),
        weights=np.concatenate([part.weights for part in filled]),
        loss=sum(part.loss for part in parts),
    )


# On the workers: functions of one partition.


def _counted(X: Any, y: Any, weights: Any) -> _Rows:
    """Return a partition's rows of a weight above 0."""
    matrix, targets = matrix_of_part(X), np.asarray(vector_of_part(y), np.float64)
    s = np.ones(targets.size)
    if weights is not None:
        s = np.asarray(vector_of_part(weights), np.float64)
    counts = s > 0.0
    if not counts.all():
        matrix, targets, s = matrix[counts], targets[counts], s[counts]
    return _Rows(X=matrix, y=targets, weights=s)


def _losses(r: F64, quantile: float) -> F64:
    losses: F64 = np.maximum(quantile * r, (quantile - 1.0) * r)
    return losses


def _sizes(X: Any, y: Any, weights: Any, quantile: float) -> F64:
    """Return a partition's rows, their weight, and the losses of the zero model."""
    rows = _counted(X, y, weights)
    if not (np.isfinite(rows.y).all() and np.isfinite(rows.weights).all()):
        raise ValueError("y or sample_weight contains NaN or infinity")
    loss = rows.weights @ _losses(rows.y, quantile)
    return np.array([rows.y.size, rows.weights.sum(), loss])


def _sample(X: Any, y: Any, weights: Any, share: float) -> _Rows:
    """Return a share of a partition's rows, the same ones whenever it is asked for."""
    rows = _counted(X, y, weights)
    some = np.random.default_rng(rows.y.size).random(rows.y.size) < share
    return _Rows(X=rows.X[some], y=rows.y[some], weights=rows.weights[some])


def _near(
    X: Any, y: Any, weights: Any, w: F64, intercept: float, width: float, quantile: float
) -> _Rows:
    """Return a partition's rows near a model, and the means of those above and below."""
    rows = _counted(X, y, weights)
    r = rows.y - np.asarray(rows.X @ w, np.float64) - intercept
    loss = float(rows.weights @ _losses(r, quantile))
    near = np.abs(r) <= width
    X_parts, y_parts, s_parts = [rows.X[near]], [rows.y[near]], [rows.weights[near]]
    for side in (r > width, r < -width):
        s = rows.weights * side
        total = float(s.sum())
        if total > 0.0:
            mean = np.asarray(rows.X.T @ s, np.float64)[None] / total
            X_parts.append(scipy.sparse.csr_array(mean) if scipy.sparse.issparse(rows.X) else mean)
            y_parts.append(np.array([s @ rows.y / total]))
            s_parts.append(np.array([total]))
    join = scipy.sparse.vstack if scipy.sparse.issparse(rows.X) else np.concatenate
    return _Rows(
        X=join(X_parts), y=np.concatenate(y_parts), weights=np.concatenate(s_parts), loss=loss
    )
