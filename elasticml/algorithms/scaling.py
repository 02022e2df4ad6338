"""Scaling and shifting of columns, done on the driver only: members use the unscaled data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elasticml.arrays import F64


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The linear map between the trained model and the vector that members multiply by.

    With columns ``x~_j = (x_j - shift_j) * factor_j``, ``x~.w + b = x.(factor w) + offset`` where
    ``offset = b - sum_j factor_j w_j shift_j``. The offset is the last coordinate of the vector
    sent; its gradient is the sum of slopes. The map applies to models and to directions, its
    transpose to gradients.
    """

    n_columns: int
    intercept: bool
    factor: F64 | None = None
    shift: F64 | None = None
    #: Value of the intercept's column: the last trained coordinate is multiplied by it.
    constant: float = 1.0

    @property
    def n_model(self) -> int:
        """Number of trained coordinates."""
        return self.n_columns + self.intercept

    @property
    def is_identity(self) -> bool:
        """Whether the trained model is sent as it is."""
        return self.factor is None and self.constant == 1.0

    @property
    def has_offset(self) -> bool:
        """Whether the last coordinate sent is an offset, not a column's."""
        return self.intercept or self.shift is not None

    @property
    def n_sent(self) -> int:
        """Number of coordinates that are sent and received."""
        return self.n_columns + self.has_offset

    def down(self, w: F64) -> F64:
        """Return the vector to send, (n_sent,), for a model or direction (n_model,)."""
        if self.is_identity:
            return w
        out = np.zeros(self.n_sent)
        columns = out[: self.n_columns]
        np.multiply(w[: self.n_columns], 1.0 if self.factor is None else self.factor, out=columns)
        if self.intercept:
            out[-1] = self.constant * w[-1]
        if self.shift is not None:
            out[-1] -= columns @ self.shift
        return out

    def up(self, gradient: F64) -> F64:
        """Return the trained model's gradient, (n_model,), for a received gradient (n_sent,)."""
        if self.is_identity:
            return gradient
        out = np.empty(self.n_model)
        columns = out[: self.n_columns]
        columns[:] = gradient[: self.n_columns]
        if self.shift is not None:
            columns -= self.shift * gradient[-1]
        if self.factor is not None:
            columns *= self.factor
        if self.intercept:
            out[-1] = self.constant * gradient[-1]
        return out

    def trained(self, coef: F64, intercept: float) -> F64:
        """Return the trained coordinates (n_model,) of a model in the units of the data.

        Without a trained intercept, ``intercept`` is ignored: the shifts determine it.
        """
        out = np.empty(self.n_model)
        out[: self.n_columns] = coef if self.factor is None else coef / self.factor
        if self.intercept:
            moved = 0.0 if self.shift is None else float(coef @ self.shift)
            out[-1] = (intercept + moved) / self.constant
        return out

    def state(self) -> Mapping[str, F64]:
        """Return the arrays from which :func:`same_columns` restores this map."""
        parts = {"factor": self.factor, "shift": self.shift}
        return {name: part for name, part in parts.items() if part is not None}

    def arrays(self, w: F64) -> Mapping[str, F64]:
        """Return the model in the units of the data: ``coef`` (1, d) and ``intercept`` (1,)."""
        sent = self.down(w)
        coef = sent[: self.n_columns].reshape(1, self.n_columns)
        return {"coef": coef, "intercept": sent[-1:] if self.has_offset else np.zeros(1)}


def same_columns(
    n_columns: int, intercept: bool, constant: float, state: Mapping[str, F64]
) -> Columns:
    """Restore the map from its :meth:`Columns.state`, bit for bit."""
    return Columns(
        n_columns=n_columns,
        intercept=intercept,
        factor=state.get("factor"),
        shift=state.get("shift"),
        constant=constant,
    )


def maxabs_columns(n_columns: int, intercept: bool, maxabs: F64, constant: float = 1.0) -> Columns:
    """Divide every column by its largest absolute value (n_columns,), except columns of zeros."""
    return Columns(
        n_columns=n_columns,
        intercept=intercept,
        factor=1.0 / _no_zero(maxabs),
        constant=constant,
    )


def standard_columns(
    n_columns: int,
    intercept: bool,
    count: float,
    total: F64,
    squares: F64,
    constant: float = 1.0,
) -> Columns:
    """Standardise columns to mean 0 and variance 1; constant columns keep their scale.

    Parameters
    ----------
    count : float
        Number of rows.
    total, squares : ndarray (n_columns,)
        Sums of the values and of their squares.

    Notes
    -----
    Error: the variance is a difference. A column whose mean is 1e6 times its standard deviation
    loses 12 of 16 digits of its scale, which only changes its effective l2 in the fourth digit.
    """
    mean = total / count
    variance = np.maximum(squares / count - mean * mean, 0.0)
    # The computed variance of a constant column is rounding.
    variance[variance <= 1e-14 * squares / count] = 0.0
    return Columns(
        n_columns=n_columns,
        intercept=intercept,
        factor=1.0 / _no_zero(np.sqrt(variance)),
        shift=mean,
        constant=constant,
    )


def mean_square_norm(columns: Columns, weight: float, total: F64, squares: F64) -> float:
    """Return the weighted mean of ``|x~_i|^2`` over rows, including the intercept's column.

    Parameters
    ----------
    weight : float
        Sum of the weights.
    total, squares : ndarray (n_columns,)
        Weighted sums of the unscaled values and of their squares.
    """
    each = squares.copy()
    if columns.shift is not None:
        each += columns.shift * (columns.shift * weight - 2.0 * total)
    if columns.factor is not None:
        each *= columns.factor**2
    return float(each.sum()) / weight + columns.intercept * columns.constant**2


def _no_zero(values: F64) -> F64:
    return np.where(values > 0.0, values, 1.0)
