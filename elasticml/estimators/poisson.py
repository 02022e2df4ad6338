"""Poisson regression with scikit-learn's interface."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval

from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.newton import Minimum
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial
from elasticml.arrays import F64
from elasticml.estimators.backend_choice import JOB_VALUES_MIN, choose_client, stored_values
from elasticml.estimators.base import LinearRegressor, is_lazy, lazily, warn_of_gap
from elasticml.estimators.linear_solver import minimum_of
from elasticml.objectives.links import predictions

if TYPE_CHECKING:
    from elasticml.estimators.dask_rows import DaskRows


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
    #: Total weight divided by that of the problem without its offset.
    _unit: float = 1.0
    _without_meaning = ("solver", "verbose")
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "alpha": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
    }

    def __init__(
        self,
        *,
        alpha: float = 1.0,
        fit_intercept: bool = True,
        max_iter: int = 100,
        tol: float = 1e-4,
        warm_start: bool = False,
        client: Any = None,
        solver: str = "lbfgs",
        verbose: int = 0,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.client = client
        self.solver = solver
        self.verbose = verbose

    def _fit(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> None:
        self._unit = 1.0
        with self._collections(X, y, sample_weight, offset) as lazy:
            if lazy is not None:
                self._fit_collections(lazy)
                return
        X, y, weights = self._checked(
            X,
            y,
            sample_weight,
            offset,
            accept_sparse=["csr", "csc"],
            dtype=np.float64,
            y_numeric=True,
        )
        y = np.asarray(y, np.float64)
        _check_targets(float(y.min()), float(y.size if weights is None else weights.sum()))
        function = LinearObjective(
            RowBlocks(X, Serial()),
            y,
            weights,
            loss="poisson",
            l2=self._unit * float(self.alpha),
            intercept_scaling=1.0 if self.fit_intercept else None,
            is_free=True,
        )
        constant = self._constant(X.shape[1], float(np.average(y, weights=weights)))
        target = self.tol * function.at(constant).value
        with choose_client(self.client, stored_values(X)) as client:
            self.solver_path_ = "in-process" if client is None else "job"
            rows, start = (X, y, weights), self._start(constant)
            minimum = minimum_of(function, rows, client, start, gap=target, steps=self.max_iter)
        self._keep(minimum, target, X.shape[1])

    def _fit_collections(self, rows: DaskRows) -> None:
        """Fit as a job on partitions of Dask collections, where they are."""
        labels = rows.labels()
        targets = rows.numbers(labels)
        _check_targets(labels.least, targets.total)
        constant = self._constant(rows.n_columns, float(labels.sums[2]) / targets.total)
        l2, intercept = self._unit * float(self.alpha), self.fit_intercept
        target = self.tol * rows.point(targets, constant, "poisson", l2, intercept).value
        minimum = rows.minimise(
            targets,
            loss="poisson",
            l2=l2,
            intercept=intercept,
            gap=target,
            rounds=self.max_iter,
        )
        self.solver_path_ = "job"
        self._keep(minimum, target, rows.n_columns)

    def _constant(self, d: int, mean: float) -> F64:
        """Return the model that predicts the mean, or without an intercept the zero model."""
        constant = np.zeros(d + self.fit_intercept)
        if self.fit_intercept and mean > 0.0:
            constant[-1] = math.log(mean)
        return constant

    def _keep(self, minimum: Minimum, target: float, d: int) -> None:
        w = minimum.point.w
        self.coef_ = w[:d].copy()
        self.intercept_ = float(w[-1]) if self.fit_intercept else 0.0
        self.dual_gap_ = float(np.maximum(minimum.point.gap, 0.0)) / self._unit
        self.n_iter_ = minimum.steps
        if not minimum.converged:
            warn_of_gap(minimum.point.gap, target, minimum.steps)

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
            self._check_lazy(offset)
            return lazily(self, "predict", X, np.float64)
        return predictions("log", self._margins(X, offset))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, offset: Any = None) -> float:
        """Return D2, the share of the deviance that the model explains."""
        from sklearn.metrics import d2_tweedie_score

        if is_lazy(X):
            self._check_lazy(offset)
            return self._score_collections(X, y, sample_weight, "d2_poisson")
        X, y, sample_weight = self._loaded(X, y, sample_weight)
        return float(
            d2_tweedie_score(y, self.predict(X, offset), sample_weight=sample_weight, power=1)
        )

    def _start(self, constant: F64) -> F64:
        d = constant.size - self.fit_intercept
        # As scikit-learn's: a model of other columns is none to start from.
        if not self.warm_start or getattr(self, "coef_", np.empty(0)).shape != (d,):
            return constant
        return np.append(self.coef_, self.intercept_)[: constant.size]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags


def _check_targets(least: float, total: float) -> None:
    if least < 0.0:
        raise ValueError(
            f"y has the value {least:g}, out of the valid range of PoissonRegressor: "
            "wanted counts, at least 0"
        )
    if total <= 0.0:
        raise ValueError("the weights of all rows are 0, wanted some above 0")
