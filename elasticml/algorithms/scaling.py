"""Scaled and shifted columns, wholly on the driver: members only ever see the data as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The map between the model that is trained and the vector that members multiply by.

    With columns ``x~_j = (x_j - shift_j) * factor_j``, ``x~.w + b = x.(factor w) + offset`` where
    ``offset = b - sum_j factor_j w_j shift_j``. The offset is the last coordinate of what is sent;
    its gradient is the sum of slopes. The map is linear: it serves models and directions alike,
    and its transpose brings gradients up.
    """

    n_columns: int
    intercept: bool
    factor: F64 | None = None
    shift: F64 | None = None
    #: Value of the intercept's own column: its last trained coordinate is multiplied by it.
    constant: float = 1.0

    @property
    def n_model(self) -> int:
        """Coordinates that are trained."""
        return self.n_columns + self.intercept

    @property
    def is_identity(self) -> bool:
        """Whether what is trained is what is sent."""
        return self.factor is None and self.constant == 1.0

    @property
    def has_offset(self) -> bool:
        """Whether a last coordinate is sent that belongs to no column."""
        return self.intercept or self.shift is not None

    @property
    def n_sent(self) -> int:
        """Coordinates that travel, down and up."""
        return self.n_columns + self.has_offset

    def down(self, w: F64) -> F64:
        """Return what members multiply by, shape (n_sent,), for a model or direction (n_model,)."""
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
        """Return the gradient by the trained model, (n_model,), for one (n_sent,) that came up."""
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
        """Return the trained coordinates (n_model,) of a model as users know it.

        A model without a trained intercept keeps that of its shifted columns, whatever is given.
        """
        out = np.empty(self.n_model)
        out[: self.n_columns] = coef if self.factor is None else coef / self.factor
        if self.intercept:
            moved = 0.0 if self.shift is None else float(coef @ self.shift)
            out[-1] = (intercept + moved) / self.constant
        return out

    def state(self) -> Mapping[str, F64]:
        """Return the arrays of which :func:`same_columns` makes the same map again."""
        parts = {"factor": self.factor, "shift": self.shift}
        return {name: part for name, part in parts.items() if part is not None}

    def arrays(self, w: F64) -> Mapping[str, F64]:
        """Return the model as users know it: ``coef`` (1, d) and ``intercept`` (1,)."""
        sent = self.down(w)
        coef = sent[: self.n_columns].reshape(1, self.n_columns)
        return {"coef": coef, "intercept": sent[-1:] if self.has_offset else np.zeros(1)}


def same_columns(
    n_columns: int, intercept: bool, constant: float, state: Mapping[str, F64]
) -> Columns:
    """Make the map again that a :meth:`Columns.state` belongs to, bit for bit."""
    return Columns(
        n_columns=n_columns,
        intercept=intercept,
        factor=state.get("factor"),
        shift=state.get("shift"),
        constant=constant,
    )


def maxabs_columns(n_columns: int, intercept: bool, maxabs: F64, constant: float = 1.0) -> Columns:
    """Divide every column by its largest absolute value (n_columns,); empty ones stay."""
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
    """Give every column mean 0 and variance 1; constant ones keep their scale.

    Parameters
    ----------
    count : float
        Number of rows.
    total, squares : ndarray (n_columns,)
        Sums of the values and of their squares.

    Notes
    -----
    Error: the variance is a difference; a column whose mean is 1e6 times its deviation loses 12 of
    16 digits of its scale, which changes what l2 means for it in the fourth digit and nothing else.
    """
    mean = total / count
    variance = np.maximum(squares / count - mean * mean, 0.0)
    # What is left of a constant column's variance is rounding.
    variance[variance <= 1e-14 * squares / count] = 0.0
    return Columns(
        n_columns=n_columns,
        intercept=intercept,
        factor=1.0 / _no_zero(np.sqrt(variance)),
        shift=mean,
        constant=constant,
    )


def mean_square_norm(columns: Columns, weight: float, total: F64, squares: F64) -> float:
    """Return the weighted mean of ``|x~_i|^2`` over rows, the intercept's one included.

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
