"""Coordinate descent for the elastic net on a Gram matrix, and products with stored columns.

``1/2 |y - X w|^2`` plus a penalty. With ``t = x_j.r + |x_j|^2 w_j`` the best value of one
coordinate minimises ``|x_j|^2/2 w^2 - t w`` plus its penalty, see :class:`.Penalty`. Sweeps over
residuals are those of :mod:`elasticml.algorithms.cocoa.sweep_kernels`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from elasticml.algorithms.cocoa import row_kernels
from elasticml.arrays import F64, I64
from elasticml.compiled import inlined_kernel, kernel, regrouping_kernel
from elasticml.objectives.penalty_kernels import Penalty


class GramProblem(NamedTuple):
    """A least-squares problem as its inner products."""

    #: (m, m), C-contiguous: ``X.T @ X``.
    G: F64
    #: (m,): ``X.T @ y``.
    linear: F64
    #: ``y.y``.
    yy: float


def feasible_share(best: float, a1: float, steepest: float, positive: bool) -> float:
    """Return the feasible scale of a dual point that is nearest to the best one.

    Its largest product with a column, ``steepest``, must be at most ``a1`` after scaling.
    """
    most = a1 / steepest if steepest > 0.0 else np.inf
    return min(max(best, 0.0 if positive else -most), most)


_feasible_share: Final = inlined_kernel(feasible_share)


@kernel
def correlate(features: I64, place: I64, n: int, grams: I64, r: F64, out: F64) -> None:
    """Write ``x_j.r`` for the stored, uncentred columns of ``features`` into ``out`` (m,)."""
    like = r[:0]
    for k in range(features.size):
        at, count, values_at = row_kernels.locate(
            place[0], features[k], n, place[1], place[2], place[3], like.itemsize
        )
        out[k] = row_kernels.dot(place[0], at, values_at, count, grams, like, r)


@regrouping_kernel
def subtract(row: F64, c: float, q: F64) -> None:
    """Subtract ``c row`` from q."""
    for k in range(q.size):
        q[k] -= c * row[k]


@kernel
def sweep_products(G: F64, penalty: Penalty, w: F64, q: F64) -> bool:
    """Minimise over each coordinate in turn; return whether one changed. See :func:`descend`."""
    moved = False
    for j in range(w.size):
        old, square = w[j], G[j, j]
        # A column of zeros: only the penalty matters.
        new = penalty.best(q[j] + square * old, square) if square > 0.0 else 0.0
        if new != old:
            w[j] = new
            subtract(G[j], new - old, q)
            moved = True
    return moved


@kernel
def descend(
    gram: GramProblem, penalty: Penalty, gap_wanted: float, sweeps_max: int, w: F64, q: F64
) -> tuple[int, float]:
    """Run coordinate descent on a Gram matrix until the gap is small enough.

    Parameters
    ----------
    gram : GramProblem
    penalty : Penalty
    w, q : ndarray (m,)
        Modified in place; ``q = X.T @ (y - X w)``.

    Returns
    -------
    sweeps : int
    gap : float
    """
    done, until, moved = 0, 0, True
    while True:
        gap = gap_of_products(gram, penalty, w, q)
        if not gap > gap_wanted or done >= sweeps_max or not moved:
            return done, gap
        # A gap costs as much as a sweep over the non-zeros: evaluate it less often over time.
        until = min(sweeps_max, done + 5 + done // 4)
        while moved and done < until:
            done, moved = done + 1, sweep_products(gram.G, penalty, w, q)


@kernel
def gap_of_products(gram: GramProblem, penalty: Penalty, w: F64, q: F64) -> float:
    """Return the duality gap at w from inner products.

    With rows ``sqrt(a2) I`` appended to X the problem is a lasso. Its dual objective at u is
    ``u.y - |u|^2 / 2`` subject to ``|x_j.u| <= a1``: the residual is scaled until this holds. With
    ``a2 > 0`` the dual of the elastic net itself accepts any u, at the cost of
    ``(|x_j.u| - a1)_+^2 / (2 a2)`` for each column. The smaller gap is returned.
    """
    _, linear, yy = gram
    a1, a2, positive = penalty.a1, penalty.a2, penalty.terms.positive
    wl, wq, ww, l1, steepest, over = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(w.size):
        wl += w[j] * linear[j]
        wq += w[j] * q[j]
        ww += w[j] * w[j]
        l1 += abs(w[j])
        slope = q[j] - a2 * w[j]
        steepest = max(steepest, slope if positive else abs(slope))
        over += max((q[j] if positive else abs(q[j])) - a1, 0.0) ** 2
    # r.r = y.y - w.(X.T y) - w.(X.T r), r.y = y.y - w.(X.T y)
    rr, ry = max(yy - wl - wq, 0.0), yy - wl
    square = rr + a2 * ww
    best = ry / square if square > 0.0 else 1.0
    share = _feasible_share(best, a1, steepest, positive)
    gap = 0.5 * square * (1.0 + share * share) + a1 * l1 - share * ry
    return gap if a2 <= 0.0 else min(gap, rr - ry + a1 * l1 + 0.5 * a2 * ww + 0.5 / a2 * over)
