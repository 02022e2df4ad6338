"""Regularisation paths of the lasso and the elastic net, and cross-validation along them."""

from __future__ import annotations

from dataclasses import KW_ONLY, field, replace
from numbers import Integral, Real
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_X_y
from sklearn.utils._param_validation import Interval, validate_parameter_constraints

from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.algorithms.linear.elastic_net import ElasticNetSolver
from elasticml.algorithms.linear.fit import Fit
from elasticml.arrays import F64
from elasticml.estimators.backend_choice import n_threads
from elasticml.estimators.base import LinearRegressor, warn_of_gap, with_parameters
from elasticml.estimators.elastic_net import ElasticNet
from elasticml.estimators.inputs import load_arrays
from elasticml.estimators.rows import ArrayRows
from elasticml.estimators.solver import takes_products
from elasticml.objectives.penalties import Absolute
from elasticml.objectives.penalty_kernels import Penalty
from elasticml.runtime.executors import parallel

#: Constraints on the parameters of a path.
_PATH_RULES: Final[dict[str, list[Any]]] = {
    **LinearRegressor._parameter_constraints,
    "eps": [Interval(Real, 0, None, closed="neither")],
    "alphas": [Interval(Integral, 1, None, closed="left"), "array-like"],
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
    """Compute the elastic net along a sequence of penalties, without an intercept.

    Parameters
    ----------
    X : array_like or sparse (n_samples, n_features)
    y : array_like (n_samples,)
    l1_ratio : float, above 0 and at most 1
    eps : float, in (0, 1)
        Ratio of the smallest to the largest penalty of the grid.
    alphas : int or array_like
        The penalties, or their number: then the largest is the smallest one for which all
        coefficients are 0.
    positive : bool
    tol : float
        As in :class:`ElasticNet`, for each model.
    max_iter : int
        The most sweeps per penalty.

    Returns
    -------
    alphas : ndarray (n_alphas,), descending
    coefs : ndarray (n_features, n_alphas)
    dual_gaps : ndarray (n_alphas,)

    Raises
    ------
    ValueError
        When the rows, the targets or a parameter are invalid.

    Examples
    --------
    >>> alphas, coefs, gaps = em.enet_path(X, X[:, 0], l1_ratio=0.5)
    >>> alphas.shape, coefs.shape
    ((100,), (5, 100))
    """
    parameters = {
        "l1_ratio": l1_ratio,
        "eps": eps,
        "alphas": alphas,
        "max_iter": max_iter,
        "tol": tol,
        "positive": positive,
    }
    validate_parameter_constraints(_PATH_RULES, parameters, caller_name="enet_path")
    X, y, _ = load_arrays(X, y)
    X, y = check_X_y(X, y, accept_sparse="csc", dtype=[np.float64, np.float32], y_numeric=True)
    matrix = ColumnMatrix(X, np.asarray(y, np.float64), None, centred=False)
    if isinstance(alphas, int | np.integer):
        grid = alpha_grid(matrix, l1_ratio, eps, int(alphas), positive)
    else:
        grid = _given(alphas, "alphas", np.inf)[::-1]
    fits = path_on(matrix, grid, l1_ratio, positive, tol, max_iter)
    for fit in fits:
        warn_of_gap(fit.gap, tol * matrix.yy / matrix.total, fit.steps)
    return grid, np.stack([fit.w for fit in fits], axis=1), np.array([fit.gap for fit in fits])


def lasso_path(X: Any, y: Any = None, **settings: Any) -> tuple[F64, F64, F64]:
    """Compute the lasso along a path of penalties.

    Parameters
    ----------
    X, y
        As for :func:`enet_path`.
    **settings
        The other parameters of :func:`enet_path`, except ``l1_ratio``.

    Returns
    -------
    alphas : ndarray (n_alphas,), descending
    coefs : ndarray (n_features, n_alphas)
    gaps : ndarray (n_alphas,)
        Certified duality gaps.

    Raises
    ------
    ValueError
        When a parameter is out of range.

    Examples
    --------
    >>> alphas, coefs, gaps = em.lasso_path(X, X[:, 0])
    >>> alphas.shape, coefs.shape
    ((100,), (5, 100))
    """
    return enet_path(X, y, l1_ratio=1.0, **settings)


def alpha_grid(
    matrix: ColumnMatrix, l1_ratio: float, eps: float, n_alphas: int, positive: bool
) -> F64:
    """Return a geometric grid from the smallest penalty with a zero model down to ``eps`` times it.

    Raises
    ------
    ValueError
        When ``l1_ratio`` is 0: then no such penalty exists.
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
    """Return the numbers of a list-valued parameter, ascending.

    Raises
    ------
    ValueError
        When there are none, or one is not finite or outside of 0 to ``most``.
    """
    numbers = np.asarray(values, np.float64)
    is_valid = np.isfinite(numbers) & (numbers >= 0.0) & (numbers <= most)
    if numbers.ndim != 1 or not numbers.size or not is_valid.all():
        bounds = "not below 0" if most == np.inf else f"from 0 to {most:g}"
        raise ValueError(f"{name}: got {values!r}, wanted a list of finite numbers {bounds}")
    return np.sort(numbers)


def path_on(
    matrix: ColumnMatrix,
    alphas: F64,
    l1_ratio: float,
    positive: bool,
    tol: float,
    max_iter: int,
) -> list[Fit]:
    """Solve for descending penalties, each from the previous model; gaps are those of the mean."""
    solver = ElasticNetSolver(matrix, by_products=takes_products(matrix, len(alphas)))
    fits, terms = [], Absolute(positive)
    for alpha in alphas * matrix.total:
        penalty = Penalty(a1=alpha * l1_ratio, a2=alpha * (1.0 - l1_ratio), terms=terms)
        fit = solver.solve(penalty, tol * matrix.yy, max_iter)
        fits.append(replace(fit, gap=fit.gap / matrix.total))
    return fits


@with_parameters
class ElasticNetCV(LinearRegressor):
    """The elastic net with the penalty chosen by cross-validation along paths.

    Parameters
    ----------
    l1_ratio : float or sequence of float
        If there are several, the best is chosen.
    eps, alphas
        As in :func:`enet_path`.
    fit_intercept, max_iter, tol, positive
        As in :class:`ElasticNet`.
    cv : int, splitter or iterable, optional
        By default 5 folds.
    n_jobs : int, optional
        Threads; each computes the paths of one fold at a time.
    random_state : accepted; nothing is drawn
    precompute, copy_X, verbose, selection
        Accepted for compatibility with scikit-learn. Values other than the defaults are ignored,
        with a warning.

    Attributes
    ----------
    alpha_, l1_ratio_ : float
        The chosen values.
    alphas_ : ndarray (n_alphas,) or (n_l1_ratio, n_alphas)
    mse_path_ : ndarray (n_alphas, n_folds) or (n_l1_ratio, n_alphas, n_folds)
        Weighted mean squared error on each fold.
    coef_, intercept_, dual_gap_, n_iter_, n_features_in_
        For the model fitted to all rows, as in :class:`ElasticNet`.

    Examples
    --------
    >>> em.ElasticNetCV(l1_ratio=[0.5, 1.0], cv=3).fit(X, X[:, 0]).l1_ratio_
    0.5
    """

    _without_meaning = ("precompute", "copy_X", "verbose", "selection")
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **_PATH_RULES,
        "l1_ratio": [*_PATH_RULES["l1_ratio"], "array-like"],
        "cv": ["cv_object"],
    }
    _rules: ClassVar[dict[str, Any]] = {
        "accept_sparse": "csr",
        "dtype": [np.float64, np.float32],
        "y_numeric": True,
    }

    _: KW_ONLY
    l1_ratio: float | ArrayLike = 0.5
    eps: float = 1e-3
    alphas: int | ArrayLike = 100
    fit_intercept: bool = True
    max_iter: int = 1000
    tol: float = 1e-4
    cv: Any = None
    n_jobs: int | None = None
    positive: bool = False
    precompute: Any = "auto"
    copy_X: bool = True
    verbose: int = 0
    random_state: Any = None
    selection: str = "cyclic"

    def _only_here(self, rows: Any) -> str | None:
        return f"{type(self).__name__}, which is not a job,"

    def _fit_rows(self, rows: Any) -> None:
        assert isinstance(rows, ArrayRows)
        X, y, weights = rows.X, np.asarray(rows.y, np.float64), rows.weights
        ratios = np.atleast_1d(np.asarray(self.l1_ratio, np.float64)).tolist()
        _given(ratios, "l1_ratio", 1.0)
        grids = self._grids(X, y, weights, ratios)
        # Imported here: it loads a fifth of scikit-learn, which nothing else needs.
        from sklearn.model_selection import check_cv

        folds = list(check_cv(self.cv).split(X, y))
        _check_folds(folds, np.ones(len(y)) if weights is None else weights)
        errors = self._errors(X, y, weights, folds, ratios, grids)
        means = errors.mean(axis=1)
        # Ties go to the ratio that is first in the list, and to the larger penalty.
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

    def _is_given(self) -> bool:
        return not isinstance(self.alphas, Integral)

    def _grids(self, X: Any, y: F64, weights: F64 | None, ratios: list[float]) -> list[F64]:
        if self._is_given():
            return [_given(self.alphas, "alphas", np.inf)[::-1]] * len(ratios)
        matrix = ColumnMatrix(X, y, weights, centred=self.fit_intercept)
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
        """Return the errors by ratio, fold and penalty, (n_l1_ratio, n_folds, n_alphas)."""

        def of_fold(fold: Any) -> list[F64]:
            train, test = fold
            s = None if weights is None else weights[train]
            matrix = ColumnMatrix(X[train], y[train], s, centred=self.fit_intercept)
            errors = []
            for ratio, grid in zip(ratios, grids, strict=True):
                path = path_on(matrix, grid, ratio, self.positive, self.tol, self.max_iter)
                W = np.stack([fit.w for fit in path], axis=1)
                intercepts = np.array([matrix.intercept(fit.w) for fit in path])
                residuals = np.asarray(X[test] @ W) + intercepts - y[test][:, None]
                test_weights = None if weights is None else weights[test]
                errors.append(np.average(residuals**2, weights=test_weights, axis=0))
            return errors

        pool = parallel(n_threads(self.n_jobs))
        try:
            # (folds, ratios, alphas) -> (ratios, folds, alphas)
            return np.swapaxes(np.array(pool.map(of_fold, folds)), 0, 1)
        finally:
            pool.close()


@with_parameters
class LassoCV(ElasticNetCV):
    """The lasso with cross-validation: :class:`ElasticNetCV` with ``l1_ratio`` 1.

    Parameters
    ----------
    eps, alphas, fit_intercept, max_iter, tol, cv, n_jobs, positive, verbose
        As for :class:`ElasticNetCV`, which also has the attributes, except ``l1_ratio_``.
    precompute, copy_X, random_state, selection
        Accepted for compatibility with scikit-learn.

    Examples
    --------
    >>> bool(em.LassoCV(cv=3).fit(X, X[:, 0]).alpha_ < 0.1)
    True
    """

    l1_ratio: float | ArrayLike = field(default=1.0, init=False)


def _check_folds(folds: list[Any], weights: F64) -> None:
    """Reject a cross-validation without splits, or with a split whose weights are all 0."""
    if not folds:
        raise ValueError("cv has no splits, wanted at least one pair of training and test rows")
    for k, fold in enumerate(folds):
        for what, rows in zip(("training", "test"), fold, strict=True):
            if not weights[rows].sum() > 0.0:
                raise ValueError(f"split {k} of cv has no {what} rows of a weight above 0")
