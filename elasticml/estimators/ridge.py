"""Ridge regression with scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import Interval, StrOptions

from elasticml.algorithms.linear.problem import Method, Problem
from elasticml.estimators.base import LinearRegressor, with_parameters
from elasticml.estimators.rows import ArrayRows, Targets
from elasticml.estimators.solver import Case, Solution
from elasticml.objectives.penalties import Absolute

if TYPE_CHECKING:
    from elasticml.estimators.dask_rows import DaskRows

SolverName = Literal[
    "auto", "cholesky", "newton", "svd", "lsqr", "sparse_cg", "sag", "saga", "lbfgs"
]
#: Solvers of scikit-learn that have no counterpart here.
_OTHER_SOLVERS: Final = ("svd", "lsqr", "sparse_cg", "sag", "saga", "lbfgs")

#: The most columns or rows for which ``solver="auto"`` solves the normal equations: 32 MiB.
_EQUATIONS_MAX: Final = 2000


@with_parameters
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
        **LinearRegressor._parameter_constraints,
        "alpha": [Interval(Real, 0, None, closed="left"), "array-like"],
        "max_iter": [Interval(Integral, 1, None, closed="left"), None],
        "solver": [StrOptions({"auto", "cholesky", "newton", *_OTHER_SOLVERS})],
    }

    _rules: ClassVar[dict[str, Any]] = {**LinearRegressor._rules, "multi_output": True}

    alpha: float | ArrayLike = 1.0
    _: KW_ONLY
    fit_intercept: bool = True
    max_iter: int | None = None
    tol: float = 1e-4
    solver: SolverName = "auto"
    positive: bool = False
    client: Any = None
    copy_X: bool = True
    random_state: Any = None

    def _ignored(self) -> list[str]:
        solver = [f"solver={self.solver!r}"] if self.solver in _OTHER_SOLVERS else []
        return [*super()._ignored(), *solver]

    def _only_here(self, rows: ArrayRows | DaskRows) -> str | None:
        # Without a penalty a job on column-partitioned data has no certificate.
        if self.positive and not np.all(self.alpha):
            return "Ridge with positive=True and alpha=0, which has no certificate,"
        if np.ndim(self.alpha) > 0 and not isinstance(rows, ArrayRows):
            return "Ridge with several alphas"
        return None

    def _problem(self, rows: ArrayRows | DaskRows, targets: Targets, number: int) -> Problem:
        alphas = np.ravel(np.asarray(self.alpha, np.float64))
        n_targets = 1 if self._has_one_target else np.atleast_2d(getattr(rows, "y", 0.0)).shape[1]
        if alphas.size not in (1, n_targets):
            raise ValueError(
                f"alpha has {alphas.size} values for {n_targets} targets, wanted one, or one each"
            )
        if not np.all((alphas >= 0.0) & np.isfinite(alphas)):
            raise ValueError(f"alpha: got {self.alpha!r}, wanted finite numbers not below 0")
        method: Method = "columns" if self.positive else "newton"
        is_exact = self.solver != "newton" and (
            self.solver == "cholesky" or min(rows.shape) <= _EQUATIONS_MAX
        )
        if rows.client is None and not self.positive and is_exact:
            method = "equations"
        size = targets.variance if self.fit_intercept else targets.square
        return Problem(
            loss="squared",
            l2=float(alphas[number % alphas.size]) / max(targets.total, 1e-300),
            terms=Absolute(self.positive),
            intercept=1.0 if self.fit_intercept else None,
            # Constant targets leave no more than rounding errors of predictions.
            gap=max(0.5 * self.tol * size, float(np.finfo(float).eps) ** 2 * targets.square),
            rounds=self.max_iter or (10_000 if self.positive else 100),
            method=method,
        )

    def _units(self, targets: Targets) -> float:
        # This estimator's objective has no factor 1/2 before the squares.
        return 2.0 * targets.total

    def _keep(self, cases: Sequence[Case], solutions: Sequence[Solution]) -> None:
        super()._keep(cases, solutions)
        words = {"columns": "coordinate descent", "equations": "cholesky", "newton": "newton"}
        self.solver_ = words[cases[0].problem.method]
        self.n_iter_ = np.array([one.rounds for one in solutions], np.int32)
