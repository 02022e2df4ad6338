"""Descent on inner products alone: sweeps, and between them steps to the optimum of a sign pattern.

Sweeps find the columns of a solution and their signs soon, and its values slowly where columns are
much alike. With the signs given these solve linear equations. A step goes towards that solution as
far as the signs hold, so that the objective never grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from elasticml.algorithms.columns import kernels

F64 = NDArray[np.float64]

#: Sweeps between two steps on all coefficients other than zero.
SWEEPS: Final = 30
#: Of the mean diagonal, what keeps equations solvable.
_LIFT: Final = 1e-11
#: Most coefficients for which equations are solved.
EQUATIONS_MAX: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalty:
    """``a1 |w|_1 + a2/2 |w|^2``, and whether coefficients must not be negative."""

    a1: float
    a2: float
    positive: bool = False

    def of(self, w: F64) -> float:
        """Return the penalty of some coefficients, (m,)."""
        return self.a1 * float(np.abs(w).sum()) + 0.5 * self.a2 * float(w @ w)


def descend(
    G: F64,
    linear: F64,
    yy: float,
    penalty: Penalty,
    gap: float,
    sweeps: int,
    w: F64,
    q: F64,
) -> tuple[int, float]:
    """Descend until the gap is small enough, or nothing moves, or for so many sweeps.

    Parameters
    ----------
    G, linear, yy, w, q
        As :func:`elasticml.algorithms.columns.kernels.descend` has them.

    Returns
    -------
    sweeps : int
    gap : float
    """
    done = 0
    while True:
        asked = min(SWEEPS, sweeps - done)
        used, reached = kernels.descend(
            G, linear, yy, penalty.a1, penalty.a2, penalty.positive, gap, asked, w, q
        )
        done += used
        if reached <= gap or used < asked or done >= sweeps:
            return done, reached
        _step(G, linear, penalty, w, q)


def _step(G: F64, linear: F64, penalty: Penalty, w: F64, q: F64) -> None:
    """Step towards the best coefficients with these signs, changing ``w`` and ``q`` in place."""
    support = np.flatnonzero(w)
    if not 0 < support.size <= EQUATIONS_MAX:
        return
    H = G[np.ix_(support, support)]
    H[np.diag_indices_from(H)] += penalty.a2
    own = w[support]
    # Columns that depend on each other leave a direction open: it is followed until a sign ends.
    lifted = H + _LIFT * float(H.diagonal().mean()) * np.eye(support.size)
    # The gradient with the signs of now.
    gradient = penalty.a2 * own + penalty.a1 * np.sign(own) - q[support]
    try:
        # Not scipy.linalg.solve: it warns of near dependence, and no thread of a pool can keep
        # warnings quiet for itself alone.
        direction = -scipy.linalg.cho_solve(scipy.linalg.cho_factor(lifted), gradient)
    except np.linalg.LinAlgError:
        return
    crossing = np.sign(own + direction) != np.sign(own)
    length = float((-own[crossing] / direction[crossing]).min()) if crossing.any() else 1.0
    change = length * float(gradient @ direction) + 0.5 * length**2 * float(
        direction @ (H @ direction)
    )
    if not change < 0.0:
        return  # Rounding.
    new = own + length * direction
    # What has met zero is zero, and not what rounding leaves of it.
    new[np.sign(new) != np.sign(own)] = 0.0
    q -= G[:, support] @ (new - own)
    w[support] = new
