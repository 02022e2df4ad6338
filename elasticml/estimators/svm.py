"""Linear support vector machines with scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from elasticml.algorithms.linear.problem import Method, Problem
from elasticml.estimators.backend_choice import (
    MODEL_VALUES_MIN,
    PRODUCT_VALUES_MIN,
    STEP_VALUES_MIN,
)
from elasticml.estimators.base import LinearClassifier, with_parameters
from elasticml.estimators.rows import ArrayRows, Targets
from elasticml.estimators.solver import Case, Solution

if TYPE_CHECKING:
    from elasticml.estimators.dask_rows import DaskRows


@with_parameters
class LinearSVC(LinearClassifier):
    """Fit a linear support vector classifier, and certify how good the fit is.

    The interface is that of scikit-learn's ``LinearSVC``. The objective is
    ``|w|^2 / 2 + C sum_i s_i loss(y_i (w.x_i + b))`` with sample weights ``s_i``, or ``|w|_1`` in
    place of the first term. Several classes are trained one against the rest. As in LIBLINEAR, the
    intercept is penalised: it is the coefficient of a column of value ``intercept_scaling``.

    Parameters
    ----------
    penalty : "l2" or "l1"
        "l1" requires the squared hinge, and ``dual`` False or "auto".
    loss : "squared_hinge" or "hinge"
    dual : bool or "auto"
        The method. True: dual coordinate ascent, or CoCoA from 8 million stored values. False:
        Newton steps; only for the squared hinge. "auto": Newton steps if they are possible and
        there are at least as many rows as columns. A job
        does not depend on it: Newton steps for the squared hinge, CoCoA for the hinge.
    tol : float
        A fit ends when its duality gap is at most ``tol`` times the objective of the zero model.
    C : float, above 0
    fit_intercept : bool
    intercept_scaling : float, above 0
    class_weight : mapping, "balanced" or None
        With more than two classes, the weight of a class applies when it is the positive one, as
        in LIBLINEAR.
    random_state : int, RandomState or None
        For the order of rows.
    max_iter : int
        The most passes over the rows or Newton steps; for a job, the most rounds.
    n_jobs : int, optional
        Threads in this process. With more than two classes, each thread fits a class, with the
        same result. With two classes the threads share the passes over the rows, and the result
        differs within the tolerance. Small data use one thread: below 250,000 stored values; with
        two classes below 8 million, and for Newton steps below 4 million.
    client : distributed.Client or address, optional
        Fit as an elastic job on this cluster; for the default see ``solver_path_``.
    multi_class : "ovr"
        One class against the rest.
    verbose
        Accepted for compatibility with scikit-learn. Ignored with a warning if it is not 0.

    Attributes
    ----------
    coef_ : ndarray (1, n_features) or (n_classes, n_features)
    intercept_ : ndarray (1,) or (n_classes,)
    classes_ : ndarray (n_classes,)
    dual_gap_ : float or ndarray (n_classes,)
        The certificate: the objective is at most this far above its minimum.
    n_iter_ : int
        The largest number of passes or steps over the classes.
    method_ : "dual", "interior point", "newton" or "columns"
        The method that was used. "interior point": for the hinge, with at most 500 columns and at
        least as many rows, if coordinate ascent would need many passes. "columns": proximal Newton
        on working sets of columns, for the L1 penalty.
    solver_path_ : "in-process" or "job"
        How it was fitted: as a job if ``client`` is given, or if there is a default client and at
        least 50 million stored values; otherwise in this process.
    n_features_in_ : int

    Examples
    --------
    >>> svm = em.LinearSVC(C=0.1).fit(X, y)
    >>> bool(svm.score(X, y) > 0.7), bool(svm.dual_gap_ < 1e-2)
    (True, True)
    """

    _without_meaning = ("verbose",)
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **LinearClassifier._parameter_constraints,
        "penalty": [StrOptions({"l1", "l2"})],
        "loss": [StrOptions({"hinge", "squared_hinge"})],
        "dual": ["boolean", StrOptions({"auto"})],
        "tol": [Interval(Real, 0.0, None, closed="neither")],
        "C": [Interval(Real, 0.0, None, closed="neither")],
        "intercept_scaling": [Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
        "multi_class": [StrOptions({"ovr"})],
    }

    penalty: Literal["l1", "l2"] = "l2"
    _: KW_ONLY
    loss: Literal["squared_hinge", "hinge"] = "squared_hinge"
    dual: bool | Literal["auto"] = "auto"
    tol: float = 1e-4
    C: float = 1.0
    fit_intercept: bool = True
    intercept_scaling: float = 1.0
    class_weight: Any = None
    random_state: Any = None
    max_iter: int = 1000
    n_jobs: int | None = None
    client: Any = None
    multi_class: Literal["ovr"] = "ovr"
    verbose: int = 0

    def _rules_of_rows(self) -> dict[str, Any]:
        # Newton steps need float64; dual coordinate ascent also works on float32.
        is_dual = self.penalty == "l2" and (self.loss == "hinge" or self.dual is True)
        dtype = [np.float64, np.float32] if is_dual else np.float64
        return {"accept_sparse": "csr", "dtype": dtype, "order": "C"}

    def _targets(self, rows: ArrayRows | DaskRows) -> list[Targets]:
        of_class = self._begin(rows).tolist()
        if len(of_class) == 2:
            return [rows.against_rest(1, *of_class)]
        return [rows.against_rest(k, 1.0, own) for k, own in enumerate(of_class)]

    def _problem(self, rows: ArrayRows | DaskRows, targets: Targets, number: int) -> Problem:
        dual, is_sparse = self.dual, self.penalty == "l1"
        if is_sparse and self._fixed is not None:
            raise ValueError("offset with penalty='l1': got both, wanted penalty='l2'")
        if is_sparse and (self.loss == "hinge" or dual is True):
            raise ValueError(
                f"penalty='l1' with loss={self.loss!r} and dual={dual!r}, wanted "
                "loss='squared_hinge' and dual=False or 'auto'"
            )
        if dual == "auto":
            dual = self.loss == "hinge" or rows.shape[0] < rows.shape[1]
        elif not dual and self.loss == "hinge":
            raise ValueError("dual=False with loss='hinge', which has no Hessian; use dual=True")
        if number == 0:
            self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        strength = 1.0 / (self.C * targets.total) if targets.total > 0.0 else 0.0
        method: Method = "columns" if is_sparse else "dual" if dual else "newton"
        return Problem(
            loss=self.loss,
            l1=strength if is_sparse else 0.0,
            l2=0.0 if is_sparse else strength,
            intercept=float(self.intercept_scaling) if self.fit_intercept else None,
            is_free=False,
            fixed=self._fixed,
            # The loss of the zero model is 1.
            gap=self.tol,
            rounds=self.max_iter,
            method=method,
            seed=self._seed,
        )

    def _units(self, targets: Targets) -> float:
        return self.C * targets.total

    def _least_values(self, cases: Sequence[Case]) -> int:
        if len(cases) > 1:
            return MODEL_VALUES_MIN
        is_newton = cases[0].problem.method == "newton"
        return PRODUCT_VALUES_MIN if is_newton else STEP_VALUES_MIN

    def _keep(self, cases: Sequence[Case], solutions: Sequence[Solution]) -> None:
        super()._keep(cases, solutions)
        self.method_ = " and ".join(sorted({one.method for one in solutions}))
        if len(solutions) == 1:
            self.dual_gap_ = float(self.dual_gap_[0])
        self.n_iter_ = max(one.rounds for one in solutions)
