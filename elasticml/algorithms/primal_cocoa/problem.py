"""The elastic net on the driver: its targets, its objective, and what bounds it from below.

``1/2 |y - X w|^2 + a1 |w|_1 + a2/2 |w|^2`` over weighted, centred examples; the mean form that jobs
know is this divided by the sum S of the weights.

Source: Ndiaye, Fercoq, Gramfort and Salmon (2017) for the scaled residual; the bounded support of
the elastic net's own conjugate is that of Smith, Forte, Ma, Takac, Jordan and Jaggi (2018).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.errors import DataError

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dual:
    """What a residual proves: no model's objective is below ``value``."""

    value: float
    #: By the residual itself, times ``share``, for the lasso that has the ridge's rows below X.
    scaled: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Targets and penalties, in units of the sum over examples."""

    #: (n,), weighted and centred.
    y: F64
    y_mean: float
    #: (n,) roots of the weights; None where all are one.
    root: F64 | None
    #: S.
    total: float
    a1: float
    a2: float
    is_positive: bool

    @staticmethod
    def of(
        arrays: Mapping[str, Any], *, l1: float, l2: float, centred: bool, positive: bool
    ) -> Problem:
        """Make it from what came up of the targets.

        Raises
        ------
        DataError
            When the data are not by columns.
        """
        counts = [int(count) for count in arrays["counts"]]
        if counts[0] < 1 or counts[1] != 1 or counts[2] > 1:
            raise DataError(
                f"the data have {counts[0]} columns, {counts[1]} rows of targets and {counts[2]} "
                "of weights, wanted at least 1, 1, and 0 or 1: they are by rows; give "
                "primal_cocoa em.from_arrays(X, y, by='columns')"
            )
        y = np.array(arrays["target"])
        root = np.array(arrays["root"]) if counts[2] else None
        total = float(y.size if root is None else root @ root)
        mean = 0.0
        if centred:
            mean = float(y.sum() if root is None else root @ y) / total
            y = y - (mean if root is None else mean * root)
        return Problem(
            y=y,
            y_mean=mean,
            root=root,
            total=total,
            a1=l1 * total,
            a2=l2 * total,
            is_positive=positive,
        )

    @property
    def roots(self) -> dict[str, F64]:
        """What goes down of the weights."""
        return {} if self.root is None else {"root": self.root}

    def primal(self, w: F64, image: F64) -> float:
        """Return the objective of a model and its predictions."""
        r = self.y - image
        penalty = self.a1 * float(np.abs(w).sum()) + 0.5 * self.a2 * float(w @ w)
        return 0.5 * float(r @ r) + penalty

    def dual(self, w: F64, r: F64, slopes: F64, slack: F64 | None = None) -> Dual:
        """Return what any residual proves together with any model.

        Parameters
        ----------
        w : ndarray (d,)
        r : ndarray (n,)
        slopes : ndarray (d,)
            ``X.T @ r``, but for ``slack`` (d,), by which they may be off to either side.
        """
        loose = np.zeros(1) if slack is None else slack
        leaning = slopes - self.a2 * w
        steepest = float(
            ((leaning if self.is_positive else np.abs(leaning)) + loose).max(initial=0)
        )
        square, along = float(r @ r) + self.a2 * float(w @ w), float(r @ self.y)
        # Any share is feasible whose size is at most the limit; without the bars none below 0.
        most = self.a1 / steepest if steepest > 0.0 else np.inf
        best = along / square if square > 0.0 else 1.0
        share = min(max(best, 0.0 if self.is_positive else -most), most)
        scaled = share * along - 0.5 * share * share * square
        if self.a2 <= 0.0:
            return Dual(value=scaled, scaled=scaled, share=share)
        over = (slopes if self.is_positive else np.abs(slopes)) + loose - self.a1
        np.maximum(over, 0.0, out=over)
        own = along - 0.5 * float(r @ r) - 0.5 / self.a2 * float(over @ over)
        return Dual(value=max(scaled, own), scaled=scaled, share=share)
