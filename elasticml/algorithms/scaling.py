"""Scaling and shifting of columns, done on the driver only: members use the unscaled data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from elasticml.arrays import F64
from elasticml.objectives.penalty_kernels import L2

Flags = NDArray[np.bool_]


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
    #: Number of models, one for each of several classes: the vectors have the columns'
    #: coordinates of all models, one model after the other, and then the intercepts or offsets.
    models: int = 1
    #: The column with a coefficient of 1 that is neither trained, scaled nor penalised: the offset
    #: of a generalised linear model. Gradients are 0 there. Only with one model.
    fixed: int | None = None

    def start(self) -> F64:
        """Return the model without features, (n_model,): zero except in the fixed column."""
        w = np.zeros(self.n_model)
        if self.fixed is not None:
            w[self.fixed] = 1.0
        return w

    @property
    def centre(self) -> F64:
        """The shifts of the columns, (n_columns,); zeros without any."""
        return np.zeros(self.n_columns) if self.shift is None else self.shift

    @property
    def n_coefficients(self) -> int:
        """Number of coordinates before the intercepts or offsets."""
        return self.models * self.n_columns

    @property
    def n_model(self) -> int:
        """Number of trained coordinates."""
        return self.n_coefficients + self.models * self.intercept

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
        return self.n_coefficients + self.models * self.has_offset

    def down(self, w: F64) -> F64:
        """Return the vector to send, (n_sent,), for a model or direction (n_model,)."""
        if self.is_identity:
            return w
        out = np.zeros(self.n_sent)
        columns, offsets = self._parts(out)
        own, intercepts = self._parts(w)
        np.multiply(own, 1.0 if self.factor is None else self.factor, out=columns)
        if self.intercept:
            offsets[:] = self.constant * intercepts
        if self.shift is not None:
            for k, row in enumerate(columns):
                offsets[k] -= row @ self.shift
        return out

    def model(self, w: F64) -> F64:
        """Return the vector to send for a model: the fixed column has the coefficient 1 in it."""
        sent = self.down(w)
        if self.fixed is not None:
            sent = sent.copy()
            sent[self.fixed] = 1.0
        return sent

    def without_fixed(self) -> Columns:
        """Return the map whose trained columns are zero in place of the fixed one."""
        if self.fixed is None:
            return self
        factor = np.ones(self.n_columns) if self.factor is None else self.factor.copy()
        factor[self.fixed] = 0.0
        return replace(self, factor=factor)

    def up(self, gradient: F64) -> F64:
        """Return the trained model's gradient, (n_model,), for a received gradient (n_sent,)."""
        if self.is_identity and self.fixed is None:
            return gradient
        out = np.empty(self.n_model)
        columns, intercepts = self._parts(out)
        received, offsets = self._parts(gradient)
        columns[:] = received
        if self.shift is not None:
            columns -= self.shift * offsets[:, None]
        if self.factor is not None:
            columns *= self.factor
        if self.intercept:
            intercepts[:] = self.constant * offsets
        if self.fixed is not None:
            out[self.fixed] = 0.0
        return out

    def hessian(self, pairs: Sequence[tuple[int, int]], arrays: Mapping[str, F64]) -> F64:
        """Return the trained model's Hessian, (n_model, n_model), for received sums.

        Parameters
        ----------
        pairs : sequence of (int, int)
            Two models each, the second not after the first.
        arrays : mapping
            ``gram`` (pairs, d (d + 1) / 2), the lower triangles of ``X~' D X~`` with shifted rows;
            ``border`` (pairs, d), ``X~' D 1``; ``mass`` (pairs,), the sums of D.
        """
        d, n = self.n_columns, self.n_coefficients
        out = np.zeros((self.n_model, self.n_model))
        rows, below = np.tril_indices(d)
        factor = np.ones(d) if self.factor is None else self.factor.copy()
        if self.fixed is not None:
            factor[self.fixed] = 0.0
        block = np.empty((d, d))
        for p, (k, j) in enumerate(pairs):
            block[rows, below] = block[below, rows] = arrays["gram"][p]
            block *= factor[:, None] * factor
            one, other = slice(k * d, (k + 1) * d), slice(j * d, (j + 1) * d)
            out[one, other] = out[other, one] = block
            if self.intercept:
                border = self.constant * factor * arrays["border"][p]
                out[n + k, other] = out[other, n + k] = border
                out[n + j, one] = out[one, n + j] = border
                out[n + k, n + j] = out[n + j, n + k] = self.constant**2 * arrays["mass"][p]
        return out

    def received(self, gradient: F64) -> F64:
        """Return the gradient (n_sent,) in the units of the data, of which :meth:`up` is given.

        Without a trained intercept that of the offset, which has no part in it, is 0.
        """
        out = np.zeros(self.n_sent)
        columns, offsets = self._parts(out)
        own, intercepts = self._parts(gradient)
        columns[:] = own if self.factor is None else own / self.factor
        if self.intercept:
            offsets[:] = intercepts / self.constant
            if self.shift is not None:
                columns += self.shift * offsets[:, None]
        return out

    def trained(self, coef: F64, intercept: ArrayLike) -> F64:
        """Return the trained coordinates (n_model,) of a model in the units of the data.

        That of the fixed column is its factor. Without a trained intercept, ``intercept`` is
        ignored: the shifts determine it.

        Parameters
        ----------
        coef : ndarray of n_coefficients
        intercept : number or (models,)
        """
        out = np.empty(self.n_model)
        columns, intercepts = self._parts(out)
        given = coef.reshape(self.models, self.n_columns)
        columns[:] = given if self.factor is None else given / _no_zero(self.factor)
        if self.fixed is not None:
            out[self.fixed] = 1.0 if self.factor is None else self.factor[self.fixed]
        if self.intercept:
            moved = 0.0 if self.shift is None else np.array([row @ self.shift for row in given])
            intercepts[:] = (np.asarray(intercept) + moved) / self.constant
        return out

    def longest_row(self, smallest: F64, largest: F64) -> float:
        """Return an upper bound of the length of a row of the trained columns.

        Parameters
        ----------
        smallest, largest : ndarray (n_columns,)
            Of the unscaled columns.
        """
        each = np.maximum(np.abs(smallest - self.centre), np.abs(largest - self.centre))
        if self.factor is not None:
            each *= self.factor
        if self.fixed is not None:
            each[self.fixed] = 0.0
        return float(np.linalg.norm(each))

    def _parts(self, vector: F64) -> tuple[F64, F64]:
        """Return views of a vector: coefficients (models, n_columns), and what follows them."""
        n = self.n_coefficients
        return vector[:n].reshape(self.models, self.n_columns), vector[n:]

    def state(self) -> Mapping[str, F64]:
        """Return the arrays from which :func:`same_columns` restores this map."""
        parts = {"factor": self.factor, "shift": self.shift}
        return {name: part for name, part in parts.items() if part is not None}

    def arrays(self, w: F64) -> Mapping[str, F64]:
        """Return ``coef`` (models, d) and ``intercept`` (models,) in the units of the data."""
        coef, offsets = self._parts(self.model(w))
        return {"coef": coef, "intercept": offsets if self.has_offset else np.zeros(self.models)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedL2(L2):
    """``strength / 2`` times the squares of the coefficients in the units of the data.

    The trained coordinates only condition the problem. The intercepts are penalised, too, each
    square times ``of_intercept``.
    """

    columns: Columns
    of_intercept: float = 0.0

    def coefficients(self, w: F64) -> F64:
        """See :class:`L2`."""
        return self._without(self.columns.down(w))

    def _penalised(self, w: F64) -> F64:
        p = self.coefficients(w).copy()
        p[self.n_penalised :] *= math.sqrt(self.of_intercept)
        return p

    def gradient(self, w: F64) -> F64:
        """See :class:`L2`."""
        p = self.strength * self._penalised(w)
        p[self.n_penalised :] *= math.sqrt(self.of_intercept)
        out: F64 = self.columns.up(p)
        return out

    def add_curvature(self, hessian: F64) -> None:
        """See :class:`L2`."""
        L2.add_curvature(replace(self, of_intercept=0.0), hessian)
        n, d = self.n_penalised, self.columns.n_columns
        for k in range(len(hessian) - n):
            # The intercept in the units of the data is a sum of trained coordinates.
            own = np.zeros(len(hessian))
            if self.columns.shift is not None:
                factor = 1.0 if self.columns.factor is None else self.columns.factor
                own[k * d : (k + 1) * d] = -factor * self.columns.shift
            own[n + k] = self.columns.constant
            hessian += self.strength * self.of_intercept * np.outer(own, own)

    def by_coefficients(self, gradient: F64) -> F64:
        """See :class:`L2`."""
        received = self.columns.received(gradient)
        if self.of_intercept:
            received[self.n_penalised :] /= math.sqrt(self.of_intercept)
        return received


def same_columns(columns: Columns, state: Mapping[str, F64]) -> Columns:
    """Restore the map from its :meth:`Columns.state`, bit for bit."""
    return replace(columns, factor=state.get("factor"), shift=state.get("shift"))


def maxabs_columns(columns: Columns, maxabs: F64) -> Columns:
    """Divide every column by its largest absolute value (n_columns,), except columns of zeros."""
    return replace(columns, factor=_unscaled(columns, 1.0 / _no_zero(maxabs), 1.0))


def standard_columns(
    columns: Columns, mean: F64, variance: F64, is_scaled: Flags, is_centred: Flags
) -> Columns:
    """Standardise columns to mean 0 and variance 1; constant columns keep their scale.

    Without an intercept nothing is centred, so that the model has none in the units of the data
    either, and columns are divided by the root of their mean square.

    Parameters
    ----------
    columns : Columns
        Of columns that are not scaled.
    mean, variance : ndarray (n_columns,)
    is_scaled, is_centred : ndarray of bool (n_columns,)
        The columns that are divided, and those of them from which the mean is subtracted.
    """
    if columns.intercept:
        shift = _unscaled(columns, np.where(is_centred, mean, 0.0), 0.0)
        size = np.sqrt(variance)
    else:
        shift, size = None, np.sqrt(variance + mean * mean)
    factor = np.where(is_scaled, 1.0 / _no_zero(size), 1.0)
    return replace(columns, factor=_unscaled(columns, factor, 1.0), shift=shift)


def mean_square_norm(columns: Columns, weight: float, squares: F64) -> float:
    """Return the weighted mean of ``|x~_i|^2`` over rows, including the intercept's column.

    Parameters
    ----------
    weight : float
        Sum of the weights.
    squares : ndarray (n_columns,)
        Weighted sums of the squares of the unscaled values' distances from the shifts.
    """
    each = squares if columns.factor is None else squares * columns.factor**2
    return float(each.sum()) / weight + columns.intercept * columns.constant**2


def _unscaled(columns: Columns, values: F64, value: float) -> F64:
    """Return ``values`` with the one that leaves the fixed column as it is."""
    if columns.fixed is not None:
        values[columns.fixed] = value
    return values


def _no_zero(values: F64) -> F64:
    return np.where(values > 0.0, values, 1.0)
