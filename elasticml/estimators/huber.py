"""Huber's robust regression with scikit-learn's interface."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval

from elasticml.algorithms.linear.huber_objective import HuberObjective
from elasticml.algorithms.linear.newton import minimise
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial
from elasticml.estimators.base import LinearRegressor, warn_of_gap


class HuberRegressor(LinearRegressor):
    """Linear regression that outliers hardly move, with an L2 penalty and a certified gap.

    Minimises ``sum_i s_i (sigma + sigma H(r_i / sigma)) + alpha |w|^2`` over w, b and the scale
    ``sigma``, with ``r_i = y_i - w.x_i - b`` and ``H(t) = t^2`` for ``|t| < epsilon``, else
    ``2 epsilon |t| - epsilon^2``. Always fitted in this process; for data on a cluster see the loss
    ``huber`` of :class:`elasticml.BatchGradient` and :class:`elasticml.CoCoA`, with a fixed scale.

    Parameters
    ----------
    epsilon : float, at least 1
        Residuals above ``epsilon sigma`` count linearly.
    max_iter : int
        The most Newton steps.
    alpha : float, not negative
    warm_start : bool
        Start from the last fit's model.
    fit_intercept : bool
    tol : float
        Newton steps end when the duality gap is at most ``tol`` times the objective of the zero
        model.

    Attributes
    ----------
    coef_ : ndarray (n_features,)
    intercept_ : float
    scale_ : float
        sigma.
    outliers_ : ndarray (n_samples,), bool
        Whether a residual is above ``epsilon scale_``.
    dual_gap_ : float
        A certified bound of the suboptimality of the objective. NaN with alpha 0.
    n_iter_ : int
    n_features_in_ : int
    """

    _loss = "huber"
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "epsilon": [Interval(Real, 1.0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "fit_intercept": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        *,
        epsilon: float = 1.35,
        max_iter: int = 100,
        alpha: float = 0.0001,
        warm_start: bool = False,
        fit_intercept: bool = True,
        tol: float = 1e-5,
    ) -> None:
        self.epsilon = epsilon
        self.max_iter = max_iter
        self.alpha = alpha
        self.warm_start = warm_start
        self.fit_intercept = fit_intercept
        self.tol = tol

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> HuberRegressor:
        """Fit the model.

        Parameters
        ----------
        X : array_like or sparse (n_samples, n_features), or a Dask collection, file or source
            See :func:`elasticml.estimators.inputs.load_arrays`.
        y : array_like (n_samples,), optional if X contains it
        sample_weight : array_like (n_samples,), optional
            Nonnegative.

        Raises
        ------
        ValueError
            When a parameter, the targets or the weights are invalid.
        """
        X, y, weights = self._checked(
            X, y, sample_weight, accept_sparse="csr", dtype=np.float64, y_numeric=True
        )
        y = np.asarray(y, np.float64)
        weights = np.ones(y.size) if weights is None else weights
        total = float(weights.sum())
        if total <= 0.0:
            raise ValueError("the weights of all rows are 0, wanted some above 0")
        rule: dict[str, Any] = {
            "epsilon": float(self.epsilon),
            "alpha": float(self.alpha),
            "intercept": self.fit_intercept,
        }
        rows = RowBlocks(X, Serial())
        start = np.zeros(rows.d + self.fit_intercept)
        target = self.tol * HuberObjective(rows, y, weights, **rule).at(start).value
        # Half of the gap is for rows that are fitted exactly.
        function = HuberObjective(rows, y, weights, **rule, scale_min=0.5 * target)
        if self.warm_start and hasattr(self, "coef_"):
            start[: self.coef_.size] = self.coef_
            start[self.coef_.size :] = self.intercept_
        elif self.fit_intercept:
            start[-1] = float(np.median(y))
        minimum = minimise(function, start, gap=target, steps=self.max_iter)
        w = minimum.point.w
        self.coef_ = w[: X.shape[1]].copy()
        self.intercept_ = float(w[-1]) if self.fit_intercept else 0.0
        residuals = function.residuals(w)
        self.scale_ = function.scale(residuals)
        self.outliers_ = np.abs(residuals) > self.scale_ * self.epsilon
        self.dual_gap_ = total * float(np.maximum(minimum.point.gap, 0.0))
        self.n_iter_ = minimum.steps
        if not minimum.converged:
            warn_of_gap(minimum.point.gap, target, minimum.steps)
        return self
