"""Huber's robust regression with scikit-learn's interface."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
from sklearn.utils._param_validation import Interval

from elasticml.algorithms.linear.huber_objective import HuberObjective
from elasticml.algorithms.linear.newton import minimise
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial
from elasticml.arrays import F64
from elasticml.estimators.backend_choice import choose_client, stored_values
from elasticml.estimators.base import LinearRegressor, warn_of_gap

if TYPE_CHECKING:
    from elasticml.data.source import Source
    from elasticml.estimators.dask_rows import DaskRows

#: The most steps in this process after the gap is reached.
POLISH: Final = 2


class HuberRegressor(LinearRegressor):
    """Fit a linear regression that outliers hardly affect, and certify how good the fit is.

    Minimises ``sum_i s_i (sigma + sigma H(r_i / sigma)) + alpha |w|^2`` over w, b and the scale
    ``sigma``, with ``r_i = y_i - w.x_i - b`` and ``H(t) = t^2`` for ``|t| < epsilon``, else
    ``2 epsilon |t| - epsilon^2``: by Newton steps in this process, or by jobs, one for each
    scale that is tried.

    Parameters
    ----------
    epsilon : float, at least 1
        Residuals above ``epsilon sigma`` count linearly.
    max_iter : int
        The most Newton steps; for jobs, the most rounds of each.
    alpha : float, not negative
    warm_start : bool
        Start from the last fit's model.
    fit_intercept : bool
    tol : float
        Newton steps end when the duality gap is at most ``tol`` times the objective of the zero
        model; in this process up to two more follow.
    client : distributed.Client or address, optional
        Fit as elastic jobs on this cluster; for the default see ``solver_path_``.

    Attributes
    ----------
    coef_ : ndarray (n_features,)
    intercept_ : float
    scale_ : float
        sigma.
    outliers_ : ndarray (n_samples,), bool
        Whether a residual is above ``epsilon scale_``; lazy after a fit to Dask collections.
    dual_gap_ : float
        The certificate: the objective is at most this far above its minimum. NaN with alpha 0.
    n_iter_ : int
    solver_path_ : "in-process" or "job"
        How it was fitted: as jobs if ``client`` is given, or if there is a default client and at
        least 50 million stored values; otherwise in this process.
    n_features_in_ : int

    Examples
    --------
    >>> em.HuberRegressor().fit(X, X[:, 0]).coef_[0].round(1) == 1
    np.True_
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
        client: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.max_iter = max_iter
        self.alpha = alpha
        self.warm_start = warm_start
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.client = client

    def _fit(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> None:
        with self._collections(X, y, sample_weight, offset) as lazy:
            if lazy is not None:
                self._fit_collections(lazy)
                self.outliers_ = abs(y - self.predict(X)) > self.scale_ * self.epsilon
                return
        X, y, weights = self._checked(
            X, y, sample_weight, offset, accept_sparse="csr", dtype=np.float64, y_numeric=True
        )
        y = np.asarray(y, np.float64)
        weights = np.ones(y.size) if weights is None else weights
        total = float(weights.sum())
        if total <= 0.0:
            raise ValueError("the weights of all rows are 0, wanted some above 0")
        with choose_client(self.client, stored_values(X)) as client:
            self.solver_path_ = "in-process" if client is None else "job"
            if client is None:
                self._fit_here(X, y, weights, total)
            else:
                # Imported here: loading what jobs need takes longer than most fits.
                from elasticml.data.readers.arrays import from_arrays
                from elasticml.estimators.huber_job import huber_sums

                def sums(w: F64, sigma: float) -> F64:
                    return huber_sums(X, y, weights, w, sigma, self.epsilon, self.fit_intercept)

                data, d = from_arrays(X, y, weights), X.shape[1]
                spread = math.sqrt(float(np.average(y * y, weights=weights)))
                self._fit_as_jobs(sums, data, client, d, total, spread)
        residuals = np.abs(y - np.asarray(X @ self.coef_) - self.intercept_)
        self.outliers_ = residuals > self.scale_ * self.epsilon

    def _fit_here(self, X: Any, y: F64, weights: F64, total: float) -> None:
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
        end, n_steps = minimum.point, minimum.steps
        if minimum.converged:
            # The rows within the scale no longer change: a step squares the distance.
            more = minimise(function, end.w, gap=0.0, steps=min(POLISH, self.max_iter - n_steps))
            end = end if more.point.gap > end.gap else more.point
            n_steps += more.steps
        self._keep(end.w, function.scale(function.residuals(end.w)), rows.d)
        self.dual_gap_ = total * float(np.maximum(end.gap, 0.0))
        self.n_iter_ = n_steps
        if not minimum.converged:
            warn_of_gap(minimum.point.gap, target, minimum.steps)

    def _fit_collections(self, rows: DaskRows) -> None:
        """Fit as jobs on partitions of Dask collections, where they are."""
        from elasticml.estimators.huber_job import huber_sums

        labels = rows.labels()
        targets, spread = rows.numbers(labels), math.sqrt(labels.spread(centred=False))

        def sums(w: F64, sigma: float) -> F64:
            return rows.sums(huber_sums, w, sigma, self.epsilon, self.fit_intercept)

        self.solver_path_ = "job"
        self._fit_as_jobs(
            sums, rows.source(targets), rows.client, rows.n_columns, targets.total, spread
        )

    def _fit_as_jobs(
        self,
        sums: Callable[[F64, float], F64],
        data: Source,
        client: Any,
        d: int,
        total: float,
        spread: float,
    ) -> None:
        from elasticml.estimators.huber_job import HuberProblem, fit_huber_as_job

        problem = HuberProblem(
            sums=sums,
            data=data,
            client=client,
            d=d,
            total=total,
            epsilon=float(self.epsilon),
            alpha=float(self.alpha),
            intercept=self.fit_intercept,
        )
        fit, target = fit_huber_as_job(problem, spread, tol=self.tol, rounds=self.max_iter)
        self._keep(fit.w, fit.scale, d)
        self.dual_gap_ = total * float(np.maximum(fit.gap, 0.0))
        self.n_iter_ = fit.rounds
        if not fit.converged:
            warn_of_gap(fit.gap, target, fit.rounds)

    def _keep(self, w: F64, scale: float, d: int) -> None:
        self.coef_ = w[:d].copy()
        self.intercept_ = float(w[-1]) if self.fit_intercept else 0.0
        self.scale_ = scale
