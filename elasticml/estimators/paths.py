"""Regularisation paths of the lasso and the elastic net, and their choice by cross-validation."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar, Final

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_X_y
from sklearn.utils._param_validation import Interval, validate_parameter_constraints

from elasticml.algorithms.columns.elastic_net import ElasticNetSolver, Fitted
from elasticml.algorithms.columns.matrix import ColumnMatrix
from elasticml.algorithms.columns.products import Penalty
from elasticml.estimators.base import LinearRegressor
from elasticml.estimators.elastic_net import ElasticNet, takes_products
from elasticml.estimators.inputs import taken
from elasticml.estimators.places import n_threads
from elasticml.estimators.warn import warn_of_gap
from elasticml.runtime.execution import parallel

F64 = NDArray[np.float64]

#: What a path is asked for.
_PATH_RULES: Final[dict[str, list[Any]]] = {
    "l1_ratio": [Interval(Real, 0, 1, closed="both")],
    "eps": [Interval(Real, 0, None, closed="neither")],
    "alphas": [Interval(Integral, 1, None, closed="left"), "array-like"],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "positive": ["boolean"],
}


def enet_path(
    X: Any,
    y: Any = None,
    *,
    l1_ratio: float = 0.5,
    eps: float = 1e-3,
    alphas: int | ArrayLike = 100,
    positive: bool = False,
    tol: float = 1e-4,
    max_iter: int = 1000,
) -> tuple[F64, F64, F64]:
    """Compute the elastic net's coefficients for one penalty after another, without intercept.

    Parameters
    ----------
    X : array_like or sparse (n_samples, n_features)
    y : array_like (n_samples,)
    l1_ratio : float, above 0 and at most 1
    eps : float, in (0, 1)
        Ratio of the least to the largest penalty of the grid.
    alphas : int or array_like
        So many penalties, from the least with which all coefficients are 0; or these.
    positive : bool
    tol : float
        Of each model: see :class:`ElasticNet`.
    max_iter : int
        Sweeps for each penalty.

    Returns
    -------
    alphas : ndarray (n_alphas,), descending
    coefs : ndarray (n_features, n_alphas)
    dual_gaps : ndarray (n_alphas,)

    Raises
    ------
    ValueError
        When the rows, the targets or a setting are not as they should be.
    """
    asked = {
        "l1_ratio": l1_ratio,
        "eps": eps,
        "alphas": alphas,
        "max_iter": max_iter,
        "tol": tol,
        "positive": positive,
    }
    validate_parameter_constraints(_PATH_RULES, asked, caller_name="enet_path")
    X, y, _ = taken(X, y)
    X, y = check_X_y(X, y, accept_sparse="csc", dtype=[np.float64, np.float32], y_numeric=True)
    matrix = ColumnMatrix(X, np.asarray(y, np.float64), None, centred=False)
    if isinstance(alphas, int | np.integer):
        grid = alpha_grid(matrix, l1_ratio, eps, int(alphas), positive)
    else:
        grid = _given(alphas, "alphas", np.inf)[::-1]
    found = path_on(matrix, grid, l1_ratio, positive, tol, max_iter)
    for fitted in found:
        warn_of_gap(fitted.gap, tol * matrix.yy / matrix.total, fitted.sweeps)
    return grid, np.stack([one.w for one in found], axis=1), np.array([one.gap for one in found])


def lasso_path(X: Any, y: Any = None, **settings: Any) -> tuple[F64, F64, F64]:
    """Compute the lasso's coefficients along a path; see :func:`enet_path`, without l1_ratio."""
    return enet_path(X, y, l1_ratio=1.0, **settings)


def alpha_grid(
    matrix: ColumnMatrix, l1_ratio: float, eps: float, n_alphas: int, positive: bool
) -> F64:
    """Return penalties from the least that gives a model of zeros down to ``eps`` of it.

    Raises
    ------
    ValueError
        When ``l1_ratio`` is 0: then there is no such penalty.
    """
    if l1_ratio == 0.0:
        raise ValueError("l1_ratio=0 has no grid of alphas of its own: give alphas")
    largest = matrix.linear.max() if positive else np.abs(matrix.linear).max()
    least = float(np.finfo(np.float64).resolution)
    alpha_max = max(float(largest), 0.0) / (matrix.total * l1_ratio)
    if alpha_max <= least:
        return np.full(n_alphas, least)
    return np.geomspace(alpha_max, alpha_max * eps, num=n_alphas)


def _given(values: Any, name: str, most: float) -> F64:
    """Return a setting's numbers, ascending.

    Raises
    ------
    ValueError
        When there are none, or they are not all finite and from 0 to ``most``.
    """
    found = np.asarray(values, np.float64)
    is_right = np.isfinite(found) & (found >= 0.0) & (found <= most)
    if found.ndim != 1 or not found.size or not is_right.all():
        bounds = "not below 0" if most == np.inf else f"from 0 to {most:g}"
        raise ValueError(f"{name}: got {values!r}, wanted a list of finite numbers {bounds}")
    return np.sort(found)


def path_on(
    matrix: ColumnMatrix,
    alphas: F64,
    l1_ratio: float,
    positive: bool,
    tol: float,
    max_iter: int,
) -> list[Fitted]:
    """Solve for descending penalties, each from the last one's model; gaps are of the mean."""
    solver = ElasticNetSolver(matrix, by_products=takes_products(matrix, len(alphas)))
    found = []
    for alpha in alphas * matrix.total:
        penalty = Penalty(a1=alpha * l1_ratio, a2=alpha * (1.0 - l1_ratio), positive=positive)
        one = solver.solve(penalty, tol * matrix.yy, max_iter)
        gap = one.gap / matrix.total
        found.append(Fitted(w=one.w, gap=gap, sweeps=one.sweeps, screened=one.screened))
    return found


class ElasticNetCV(LinearRegressor):
    """The elastic net whose penalty is chosen by cross-validation along paths.

    Parameters
    ----------
    l1_ratio : float or sequence of float
        Of several the best is chosen.
    eps, alphas
        As in :func:`enet_path`.
    fit_intercept, max_iter, tol, positive
        As in :class:`ElasticNet`.
    cv : int, splitter or iterable, optional
        By default 5 folds.
    n_jobs : int, optional
        Threads; each goes along paths of its own.

    Attributes
    ----------
    alpha_, l1_ratio_ : float
        Chosen.
    alphas_ : ndarray (n_alphas,) or (n_l1_ratio, n_alphas)
    mse_path_ : ndarray (n_alphas, n_folds) or (n_l1_ratio, n_alphas, n_folds)
        Weighted mean squared error on each fold.
    coef_, intercept_, dual_gap_, n_iter_, n_features_in_
        Of the model over all rows, as in :class:`ElasticNet`.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_PATH_RULES,
        "l1_ratio": [*_PATH_RULES["l1_ratio"], "array-like"],
        "fit_intercept": ["boolean"],
        "cv": ["cv_object"],
        "n_jobs": [Integral, None],
    }

    def __init__(
        self,
        *,
        l1_ratio: float | ArrayLike = 0.5,
        eps: float = 1e-3,
        alphas: int | ArrayLike = 100,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-4,
        cv: Any = None,
        n_jobs: int | None = None,
        positive: bool = False,
    ) -> None:
        self.l1_ratio = l1_ratio
        self.eps = eps
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.cv = cv
        self.n_jobs = n_jobs
        self.positive = positive

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> ElasticNetCV:
        """Choose the penalty, and fit all rows with it.

        Parameters
        ----------
        X : array_like or sparse (n_samples, n_features), or a Dask collection, file or source
            See :func:`elasticml.estimators.inputs.taken`.
        y : array_like (n_samples,), optional where X has it
        sample_weight : array_like (n_samples,), optional
            Not negative. The mean over the folds of their weighted errors decides.

        Raises
        ------
        ValueError
            When a parameter, the targets or the weights are not as they should be.
        """
        X, y, weights = self._checked(
            X,
            y,
            sample_weight,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            y_numeric=True,
        )
        y = np.asarray(y, np.float64)
        ratios = np.atleast_1d(np.asarray(self._ratio(), np.float64)).tolist()
        _given(ratios, "l1_ratio", 1.0)
        grids = self._grids(X, y, weights, ratios)
        # Loads a fifth of scikit-learn, which nothing else needs.
        from sklearn.model_selection import check_cv

        folds = list(check_cv(self.cv).split(X, y))
        _check_folds(folds, np.ones(len(y)) if weights is None else weights)
        errors = self._errors(X, y, weights, folds, ratios, grids)
        means = errors.mean(axis=1)
        # The first of equals: the smaller ratio's place in the list, the larger penalty.
        i, k = np.unravel_index(int(means.argmin()), means.shape)
        self.mse_path_ = np.squeeze(np.moveaxis(errors, 2, 1))
        self.alpha_, self.l1_ratio_ = float(grids[i][k]), ratios[i]
        self.alphas_ = grids[0] if len(ratios) == 1 or self._is_given() else np.asarray(grids)
        model = ElasticNet(
            self.alpha_,
            l1_ratio=self.l1_ratio_,
            fit_intercept=self.fit_intercept,
            max_iter=self.max_iter,
            tol=self.tol,
            positive=self.positive,
        ).fit(X, y, sample_weight=weights)
        self.coef_, self.intercept_ = model.coef_, model.intercept_
        self.dual_gap_, self.n_iter_ = model.dual_gap_, model.n_iter_
        return self

    def _ratio(self) -> Any:
        return self.l1_ratio

    def _is_given(self) -> bool:
        return not isinstance(self.alphas, Integral)

    def _grids(self, X: Any, y: F64, weights: F64 | None, ratios: list[float]) -> list[F64]:
        if self._is_given():
            return [_given(self.alphas, "alphas", np.inf)[::-1]] * len(ratios)
        matrix = _matrix(X, y, weights, self.fit_intercept)
        n_alphas = int(np.asarray(self.alphas))
        return [alpha_grid(matrix, ratio, self.eps, n_alphas, self.positive) for ratio in ratios]

    def _errors(
        self,
        X: Any,
        y: F64,
        weights: F64 | None,
        folds: list[Any],
        ratios: list[float],
        grids: list[F64],
    ) -> F64:
        """Return the error of each ratio, fold and penalty, (n_l1_ratio, n_folds, n_alphas)."""

        def of_fold(fold: Any) -> list[F64]:
            train, test = fold
            s = None if weights is None else weights[train]
            matrix = _matrix(X[train], y[train], s, self.fit_intercept)
            found = []
            for ratio, grid in zip(ratios, grids, strict=True):
                path = path_on(matrix, grid, ratio, self.positive, self.tol, self.max_iter)
                W = np.stack([one.w for one in path], axis=1)
                intercepts = np.array([matrix.intercept(one.w) for one in path])
                rest = np.asarray(X[test] @ W) + intercepts - y[test][:, None]
                of_test = None if weights is None else weights[test]
                found.append(np.average(rest**2, weights=of_test, axis=0))
            return found

        pool = parallel(n_threads(self.n_jobs))
        try:
            # found: (folds, ratios, alphas) -> (ratios, folds, alphas)
            return np.swapaxes(np.array(pool.map(of_fold, folds)), 0, 1)
        finally:
            pool.close()


class LassoCV(ElasticNetCV):
    """The lasso whose penalty is chosen by cross-validation: :class:`ElasticNetCV` with ratio 1.

    Parameters and attributes are those of :class:`ElasticNetCV`, without ``l1_ratio``.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        name: rule
        for name, rule in ElasticNetCV._parameter_constraints.items()
        if name != "l1_ratio"
    }

    def __init__(
        self,
        *,
        eps: float = 1e-3,
        alphas: int | ArrayLike = 100,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-4,
        cv: Any = None,
        n_jobs: int | None = None,
        positive: bool = False,
    ) -> None:
        self.eps = eps
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.cv = cv
        self.n_jobs = n_jobs
        self.positive = positive

    def _ratio(self) -> Any:
        return 1.0


def _matrix(X: Any, y: F64, weights: F64 | None, centred: bool) -> ColumnMatrix:
    columns = X.tocsc() if scipy.sparse.issparse(X) else X
    return ColumnMatrix(columns, np.ascontiguousarray(y), weights, centred=centred)


def _check_folds(folds: list[Any], weights: F64) -> None:
    """Refuse a cross-validation of which no error comes."""
    if not folds:
        raise ValueError("cv has no splits, wanted at least one pair of training and test rows")
    for k, fold in enumerate(folds):
        for what, rows in zip(("training", "test"), fold, strict=True):
            if not weights[rows].sum() > 0.0:
                raise ValueError(f"split {k} of cv has no {what} rows of a weight above 0")
