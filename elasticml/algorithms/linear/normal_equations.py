"""Normal equations of sparse rows in CSR, without a copy in CSC.

Source: the normal equations, ``sum_i s_i (x_i - m)(x_i - m)^T``. The sum over centred rows is the
uncentred one minus ``S m m^T``; it is rejected if cancellation leaves too little of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elasticml.algorithms.linear.design import Design
from elasticml.algorithms.linear.gram import CLOSE
from elasticml.arrays import F64


@dataclass(frozen=True, slots=True, kw_only=True)
class Equations:
    """``G w = linear``, over centred rows and targets if there is an unpenalised intercept."""

    #: (d, d)
    G: F64
    #: (d,)
    linear: F64
    #: (d,) weighted means of the columns and of the targets; 0 without an intercept.
    means: F64
    y_mean: float


def equations(rows: Design, y: F64, weights: F64 | None, *, centred: bool) -> Equations | None:
    """Return the normal equations, or None if they have to be computed from columns.

    This is so if the rows are not in CSR format, or if sums of squares are unusable: they overflow
    float64, or the variance of a column is too small next to its mean.

    Parameters
    ----------
    rows : Design
    y : ndarray (n,)
    weights : ndarray (n,), optional
        None for ones.
    centred : bool
        There is an unpenalised intercept.

    Returns
    -------
    Equations or None

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
    return Equations(G=G, linear=rows.adjoint(r) - means * r.sum(), means=means, y_mean=y_mean)
