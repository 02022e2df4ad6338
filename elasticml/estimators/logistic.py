"""Logistic regression with scikit-learn's interface."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.utils._param_validation import Interval, StrOptions

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.linear_objective import LinearObjective
from elasticml.algorithms.linear.row_blocks import BorderedRows, RowBlocks
from elasticml.algorithms.linear.softmax_objective import SoftmaxObjective
from elasticml.algorithms.linear.sparse_classifier import SparseClassifier
from elasticml.algorithms.linear.sparse_softmax import SparseSoftmax
from elasticml.algorithms.linear.working_sets import SparseFit
from elasticml.algorithms.parallel import Serial
from elasticml.arrays import F64
from elasticml.estimators.backend_choice import (
    PRODUCT_VALUES_MIN,
    STEP_VALUES_MIN,
    choose_client,
    stored_values,
    threads_for,
)
from elasticml.estimators.base import (
    LinearClassifier,
    is_lazy,
    lazily,
    warn_fitted_here,
    warn_loaded_here,
    warn_of_gap,
    warn_without_minimum,
)
from elasticml.estimators.linear_solver import (
    LinearProblem,
    LinearSolution,
    minimum_of,
    solve,
)
from elasticml.estimators.row_table import RowTable, by_columns
from elasticml.runtime.executors import parallel

if TYPE_CHECKING:
    from elasticml.data.source import Source
    from elasticml.estimators.dask_rows import DaskRows

# Logistic regression by dual coordinate ascent: when it pays, and the fit.


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
#: The most passes; afterwards Newton steps continue from the model.
PASSES_MAX: Final = 30
DESCENT_PASSES_MAX: Final = 300
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
    tol : float
        A fit ends when its duality gap is at most ``tol`` times the objective of the zero model.
    fit_intercept : bool
    class_weight : mapping, "balanced" or None
    max_iter : int
        The most Newton steps; with an L1 penalty and more than two classes, the most cycles over
        the classes; for a job, the most rounds. It also limits the passes of coordinate ascent
        before the Newton steps, of which there are at most 300, or 30 with at least 8 million
        stored values.
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
        "C": [Interval(Real, 0.0, None, closed="right")],
        "l1_ratio": [Interval(Real, 0.0, 1.0, closed="both")],
        "tol": [Interval(Real, 0.0, None, closed="neither")],
        "fit_intercept": ["boolean"],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "n_jobs": [None, Integral],
    }

    def __init__(
        self,
        *,
        C: float = 1.0,
        l1_ratio: float = 0.0,
        tol: float = 1e-4,
        fit_intercept: bool = True,
        class_weight: Any = None,
        max_iter: int = 100,
        warm_start: bool = False,
        n_jobs: int | None = None,
        client: Any = None,
        dual: bool = False,
        intercept_scaling: float = 1.0,
        random_state: Any = None,
        solver: str = "lbfgs",
        verbose: int = 0,
    ) -> None:
        self.C = C
        self.l1_ratio = l1_ratio
        self.tol = tol
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.warm_start = warm_start
        self.n_jobs = n_jobs
        self.client = client
        self.dual = dual
        self.intercept_scaling = intercept_scaling
        self.random_state = random_state
        self.solver = solver
        self.verbose = verbose

    def _fit(self, X: Any, y: Any, sample_weight: Any, offset: Any) -> None:
        with self._collections(X, y, sample_weight, offset) as lazy:
            if lazy is not None and self._fit_collections(lazy, self._offset_at):
                return
        if lazy is not None:
            warn_loaded_here("LogisticRegression with an L1 penalty and more than two classes")
        dtype = [np.float64, np.float32] if self._may_be_dual() else np.float64
        X, y, weights = self._checked(
            X, y, sample_weight, accept_sparse="csr", dtype=dtype, order="C"
        )
        codes = self._codes(y)
        X, fixed = self._with_offset(X, offset)
        weights = self._weighted(y, codes, weights)
        if self._is_sparse(fixed):
            if self.client is not None and len(self.classes_) > 2:
                warn_fitted_here(
                    f"LogisticRegression with an L1 penalty and {len(self.classes_)} classes"
                )
            self._fit_sparse(X, codes, weights)
            return
        pool = parallel(threads_for(self.n_jobs, X, PRODUCT_VALUES_MIN))
        try:
            if len(self.classes_) == 2:
                self._fit_binary(X, np.where(codes == 1, 1.0, -1.0), weights, pool, fixed)
            else:
                self._fit_softmax(X.astype(np.float64, copy=False), codes, weights, pool)
        finally:
            pool.close()

    def _fit_collections(self, rows: DaskRows, fixed: int | None) -> bool:
        """Fit as a job on partitions of Dask collections; return False if no job can."""
        labels = rows.labels()
        self._classes_of(labels)
        if fixed is not None:
            self._check_two_classes()
        of_class = self._weights_of_counts(self.class_weight, labels)
        n, is_sparse, of_classes = len(self.classes_), self._is_sparse(fixed), None
        if n == 2:
            targets = rows.against_rest(labels, 1, of_class)
        elif is_sparse:
            return False
        else:
            targets, of_classes = rows.codes(labels, of_class), of_class * labels.weights
        total = targets.total
        if total <= 0.0:
            raise ValueError("the weights of all rows are 0, wanted some above 0")
        self.solver_path_ = "job"
        if is_sparse:
            start = self._start(1, rows.n_columns)[: rows.n_columns]
            data = rows.columns(targets)
            self._keep_sparse(self._as_column_job(data, total, start, rows.client), total)
            return True
        target_gap = self.tol * math.log(n)
        minimum = rows.minimise(
            targets,
            loss="logistic",
            l2=1.0 / (self.C * total),
            intercept=self.fit_intercept,
            gap=target_gap,
            rounds=self.max_iter,
            of_classes=of_classes,
            fixed=fixed,
        )
        self._keep(minimum, target_gap, total, 1 if n == 2 else n, rows.n_columns)
        return True

    def _weighted(self, y: Any, codes: NDArray[np.int64], weights: F64 | None) -> F64 | None:
        """Return the sample weights times the class weights."""
        if self.class_weight is not None:
            of_class = self._weights_of_classes(self.class_weight, y, weights)
            weights = of_class[codes] if weights is None else of_class[codes] * weights
        if weights is not None and weights.sum() <= 0.0:
            raise ValueError("the weights of all rows are 0, wanted some above 0")
        return weights

    def _is_sparse(self, fixed: int | None) -> bool:
        """Whether there is an L1 penalty, which excludes an offset."""
        is_sparse = self.l1_ratio > 0.0 and math.isfinite(self.C)
        if is_sparse and fixed is not None:
            raise ValueError("offset with l1_ratio above 0: got both, wanted l1_ratio=0")
        return is_sparse

    def _may_be_dual(self) -> bool:
        """Return whether the settings allow dual coordinate ascent; the rows decide then."""
        is_ridge = self.l1_ratio == 0.0 or not math.isfinite(self.C)
        is_plain = not self.fit_intercept and not self.warm_start and is_ridge
        return is_plain and self.tol >= TOL_MIN

    def _fit_binary(
        self, X: Any, targets: F64, weights: F64 | None, pool: Parallel, fixed: int | None
    ) -> None:
        with choose_client(self.client, stored_values(X)) as client:
            start = self._start(1, X.shape[1])
            if fixed is not None:
                start[fixed] = 1.0
            if client is None and self._may_be_dual() and pays(X, weights, self.C):
                limit = DESCENT_PASSES_MAX if stored_values(X) < VALUES_MIN else PASSES_MAX
                problem = LinearProblem(
                    loss="logistic",
                    strength=1.0 / self.C,
                    intercept_scaling=None,
                    tol=self.tol,
                    rounds=min(self.max_iter, limit),
                    seed=0,
                    fixed=fixed,
                )
                solution = solve(problem, RowTable(X, pool), targets, weights, None)
                if solution.gap <= solution.target_gap:
                    self._keep_dual(solution)
                    return
                start = solution.coef
            self._fit_newton(
                X.astype(np.float64, copy=False), targets, weights, pool, start, client, fixed
            )

    def _keep_dual(self, solution: LinearSolution) -> None:
        self.solver_path_, self.method_ = "in-process", "dual"
        self.coef_, self.intercept_ = solution.coef[np.newaxis], np.zeros(1)
        self.dual_gap_ = self.C * solution.gap
        self.n_iter_ = np.array([solution.rounds], np.int32)

    def _fit_newton(
        self,
        X: Any,
        targets: F64,
        weights: F64 | None,
        pool: Parallel,
        start: F64,
        client: Any,
        fixed: int | None,
    ) -> None:
        rows = RowBlocks(X, pool)
        total = float(rows.n if weights is None else weights.sum())
        function = LinearObjective(
            rows,
            targets,
            weights,
            loss="logistic",
            l2=1.0 / (self.C * total),
            intercept_scaling=1.0 if self.fit_intercept else None,
            is_free=True,
            fixed=fixed,
        )
        is_warm = client is None and start.any()
        if is_warm and not function.at(start).value <= function.at(function.zero()).value:
            # Badly misclassified rows have almost no curvature: steps from there lead nowhere.
            start = function.zero()
        self._minimise(function, (X, targets, weights), start, client, total)

    def _minimise(
        self,
        function: LinearObjective | SoftmaxObjective,
        rows: tuple[Any, F64, F64 | None],
        start: F64,
        client: Any,
        total: float,
    ) -> None:
        """Minimise the objective here or as a job, and keep the model."""
        n_classes = len(self.classes_)
        target_gap = self.tol * math.log(n_classes)
        self.solver_path_ = "in-process" if client is None else "job"
        minimum = minimum_of(
            function, rows, client, start, gap=target_gap, steps=self.max_iter, factored=True
        )
        n_models = 1 if n_classes == 2 else n_classes
        self._keep(minimum, target_gap, total, n_models, rows[0].shape[1])

    def _fit_softmax(
        self, X: Any, codes: NDArray[np.int64], weights: F64 | None, pool: Parallel
    ) -> None:
        rows, n_classes = RowBlocks(X, pool), len(self.classes_)
        total = float(rows.n if weights is None else weights.sum())
        function = SoftmaxObjective(
            rows,
            codes,
            weights,
            classes=n_classes,
            l2=1.0 / (self.C * total),
            intercept=self.fit_intercept,
        )
        labelled, start = (X, codes.astype(np.float64), weights), self._start(n_classes, rows.d)
        with choose_client(self.client, stored_values(X)) as client:
            self._minimise(function, labelled, start, client, total)

    def _fit_sparse(self, X: Any, codes: NDArray[np.int64], weights: F64 | None) -> None:
        n_classes, d = len(self.classes_), X.shape[1]
        total = float(X.shape[0] if weights is None else weights.sum())
        n_models = 1 if n_classes == 2 else n_classes
        W = self._start(n_models, d).reshape(n_models, -1)
        W, b = W[:, :d], W[:, d:].sum(axis=1)
        penalty, gap = self._sparse_goal(n_classes, total)
        if n_classes == 2:
            fit = self._fit_two(X, np.where(codes == 1, 1.0, -1.0), weights, (W[0], float(b[0])))
        else:
            solver = SparseSoftmax(
                by_columns(X), codes, weights, classes=n_classes, intercept=self.fit_intercept
            )
            solver.begin(W, b)
            fit = solver.solve(penalty, gap, self.max_iter)
            self.solver_path_ = "in-process"
        self._keep_sparse(fit, total)

    def _sparse_goal(self, n_classes: int, total: float) -> tuple[Penalty, float]:
        """Return the penalty and the gap to reach, in units of the sum over rows."""
        penalty = Penalty(a1=self.l1_ratio / self.C, a2=(1.0 - self.l1_ratio) / self.C)
        return penalty, self.tol * math.log(n_classes) * total

    def _keep_sparse(self, fit: SparseFit, total: float) -> None:
        self.method_ = "columns"
        self.coef_, self.intercept_ = np.atleast_2d(fit.w), np.atleast_1d(fit.b)
        self.dual_gap_ = self.C * fit.gap
        self.n_iter_ = np.array([fit.steps], np.int32)
        if not fit.converged:
            wanted = self.tol * math.log(len(self.classes_))
            warn_of_gap(fit.gap / total, wanted, fit.steps)

    def _fit_two(
        self, X: Any, targets: F64, weights: F64 | None, start: tuple[F64, float]
    ) -> SparseFit:
        """Fit two classes with an L1 penalty, here or as a job on column-partitioned data."""
        total = float(targets.size if weights is None else weights.sum())
        with choose_client(self.client, stored_values(X)) as client:
            self.solver_path_ = "in-process" if client is None else "job"
            if client is not None:
                # Imported here: loading what jobs need takes longer than most fits.
                from elasticml.data.readers.arrays import from_arrays

                data = from_arrays(X, targets, weights, by="columns")
                return self._as_column_job(data, total, start[0], client)
            is_sparse = scipy.sparse.issparse(X)
            solver = SparseClassifier(
                by_columns(X),
                targets,
                weights,
                loss="logistic",
                intercept=self.fit_intercept,
                rows=BorderedRows(RowBlocks(X, Serial()), None) if is_sparse else None,
            )
            solver.begin(*start)
            return solver.solve(*self._sparse_goal(2, total), self.max_iter)

    def _as_column_job(self, data: Source, total: float, start: F64, client: Any) -> SparseFit:
        from elasticml.estimators.job_backend import fit_columns_as_job

        penalty, gap = self._sparse_goal(2, total)
        return fit_columns_as_job(
            data,
            start if self.warm_start else None,
            client,
            penalty,
            total,
            loss="logistic",
            intercept=self.fit_intercept,
            gap=gap,
            rounds=self.max_iter,
        )

    def _start(self, n_models: int, d: int) -> F64:
        start = np.zeros((n_models, d + self.fit_intercept))
        if self.warm_start and getattr(self, "coef_", np.empty(0)).shape == (n_models, d):
            start[:, :d] = self.coef_
            if self.fit_intercept:
                start[:, d] = self.intercept_
        return start.ravel()

    def _keep(self, minimum: Any, target_gap: float, total: float, n_models: int, d: int) -> None:
        self.method_ = "newton"
        W = minimum.point.w.reshape(n_models, d + self.fit_intercept)
        self.coef_ = W[:, :d].copy()
        self.intercept_ = W[:, d].copy() if self.fit_intercept else np.zeros(n_models)
        units = self.C * total
        self.dual_gap_ = max(minimum.point.gap, 0.0) * units if math.isfinite(units) else math.nan
        self.n_iter_ = np.array([minimum.steps], np.int32)
        if not minimum.converged:
            if math.isfinite(self.C):
                warn_of_gap(minimum.point.gap, target_gap, minimum.steps)
            else:
                warn_without_minimum(minimum.steps)

    def predict_proba(self, X: Any, offset: Any = None) -> Any:
        """Return the probability of each class for each row; shape (n_samples, n_classes)."""
        if is_lazy(X):
            self._check_lazy(offset)
            return lazily(self, "predict_proba", X, np.float64, len(self.classes_))
        margins = self.decision_function(X, offset)
        if margins.ndim == 1:
            return np.stack([expit(-margins), expit(margins)], axis=1)
        probabilities: NDArray[np.float64] = softmax(margins, axis=1)
        return probabilities

    def predict_log_proba(self, X: Any, offset: Any = None) -> Any:
        """Return the logarithm of :meth:`predict_proba`, without underflow to log(0)."""
        if is_lazy(X):
            self._check_lazy(offset)
            return lazily(self, "predict_log_proba", X, np.float64, len(self.classes_))
        margins = self.decision_function(X, offset)
        if margins.ndim == 1:
            return np.stack([log_expit(-margins), log_expit(margins)], axis=1)
        logarithms: NDArray[np.float64] = log_softmax(margins, axis=1)
        return logarithms
