"""Columns that are absent: what they add to the predictions, and what is known of them.

With ``absent: freeze`` the coefficients of vanished columns stay what they were in the last
certificate. Both objectives stay certain: what absent columns add to ``X w`` is what is left of the
last certificate's ``X w`` without those that are here, and their products with a residual are those
with an earlier one, give or take ``|x_j|`` times the distance of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class Known:
    """What the last certificates have told of every column."""

    #: (d,) lengths of the columns.
    lengths: F64
    coef: F64
    #: (n,) ``X coef``; None before the first certificate.
    image: F64 | None = None
    #: (d,) products with the residual of the certificate that a column took part in last.
    slopes: F64 = field(init=False)
    #: (d,) which of ``residuals`` that is.
    _which: NDArray[np.int64] = field(init=False)
    _residuals: list[F64] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slopes = np.zeros_like(self.lengths)
        self._which = np.zeros(self.lengths.size, np.int64)

    def take(
        self, residual: F64, arrays: dict[str, F64], here: NDArray[np.bool_] | None
    ) -> F64 | None:
        """Take in a certificate; return by how much each product with the residual may be off.

        Parameters
        ----------
        arrays : dict
            What came up: ``image``, ``coef``, ``slopes``; with absent columns ``former`` as well.
        here : ndarray (d,) of bool, optional
            The columns that took part; None where all did.
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
