"""The optimum of what a CoCoA job minimises, by scikit-learn's solvers alone."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class PrimalReference:
    """All rows of a problem, without an intercept, and reference values for it."""

    X: Any
    y: F64
    l2: float
    #: LIBLINEAR's tolerance and epochs for the hinge losses; Newton's tolerance for the logistic.
    tolerance: float = 1e-12
    epochs_max: int = 10**6
    newton_tolerance: float = 1e-12
    _least: dict[str, float] = field(default_factory=dict)

    def objective(self, loss: str, w: F64) -> float:
        """Return the objective of a model over all rows."""
        margins = self.y * (self.X @ w)
        room = np.maximum(1.0 - margins, 0.0)
        losses = {"hinge": room, "squared_hinge": room**2, "logistic": np.logaddexp(0.0, -margins)}
        return float(losses[loss].mean() + 0.5 * self.l2 * w @ w)

    def least(self, loss: str) -> float:
        """Return the optimal objective, or very little more, by scikit-learn's solvers."""
        if loss not in self._least:
            self._least[loss] = self.objective(loss, self._fitted(loss))
        return self._least[loss]

    def _fitted(self, loss: str) -> F64:
        from sklearn.linear_model import LogisticRegression
        from sklearn.svm import LinearSVC

        C = 1.0 / (self.l2 * len(self.y))
        if loss == "logistic":
            model = LogisticRegression(
                C=C, fit_intercept=False, solver="newton-cg", tol=self.newton_tolerance
            )
        else:
            model = LinearSVC(
                loss=loss, C=C, fit_intercept=False, tol=self.tolerance, max_iter=self.epochs_max
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the solver can do no better than this
            return model.fit(self.X, self.y).coef_[0]
