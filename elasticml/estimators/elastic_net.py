"""The lasso and the elastic net with scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy.sparse

from elasticml.algorithms.linear.problem import Problem
from elasticml.arrays import F64
from elasticml.estimators.base import LinearRegressor, warn_of_gap, with_parameters
from elasticml.estimators.rows import ArrayRows, Targets
from elasticml.estimators.solver import Case, Solution
from elasticml.jobs.user_warnings import warn

if TYPE_CHECKING:
    from elasticml.estimators.dask_rows import DaskRows


@with_parameters
class ElasticNet(LinearRegressor):
    """Fit a linear regression with an L1 and an L2 penalty, and certify how good the fit is.

    Minimises ``1/(2 S) sum_i s_i (y_i - w.x_i - b)^2 + alpha l1_ratio |w|_1
    + alpha (1 - l1_ratio) / 2 |w|^2`` with ``S = sum_i s_i`` and an unpenalised intercept b: in
    this process on working sets of columns with gap-safe screening, or as a job on
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
    penalty : class or import path, optional
        A function of one coefficient of your own in the place of the absolute value; it needs a
        ``conjugate``. Such a model is fitted in this process.
    penalty_options : mapping, optional
        Its parameters, by name; others have their defaults.
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
    _rules: ClassVar[dict[str, Any]] = {
        **LinearRegressor._rules,
        "accept_sparse": "csc",
        "dtype": [np.float64, np.float32],
        "multi_output": True,
    }

    alpha: float = 1.0
    _: KW_ONLY
    l1_ratio: float = 0.5
    fit_intercept: bool = True
    max_iter: int = 1000
    tol: float = 1e-4
    warm_start: bool = False
    positive: bool = False
    penalty: Any = None
    penalty_options: dict[str, float] | None = None
    client: Any = None
    precompute: Any = False
    copy_X: bool = True
    random_state: Any = None
    selection: str = "cyclic"

    def _only_here(self, rows: ArrayRows | DaskRows) -> str | None:
        if self.penalty is not None:
            return f"{type(self).__name__} with a penalty of your own"
        if self.alpha > 0.0:
            return None
        return f"{type(self).__name__} with alpha=0, which has no certificate,"

    def _problem(self, rows: ArrayRows | DaskRows, targets: Targets, number: int) -> Problem:
        return Problem(
            loss="squared",
            l1=self.alpha * self.l1_ratio,
            l2=self.alpha * (1.0 - self.l1_ratio),
            terms=self._terms(self.alpha * self.l1_ratio, self.positive),
            intercept=1.0 if self.fit_intercept else None,
            gap=self.tol * (targets.variance if self.fit_intercept else targets.square),
            rounds=self.max_iter,
            method="columns",
        )

    def _starts(self, n_models: list[int], d: int) -> list[tuple[F64, F64] | None]:
        # The last fit may have been without the restriction to nonnegative coefficients.
        starts = super()._starts(n_models, d)
        return [s and (np.maximum(s[0], 0.0) if self.positive else s[0], s[1]) for s in starts]

    def _keep(self, cases: Sequence[Case], solutions: Sequence[Solution]) -> None:
        super()._keep(cases, solutions)
        rounds = [one.rounds for one in solutions]
        self.n_iter_: Any = rounds[0] if len(rounds) == 1 else rounds

    def _warn_of(self, problem: Problem, solution: Solution) -> None:
        if self.alpha > 0.0:
            warn_of_gap(solution.gap, problem.gap, solution.rounds)
            return
        warn(
            f"alpha=0 means no penalty, and then the gap ({solution.gap:.3g}) is the whole "
            "objective, however good the model: use em.Ridge(alpha=0), which solves least squares"
        )

    @property
    def sparse_coef_(self) -> Any:
        """The coefficients as a sparse matrix, (1, n_features) or (n_targets, n_features)."""
        return scipy.sparse.csr_array(np.atleast_2d(self.coef_))


@with_parameters
class Lasso(ElasticNet):
    """Linear regression with an L1 penalty: :class:`ElasticNet` with ``l1_ratio`` 1.

    Parameters
    ----------
    alpha, fit_intercept, max_iter, tol, warm_start, positive, penalty, penalty_options, client
        As for :class:`ElasticNet`, which also has the attributes.
    precompute, copy_X, random_state, selection
        Accepted for compatibility with scikit-learn.

    Examples
    --------
    >>> em.Lasso(alpha=0.1).fit(X, X[:, 0]).coef_.round(1)
    array([0.9, 0. , 0. , 0. , 0. ])
    """

    l1_ratio: float = field(default=1.0, init=False)
