"""Logistic regression with scikit-learn's interface."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import scipy.sparse
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.utils._param_validation import Interval

from elasticml.algorithms.linear.problem import Method, Problem
from elasticml.arrays import F64, is_lazy
from elasticml.estimators.backend_choice import STEP_VALUES_MIN, stored_values
from elasticml.estimators.base import LinearClassifier, warn_of_gap, with_parameters
from elasticml.estimators.rows import ArrayRows, Targets
from elasticml.estimators.solver import Case, Solution
from elasticml.jobs.user_warnings import warn

if TYPE_CHECKING:
    from elasticml.estimators.dask_rows import DaskRows

# Logistic regression by dual coordinate ascent: when it pays.

#: Stored values from which passes with threads pay more than the matrix products of Newton steps,
#: and below which one thread makes them.
VALUES_MIN: Final = STEP_VALUES_MIN
#: Largest mean of ``C s |x|^2`` for them; with a weaker penalty the number of passes grows.
STRENGTH_MAX: Final = 64.0
#: The same where one thread makes the passes and there are fewer columns than rows.
DESCENT_STRENGTH_MAX: Final = 4.0
#: Up to this number of columns Newton steps are faster than passes in one thread, however strong
#: the penalty is, unless there are fewer rows: their matrix of products is cheap.
NEWTON_COLUMNS_MAX: Final = 64
#: Least tolerance; below it, Newton's quadratic convergence is faster.
TOL_MIN: Final = 1e-7
#: Rows in the sample for the mean.
_SAMPLE: Final = 4096


def pays(X: Any, weights: F64 | None, C: float) -> bool:
    """Return whether dual passes over these rows are expected to be faster than Newton steps.

    They are where there are more columns than rows, and where the penalty is strong and the
    columns are not few.

    Parameters
    ----------
    X : ndarray or sparse (n, d)
    weights : ndarray (n,), optional
    C : float
        May be infinite.
    """
    if not math.isfinite(C):
        return False
    is_few = stored_values(X) < VALUES_MIN
    if is_few and X.shape[1] >= X.shape[0]:
        return True
    if is_few and X.shape[1] <= NEWTON_COLUMNS_MAX:
        return False
    # Few values are summed whole: that is cheaper than taking rows out of a sparse matrix.
    some = X if is_few else X[:: max(1, X.shape[0] // _SAMPLE)]
    values = some.data if scipy.sparse.issparse(some) else some
    values = values.astype(np.float64, copy=False).ravel(order="K")
    square = float(np.dot(values, values)) / max(1, some.shape[0])
    mean = 1.0 if weights is None else float(weights.mean())
    return bool(C * mean * square <= (DESCENT_STRENGTH_MAX if is_few else STRENGTH_MAX))


@with_parameters
class LogisticRegression(LinearClassifier):
    """Fit a binary or multinomial logistic regression, and certify how good the fit is.

    The interface is that of scikit-learn's ``LogisticRegression``. The objective is
    ``(1 - l1_ratio) / 2 |w|^2 + l1_ratio |w|_1 + C sum_i s_i loss_i`` with sample weights ``s_i``.
    The intercept is not penalised.

    Parameters
    ----------
    C : float, above 0
        May be infinite: then there is no penalty and no certificate.
    l1_ratio : float, from 0 to 1
        Share of the L1 penalty.
    penalty : class or import path, optional
        A function of one coefficient of your own in the place of the absolute value, with
        ``l1_ratio`` above 0 and two classes; it needs a ``conjugate``. Such a model is fitted in
        this process.
    penalty_options : mapping, optional
        Its parameters, by name; others have their defaults.
    tol : float
        A fit ends when its duality gap is at most ``tol`` times the objective of the zero model.
    fit_intercept : bool
    class_weight : mapping, "balanced" or None
    max_iter : int
        The most Newton steps; for a job, the most rounds. It also limits the passes of
        coordinate ascent before the Newton steps, of which there are at most 300, or 30 with
        at least 8 million stored values.
    warm_start : bool
        Start from the last fit's model.
    n_jobs : int, optional
        Threads for products with at least 4 million stored values, and for passes over the rows,
        whose result then differs within the tolerance. Not used with an L1 penalty.
    client : distributed.Client or address, optional
        Fit as an elastic job on this cluster; for the default see ``solver_path_``. A model that
        cannot be fitted as a job is fitted here, with a warning.
    random_state : accepted; nothing is drawn
    dual, intercept_scaling, solver, verbose
        Accepted for compatibility with scikit-learn. Values other than the defaults are ignored,
        with a warning.

    Attributes
    ----------
    coef_ : ndarray (1, n_features) or (n_classes, n_features)
    intercept_ : ndarray (1,) or (n_classes,)
    classes_ : ndarray (n_classes,)
    dual_gap_ : float
        The certificate: the objective is at most this far above its minimum. NaN if ``C`` is
        infinite.
    n_iter_ : ndarray (1,)
    method_ : "newton", "dual" or "columns"
        The method that was used. "newton": Newton steps. "dual": dual coordinate ascent, for
        two classes without an intercept, if there are more columns than rows, if ``C`` times the
        mean square of the rows is at most 4 and there are more than 64 columns, or 64 with at
        least 8 million stored values; ``tol`` must be at least 1e-7. "columns": proximal Newton on
        working sets of columns, for the L1 penalty.
    solver_path_ : "in-process" or "job"
        How it was fitted: as a job if ``client`` is given, or if there is a default client and at
        least 50 million stored values; otherwise, and with an L1 penalty and more than two classes,
        in this process.
    n_features_in_ : int

    Examples
    --------
    >>> classifier = em.LogisticRegression(C=0.1).fit(X, y)
    >>> classifier.predict_proba(X[:2]).shape
    (2, 2)
    """

    _loss = "logistic"
    _without_meaning = ("dual", "intercept_scaling", "solver", "verbose")
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **LinearClassifier._parameter_constraints,
        "C": [Interval(Real, 0.0, None, closed="right")],
        "tol": [Interval(Real, 0.0, None, closed="neither")],
    }

    _: KW_ONLY
    C: float = 1.0
    l1_ratio: float = 0.0
    penalty: Any = None
    penalty_options: dict[str, float] | None = None
    tol: float = 1e-4
    fit_intercept: bool = True
    class_weight: Any = None
    max_iter: int = 100
    warm_start: bool = False
    n_jobs: int | None = None
    client: Any = None
    dual: bool = False
    intercept_scaling: float = 1.0
    random_state: Any = None
    solver: str = "lbfgs"
    verbose: int = 0

    def _rules_of_rows(self) -> dict[str, Any]:
        # Newton steps need float64; dual coordinate ascent also works on float32.
        dtype = [np.float64, np.float32] if self._may_be_dual() else np.float64
        return {"accept_sparse": "csr", "dtype": dtype, "order": "C"}

    def _is_sparse(self) -> bool:
        return self.l1_ratio > 0.0 and math.isfinite(self.C)

    def _may_be_dual(self) -> bool:
        """Return whether the settings allow dual coordinate ascent; the rows decide then."""
        is_plain = not self.fit_intercept and not self.warm_start and not self._is_sparse()
        return is_plain and self.tol >= TOL_MIN

    def _only_here(self, rows: ArrayRows | DaskRows) -> str | None:
        n_classes = len(rows.labels.values) if self._is_sparse() else 2
        if n_classes <= 2:
            own = self.penalty is not None
            return "LogisticRegression with a penalty of your own" if own else None
        return f"LogisticRegression with an L1 penalty and {n_classes} classes"

    def _targets(self, rows: ArrayRows | DaskRows) -> list[Targets]:
        of_class = self._begin(rows)
        if len(of_class) > 2:
            return [rows.codes(of_class)]
        return [rows.against_rest(1, float(of_class[0]), float(of_class[1]))]

    def _problem(self, rows: ArrayRows | DaskRows, targets: Targets, number: int) -> Problem:
        is_sparse, total = self._is_sparse(), targets.total
        if is_sparse and self._fixed is not None:
            raise ValueError("offset with l1_ratio above 0: got both, wanted l1_ratio=0")
        if self.penalty is not None and len(self.classes_) > 2:
            raise ValueError(
                f"penalty with {len(self.classes_)} classes: got one of your own, wanted none"
            )
        strength = 1.0 / (self.C * total) if total > 0.0 else 0.0
        method: Method = "columns" if is_sparse else "newton"
        if isinstance(rows, ArrayRows) and rows.client is None and self._may_be_dual():
            is_dual = len(self.classes_) == 2 and pays(rows.X, targets.weights, self.C)
            method = "dual" if is_dual else "newton"
        return Problem(
            loss="logistic",
            l1=self.l1_ratio * strength if is_sparse else 0.0,
            l2=(1.0 - self.l1_ratio) * strength if is_sparse else strength,
            terms=self._terms(self.l1_ratio * strength),
            intercept=1.0 if self.fit_intercept else None,
            classes=len(self.classes_),
            fixed=self._fixed,
            gap=self.tol * math.log(len(self.classes_)),
            rounds=self.max_iter,
            method=method,
        )

    def _units(self, targets: Targets) -> float:
        return self.C * targets.total

    def _keep(self, cases: Sequence[Case], solutions: Sequence[Solution]) -> None:
        super()._keep(cases, solutions)
        self.method_, self.dual_gap_ = solutions[0].method, float(self.dual_gap_[0])
        self.n_iter_ = np.array([solutions[0].rounds], np.int32)

    def _warn_of(self, problem: Problem, solution: Solution) -> None:
        if math.isfinite(self.C):
            warn_of_gap(solution.gap, problem.gap, solution.rounds)
            return
        warn(
            "without a penalty (C=inf) there is no certificate, and the objective still decreases "
            f"after {solution.rounds} steps: if the classes are linearly separable there is no "
            "finite minimiser, so use a finite C; else raise max_iter"
        )

    def predict_proba(self, X: Any, offset: Any = None) -> Any:
        """Return the probability of each class for each row; shape (n_samples, n_classes)."""
        return self._by_class("predict_proba", X, offset, expit, softmax)

    def predict_log_proba(self, X: Any, offset: Any = None) -> Any:
        """Return the logarithm of :meth:`predict_proba`, without underflow to log(0)."""
        return self._by_class("predict_log_proba", X, offset, log_expit, log_softmax)

    def _by_class(self, method: str, X: Any, offset: Any, of_two: Any, of_all: Any) -> Any:
        if is_lazy(X):
            return self._lazily(method, X, offset, np.float64, len(self.classes_))
        margins = self.decision_function(X, offset)
        if margins.ndim == 1:
            return np.stack([of_two(-margins), of_two(margins)], axis=1)
        return of_all(margins, axis=1)
