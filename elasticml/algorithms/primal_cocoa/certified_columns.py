"""The state of all columns at the last certificates, with bounds for absent columns.

With ``absent: freeze`` the coefficients of vanished columns keep their values from the last
certificate. Both objectives stay valid. The absent columns' contribution to ``X w`` is the last
certificate's ``X w`` minus that of the columns still here. Their products with a residual equal
those with an earlier residual up to ``|x_j|`` times the distance of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class CertifiedColumns:
    """Coefficients and slopes of every column at its last certificate."""

    #: (d,) norms of the columns.
    lengths: F64
    coef: F64
    #: (n,) ``X coef``; None before the first certificate.
    image: F64 | None = None
    #: (d,) products with the residual of the last certificate that the column took part in.
    slopes: F64 = field(init=False)
    #: (d,) the index of that residual in ``_residuals``.
    _which: NDArray[np.int64] = field(init=False)
    _residuals: list[F64] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slopes = np.zeros_like(self.lengths)
        self._which = np.zeros(self.lengths.size, np.int64)

    def take(
        self, residual: F64, arrays: dict[str, F64], here: NDArray[np.bool_] | None
    ) -> F64 | None:
        """Record a certificate; return the error bound of each product with the residual.

        Parameters
        ----------
        arrays : dict
            The reduced arrays ``image``, ``coef``, ``slopes``; with absent columns also ``former``.
        here : ndarray (d,) of bool, optional
            The columns that took part; None if all did.
        """
        if here is None or self.image is None:
            self.coef, self.image = arrays["coef"].copy(), arrays["image"].copy()
            self.slopes, self._residuals = arrays["slopes"].copy(), [residual]
            self._which[:] = 0
            return None
        self.image = arrays["image"] + (self.image - arrays["former"])
        self.coef = np.where(here, arrays["coef"], self.coef)
        self.slopes = np.where(here, arrays["slopes"], self.slopes)
        self._which[here] = len(self._residuals)
        self._residuals.append(residual)
        used, self._which = np.unique(self._which, return_inverse=True)
        self._residuals = [self._residuals[k] for k in used]
        moved = np.array([float(np.linalg.norm(residual - r)) for r in self._residuals])
        return np.asarray(self.lengths * moved[self._which])
