"""The lasso and the elastic net with scikit-learn's interface."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy.sparse
from sklearn.utils._param_validation import Interval

from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.elastic_net import ElasticNetSolver
from elasticml.algorithms.linear.working_sets import SparseFit
from elasticml.arrays import F64
from elasticml.estimators.backend_choice import choose_client, stored_values
from elasticml.estimators.base import (
    LinearRegressor,
    warn_fitted_here,
    warn_loaded_here,
    warn_of_gap,
    warn_without_penalty,
)

if TYPE_CHECKING:
    from elasticml.data.source import Source
    from elasticml.estimators.dask_rows import DaskRows


class ElasticNet(LinearRegressor):
    """Fit a linear regression with an L1 and an L2 penalty, and certify how good the fit is.

    Minimises ``1/(2 S) sum_i s_i (y_i - w.x_i - b)^2 + alpha l1_ratio |w|_1
    + alpha (1 - l1_ratio) / 2 |w|^2`` with ``S = sum_i s_i`` and an unpenalised intercept b, with
    gap-safe screening: in this process on working sets of columns, or as a job on
    column-partitioned data.

    Parameters
    ----------
    alpha : float, not negative
    l1_ratio : float, from 0 to 1
        1 is the lasso.
    fit_intercept : bool
    max_iter : int
        The most sweeps over working sets of columns; for a job, the most rounds.
    tol : float
        A fit ends when its duality gap is at most ``tol`` times the weighted mean square of the
        centred targets.
    warm_start : bool
        Start from the last fit's coefficients; with ``positive``, negative ones start at 0.
    positive : bool
        Restrict coefficients to nonnegative values.
    client : distributed.Client or address, optional
        Fit as an elastic job on this cluster; for the default see ``solver_path_``.
    random_state : accepted; nothing is drawn
    precompute, copy_X, selection
        Accepted for compatibility with scikit-learn. Values other than the defaults are ignored,
        with a warning.

    Attributes
    ----------
    coef_ : ndarray (n_features,), or (n_targets, n_features) for several targets
    intercept_ : float or ndarray (n_targets,)
    dual_gap_ : float or ndarray (n_targets,)
        The certificate: the objective is at most this far above its minimum.
    n_iter_ : int or list of int
        Sweeps; for a job, rounds.
    solver_path_ : "in-process" or "job"
        How it was fitted: as a job if ``client`` is given, or if there is a default client and at
        least 50 million stored values; otherwise, and with ``alpha`` 0, in this process.
    n_features_in_ : int

    Examples
    --------
    >>> int(np.count_nonzero(em.ElasticNet(alpha=0.1, l1_ratio=0.9).fit(X, X[:, 0]).coef_))
    1
    """

    _without_meaning = ("precompute", "copy_X", "selection")
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "alpha": [Interval(Real, 0, None, closed="left")],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
        "positive": ["boolean"],
    }

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        l1_ratio: float = 0.5,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-4,
        warm_start: bool = False,
        positive: bool = False,
        client: Any = None,
        precompute: Any = False,
        copy_X: bool = True,
        random_state: Any = None,
        selection: str = "cyclic",
    ) -> None:
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.positive = positive
        self.client = client
        self.precompute = precompute
        self.copy_X = copy_X
        self.random_state = random_state
        self.selection = selection

    def _fit(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> None:
        with self._collections(X, y, sample_weight, offset) as rows:
            if rows is not None and self.alpha > 0.0:
                self._fit_collections(rows)
                return
        if rows is not None:
            warn_loaded_here(f"{type(self).__name__} with alpha=0, which has no certificate,")
        X, y, weights = self._checked(
            X,
            y,
            sample_weight,
            offset,
            accept_sparse="csc",
            dtype=[np.float64, np.float32],
            multi_output=True,
            y_numeric=True,
        )
        targets = np.asarray(y, np.float64)
        starts = self._starts(targets, X.shape[1])
        fits = []
        if self.alpha == 0.0 and self.client is not None:
            warn_fitted_here(f"{type(self).__name__} with alpha=0, which has no certificate,")
        choice = choose_client(self.client, stored_values(X)) if self.alpha > 0.0 else nullcontext()
        with choice as client:
            fits_here = client is None
            self.solver_path_ = "in-process" if fits_here else "job"
            for k, target in enumerate(targets.reshape(len(targets), -1).T):
                case = (X, np.ascontiguousarray(target), weights, starts[k])
                fits.append(self._fit_one(*case) if fits_here else self._fit_sent(*case, client))
        self.coef_ = np.stack([fitted.w for fitted, _ in fits])
        self.intercept_ = np.array([intercept for _, intercept in fits])
        self.dual_gap_: Any = np.array([fitted.gap for fitted, _ in fits])
        self.n_iter_: Any = [fitted.steps for fitted, _ in fits]
        if len(fits) == 1:
            self.coef_, self.n_iter_ = self.coef_[0], self.n_iter_[0]
            self.dual_gap_ = float(self.dual_gap_[0])
        if targets.ndim == 1:
            self.intercept_ = float(self.intercept_[0])

    def _fit_collections(self, rows: DaskRows) -> None:
        """Fit as a job on partitions of Dask collections, where they are."""
        labels = rows.labels()
        targets, spread = rows.numbers(labels), labels.spread(centred=self.fit_intercept)
        (start,) = self._starts(np.empty(0), rows.n_columns)
        fitted, self.intercept_ = self._as_job(rows.columns(targets), spread, start, rows.client)
        self.solver_path_ = "job"
        self.coef_, self.dual_gap_, self.n_iter_ = fitted.w, fitted.gap, fitted.steps

    def _starts(self, targets: F64, d: int) -> list[F64 | None]:
        """Return the initial coefficients, one array per target."""
        n_targets = 1 if targets.ndim == 1 else targets.shape[1]
        coef = np.atleast_2d(getattr(self, "coef_", np.empty((0, 0))))
        if not self.warm_start or coef.shape != (n_targets, d):
            return [None] * n_targets
        # The last fit may have been without the restriction to nonnegative coefficients.
        return list(np.maximum(coef, 0.0) if self.positive else coef)

    def _fit_one(
        self, X: Any, y: F64, weights: F64 | None, start: F64 | None
    ) -> tuple[SparseFit, float]:
        matrix = ColumnMatrix(X, y, weights, centred=self.fit_intercept)
        solver = ElasticNetSolver(matrix, start, by_products=takes_products(matrix, 1))
        a1, a2 = self.alpha * self.l1_ratio, self.alpha * (1.0 - self.l1_ratio)
        penalty = Penalty(a1=a1 * matrix.total, a2=a2 * matrix.total, positive=self.positive)
        tolerance = self.tol * matrix.yy
        fitted = solver.solve(penalty, tolerance, self.max_iter)
        if self.alpha == 0.0:
            warn_without_penalty(fitted.gap / matrix.total, tolerance / matrix.total)
        else:
            warn_of_gap(fitted.gap / matrix.total, tolerance / matrix.total, fitted.steps)
        return replace(fitted, gap=fitted.gap / matrix.total), matrix.intercept(fitted.w)

    def _fit_sent(
        self, X: Any, y: F64, weights: F64 | None, start: F64 | None, client: Any
    ) -> tuple[SparseFit, float]:
        """Fit as a job on rows that are sent with it."""
        # Imported here: loading what jobs need takes longer than most fits.
        from elasticml.data.readers.arrays import from_arrays

        mean = float(np.average(y, weights=weights)) if self.fit_intercept else 0.0
        spread = float(np.average((y - mean) ** 2, weights=weights))
        return self._as_job(from_arrays(X, y, weights, by="columns"), spread, start, client)

    def _as_job(
        self, data: Source, spread: float, start: F64 | None, client: Any
    ) -> tuple[SparseFit, float]:
        from elasticml.estimators.job_backend import fit_columns_as_job

        a1, a2 = self.alpha * self.l1_ratio, self.alpha * (1.0 - self.l1_ratio)
        fit = fit_columns_as_job(
            data,
            start,
            client,
            Penalty(a1=a1, a2=a2, positive=self.positive),
            1.0,
            intercept=self.fit_intercept,
            gap=self.tol * spread,
            rounds=self.max_iter,
        )
        if not fit.converged:
            warn_of_gap(fit.gap, self.tol * spread, fit.steps)
        return fit, float(fit.b)

    @property
    def sparse_coef_(self) -> Any:
        """The coefficients as a sparse matrix, (1, n_features) or (n_targets, n_features)."""
        return scipy.sparse.csr_array(np.atleast_2d(self.coef_))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class Lasso(ElasticNet):
    """Linear regression with an L1 penalty: :class:`ElasticNet` with ``l1_ratio`` 1.

    Parameters
    ----------
    alpha, fit_intercept, max_iter, tol, warm_start, positive, client
        As for :class:`ElasticNet`, which also has the attributes.
    precompute, copy_X, random_state, selection
        Accepted for compatibility with scikit-learn.

    Examples
    --------
    >>> em.Lasso(alpha=0.1).fit(X, X[:, 0]).coef_.round(1)
    array([0.9, 0. , 0. , 0. , 0. ])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        name: rule for name, rule in ElasticNet._parameter_constraints.items() if name != "l1_ratio"
    }

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-4,
        warm_start: bool = False,
        positive: bool = False,
        client: Any = None,
        precompute: Any = False,
        copy_X: bool = True,
        random_state: Any = None,
        selection: str = "cyclic",
    ) -> None:
        super().__init__(
            alpha,
            l1_ratio=1.0,
            fit_intercept=fit_intercept,
            max_iter=max_iter,
            tol=tol,
            warm_start=warm_start,
            positive=positive,
            client=client,
            precompute=precompute,
            copy_X=copy_X,
            random_state=random_state,
            selection=selection,
        )


def takes_products(matrix: ColumnMatrix, n_penalties: int) -> bool:
    """Whether computing the Gram matrix of all columns costs less than passes over the rows.

    The Gram matrix costs ``d / 2`` passes, and a fit for one penalty takes some tens of passes.
    """
    columns = min(1500, 100 if n_penalties < 10 else matrix.d)
    return matrix.d <= min(columns, matrix.n)
