"""Columns of weighted rows, centred where there is an intercept: what coordinate descent works on.

Rows are multiplied by the roots of their weights, so that a weighted sum of squares is a plain one.
Dense columns are centred in a copy; sparse ones on the way, but for those that hardly vary.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa.rows import KIND_CODES
from elasticml.algorithms.cocoa.tables import GRAM_FIELDS, address
from elasticml.algorithms.columns import gram, kernels
from elasticml.algorithms.columns.centring import CLOSE, moved

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
_NO_GRAMS: Final = np.zeros((0, GRAM_FIELDS), np.int64)
#: Share of a column's square below which what centring leaves of it is rounding.
FLAT: Final = 1e-14


class ColumnMatrix:
    """``X`` by columns, and the targets ``y``, both weighted and centred.

    Parameters
    ----------
    X : ndarray or sparse in CSC format (n, d)
        Not changed.
    y : ndarray (n,)
    weights : ndarray (n,), optional
        None where all are one.
    centred : bool
        There is a free intercept: columns and targets lose their weighted means.

    Raises
    ------
    ValueError
        When the squares of a column, or of the targets, are beyond float64.
    """

    def __init__(self, X: Any, y: F64, weights: F64 | None, *, centred: bool) -> None:
        self.n, self.d = int(X.shape[0]), int(X.shape[1])
        root = np.ones(self.n) if weights is None else np.sqrt(weights)
        #: (n,) roots of the weights, and their sum of squares.
        self.root = root
        self.total = float(root @ root)
        self.is_sparse = hasattr(X, "indptr")
        self.y_mean = float((root * root) @ y) / self.total if centred else 0.0
        self.y = root * (y - self.y_mean)
        self.yy = float(self.y @ self.y)
        self.means = np.zeros(self.d)
        #: (d,) what has been taken off the columns as they are stored.
        self.shifts = np.zeros(self.d)
        if self.is_sparse:
            self._take_sparse(X, weights, centred)
        else:
            self._take_dense(X, weights, centred)
        self._refuse_overflow()
        self._all = np.arange(self.d)
        self.linear = self.correlations(self.y) if self.yy else np.zeros(self.d)

    def _refuse_overflow(self) -> None:
        """Refuse values whose squares are beyond float64: they have neither objective nor gap."""
        wrong = ~np.isfinite(self.norms)
        if wrong.any():
            raise ValueError(
                f"the squares of column {int(np.argmax(wrong))} of X add up to more than float64 "
                "holds; divide the column by its largest value"
            )
        if not np.isfinite(self.yy):
            raise ValueError(
                "the squares of y add up to more than float64 holds; divide y by its largest value"
            )

    def _take_sparse(self, X: Any, weights: F64 | None, centred: bool) -> None:
        if not X.has_canonical_format:
            # Squares of entries that are parts of one value are not the value's square.
            X = X.copy()
            X.sum_duplicates()
        self._weigh_sparse(X, weights, centred)
        # Of the mean square: what the variance and the mean's square add up to.
        close = self.norms <= CLOSE * self.total * self.means**2
        if np.any(close & (self.means != 0.0)):
            self.shifts = np.where(close, self.means, 0.0)
            self._weigh_sparse(moved(X, self.shifts), weights, centred)
            # What rounding left of a constant column is no column.
            self.norms[self.norms <= FLAT**2 * self.total * self.shifts**2] = 0.0
        self.offsets = self.shifts + self.means

    def _weigh_sparse(self, X: Any, weights: F64 | None, centred: bool) -> None:
        values = np.asarray(X.data, np.float64)
        if weights is not None:
            values = values * self.root[X.indices]
        self._arrays: tuple[NDArray[Any], ...] = (
            np.ascontiguousarray(X.indptr, np.int32),
            np.ascontiguousarray(X.indices, np.int32),
            np.ascontiguousarray(values),
        )
        self._kind = KIND_CODES["csr"]
        indptr, indices, values = self._arrays
        self._columns = type(X)((values, indices, indptr), shape=X.shape)
        squares = type(X)((values * values, indices, indptr), shape=X.shape)
        whole = np.asarray(squares.sum(axis=0)).ravel()
        self.norms = whole
        if centred:
            self.means = np.asarray(self._columns.T @ self.root) / self.total
            self.norms = whole - self.total * self.means**2
            self.norms[self.norms <= FLAT * whole] = 0.0

    def _take_dense(self, X: Any, weights: F64 | None, centred: bool) -> None:
        is_changed = centred or weights is not None
        found = np.array(X, np.float64, order="F", copy=True if is_changed else None)
        #: (d,) what predictions need to be centred by; ``means`` stay 0, columns are centred.
        self.offsets = np.zeros(self.d)
        if centred:
            self.offsets = np.asarray((self.root * self.root) @ found) / self.total
            self.shifts = self.offsets
            found -= self.offsets
        if weights is not None:
            found *= self.root[:, None]
        whole = np.einsum("ij,ij->j", found, found)
        rounding = FLAT**2 * self.total * self.offsets**2
        self.norms = np.where((whole <= rounding) & np.isfinite(whole), 0.0, whole)
        if is_changed:
            # What rounding left of a constant column is no column.
            found[:, self.norms == 0.0] = 0.0
        self._kind = KIND_CODES["dense"]
        self._columns = found
        self._arrays = (found,)

    @property
    def stored(self) -> tuple[Any, Any, Any]:
        """Return pointers, row numbers and values of sparse columns; not to be changed."""
        indptr, indices, values = self._arrays
        return indptr, indices, values

    @property
    def _place(self) -> I64:
        if self.is_sparse:
            return np.array([self._kind, *(address(array) for array in self._arrays)], np.int64)
        return np.array([self._kind, 0, 0, address(self._arrays[0])], np.int64)

    def correlations(self, r: F64, features: I64 | None = None) -> F64:
        """Return ``X.T @ r`` for all or some features; ``r`` (n,) as residuals are, centred."""
        features = self._all if features is None else features
        out = np.empty(features.size)
        kernels.correlate(features, self._place, self.n, _NO_GRAMS, r, out)
        if self.is_sparse:
            out -= self.means[features] * float(self.root @ r)
            out[self.norms[features] == 0.0] = 0.0
        return out

    def combination(self, features: I64, coefficients: F64) -> F64:
        """Return ``X[:, features] @ coefficients``, (n,)."""
        is_whole = features.size == self.d and np.array_equal(features, self._all)
        columns = self._columns if is_whole else self._columns[:, features]
        found = np.asarray(columns @ coefficients)
        if self.is_sparse:
            found = found - float(self.means[features] @ coefficients) * self.root
        return found

    def take(self, features: I64) -> Any:
        """Return some columns as they are stored: an ndarray, or sparse in CSC format."""
        return self._columns[:, features]

    def products(self, one: I64, other: I64) -> F64:
        """Return ``X[:, one].T @ X[:, other]``."""
        if self.is_sparse and gram.pays(self._arrays[0], self.n, one, other):
            indptr, indices, values = self._arrays
            found = gram.products(indptr, indices, values, self.n, one, other)
        else:
            found = self._columns[:, one].T @ self._columns[:, other]
        if self.is_sparse:
            found = found.toarray() if hasattr(found, "toarray") else found
            found = found - self.total * np.outer(self.means[one], self.means[other])
            found[self.norms[one] == 0.0] = 0.0
            found[:, self.norms[other] == 0.0] = 0.0
        return np.asarray(found, np.float64)

    def row_products(self) -> F64:
        """Return ``X @ X.T``, (n, n)."""
        found = self._columns @ self._columns.T
        if not self.is_sparse:
            return np.asarray(found, np.float64)
        # (A - root m^T)(A - root m^T)^T
        across = np.outer(np.asarray(self._columns @ self.means), self.root)
        square = float(self.means @ self.means) * np.outer(self.root, self.root)
        return np.asarray(found.toarray() - across - across.T + square, np.float64)

    def residual(self, w: F64) -> F64:
        """Return ``y - X @ w``."""
        features = np.flatnonzero(w)
        if features.size == 0:
            return self.y.copy()
        return self.y - self.combination(features, w[features])

    def sweep(
        self, features: I64, w: F64, r: F64, a1: float, a2: float, positive: bool, times: int
    ) -> None:
        """Sweep so many times over some coordinates, changing w (d,) and its residual (n,)."""
        shift, place = 0.0, self._place
        for _ in range(times):
            shift = kernels.sweep(
                features, place, self.n, _NO_GRAMS, self.means, self.total, self.norms,
                a1, a2, positive, w, r, shift,
            )  # fmt: skip
        if shift != 0.0:
            r += shift * self.root

    def intercept(self, w: F64) -> float:
        """Return the free intercept that belongs to a model."""
        return self.y_mean - float(self.offsets @ w)


def movable(X: Any, weights: F64 | None, *, intercept: bool) -> tuple[ColumnMatrix, F64, F64]:
    """Return columns for models that have their own intercept, and what has been taken off them.

    Parameters
    ----------
    X : ndarray or sparse in CSC format (n, d)
        Not changed.
    weights : ndarray (n,), optional
        None where all are one.
    intercept : bool
        There is a free one, which takes up what columns are moved by: without, none are.

    Returns
    -------
    columns : ColumnMatrix
        Neither weighted nor centred further; dense ones have lost their weighted means, sparse
        ones as :class:`ColumnMatrix` moves them.
    shifts : ndarray (d,)
    norms : ndarray (d,)
        Squared, of the weighted columns, centred where there is an intercept.
    """
    zeros = np.zeros(int(X.shape[0]))
    weighted = ColumnMatrix(X, zeros, weights, centred=intercept)
    shifts, norms = weighted.shifts, weighted.norms
    if weights is None and not intercept:
        return weighted, shifts, norms  # Nothing has been done to it.
    del weighted  # A dense one is a copy.
    if shifts.any():
        X = moved(X, shifts, norms == 0.0)
    return ColumnMatrix(X, zeros, None, centred=False), shifts, norms
