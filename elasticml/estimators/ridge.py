"""Ridge regression with scikit-learn's interface."""

from __future__ import annotations

from contextlib import nullcontext
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import Interval, StrOptions

from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.elastic_net import ElasticNetSolver
from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.newton import Minimum
from elasticml.algorithms.linear.normal_equations import equations
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial
from elasticml.arrays import F64
from elasticml.estimators.backend_choice import choose_client, stored_values
from elasticml.estimators.base import (
    LinearRegressor,
    warn_fitted_here,
    warn_loaded_here,
    warn_of_gap,
)
from elasticml.estimators.linear_solver import minimum_of

if TYPE_CHECKING:
    from elasticml.data.source import Source
    from elasticml.estimators.dask_rows import DaskRows

SolverName = Literal[
    "auto", "cholesky", "newton", "svd", "lsqr", "sparse_cg", "sag", "saga", "lbfgs"
]
#: Solvers of scikit-learn that have no counterpart here.
_OTHER_SOLVERS: Final = ("svd", "lsqr", "sparse_cg", "sag", "saga", "lbfgs")

#: The most columns or rows for which ``solver="auto"`` solves the normal equations: 32 MiB.
_EQUATIONS_MAX: Final = 2000


class Ridge(LinearRegressor):
    """Fit least squares with an L2 penalty, and certify how good the fit is.

    The interface is that of scikit-learn's ``Ridge``. The objective is
    ``sum_i s_i (y_i - w.x_i - b)^2 + alpha |w|^2`` with sample weights ``s_i``. The intercept is
    not penalised.

    Parameters
    ----------
    alpha : float, not negative, or array_like (n_targets,)
    fit_intercept : bool
    max_iter : int, optional
        The most Newton steps, by default 100; each is solved by conjugate gradients.
    tol : float
        Newton steps end when the duality gap is at most ``tol`` times the weighted mean square of
        the centred targets.
    solver : "auto", "cholesky" or "newton"
        "cholesky": solve the normal equations of columns or rows, whichever are fewer, exactly.
        "newton": Newton steps. "auto": "cholesky" for at most 2000 columns or rows. scikit-learn's
        other solvers mean "auto", with a warning.
    positive : bool
        Restrict coefficients to nonnegative values: coordinate descent with at most ``max_iter``
        sweeps (for a job, rounds), by default 10,000.
    client : distributed.Client or address, optional
        Fit as an elastic job on this cluster; for the default see ``solver_path_``.
    random_state : accepted; nothing is drawn
    copy_X
        Accepted for compatibility with scikit-learn. Ignored with a warning if it is not True.

    Attributes
    ----------
    coef_ : ndarray (n_features,), or (n_targets, n_features) for several targets
    intercept_ : float or ndarray (n_targets,)
    dual_gap_ : float or ndarray (n_targets,)
        The certificate: the objective is at most this far above its minimum. NaN with alpha 0.
    n_iter_ : ndarray (n_targets,)
        1 if the normal equations were solved.
    solver_ : "cholesky", "newton" or "coordinate descent"
    solver_path_ : "in-process" or "job"
        How it was fitted: as a job if ``client`` is given, or if there is a default client and at
        least 50 million stored values; otherwise, and with ``positive`` and ``alpha`` 0, in this
        process.
    n_features_in_ : int

    Examples
    --------
    >>> em.Ridge(alpha=1.0).fit(X, X[:, 0]).coef_[0].round(1) == 1
    np.True_
    """

    _without_meaning = ("copy_X",)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "alpha": [Interval(Real, 0, None, closed="left"), "array-like"],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left"), None],
        "tol": [Interval(Real, 0, None, closed="left")],
        "solver": [StrOptions({"auto", "cholesky", "newton", *_OTHER_SOLVERS})],
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
        solver: SolverName = "auto",
        positive: bool = False,
        client: Any = None,
        copy_X: bool = True,
        random_state: Any = None,
    ) -> None:
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.solver = solver
        self.positive = positive
        self.client = client
        self.copy_X = copy_X
        self.random_state = random_state

    def _fit(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> None:
        with self._collections(X, y, sample_weight, offset) as rows:
            if rows is not None and self._fit_collections(rows):
                return
        if rows is not None:
            warn_loaded_here("Ridge with several alphas, or positive=True and alpha=0,")
        X, y, weights = self._checked(
            X,
            y,
            sample_weight,
            offset,
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
        # Without a penalty a job on column-partitioned data has no certificate.
        fits_here = self.positive and not alphas.all()
        if fits_here and self.client is not None:
            warn_fitted_here("Ridge with positive=True and alpha=0, which has no certificate,")
        choice = nullcontext() if fits_here else choose_client(self.client, stored_values(X))
        with choice as client:
            self.solver_path_ = "in-process" if client is None else "job"
            self._fit_targets(X, targets, weights, alphas, client)
        if targets.shape[1] == 1:
            self.coef_, self.dual_gap_ = self.coef_[0], float(self.dual_gap_[0])
        if y.ndim == 1:
            self.intercept_ = float(self.intercept_[0])

    def _fit_collections(self, rows: DaskRows) -> bool:
        """Fit as a job on partitions of Dask collections; return False if no job can."""
        if np.ndim(self.alpha) > 0 or (self.positive and self.alpha == 0.0):
            return False
        labels, alpha = rows.labels(), float(cast(float, self.alpha))
        targets, total = rows.numbers(labels), float(labels.sums[1])
        target_gap = 0.5 * self.tol * labels.spread(centred=self.fit_intercept)
        self.solver_path_ = "job"
        if self.positive:
            self.solver_ = "coordinate descent"
            data = rows.columns(targets)
            fit = self._as_job(data, target_gap, alpha, total, rows.client)
        else:
            self.solver_ = "newton"
            minimum = rows.minimise(
                targets,
                loss="squared",
                l2=alpha / total,
                intercept=self.fit_intercept,
                gap=target_gap,
                rounds=self.max_iter or 100,
            )
            fit = self._of_newton(minimum, target_gap, total, rows.n_columns)
        self.coef_, self.intercept_, self.dual_gap_ = fit[:3]
        self.n_iter_ = np.array([fit[3]], np.int32)
        return True

    def _ignored(self) -> list[str]:
        solver = [f"solver={self.solver!r}"] if self.solver in _OTHER_SOLVERS else []
        return [*super()._ignored(), *solver]

    def _fit_targets(
        self, X: Any, targets: F64, weights: F64 | None, alphas: F64, client: Any
    ) -> None:
        n, d = X.shape
        self.solver_ = "coordinate descent" if self.positive else self.solver
        if client is not None and not self.positive:
            self.solver_ = "newton"
        elif self.solver_ not in ("cholesky", "newton", "coordinate descent"):
            self.solver_ = "cholesky" if min(n, d) <= _EQUATIONS_MAX else "newton"
        fits = []
        for target, alpha in zip(np.ascontiguousarray(targets.T), alphas, strict=True):
            if self.positive and client is not None:
                fits.append(self._fit_sent(X, target, weights, float(alpha), client))
            elif self.solver_ == "newton":
                fits.append(self._by_newton(X, target, weights, float(alpha), client))
            else:
                fits.append(
                    self._by_rows(X, target, weights, float(alpha))
                    or self._by_columns(X, target, weights, float(alpha))
                )
        self.coef_ = np.stack([fit[0] for fit in fits])
        self.intercept_ = np.array([fit[1] for fit in fits])
        self.dual_gap_ = np.array([fit[2] for fit in fits])
        self.n_iter_ = np.array([fit[3] for fit in fits], np.int32)

    def _by_rows(
        self, X: Any, y: F64, weights: F64 | None, alpha: float
    ) -> tuple[F64, float, float, int] | None:
        """Solve the normal equations of columns from sparse rows; None if that does not apply."""
        if self.positive or X.shape[0] < X.shape[1]:
            return None
        system = equations(X, y, weights, centred=self.fit_intercept)
        if system is None:
            return None
        w = _solution(system.G, system.linear, alpha)
        intercept = system.y_mean - float(system.means @ w)
        total, function = self._function(X, y, weights, alpha)
        point = function.at(np.append(w, intercept) if self.fit_intercept else w)
        return self._of_newton(Minimum(point=point, steps=1, converged=True), 0.0, total, w.size)

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
            w, sweeps = fitted.w, fitted.steps
        else:
            w = _solved(matrix, alpha)
        gap = ElasticNetSolver(matrix, w).gap(penalty)
        if self.positive:
            warn_of_gap(gap, self.tol * matrix.yy, sweeps)
        # This estimator's objective has no factor 1/2 before the squares.
        return w, matrix.intercept(w), 2.0 * gap if alpha > 0.0 else np.nan, sweeps

    def _fit_sent(
        self, X: Any, y: F64, weights: F64 | None, alpha: float, client: Any
    ) -> tuple[F64, float, float, int]:
        # Imported here: loading what jobs need takes longer than most fits.
        from elasticml.data.readers.arrays import from_arrays

        total = float(y.size if weights is None else weights.sum())
        data = from_arrays(X, y, weights, by="columns")
        return self._as_job(data, self._target_gap(y, weights), alpha, total, client)

    def _as_job(
        self, data: Source, target_gap: float, alpha: float, total: float, client: Any
    ) -> tuple[F64, float, float, int]:
        """Fit nonnegative coefficients as a job on column-partitioned data."""
        from elasticml.estimators.job_backend import fit_columns_as_job

        fit = fit_columns_as_job(
            data,
            None,
            client,
            Penalty(a1=0.0, a2=alpha / total, positive=True),
            1.0,
            intercept=self.fit_intercept,
            gap=target_gap,
            rounds=self.max_iter or 10_000,
        )
        if not fit.converged:
            warn_of_gap(fit.gap, target_gap, fit.steps)
        # This estimator's objective has no factor 1/2 before the squares.
        return fit.w, float(fit.b), 2.0 * total * fit.gap, fit.steps

    def _target_gap(self, y: F64, weights: F64 | None) -> float:
        """Return the gap to reach, in units of half the mean square."""
        mean = float(np.average(y, weights=weights)) if self.fit_intercept else 0.0
        return 0.5 * self.tol * float(np.average((y - mean) ** 2, weights=weights))

    def _function(
        self, X: Any, y: F64, weights: F64 | None, alpha: float
    ) -> tuple[float, LinearObjective]:
        """Return the sum of the weights, and the objective divided by twice that sum."""
        total = float(y.size if weights is None else weights.sum())
        function = LinearObjective(
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
        target_gap = self._target_gap(y, weights)
        steps = self.max_iter or 100
        rows, zero = (X, y, weights), np.zeros(function.n_model)
        minimum = minimum_of(function, rows, client, zero, gap=target_gap, steps=steps)
        return self._of_newton(minimum, target_gap, total, X.shape[1])

    def _of_newton(
        self, minimum: Minimum, target_gap: float, total: float, d: int
    ) -> tuple[F64, float, float, int]:
        if not minimum.converged:
            warn_of_gap(minimum.point.gap, target_gap, minimum.steps)
        w = minimum.point.w
        intercept = float(w[-1]) if self.fit_intercept else 0.0
        # In units of the sum of squares; at least 0 despite rounding; NaN stays NaN.
        gap = 2.0 * total * float(np.maximum(minimum.point.gap, 0.0))
        return w[:d].copy(), intercept, gap, minimum.steps

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _solved(matrix: ColumnMatrix, alpha: float) -> F64:
    """Solve the normal equations of columns, or of rows if there are fewer rows."""
    if matrix.n < matrix.d:
        return matrix.correlations(_solution(matrix.row_products(), matrix.y, alpha))
    columns = np.arange(matrix.d)
    return _solution(matrix.products(columns, columns), matrix.linear, alpha)


def _solution(G: F64, linear: F64, alpha: float) -> F64:
    """Solve ``(G + alpha I) x = linear``; if it is singular, return the minimum-norm solution."""
    G[np.diag_indices_from(G)] += alpha
    if alpha > 0.0:
        # Columns of unequal size, whose products would seem singular, get a diagonal of ones.
        scale = 1.0 / np.sqrt(np.diag(G))
        try:
            factor = scipy.linalg.cho_factor(G * np.outer(scale, scale), check_finite=False)
            x: F64 = scale * scipy.linalg.cho_solve(factor, scale * linear, check_finite=False)
            return x
        except np.linalg.LinAlgError:
            pass  # The penalty is below the rounding errors of G.
    min_norm: F64 = scipy.linalg.lstsq(G, linear)[0]
    return min_norm
