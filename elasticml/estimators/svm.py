"""Linear support vector machines with scikit-learn's contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.parallel import InPieces
from elasticml.estimators.base import LinearClassifier
from elasticml.estimators.fitting import Problem, Solution, prepare, solve
from elasticml.estimators.places import (
    MODEL_VALUES_MIN,
    PRODUCT_VALUES_MIN,
    STEP_VALUES_MIN,
    client_for,
    stored_values,
    threads_for,
)
from elasticml.estimators.rows import Table
from elasticml.estimators.warn import warn_of_gap
from elasticml.runtime.execution import parallel

F64 = NDArray[np.float64]


class LinearSVC(LinearClassifier):
    """Linear support vector classifier with a certified duality gap.

    Minimises ``|w|^2 / 2 + C sum_i s_i loss(y_i (w.x_i + b))``, or with ``|w|_1`` as the penalty,
    for each class against the rest; ``w`` has the intercept's column of value ``intercept_scaling``
    in it, as in LIBLINEAR.

    Parameters
    ----------
    penalty : "l2" or "l1"
        "l1" goes with the squared hinge and ``dual`` False or "auto": proximal Newton steps on
        working sets of columns with gap-safe screening, or as a job whose members own columns.
    loss : "squared_hinge" or "hinge"
    dual : bool or "auto"
        Whether to take steps on dual variables (CoCoA) or Newton steps on the model (squared hinge
        only, in this process); "auto": Newton steps where they are possible and there are at least
        as many rows as columns. A job with ``penalty="l2"`` takes steps on dual variables.
    tol : float
        A fit ends when its duality gap is at most ``tol`` times the objective of the zero model.
    C : float, above 0
    fit_intercept : bool
    intercept_scaling : float, above 0
    class_weight : mapping, "balanced" or None
        With more than two classes a class's weight counts where it is the positive one, as in
        LIBLINEAR.
    random_state : int, RandomState or None
        Of the order of rows.
    max_iter : int
        At most: passes over the rows, or Newton steps; of a job rounds.
    n_jobs : int, optional
        Threads in this process: with more than two classes for so many of these at a time, which
        changes no bit; else for passes over the rows, which end elsewhere within the tolerance.
        One thread is faster alone, and is alone, where there are fewer than 250,000 stored values,
        with two classes fewer than 8 million, for Newton steps 4 million.
    client : distributed.Client or address, optional
        Fits as an elastic job on this cluster; by default see ``solver_path_``.

    Attributes
    ----------
    coef_ : ndarray (1, n_features) or (n_classes, n_features)
    intercept_ : ndarray (1,) or (n_classes,)
    classes_ : ndarray (n_classes,)
    dual_gap_ : float or ndarray (n_classes,)
        Certified: the objective is at most this above the least possible one.
    n_iter_ : int
        Most passes or steps of any class.
    solver_path_ : "in-process" or "job"
        Where it was fitted: a job where ``client`` is given, or where there is a default client and
        at least 50 million stored values; else this process.
    n_features_in_ : int
    """

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

    def fit(self, X: Any, y: Any = None, sample_weight: ArrayLike | None = None) -> LinearSVC:
        """Fit one model, or one for each of more than two classes.

        Parameters
        ----------
        X : array_like or sparse (n_samples, n_features), or a Dask collection, file or source
            See :func:`elasticml.estimators.inputs.taken`.
        y : array_like (n_samples,), optional where X has it
            At least two different labels.
        sample_weight : array_like (n_samples,), optional
            Not negative.

        Raises
        ------
        ValueError
            When a parameter, the labels or the weights are not as they should be.
        """
        # Newton steps want float64; steps on dual variables take values as they are.
        is_dual = self.penalty == "l2" and (self.loss == "hinge" or self.dual is True)
        kept = [np.float64, np.float32] if is_dual else np.float64
        X, y, weights = self._checked(
            X, y, sample_weight, accept_sparse="csr", dtype=kept, order="C"
        )
        codes = self._codes(y)
        of_class = self._weights_of_classes(self.class_weight, y, weights)
        problem = self._problem(X)
        positives = [1] if len(self.classes_) == 2 else range(len(self.classes_))

        def task(positive: int) -> tuple[F64, F64 | None]:
            return _against_rest(codes, positive, of_class, weights)

        least = PRODUCT_VALUES_MIN if problem.is_primal else STEP_VALUES_MIN
        least = least if len(positives) == 1 else MODEL_VALUES_MIN
        pool = parallel(threads_for(self.n_jobs, X, least))
        try:
            with client_for(self.client, stored_values(X)) as client:
                self.solver_path_ = "in-process" if client is None else "job"
                self._keep(_solve_all(problem, X, positives, task, client, pool))
        finally:
            pool.close()
        return self

    def _problem(self, X: Any) -> Problem:
        dual, is_sparse = self.dual, self.penalty == "l1"
        if is_sparse and (self.loss == "hinge" or dual is True):
            raise ValueError(
                f"penalty='l1' with loss={self.loss!r} and dual={dual!r}, wanted "
                "loss='squared_hinge' and dual=False or 'auto'"
            )
        if dual == "auto":
            dual = self.loss == "hinge" or X.shape[0] < X.shape[1]
        elif not dual and self.loss == "hinge":
            raise ValueError("dual=False with loss='hinge', which has no Hessian; use dual=True")
        return Problem(
            is_primal=not dual and not is_sparse,
            is_sparse=is_sparse,
            loss=self.loss,
            strength=1.0 / self.C,
            intercept_scaling=float(self.intercept_scaling) if self.fit_intercept else None,
            tol=self.tol,
            rounds=self.max_iter,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )

    def _keep(self, found: list[Solution]) -> None:
        self.coef_ = np.stack([one.coef for one in found])
        self.intercept_ = np.array([one.intercept for one in found])
        # In the units of the sum, as this estimator's objective is.
        gaps = np.array([self.C * one.gap for one in found])
        self.dual_gap_ = float(gaps[0]) if len(gaps) == 1 else gaps
        self.n_iter_ = max(one.rounds for one in found)
        for one in found:
            warn_of_gap(one.gap, one.wanted_gap, one.rounds)


def _against_rest(
    codes: NDArray[np.int64], positive: int, of_class: F64, weights: F64 | None
) -> tuple[F64, F64 | None]:
    """Return a class's targets and the weights of its rows, None where all are one."""
    is_positive = codes == positive
    rest = of_class[0] if len(of_class) == 2 else 1.0
    targets = np.where(is_positive, 1.0, -1.0)
    if of_class[positive] == rest == 1.0:
        return targets, weights
    each = np.where(is_positive, of_class[positive], rest)
    return targets, each if weights is None else each * weights


def _solve_all(
    problem: Problem,
    X: Any,
    positives: Sequence[int],
    task: Callable[[int], tuple[F64, F64 | None]],
    client: Any,
    pool: Parallel,
) -> list[Solution]:
    """Solve for each class: several at a time here, or one with all threads; jobs one by one."""
    if len(positives) == 1 or client is not None:
        table = Table(X, pool)
        return [solve(problem, table, *task(k), client) for k in positives]
    table = Table(X)
    prepare(problem, table)
    return InPieces(pool).map(lambda k: solve(problem, table, *task(k), None), positives)
