"""The matrix for coordinate descent: columns over weighted rows, centred if there is an intercept.

Rows are multiplied by the roots of their weights, which turns weighted into plain sums of squares.
Dense columns are centred in a copy; sparse ones implicitly, except those with a relatively small
variance.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.cocoa import sweep_kernels
from elasticml.algorithms.cocoa.row_kernels import KIND_CODES
from elasticml.algorithms.cocoa.sweep_kernels import NO_CURVATURES, NO_GRAMS, WeightedColumns
from elasticml.algorithms.linear import coordinate_descent_kernels, gram
from elasticml.algorithms.linear.gram import CLOSE, moved
from elasticml.arrays import F64, I32, I64, address
from elasticml.compiled import kernel
from elasticml.objectives.penalty_kernels import Penalty

#: A column is constant up to rounding if centring leaves less than this share of its squared norm.
FLAT: Final = 1e-14


@kernel
def _combine(
    features: I64, indptr: I32, indices: I32, values: F64, coefficients: F64, image: F64
) -> None:
    """Add some columns times their coefficients (m,) to ``image`` (n,)."""
    for k in range(features.size):
        c, j = coefficients[k], features[k]
        for p in range(indptr[j], indptr[j + 1]):
            image[np.uint32(indices[p])] += c * values[p]


class ColumnMatrix:
    """``X`` by columns, and the targets ``y``, both weighted and centred.

    Parameters
    ----------
    X : ndarray or sparse (n, d)
        Not modified.
    y : ndarray (n,)
    weights : ndarray (n,), optional
        None for ones.
    centred : bool
        There is an unpenalised intercept: weighted means are subtracted from columns and targets.

    Raises
    ------
    ValueError
        When the squared norm of a column or of the targets overflows float64.
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
        #: (d,) explicitly subtracted from the stored columns.
        self.shifts = np.zeros(self.d)
        if self.is_sparse:
            self._take_sparse(X, weights, centred)
        else:
            self._take_dense(X, weights, centred)
        self._refuse_overflow()
        self._all = np.arange(self.d)
        self.linear = self.correlations(self.y) if self.yy else np.zeros(self.d)

    def _refuse_overflow(self) -> None:
        """Reject values whose squares overflow float64: they have no objective and no gap."""
        overflows = ~np.isfinite(self.norms)
        if overflows.any():
            raise ValueError(
                f"the squares of column {int(np.argmax(overflows))} of X add up to more than "
                "float64 holds; divide the column by its largest value"
            )
        if not np.isfinite(self.yy):
            raise ValueError(
                "the squares of y add up to more than float64 holds; divide y by its largest value"
            )

    def _take_sparse(self, X: Any, weights: F64 | None, centred: bool) -> None:
        X = X.tocsc()
        if not X.has_canonical_format:
            # The squares of duplicate entries do not add up to the square of their sum.
            X = X.copy()
            X.sum_duplicates()
        self._weigh_sparse(X, weights, centred)
        # Compare with the square of the mean, which is then nearly the mean square.
        close = self.norms <= CLOSE * self.total * self.means**2
        if np.any(close & (self.means != 0.0)):
            self.shifts = np.where(close, self.means, 0.0)
            self._weigh_sparse(moved(X, self.shifts), weights, centred)
            # The remainder of a constant column is rounding.
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
        columns = np.array(X, np.float64, order="F", copy=True if is_changed else None)
        #: (d,) column means for predictions; ``means`` stay 0, as the columns are centred.
        self.offsets = np.zeros(self.d)
        if centred:
            self.offsets = np.asarray((self.root * self.root) @ columns) / self.total
            self.shifts = self.offsets
            columns -= self.offsets
        if weights is not None:
            columns *= self.root[:, None]
        whole = np.einsum("ij,ij->j", columns, columns)
        rounding = FLAT**2 * self.total * self.offsets**2
        self.norms = np.where((whole <= rounding) & np.isfinite(whole), 0.0, whole)
        if is_changed:
            # The remainder of a constant column is rounding.
            columns[:, self.norms == 0.0] = 0.0
        self._kind = KIND_CODES["dense"]
        self._columns = columns
        self._arrays = (columns,)

    @property
    def stored(self) -> tuple[Any, Any, Any]:
        """Return CSC pointers, row numbers and values of sparse columns; do not modify them."""
        indptr, indices, values = self._arrays
        return indptr, indices, values

    def entries(self, features: I64) -> int:
        """Return the number of stored values of some columns."""
        if not self.is_sparse:
            return self.n * features.size
        indptr = self._arrays[0]
        return int((indptr[features + 1] - indptr[features]).sum())

    @property
    def _place(self) -> I64:
        if self.is_sparse:
            return np.array([self._kind, *(address(array) for array in self._arrays)], np.int64)
        return np.array([self._kind, 0, 0, address(self._arrays[0])], np.int64)

    def correlations(self, r: F64, features: I64 | None = None) -> F64:
        """Return ``X.T @ r`` for all or some features; ``r`` (n,) centred, as residuals are."""
        features = self._all if features is None else features
        out = np.empty(features.size)
        coordinate_descent_kernels.correlate(features, self._place, self.n, NO_GRAMS, r, out)
        if self.is_sparse:
            out -= self.means[features] * float(self.root @ r)
            out[self.norms[features] == 0.0] = 0.0
        return out

    def combination(self, features: I64, coefficients: F64) -> F64:
        """Return ``X[:, features] @ coefficients``, (n,)."""
        if self.is_sparse:
            image = np.zeros(self.n)
            _combine(features, *self.stored, coefficients, image)
            mean = float(self.means[features] @ coefficients)
            return image - mean * self.root if mean else image
        is_whole = features.size == self.d and np.array_equal(features, self._all)
        columns = self._columns if is_whole else self._columns[:, features]
        return np.asarray(columns @ coefficients)

    def take(self, features: I64) -> Any:
        """Return some columns as stored: an ndarray, or sparse in CSC format."""
        return self._columns[:, features]

    def products(self, one: I64, other: I64) -> F64:
        """Return ``X[:, one].T @ X[:, other]``."""
        if self.is_sparse and gram.pays(self._arrays[0], self.n, one, other):
            indptr, indices, values = self._arrays
            G = gram.products(indptr, indices, values, self.n, one, other)
        else:
            G = self._columns[:, one].T @ self._columns[:, other]
        if self.is_sparse:
            G = G.toarray() if hasattr(G, "toarray") else G
            G = G - self.total * np.outer(self.means[one], self.means[other])
            G[self.norms[one] == 0.0] = 0.0
            G[:, self.norms[other] == 0.0] = 0.0
        return np.asarray(G, np.float64)

    def row_products(self) -> F64:
        """Return ``X @ X.T``, (n, n)."""
        K = self._columns @ self._columns.T
        if not self.is_sparse:
            return np.asarray(K, np.float64)
        # (A - root m^T)(A - root m^T)^T
        across = np.outer(np.asarray(self._columns @ self.means), self.root)
        square = float(self.means @ self.means) * np.outer(self.root, self.root)
        return np.asarray(K.toarray() - across - across.T + square, np.float64)

    def residual(self, w: F64) -> F64:
        """Return ``y - X @ w``."""
        features = np.flatnonzero(w)
        if features.size == 0:
            return self.y.copy()
        return self.y - self.combination(features, w[features])

    def sweep(self, features: I64, w: F64, r: F64, penalty: Penalty, times: int) -> None:
        """Sweep ``times`` times over some coordinates; updates w (d,) and its residual r (n,)."""
        shift = 0.0
        columns = WeightedColumns(
            place=self._place,
            means=self.means,
            norms=self.norms,
            root=self.root,
            h=NO_CURVATURES,
            h_root=self.root,
            total=self.total,
        )
        for _ in range(times):
            shift = sweep_kernels.sweep(features, columns, penalty, w, r, shift)
        if shift != 0.0:
            r += shift * self.root

    def intercept(self, w: F64) -> float:
        """Return the optimal intercept of a model."""
        return self.y_mean - float(self.offsets @ w)


def unweighted_columns(
    X: Any, weights: F64 | None, *, intercept: bool
) -> tuple[ColumnMatrix, F64, F64]:
    """Return unweighted columns for models with their own intercept, shifted for accuracy.

    Parameters
    ----------
    X : ndarray or sparse in CSC format (n, d)
        Not modified.
    weights : ndarray (n,), optional
        None for ones.
    intercept : bool
        There is an unpenalised intercept, which absorbs the shifts: without, there are none.

    Returns
    -------
    columns : ColumnMatrix
        Neither weighted nor implicitly centred. Dense columns have weighted mean 0; sparse ones
        are shifted as in :class:`ColumnMatrix`.
    shifts : ndarray (d,)
        Subtracted from the columns.
    norms : ndarray (d,)
        Squared norms of the weighted columns, centred if there is an intercept.
    """
    zeros = np.zeros(int(X.shape[0]))
    weighted = ColumnMatrix(X, zeros, weights, centred=intercept)
    shifts, norms = weighted.shifts, weighted.norms
    if weights is None and not intercept:
        return weighted, shifts, norms  # Neither weighted nor centred.
    del weighted  # A dense one is a copy: free it before the next is made.
    if shifts.any():
        X = moved(X, shifts, norms == 0.0)
    return ColumnMatrix(X, zeros, None, centred=False), shifts, norms
