"""Coordinate descent on a Gram matrix, alternating with steps to the optimum of a sign pattern.

Sweeps identify the support and the signs of a solution quickly, but its values only slowly if
columns are highly correlated. For fixed signs the values solve linear equations. The way to that
solution turns wherever a coefficient becomes zero, so that the objective never increases. If
columns depend linearly on each other, coefficients first become zero until those left do not.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from elasticml.algorithms.linear import coordinate_descent_kernels
from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem, sweep_products
from elasticml.arrays import F64
from elasticml.objectives.penalty_kernels import Penalty

#: Sweeps between two steps on all non-zero coefficients: at least these, and this share of the
#: number of columns, which cost no more than a step.
SWEEPS: Final = 30
SWEEPS_SHARE: Final = 0.25
#: A column is linearly dependent on others if less than this share of its squared norm remains.
DEPENDENT: Final = 1e-11
#: A gradient component along flat directions below this share of the gradient is rounding.
LEVEL: Final = 1e-9
#: Rounding error of a gradient, as a share of the terms that cancel in it.
ROUNDING: Final = 1e-12
#: Maximum number of coefficients for which equations are solved.
EQUATIONS_MAX: Final = 500


def descend(
    gram: GramProblem, penalty: Penalty, gap: float, sweeps: int, w: F64, q: F64
) -> tuple[int, float]:
    """Descend until the gap is small enough, nothing changes, or ``sweeps`` sweeps are done.

    Parameters
    ----------
    gram, penalty, w, q
        As in :func:`elasticml.algorithms.linear.coordinate_descent_kernels.descend`.

    Returns
    -------
    sweeps : int
    gap : float
    """
    done = 0
    # A user's penalty has no gap here, and no such equations.
    while not penalty.is_l1:
        done += 1
        if not sweep_products(gram.G, penalty, w, q) or done >= sweeps:
            return done, math.nan
    while True:
        budget = min(max(SWEEPS, int(SWEEPS_SHARE * w.size)), sweeps - done)
        used, reached = coordinate_descent_kernels.descend(gram, penalty, gap, budget, w, q)
        done += used
        if reached <= gap or used < budget or done >= sweeps:
            return done, reached
        # Each step but the last sets coefficients to zero, so they end.
        while _step(gram.G, gram.linear, penalty, w, q):
            # No sweeps: a function of the gap alone would be compiled apart.
            _, reached = coordinate_descent_kernels.descend(gram, penalty, gap, 0, w, q)
            if reached <= gap:
                break


def _step(G: F64, linear: F64, penalty: Penalty, w: F64, q: F64) -> bool:
    """Step towards the best coefficients with these signs; updates ``w`` and ``q`` in place.

    Returns whether coefficients became zero, and another step is needed.
    """
    support = np.flatnonzero(w)
    if not 0 < support.size <= EQUATIONS_MAX:
        return False
    H = G[np.ix_(support, support)]
    H[np.diag_indices_from(H)] += penalty.a2
    own = w[support]
    # The gradient for the current signs.
    gradient = penalty.a2 * own + penalty.a1 * np.sign(own) - q[support]
    rounding = ROUNDING * (np.abs(linear[support]) + np.abs(H) @ np.abs(own))
    # From here on columns have length 1.
    lengths = np.sqrt(H.diagonal())
    lengths[lengths == 0.0] = 1.0
    H /= np.outer(lengths, lengths)
    g, u = gradient / lengths, own * lengths
    level = max(float((rounding / lengths).max()), LEVEL * float(np.abs(g).max()))
    flat, inverse = _factors(H)
    new = _without_slope(H, flat, g, u, level)
    if new.all():
        new = _to_minimum(H, inverse, g, u, new)
    if not (new - u) @ (g + 0.5 * (H @ (new - u))) < 0.0:
        return False  # Rounding.
    w[support] = new / lengths
    q -= G[:, support] @ (w[support] - own)
    return flat.shape[1] > 0 and not new.all()


def _factors(H: F64) -> tuple[F64, F64]:
    """Return an orthonormal basis of the flat directions (m, k), and an inverse of H.

    The inverse takes directions without a part along flat ones to such directions. It is zero if
    rounding errors leave no inverse.

    Source: Higham (2002), section 10.3, for the Cholesky factor with pivots.
    """
    # Members import this module and never call it: they save 60 ms.
    import scipy.linalg

    R, order, rank, _ = scipy.linalg.lapack.dpstrf(H, tol=DEPENDENT)
    order, m = order - 1, H.shape[0]
    flat = np.zeros((m, m - rank))
    if rank < m:
        flat[order[:rank]] = -scipy.linalg.solve_triangular(R[:rank, :rank], R[:rank, rank:])
        flat[order[rank:]] = np.eye(m - rank)
        flat = np.linalg.qr(flat)[0]
        R, failed = scipy.linalg.lapack.dpotrf(H + flat @ flat.T)
        if failed:
            return flat, np.zeros_like(H)
        order = np.arange(m)
    upper, _ = scipy.linalg.lapack.dpotri(R)
    place = np.argsort(order)
    inverse = np.triu(upper) + np.triu(upper, 1).T
    return flat, inverse[np.ix_(place, place)]


def _to_minimum(H: F64, inverse: F64, g: F64, u: F64, start: F64) -> F64:
    """Return the coefficients at which the way from ``start`` to the minimum ends.

    It leads towards the minimum to the first zero, from there to the minimum without that
    coefficient, and so on. An outer product removes a coefficient from the inverse. The gradient
    is g at u.
    """
    new = start.copy()
    while True:
        step = -inverse @ (g + H @ (new - u))
        ends = np.divide(-new, step, out=np.full(u.size, np.inf), where=step * new < 0.0)
        k = int(np.argmin(ends))
        new += min(float(ends[k]), 1.0) * step
        if not ends[k] < 1.0:
            break
        # Exactly zero, without rounding.
        new[k] = 0.0
        if not inverse[k, k] > 0.0:
            break  # Rounding.
        inverse -= np.outer(inverse[k], inverse[k] / inverse[k, k])
        inverse[k], inverse[:, k] = 0.0, 0.0
    return new


def _without_slope(H: F64, flat: F64, g: F64, u: F64, level: float) -> F64:
    """Follow the gradient's part along flat directions until there is none but rounding.

    A coefficient that becomes zero ends a direction; it remains so in the next ones. Nearly
    dependent columns leave some curvature: where the objective is least before such a zero, or
    there is no zero, the way ends. The part does not depend on the basis, nor on rounding errors,
    as it would with equations that a small diagonal regularises.
    """
    g, u = g.copy(), u.copy()
    while flat.shape[1]:
        along = flat @ (flat.T @ g)
        pace = np.divide(along, u, out=np.zeros(u.size), where=u != 0.0)
        k = int(np.argmax(pace))
        if not np.abs(along).max() > level:
            break
        curved = H @ along
        limits = np.finfo(np.float64)
        bend = max(float(along @ curved), 0.0) / max(float(along @ along), float(limits.tiny))
        if bend >= pace[k]:
            # Below this the curvature is rounding.
            if bend > u.size * limits.eps:
                u -= along / bend
            break
        u -= along / pace[k]
        g -= curved / pace[k]
        u[k] = g[k] = 0.0
        # A reflection after which one direction alone would change it.
        mirror = flat[k].copy()
        mirror[0] += math.copysign(float(np.linalg.norm(mirror)), mirror[0])
        rest: F64 = flat - np.outer(flat @ mirror, 2.0 / float(mirror @ mirror) * mirror)
        flat = rest[:, 1:]
        flat[k] = 0.0
    return u
