"""Quantile regression by linear programs of the rows near the model, here or on a cluster.

Only rows whose residual may change its sign matter to the quantile loss. A pass over all rows
returns those near the model, and of the others in each part the weighted mean of the ones
above and of the ones below, as one row each. Since ``rho(sum_i s_i r_i) <= sum_i s_i rho(r_i)``,
the optimum of these rows is a lower bound of the whole problem's, whatever the model is; it is
reached when all rows of each mean have residuals of one sign. So every pass certifies a gap: the
objective at the model, minus the best lower bound. While the gap is too large the next program is
that of the rows near its solution, twice as far if the last one did not help.

Passes have no state: on a cluster, tasks of a killed worker run again elsewhere.

Source: Portnoy and Koenker (1997), The Gaussian hare and the Laplacian tortoise, section 5, the
preprocessing with globs; the bound and the gap are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import scipy.sparse

from elasticml.algorithms.linear.quantile_program import QuantileFit, QuantileProgram
from elasticml.arrays import F64

#: The most passes with programs of near rows; each doubles the distance if it does not help.
_PASSES_MAX: Final = 60
#: A program helps if it leaves at most this share of the gap.
_HELPS: Final = 0.1
#: Gaps below this share of the objective of the zero model are rounding errors.
_ROUNDED: Final = 1e-13
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


class RowPasses(Protocol):
    """Rows that passes go over, in one or more parts."""

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        ...

    def collected(self, of_part: Callable[..., Any], *parameters: Any) -> list[Any]:
        """Return a function of each part's rows, labels and weights, which may be None."""
        ...


@dataclass(frozen=True, slots=True)
class RowsHere:
    """Rows in this process's memory, in one part."""

    #: Array or CSR (n, d).
    X: Any
    y: F64
    weights: F64 | None

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return int(self.X.shape[1])

    def collected(self, of_part: Callable[..., Any], *parameters: Any) -> list[Any]:
        """See :class:`RowPasses`."""
        return [of_part(self.X, self.y, self.weights, *parameters)]


def fit_quantile(rows: RowPasses, rule: QuantileRule) -> tuple[QuantileModel, float]:
    """Fit a model; return it, and the gap that was to be reached.

    Raises
    ------
    ValueError
        When all weights are 0.
    """
    n, total, at_zero = np.sum(rows.collected(_sizes, rule.quantile), axis=0)
    if total <= 0.0:
        raise ValueError("the weights of all rows are 0, wanted some above 0")
    target = max(rule.tol, _ROUNDED) * float(at_zero / total)
    share = min(1.0, _sample_size(n, rows.n_columns + rule.intercept) / n)
    sample = _joined(rows.collected(_sample, share))
    fit = _solved(sample, rule, sample.weights.sum(), target)
    width = float(np.quantile(np.abs(_residuals(sample, fit)), share))
    best, bound, last, steps, model = np.inf, -np.inf, np.inf, fit.steps, fit
    if share == 1.0:
        bound = fit.value - fit.gap
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


def _residuals(rows: _Rows, fit: QuantileFit) -> F64:
    residuals: F64 = rows.y - np.asarray(rows.X @ fit.w, np.float64) - fit.intercept
    return residuals


def _joined(parts: Sequence[_Rows]) -> _Rows:
    """Join the rows of all parts."""
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


# Functions of one part, on the workers.


def _counted(X: Any, y: F64, weights: F64 | None) -> _Rows:
    """Return a part's rows of a weight above 0."""
    if weights is None:
        return _Rows(X=X, y=np.asarray(y, np.float64), weights=np.ones(len(y)))
    counts = weights > 0.0
    if not counts.all():
        X, y, weights = X[counts], y[counts], weights[counts]
    return _Rows(X=X, y=np.asarray(y, np.float64), weights=np.asarray(weights, np.float64))


def _losses(r: F64, quantile: float) -> F64:
    losses: F64 = np.maximum(quantile * r, (quantile - 1.0) * r)
    return losses


def _sizes(X: Any, y: F64, weights: F64 | None, quantile: float) -> F64:
    """Return a part's rows, their weight, and the losses of the zero model."""
    rows = _counted(X, y, weights)
    if not (np.isfinite(rows.y).all() and np.isfinite(rows.weights).all()):
        raise ValueError("y or sample_weight contains NaN or infinity")
    loss = rows.weights @ _losses(rows.y, quantile)
    return np.array([rows.y.size, rows.weights.sum(), loss])


def _sample(X: Any, y: F64, weights: F64 | None, share: float) -> _Rows:
    """Return a share of a part's rows, the same ones whenever it is asked for."""
    rows = _counted(X, y, weights)
    some = np.random.default_rng(rows.y.size).random(rows.y.size) < share
    return _Rows(X=rows.X[some], y=rows.y[some], weights=rows.weights[some])


def _near(
    X: Any, y: F64, weights: F64 | None, w: F64, intercept: float, width: float, quantile: float
) -> _Rows:
    """Return a part's rows near a model, and the means of those above and below."""
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
