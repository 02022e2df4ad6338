"""Ridge regression with scikit-learn's contract."""

from __future__ import annotations

from contextlib import nullcontext
from numbers import Integral, Real
from typing import Any, ClassVar, Final, Literal

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import Interval, StrOptions

from elasticml.algorithms.columns.elastic_net import ElasticNetSolver
from elasticml.algorithms.columns.matrix import ColumnMatrix
from elasticml.algorithms.columns.products import Penalty
from elasticml.algorithms.linear_function import LinearFunction
from elasticml.algorithms.newton import Minimum, minimise
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.row_blocks import RowBlocks
from elasticml.algorithms.row_equations import equations
from elasticml.estimators.base import LinearRegressor
from elasticml.estimators.places import client_for, stored_values
from elasticml.estimators.warn import warn_fitted_here, warn_of_gap

F64 = NDArray[np.float64]
Way = Literal["auto", "cholesky", "newton"]

#: Columns or rows up to which ``solver="auto"`` solves the normal equations: 32 MiB.
_EQUATIONS_MAX: Final = 2000


class Ridge(LinearRegressor):
    """Linear least squares with an L2 penalty and a free intercept, with a certified gap.

    Minimises ``sum_i s_i (y_i - w.x_i - b)^2 + alpha |w|^2``.

    Parameters
    ----------
    alpha : float, not negative, or array_like (n_targets,)
    fit_intercept : bool
    max_iter : int, optional
        Newton steps at most, by default 100; each is solved by conjugate gradients.
    tol : float
        Newton steps end when the duality gap is at most ``tol`` times the weighted mean of the
        centred targets' squares.
    solver : "auto", "cholesky" or "newton"
        Normal equations of columns or rows, whichever are fewer, exact; or Newton steps; "auto":
        the first where there are at most 2000 columns or rows.
    positive : bool
        Coefficients must not be negative: coordinate descent, ``max_iter`` sweeps, by default
        10,000; of a job, rounds.
    client : distributed.Client or address, optional
        Fits as an elastic job on this cluster; by default see ``solver_path_``.

    Attributes
    ----------
    coef_ : ndarray (n_features,), of several targets (n_targets, n_features)
    intercept_ : float or ndarray (n_targets,)
    dual_gap_ : float or ndarray (n_targets,)
        Certified: the objective is at most this above the least possible one. NaN with alpha 0.
    n_iter_ : ndarray (n_targets,)
        1 where the normal equations were solved.
    solver_ : "cholesky", "newton" or "coordinate descent"
    solver_path_ : "in-process" or "job"
        Where it was fitted: a job where ``client`` is given, or where there is a default client and
        at least 50 million stored values; else, and with ``positive`` and ``alpha`` 0, this
        process.
    n_features_in_ : int
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "alpha": [Interval(Real, 0, None, closed="left"), "array-like"],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left"), None],
        "tol": [Interval(Real, 0, None, closed="left")],
        "solver": [StrOptions({"auto", "cholesky", "newton"})],
        "positive": ["boolean"],
    }

    dual_gap_: Any

    def __init__(
        self,
        alpha: float | ArrayLike = 1.0,
        *,
        fit_intercept: bool = True,
        max_iter: int | None = None,
        tol: float = 1e-4,
        solver: Way = "auto",
        positive: bool = False,
        client: Any = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.solver = solver
        self.positive = positive
        self.client = client

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Ridge:
        """Fit the model.

        Parameters
        ----------
        X : array_like or sparse (n_samples, n_features), or a Dask collection, file or source
            See :func:`elasticml.estimators.inputs.taken`.
        y : array_like (n_samples,) or (n_samples, n_targets), optional where X has it
        sample_weight : array_like (n_samples,), optional
            Not negative.

        Raises
        ------
        ValueError
            When a parameter, the targets or the weights are not as they should be.
        """
        X, y, weights = self._checked(
            X,
            y,
            sample_weight,
            accept_sparse=["csr", "csc"],
            dtype=np.float64,
            multi_output=True,
            y_numeric=True,
        )
        y = np.asarray(y, np.float64)
        targets = y.reshape(len(y), -1)
        alphas = np.ravel(np.asarray(self.alpha, np.float64))
        if alphas.size not in (1, targets.shape[1]):
            raise ValueError(
                f"alpha has {alphas.size} values for {targets.shape[1]} targets, wanted one, or "
                "one each"
            )
        if not np.all((alphas >= 0.0) & np.isfinite(alphas)):
            raise ValueError(f"alpha: got {self.alpha!r}, wanted finite numbers not below 0")
        alphas = np.broadcast_to(alphas, targets.shape[1])
        # Without a penalty members that own columns certify nothing.
        fits_here = self.positive and not alphas.all()
        if fits_here and self.client is not None:
            warn_fitted_here("Ridge with positive=True and alpha=0, which has no certificate,")
        place = nullcontext() if fits_here else client_for(self.client, stored_values(X))
        with place as client:
            self.solver_path_ = "in-process" if client is None else "job"
            self._fit(X, targets, weights, alphas, client)
        if targets.shape[1] == 1:
            self.coef_, self.dual_gap_ = self.coef_[0], float(self.dual_gap_[0])
        if y.ndim == 1:
            self.intercept_ = float(self.intercept_[0])
        return self

    def _fit(self, X: Any, targets: F64, weights: F64 | None, alphas: F64, client: Any) -> None:
        n, d = X.shape
        self.solver_ = "coordinate descent" if self.positive else self.solver
        if client is not None and not self.positive:
            self.solver_ = "newton"
        elif self.solver_ == "auto":
            self.solver_ = "cholesky" if min(n, d) <= _EQUATIONS_MAX else "newton"
        found = []
        for target, alpha in zip(np.ascontiguousarray(targets.T), alphas, strict=True):
            if self.positive and client is not None:
                found.append(self._as_job(X, target, weights, float(alpha), client))
            elif self.solver_ == "newton":
                found.append(self._by_newton(X, target, weights, float(alpha), client))
            else:
                found.append(
                    self._by_rows(X, target, weights, float(alpha))
                    or self._by_columns(X, target, weights, float(alpha))
                )
        self.coef_ = np.stack([one[0] for one in found])
        self.intercept_ = np.array([one[1] for one in found])
        self.dual_gap_ = np.array([one[2] for one in found])
        self.n_iter_ = np.array([one[3] for one in found], np.int32)

    def _by_rows(
        self, X: Any, y: F64, weights: F64 | None, alpha: float
    ) -> tuple[F64, float, float, int] | None:
        """Solve the normal equations of columns from sparse rows; None where that does not do."""
        if self.positive or X.shape[0] < X.shape[1]:
            return None
        found = equations(X, y, weights, centred=self.fit_intercept)
        if found is None:
            return None
        w = _solution(found.G, found.linear, alpha)
        intercept = found.y_mean - float(found.means @ w)
        total, function = self._function(X, y, weights, alpha)
        point = function.at(np.append(w, intercept) if self.fit_intercept else w)
        return w, intercept, _gap_of_sum(point.gap, total), 1

    def _by_columns(
        self, X: Any, y: F64, weights: F64 | None, alpha: float
    ) -> tuple[F64, float, float, int]:
        matrix = ColumnMatrix(
            X.tocsc() if hasattr(X, "tocsc") else X, y, weights, centred=self.fit_intercept
        )
        penalty, sweeps = Penalty(a1=0.0, a2=alpha, positive=self.positive), 1
        if self.positive:
            solver = ElasticNetSolver(matrix)
            fitted = solver.solve(penalty, self.tol * matrix.yy, self.max_iter or 10_000)
            w, sweeps = fitted.w, fitted.sweeps
        else:
            w = _solved(matrix, alpha)
        gap = _gap(matrix, w, penalty)
        if self.positive:
            warn_of_gap(gap, self.tol * matrix.yy, sweeps)
        # The objective has no half before the squares.
        return w, matrix.intercept(w), 2.0 * gap if alpha > 0.0 else np.nan, sweeps

    def _as_job(
        self, X: Any, y: F64, weights: F64 | None, alpha: float, client: Any
    ) -> tuple[F64, float, float, int]:
        """Have members that own columns fit coefficients that must not be negative."""
        # Loads what jobs need, which takes longer than most fits.
        from elasticml.estimators.column_job import fit_as_job
        from elasticml.jobs.algorithms import PrimalCoCoA

        total = float(y.size if weights is None else weights.sum())
        wanted = self._wanted(y, weights)
        found = fit_as_job(
            X,
            y,
            weights,
            None,
            client,
            penalty=PrimalCoCoA(
                l1=0.0,
                l2=alpha / total,
                intercept=self.fit_intercept,
                positive=True,
                tolerance=wanted,
            ),
            rounds=self.max_iter or 10_000,
        )
        if not found.converged:
            warn_of_gap(found.gap, wanted, found.rounds)
        # The objective has no half before the squares.
        return found.w, found.intercept, 2.0 * total * found.gap, found.rounds

    def _wanted(self, y: F64, weights: F64 | None) -> float:
        """Return the gap to reach, with a half before the squares' mean."""
        mean = float(np.average(y, weights=weights)) if self.fit_intercept else 0.0
        return 0.5 * self.tol * float(np.average((y - mean) ** 2, weights=weights))

    def _function(
        self, X: Any, y: F64, weights: F64 | None, alpha: float
    ) -> tuple[float, LinearFunction]:
        """Return the weights' sum, and half the objective over it."""
        total = float(y.size if weights is None else weights.sum())
        function = LinearFunction(
            RowBlocks(X, Serial()),
            y,
            weights,
            loss="squared",
            l2=alpha / total,
            intercept_scaling=1.0 if self.fit_intercept else None,
            is_free=True,
        )
        return total, function

    def _by_newton(
        self, X: Any, y: F64, weights: F64 | None, alpha: float, client: Any
    ) -> tuple[F64, float, float, int]:
        total, function = self._function(X, y, weights, alpha)
        wanted = self._wanted(y, weights)
        steps = self.max_iter or 100
        if client is None:
            found: Minimum = minimise(function, np.zeros(function.n_model), gap=wanted, steps=steps)
        else:
            # Loads what jobs need, which takes longer than most fits.
            from elasticml.estimators.primal_job import train_job

            found = train_job(
                function,
                (X, y, weights),
                client,
                loss="squared",
                l2=alpha / total,
                intercept=self.fit_intercept,
                gap=wanted,
                rounds=steps,
            )
        if not found.converged:
            warn_of_gap(found.point.gap, wanted, found.steps)
        w = found.point.w
        intercept = float(w[-1]) if self.fit_intercept else 0.0
        return w[: X.shape[1]].copy(), intercept, _gap_of_sum(found.point.gap, total), found.steps

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _solved(matrix: ColumnMatrix, alpha: float) -> F64:
    """Solve the normal equations of columns, or of rows where these are fewer."""
    if matrix.n < matrix.d:
        return matrix.correlations(_solution(matrix.row_products(), matrix.y, alpha))
    columns = np.arange(matrix.d)
    return _solution(matrix.products(columns, columns), matrix.linear, alpha)


def _solution(G: F64, linear: F64, alpha: float) -> F64:
    """Solve ``(G + alpha I) x = linear``; of several solutions, without a penalty, the shortest."""
    G[np.diag_indices_from(G)] += alpha
    if alpha > 0.0:
        try:
            found: F64 = scipy.linalg.solve(G, linear, assume_a="pos")
            return found
        except np.linalg.LinAlgError:
            pass  # The penalty is below the rounding of G.
    shortest: F64 = scipy.linalg.lstsq(G, linear)[0]
    return shortest


def _gap_of_sum(gap: float, total: float) -> float:
    """Return the gap of the sum, which has no half; rounding may leave it below 0; NaN stays."""
    return 2.0 * total * float(np.maximum(gap, 0.0))


def _gap(matrix: ColumnMatrix, w: F64, penalty: Penalty) -> float:
    """Return the gap over the rows themselves, of half the objective."""
    return ElasticNetSolver(matrix, w).gap(penalty)
