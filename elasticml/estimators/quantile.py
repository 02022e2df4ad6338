"""Quantile regression with scikit-learn's interface."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.utils._param_validation import Interval

from elasticml.estimators.backend_choice import choose_client, stored_values
from elasticml.estimators.base import LinearRegressor, warn_of_gap
from elasticml.estimators.quantile_rows import (
    QuantileRule,
    RowPasses,
    RowsHere,
    fit_quantile,
)


class QuantileRegressor(LinearRegressor):
    """Fit a linear model of a quantile, such as the median, and certify how good the fit is.

    Minimises ``1/S sum_i s_i rho(y_i - w.x_i - b) + alpha |w|_1`` with the quantile loss
    ``rho(r) = q r`` for ``r >= 0``, else ``(q - 1) r``, and an unpenalised intercept, by an
    interior-point method on the rows whose residuals may change their sign. Passes over all rows
    find these rows, and certify the gap (``elasticml/estimators/quantile_rows.py``).

    Parameters
    ----------
    quantile : float, between 0 and 1
    alpha : float, not negative
    fit_intercept : bool
    max_iter : int
        The most steps of an interior-point method.
    tol : float
        Steps end when the duality gap is at most ``tol`` times the objective of the zero model.
    client : distributed.Client or address, optional
        Fit on this cluster; for the default see ``solver_path_``.
    solver, solver_options
        Accepted for compatibility with scikit-learn. Values other than the defaults are ignored,
        with a warning.

    Attributes
    ----------
    coef_ : ndarray (n_features,)
    intercept_ : float
    dual_gap_ : float
        The certificate: the objective is at most this far above its minimum.
    n_iter_ : int
    solver_path_ : "in-process" or "tasks"
        How it was fitted: in this process, or by Dask tasks if ``client`` is given, and if there is
        a default client and at least 50 million stored values. The tasks of workers that are lost
        run again elsewhere.
    n_features_in_ : int

    Examples
    --------
    >>> em.QuantileRegressor(quantile=0.9).fit(X, X[:, 0]).coef_.shape
    (5,)
    """

    _loss = "quantile"
    _without_meaning = ("solver", "solver_options")
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "quantile": [Interval(Real, 0, 1, closed="neither")],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        *,
        quantile: float = 0.5,
        alpha: float = 1.0,
        fit_intercept: bool = True,
        max_iter: int = 200,
        tol: float = 1e-9,
        client: Any = None,
        solver: str = "highs",
        solver_options: Any = None,
    ) -> None:
        self.quantile = quantile
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.client = client
        self.solver = solver
        self.solver_options = solver_options

    def _fit(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> None:
        with self._collections(X, y, sample_weight, offset) as lazy:
            if lazy is not None:
                self._fit_passes(lazy, "tasks")
                return
        X, y, weights = self._checked(
            X, y, sample_weight, offset, accept_sparse="csr", dtype=np.float64, y_numeric=True
        )
        y = np.asarray(y, np.float64)
        with choose_client(self.client, stored_values(X)) as client:
            if client is None:
                self._fit_passes(RowsHere(X, y, weights), "in-process")
                return
            # Imported here: it loads Dask.
            from elasticml.estimators.dask_rows import DaskRows

            self._fit_passes(DaskRows.of_arrays(X, y, weights, client), "tasks")

    def _fit_passes(self, rows: RowPasses, path: Literal["in-process", "tasks"]) -> None:
        rule = QuantileRule(
            quantile=float(self.quantile),
            alpha=float(self.alpha),
            intercept=self.fit_intercept,
            tol=float(self.tol),
            steps=self.max_iter,
        )
        fit, target = fit_quantile(rows, rule)
        self.solver_path_ = path
        self.coef_, self.intercept_, self.dual_gap_ = fit.w, fit.intercept, fit.gap
        self.n_iter_ = fit.steps
        warn_of_gap(fit.gap, target, fit.steps)
