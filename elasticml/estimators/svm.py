"""Linear support vector machines with scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.parallel import FixedPieces
from elasticml.arrays import F64
from elasticml.estimators.backend_choice import (
    MODEL_VALUES_MIN,
    PRODUCT_VALUES_MIN,
    STEP_VALUES_MIN,
    choose_client,
    stored_values,
    threads_for,
)
from elasticml.estimators.base import LinearClassifier, warn_of_gap
from elasticml.estimators.linear_solver import (
    LinearProblem,
    LinearSolution,
    prepare,
    solve,
    solve_where_held,
)
from elasticml.estimators.row_table import RowTable
from elasticml.runtime.executors import parallel

if TYPE_CHECKING:
    from elasticml.estimators.dask_rows import DaskRows


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
        "penalty": [StrOptions({"l1", "l2"})],
        "loss": [StrOptions({"hinge", "squared_hinge"})],
        "dual": ["boolean", StrOptions({"auto"})],
        "tol": [Interval(Real, 0.0, None, closed="neither")],
        "C": [Interval(Real, 0.0, None, closed="neither")],
        "fit_intercept": ["boolean"],
        "intercept_scaling": [Interval(Real, 0, None, closed="neither")],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "random_state": ["random_state"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "n_jobs": [None, Integral],
        "multi_class": [StrOptions({"ovr"})],
    }

    def __init__(
        self,
        penalty: Literal["l1", "l2"] = "l2",
        *,
        loss: Literal["squared_hinge", "hinge"] = "squared_hinge",
        dual: bool | Literal["auto"] = "auto",
        tol: float = 1e-4,
        C: float = 1.0,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        class_weight: Any = None,
        random_state: Any = None,
        max_iter: int = 1000,
        n_jobs: int | None = None,
        client: Any = None,
        multi_class: Literal["ovr"] = "ovr",
        verbose: int = 0,
    ) -> None:
        self.penalty = penalty
        self.loss = loss
        self.dual = dual
        self.tol = tol
        self.C = C
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.class_weight = class_weight
        self.random_state = random_state
        self.max_iter = max_iter
        self.n_jobs = n_jobs
        self.client = client
        self.multi_class = multi_class
        self.verbose = verbose

    def _fit(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> None:
        with self._collections(X, y, sample_weight, offset) as rows:
            if rows is not None:
                self._fit_collections(rows, self._offset_at)
                return
        # Newton steps need float64; dual coordinate ascent also works on float32.
        is_dual = self.penalty == "l2" and (self.loss == "hinge" or self.dual is True)
        dtype = [np.float64, np.float32] if is_dual else np.float64
        X, y, weights = self._checked(
            X, y, sample_weight, accept_sparse="csr", dtype=dtype, order="C"
        )
        codes = self._codes(y)
        X, fixed = self._with_offset(X, offset)
        of_class = self._weights_of_classes(self.class_weight, y, weights)
        problem = self._problem(X.shape, fixed)
        positives = [1] if len(self.classes_) == 2 else range(len(self.classes_))

        def task(positive: int) -> tuple[F64, F64 | None]:
            return _against_rest(codes, positive, of_class, weights)

        least = PRODUCT_VALUES_MIN if problem.is_primal else STEP_VALUES_MIN
        least = least if len(positives) == 1 else MODEL_VALUES_MIN
        pool = parallel(threads_for(self.n_jobs, X, least))
        try:
            with choose_client(self.client, stored_values(X)) as client:
                self.solver_path_ = "in-process" if client is None else "job"
                self._keep(problem, _solve_all(problem, X, positives, task, client, pool))
        finally:
            pool.close()

    def _fit_collections(self, rows: DaskRows, fixed: int | None) -> None:
        """Fit as a job on partitions of Dask collections, where they are."""
        labels = rows.labels()
        self._classes_of(labels)
        if fixed is not None:
            self._check_two_classes()
        of_class = self._weights_of_counts(self.class_weight, labels)
        problem = self._problem((2, 1), fixed)
        n_classes = len(self.classes_)
        solutions = []
        for k in [1] if n_classes == 2 else range(n_classes):
            rest = of_class[0] if n_classes == 2 else 1.0
            targets = rows.against_rest(labels, k, np.array([rest, of_class[k]]))
            if problem.is_sparse:
                data = rows.columns(targets, problem.intercept_scaling)
            else:
                data = rows.source(targets)
            solutions.append(solve_where_held(problem, data, targets.total, rows.client))
        self.solver_path_ = "job"
        self._keep(problem, solutions)

    def _problem(self, shape: tuple[int, int], fixed: int | None) -> LinearProblem:
        dual, is_sparse = self.dual, self.penalty == "l1"
        if is_sparse and fixed is not None:
            raise ValueError("offset with penalty='l1': got both, wanted penalty='l2'")
        if is_sparse and (self.loss == "hinge" or dual is True):
            raise ValueError(
                f"penalty='l1' with loss={self.loss!r} and dual={dual!r}, wanted "
                "loss='squared_hinge' and dual=False or 'auto'"
            )
        if dual == "auto":
            dual = self.loss == "hinge" or shape[0] < shape[1]
        elif not dual and self.loss == "hinge":
            raise ValueError("dual=False with loss='hinge', which has no Hessian; use dual=True")
        return LinearProblem(
            is_primal=not dual and not is_sparse,
            is_sparse=is_sparse,
            loss=self.loss,
            strength=1.0 / self.C,
            intercept_scaling=float(self.intercept_scaling) if self.fit_intercept else None,
            tol=self.tol,
            rounds=self.max_iter,
            fixed=fixed,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )

    def _keep(self, problem: LinearProblem, solutions: list[LinearSolution]) -> None:
        is_newton = problem.is_primal and self.solver_path_ == "in-process"
        how = " and ".join(sorted({one.method for one in solutions}))
        self.method_ = "columns" if problem.is_sparse else "newton" if is_newton else how
        self.coef_ = np.stack([one.coef for one in solutions])
        self.intercept_ = np.array([one.intercept for one in solutions])
        # In units of the sum, like this estimator's objective.
        gaps = np.array([self.C * one.gap for one in solutions])
        self.dual_gap_ = float(gaps[0]) if len(gaps) == 1 else gaps
        self.n_iter_ = max(one.rounds for one in solutions)
        for one in solutions:
            warn_of_gap(one.gap, one.target_gap, one.rounds)


def _against_rest(
    codes: NDArray[np.int64], positive: int, of_class: F64, weights: F64 | None
) -> tuple[F64, F64 | None]:
    """Return the -1/+1 targets of a class and the row weights; weights are None if all are one."""
    is_positive = codes == positive
    rest = of_class[0] if len(of_class) == 2 else 1.0
    targets = np.where(is_positive, 1.0, -1.0)
    if of_class[positive] == rest == 1.0:
        return targets, weights
    each = np.where(is_positive, of_class[positive], rest)
    return targets, each if weights is None else each * weights


def _solve_all(
    problem: LinearProblem,
    X: Any,
    positives: Sequence[int],
    task: Callable[[int], tuple[F64, F64 | None]],
    client: Any,
    pool: Parallel,
) -> list[LinearSolution]:
    """Solve for each class: jobs and single classes serially, else in parallel over classes."""
    if len(positives) == 1 or client is not None:
        table = RowTable(X, pool)
        return [solve(problem, table, *task(k), client) for k in positives]
    table = RowTable(X)
    prepare(problem, table)
    return FixedPieces(pool).map(lambda k: solve(problem, table, *task(k), None), positives)
