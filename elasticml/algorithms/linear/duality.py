"""The duality gap of a convex loss with an elastic net: one lower bound for all solvers of it.

``sum_i s_i loss(z_i, y_i) + a1 |w|_1 + a2/2 |w|^2`` with ``z = X w + b``. A dual point is any
``u`` (n,) in the domain of the losses' conjugates; with a free b its sum is 0. It bounds the
minimum in two ways. Rows ``sqrt(a2) I`` appended to X make the penalty an L1 norm alone, whose
constraints ``|x_j.u - a2 w_j| <= a1`` the point satisfies after scaling. And with ``a2 > 0`` the
elastic net's own conjugate accepts any point, at a cost for violated constraints. A user's function
p in place of the absolute value has its conjugate in place of the constraints.

Source: Ndiaye, Fercoq, Gramfort and Salmon (2017) for the scaled residual; the bounded support of
the elastic net's own conjugate is that of Smith, Forte, Ma, Takac, Jordan and Jaggi (2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elasticml.algorithms.linear.coordinate_descent_kernels import feasible_share
from elasticml.arrays import F64
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.objectives.penalties import has_conjugate
from elasticml.objectives.penalty_kernels import Penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class Dual:
    """A lower bound: no model's objective is below ``value``."""

    value: float
    #: The part due to the scaled point, for which screening is safe.
    scaled: float
    #: The scale.
    share: float
    #: (d,) products of the point, not scaled, with the columns, less ``a2 w``; absolute if the
    #: penalty is the same for both signs of a coefficient, as far as that is known.
    correlations: F64


def dual_point(
    loss: MarginLoss, slopes: F64, targets: F64, weights: F64 | None, *, balanced: bool
) -> tuple[F64, F64]:
    """Return the feasible dual variables that are nearest to slopes, and the rows' factors.

    Parameters
    ----------
    slopes : ndarray (n,)
        ``s_i loss'`` at the margins of a model, or an estimate of them.
    targets, weights : ndarray (n,)
        See :class:`elasticml.objectives.loss_kernels.MarginLoss`.
    balanced : bool
        The intercept is free.

    Returns
    -------
    alpha, factors : ndarray (n,)
        The products of the columns with the dual point are sums of rows times their factors.
    """
    fold: F64 | float = targets if loss.is_classification else 1.0
    alpha = -fold * slopes
    if weights is not None:
        np.divide(alpha, weights, out=alpha, where=weights > 0.0)
    loss.clip(alpha, targets)
    if balanced:
        alpha = loss.balanced(alpha, targets, weights)
    factors = fold * alpha
    return alpha, factors if weights is None else factors * weights


def lower_bound(
    penalty: Penalty,
    w: F64,
    products: F64,
    minus: Callable[[float], float],
    *,
    best: float = 1.0,
    slack: F64 | None = None,
) -> Dual:
    """Return the lower bound that a dual point and any model give.

    Parameters
    ----------
    w, products : ndarray (d,)
        Coefficients, and the products of their columns with the dual point.
    minus : callable
        Maps a scale of the dual point to minus the sum of the losses' conjugates there.
    best : float
        The best scale if no column had a constraint.
    slack : ndarray (d,), optional
        Error of the products to either side.
    """
    a1, a2, terms = penalty
    if not penalty.is_l1:
        return _bound_by_conjugate(penalty, w, products, minus, slack)
    positive = terms.positive
    size = np.asarray if positive else np.abs
    correlations = size(products - a2 * w)
    largest = correlations if slack is None else correlations + slack
    share = feasible_share(best, a1, float(largest.max(initial=0.0)), positive)
    scaled = minus(share) - share * share * 0.5 * a2 * float(w @ w)
    value = scaled
    if a2 > 0.0:
        over = size(products) if slack is None else size(products) + slack
        over = np.maximum(over - a1, 0.0)
        value = max(scaled, minus(1.0) - 0.5 / a2 * float(over @ over))
    return Dual(value=value, scaled=scaled, share=share, correlations=correlations)


def _bound_by_conjugate(
    penalty: Penalty, w: F64, products: F64, minus: Callable[[float], float], slack: F64 | None
) -> Dual:
    """Return the bound of a user's penalty; minus infinity if it has no conjugate."""
    u = products - penalty.a2 * w
    if not has_conjugate(penalty.terms):
        return Dual(value=-math.inf, scaled=-math.inf, share=0.0, correlations=u)
    share, cost = penalty.conjugate_at(u, slack)
    value = minus(share) - share * share * 0.5 * penalty.a2 * float(w @ w) - cost
    return Dual(value=value, scaled=value, share=share, correlations=u)


def lower_bound_of_residual(
    penalty: Penalty, w: F64, r: F64, y: F64, products: F64, *, slack: F64 | None = None
) -> Dual:
    """Return the lower bound of least squares that a residual (n,) and any model give."""
    square, along = float(r @ r), float(r @ y)
    whole = square + penalty.a2 * float(w @ w)

    def minus(share: float) -> float:
        return share * along - 0.5 * share * share * square

    best = along / whole if whole > 0.0 else 1.0
    return lower_bound(penalty, w, products, minus, best=best, slack=slack)
