"""Least squares with an L2 penalty by normal equations.

Source: the normal equations, ``sum_i s_i (x_i - m)(x_i - m)^T``. Those of sparse rows in CSR need
no copy in CSC: the sum over centred rows is the uncentred one minus ``S m m^T``; it is rejected if
cancellation leaves too little of it.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.algorithms.linear.design import Design
from elasticml.algorithms.linear.gram import CLOSE
from elasticml.arrays import F64


def solve_rows(
    rows: Design, y: F64, weights: F64 | None, alpha: float, *, centred: bool
) -> tuple[F64, float] | None:
    """Solve the normal equations of rows; None if they have to be computed from columns.

    This is so if the rows are not in CSR format, or if sums of squares are unusable: they overflow
    float64, or the variance of a column is too small next to its mean.

    Parameters
    ----------
    rows : Design
    y : ndarray (n,)
    weights : ndarray (n,), optional
        None for ones.
    alpha : float
        Of the penalty ``alpha/2 |w|^2`` on the sum of squares.
    centred : bool
        There is an unpenalised intercept.

    Returns
    -------
    (w, b) or None

    Error:  centred sums have at most ``1 / CLOSE`` times the rounding error of uncentred ones.
    """
    if not rows.is_csr:
        return None
    s = np.ones(rows.n) if weights is None else weights
    with np.errstate(over="ignore", invalid="ignore"):
        G = rows.gram(s)
        squares, total = np.diag(G), float(s.sum())
        means, y_mean = np.zeros(rows.d), 0.0
        if centred:
            means, y_mean = rows.adjoint(s) / total, float(s @ y) / total
        r = y - y_mean
        yy = float((s * r) @ r)
        if not (np.isfinite(squares).all() and np.isfinite(yy)):
            return None
        if centred:
            off = total * means**2
            if np.any((squares - off <= CLOSE * off) & (means != 0.0)):
                return None
            G -= total * np.outer(means, means)
        r *= s
    w = _solve(G, rows.adjoint(r) - means * r.sum(), alpha)
    return w, y_mean - float(means @ w)


def solve_columns(matrix: ColumnMatrix, alpha: float) -> F64:
    """Solve the normal equations of columns, or of rows if they are fewer; return (d,)."""
    if matrix.n < matrix.d:
        return matrix.correlations(_solve(matrix.row_products(), matrix.y, alpha))
    every = np.arange(matrix.d)
    return _solve(matrix.products(every, every), matrix.linear, alpha)


def _solve(G: F64, linear: F64, alpha: float) -> F64:
    """Solve ``(G + alpha I) x = linear``; if it is singular, return the minimum-norm solution."""
    G[np.diag_indices_from(G)] += alpha
    if alpha > 0.0:
        # Columns of unequal size, whose products would seem singular, get a diagonal of ones.
        scale = 1.0 / np.sqrt(np.diag(G))
        try:
            factor = scipy.linalg.cho_factor(G * np.outer(scale, scale), check_finite=False)
            x: F64 = scale * scipy.linalg.cho_solve(factor, scale * linear, check_finite=False)
            return x
        except np.linalg.LinAlgError:
            pass  # The penalty is below the rounding errors of G.
    min_norm: F64 = scipy.linalg.lstsq(G, linear)[0]
    return min_norm
