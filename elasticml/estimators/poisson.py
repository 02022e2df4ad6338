"""Poisson regression with scikit-learn's interface."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticml.algorithms.linear.problem import Problem
from elasticml.arrays import is_lazy
from elasticml.estimators.backend_choice import JOB_VALUES_MIN, choose_client
from elasticml.estimators.base import LinearRegressor, with_parameters
from elasticml.estimators.rows import ArrayRows, Targets
from elasticml.estimators.solver import Case, Solution
from elasticml.objectives.links import predictions

if TYPE_CHECKING:
    from elasticml.estimators.dask_rows import DaskRows


@with_parameters
class PoissonRegressor(LinearRegressor):
    """Fit a regression of counts with mean ``exp(w.x + b)``, and certify how good the fit is.

    Minimises ``1/(2 S) sum_i s_i deviance_i + alpha/2 |w|^2`` with an unpenalised intercept. The
    ``offset`` of ``fit`` and ``predict`` is the log of the exposure.

    Parameters
    ----------
    alpha : float, not negative
    fit_intercept : bool
    max_iter : int
        The most Newton steps; each is solved by conjugate gradients.
    tol : float
        Newton steps end when the duality gap is at most ``tol`` times the objective of the constant
        model, or without an intercept of the zero model.
    warm_start : bool
        Start from the last fit's model, in this process.
    client : distributed.Client or address, optional
        Fit as an elastic job on this cluster; for the default see ``solver_path_``.
    solver, verbose
        Accepted for compatibility with scikit-learn. Values other than the defaults are ignored,
        with a warning.

    Attributes
    ----------
    coef_ : ndarray (n_features,)
    intercept_ : float
    dual_gap_ : float
        The certificate: the objective is at most this far above its minimum. NaN with alpha 0.
    n_iter_ : int
    solver_path_ : "in-process" or "job"
        How it was fitted: as a job if ``client`` is given, or if there is a default client and at
        least 50 million stored values; otherwise in this process.
    n_features_in_ : int

    Examples
    --------
    >>> em.PoissonRegressor(alpha=1e-3).fit(X, np.exp(X[:, 0])).coef_[0].round(1) == 1
    np.True_
    """

    _loss = "poisson"
    _metric = "d2_poisson"
    _without_meaning = ("solver", "verbose")

    _: KW_ONLY
    alpha: float = 1.0
    fit_intercept: bool = True
    max_iter: int = 100
    tol: float = 1e-4
    warm_start: bool = False
    client: Any = None
    solver: str = "lbfgs"
    verbose: int = 0

    def _problem(self, rows: ArrayRows | DaskRows, targets: Targets, number: int) -> Problem:
        if targets.least < 0.0:
            raise ValueError(
                f"y has the value {targets.least:g}, out of the valid range of PoissonRegressor: "
                "wanted counts, at least 0"
            )
        # Half the mean deviance of the constant model, or without an intercept of the zero model.
        mean = targets.mean if self.fit_intercept else 1.0
        of_constant = targets.y_log_y - targets.mean * math.log(mean or 1.0) - targets.mean + mean
        return Problem(
            loss="poisson",
            l2=self._unit * float(self.alpha),
            intercept=1.0 if self.fit_intercept else None,
            # Constant counts leave no more than rounding errors of predictions.
            gap=max(self.tol * of_constant, float(np.finfo(float).eps) ** 2 * targets.mean),
            rounds=self.max_iter,
            method="newton",
        )

    def _cases(self, rows: ArrayRows | DaskRows) -> list[Case]:
        """Return the problem, whose first model is the last fit's or the constant one."""
        (case,) = super()._cases(rows)
        mean = case.targets.mean
        if case.start is not None or not self.fit_intercept or mean <= 0.0:
            return [case]
        constant = np.zeros((1, rows.shape[1])), np.array([math.log(mean)])
        return [replace(case, start=constant)]

    def _units(self, targets: Targets) -> float:
        return 1.0 / self._unit

    def _keep(self, cases: Sequence[Case], solutions: Sequence[Solution]) -> None:
        super()._keep(cases, solutions)
        self.n_iter_ = solutions[0].rounds

    def _offset_targets(self, y: Any, weights: Any, offset: Any) -> tuple[Any, Any]:
        """Return rates and exposures e, ``exp(offset)``: ``dev(y, e m) = e dev(y / e, m)``."""
        exposure = np.exp(offset)
        if is_lazy(offset):
            # Imported here: it loads Dask.
            from elasticml.estimators.dask_rows import totals

            weighted = exposure if weights is None else exposure * weights
            ones = exposure**0 if weights is None else weights
            with choose_client(self.client, JOB_VALUES_MIN) as client:
                total, exposed = totals([ones, weighted], client)
        else:
            weighted = exposure if weights is None else exposure * weights
            total = float(y.size if weights is None else weights.sum())
            exposed = float(weighted.sum())
        self._unit = total / exposed if exposed > 0.0 else 1.0
        return y / exposure, weighted

    def predict(self, X: Any, offset: Any = None) -> Any:
        """Return the expected count of each row, (n_samples,); lazy for a Dask collection.

        ``offset``, (n_samples,), is the log of the exposure; it is required if the model was
        fitted with one.
        """
        if is_lazy(X):
            return self._lazily("predict", X, offset, np.float64)
        return predictions("log", self._margins(X, offset))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
