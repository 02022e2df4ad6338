"""Base classes of estimators: inputs, the one fit of linear models, and prediction.

A linear estimator is a table of its parameters: which targets it has, and which problem of
:mod:`elasticml.estimators.solver` each of them is.

``fit(..., offset=...)`` takes one number for each row, or the name or number of a column of X whose
coefficient is then 1. A model that was fitted with numbers needs numbers for the rows to predict,
as glmnet's models do; one that was fitted with a column finds them there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import compute_class_weight
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from elasticml.algorithms.linear.problem import Problem
from elasticml.arrays import F64, is_lazy, is_named
from elasticml.data.chunks.rows import refuse_text
from elasticml.errors import ConfigError
from elasticml.estimators.backend_choice import (
    JOB_VALUES_MIN,
    PRODUCT_VALUES_MIN,
    choose_client,
    stored_values,
    threads_for,
)
from elasticml.estimators.inputs import computed, load_arrays, load_training
from elasticml.estimators.rows import ArrayRows, Targets
from elasticml.estimators.solver import Case, Solution, solve_all
from elasticml.jobs.user_warnings import warn
from elasticml.objectives.penalties import Absolute
from elasticml.runtime.executors import parallel

if TYPE_CHECKING:
    from elasticml.estimators.dask_rows import DaskRows, Metric
    from elasticml.models.model import Model
    from elasticml.models.row_input import RowInput

T = TypeVar("T")


def warn_of_gap(gap: float, tolerance: float, rounds: int) -> None:
    """Warn if the iterations ended before the gap reached the tolerance; ``gap`` may be NaN."""
    if not gap <= tolerance:
        warn(
            f"the duality gap is {gap:.3g} after {rounds} iterations, wanted {tolerance:.3g}: "
            "raise max_iter or tol, or scale the columns"
        )


def meta_of(X: Any) -> Any:
    """Return an array or frame of one or two rows with the columns of a Dask collection."""
    if hasattr(X, "_meta_nonempty"):
        return X._meta_nonempty
    return np.zeros((1, int(X.shape[1])))


def lazily(model: BaseEstimator, method: str, X: Any, dtype: Any, width: int | None = None) -> Any:
    """Return the results of a fitted model's method for a Dask collection, lazily.

    Parameters
    ----------
    dtype : dtype of the result
    width : int, optional
        Columns of the result; None for one number per row.
    """
    # Imported here: it loads pyarrow, which arrays in memory do not need.
    from elasticml.models.row_input import map_partitions

    return map_partitions(part_function(model, method, dtype, width), X, dtype, width)


def part_function(
    model: BaseEstimator, method: str, dtype: Any, width: int | None
) -> Callable[[Any], NDArray[Any]]:
    """Return a function of one partition that can be sent to workers."""
    sent = copy(model)
    if hasattr(sent, "client"):
        sent.client = None
    return partial(_of_part, sent, method, dtype, width)


def _of_part(
    model: BaseEstimator, method: str, dtype: Any, width: int | None, part: Any
) -> NDArray[Any]:
    if part.shape[0] == 0:
        return np.empty((0,) if width is None else (0, width), dtype)
    values: NDArray[Any] = getattr(model, method)(part)
    return values


@dataclass_transform(eq_default=False, field_specifiers=(field,))
def with_parameters(estimator: type[T]) -> type[T]:
    """Give an estimator the constructor that a dataclass of its parameters has.

    It is no dataclass: Dask takes those apart wherever it meets them, and makes them again of their
    fields, by position and without what was fitted.
    """
    bases: list[Any] = [base for base in estimator.__mro__[1:] if "_parameters" in vars(base)]
    for base in bases:
        base.__dataclass_fields__ = base._parameters
    made: Any = dataclass(eq=False, repr=False)(estimator)
    made._parameters = made.__dataclass_fields__
    for one in (made, *bases):
        del one.__dataclass_fields__
    return estimator


class ElasticEstimator(BaseEstimator):
    """What all estimators here share: a client that is never copied, and models that are saved.

    Copies for scikit-learn (``clone``) have the same client. Pickles and deep copies have the
    address of its scheduler instead.
    """

    #: What scikit-learn checks of parameters, by their names, also those of other estimators.
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "alpha": [Interval(Real, 0, None, closed="left")],
        "class_weight": [None, dict, StrOptions({"balanced"})],
        "fit_intercept": ["boolean"],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "n_jobs": [None, Integral],
        "positive": ["boolean"],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": ["boolean"],
    }
    #: Its parameters, by name, as fields of a dataclass.
    _parameters: ClassVar[dict[str, Any]]
    #: Parameters that scikit-learn's estimator has, and that have no meaning here.
    _without_meaning: ClassVar[tuple[str, ...]] = ()
    #: What scikit-learn checks of the rows to predict.
    _rules_of_predicted: ClassVar[dict[str, Any]] = {
        "accept_sparse": ["csr", "csc"],
        "dtype": [np.float64, np.float32],
    }
    #: What turns tables into rows, if the model was fitted to a table in a file.
    _rows: RowInput | None = None
    n_features_in_: int
    feature_names_in_: NDArray[Any]

    def __sklearn_clone__(self) -> Any:
        """Return an unfitted copy with the same client."""
        bare = copy(self)
        if hasattr(bare, "client"):
            bare.client = None
        made = super(ElasticEstimator, bare).__sklearn_clone__()
        if hasattr(self, "client"):
            made.client = self.client
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to be pickled or copied, in which a client is its address."""
        state: dict[str, Any] = super().__getstate__()
        scheduler = getattr(state.get("client"), "scheduler", None)
        return state if scheduler is None else {**state, "client": scheduler.address}

    def _validate_params(self) -> None:
        """Validate the parameters, and warn of those that have no meaning here."""
        super()._validate_params()
        ignored = self._ignored()
        if ignored:
            warn(
                f"{type(self).__name__}: without meaning here, and ignored: {', '.join(ignored)}",
                UserWarning,
            )

    def _ignored(self) -> list[str]:
        """Return the given parameters that have no meaning here."""
        defaults = {name: self._parameters[name].default for name in self._without_meaning}
        return [f"{n}={getattr(self, n)!r}" for n, d in defaults.items() if getattr(self, n) != d]

    def to_model(self) -> Model:
        """Return the fitted model as a function of rows (``elasticml/models/model.py``).

        Its predictions are those of this estimator. It can be exported to scikit-learn and ONNX.
        """
        raise NotImplementedError

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model to a file without pickled objects; ``em.load_model`` reads it.

        The file has the model and what turns rows into its numbers, not the parameters of ``fit``.

        Raises
        ------
        ConfigError
            When it cannot be written.
        """
        self.to_model().save(str(path))

    def _row_input(self) -> RowInput:
        # Imported here: it loads the readers of files, which arrays in memory do not need.
        from elasticml.models.row_input import RowInput

        if self._rows is not None:
            return self._rows
        names = tuple(map(str, getattr(self, "feature_names_in_", ())))
        return RowInput(n_columns=self.n_features_in_, names=names)

    def _rows_of(self, X: Any) -> Any:
        """Return rows to predict as an array or CSR matrix.

        The columns of a file are known by their names; and those of a frame, if the model was
        fitted to a table, whose categories it knows. If that was a frame, rows may also be arrays
        of as many columns.
        """
        check_is_fitted(self)
        if is_named(X):
            return self._row_input().in_memory(X)
        (X,) = computed([X], None)
        is_frame, has_names = hasattr(X, "__arrow_c_stream__"), hasattr(self, "feature_names_in_")
        if self._rows is None or not (is_frame or has_names):
            return validate_data(self, X, reset=False, **self._rules_of_predicted)
        if is_frame and has_names:
            validate_data(self, X, reset=False, skip_check_array=True)  # their names and order
        return self._rows.matrix(X)

    def _take_names(self) -> None:
        """Take the columns of the frame to which the model is fitted for its features."""
        if self._rows is not None:
            names = self._rows.columns()
            self.feature_names_in_ = np.array(names, object)
            self.n_features_in_ = len(names)


class LinearEstimator(ElasticEstimator):
    """An estimator with ``coef_`` and ``intercept_``, for dense and sparse rows."""

    #: The loss that ``fit`` minimises, unless a parameter says so.
    _loss: ClassVar[str] = "squared"
    #: What :meth:`score` returns.
    _metric: ClassVar[Metric] = "r2"
    #: What scikit-learn checks of the rows and the targets.
    _rules: ClassVar[dict[str, Any]] = {}
    #: Number of the offset's column among the features, whose coefficient is 1.
    _offset_at: int | None = None
    #: The same among the rows that are fitted, if it is still there.
    _fixed: int | None = None
    #: Total weight divided by that of the problem without its offset.
    _unit: float = 1.0
    #: Fitted with an offset that is no feature: predictions need one.
    _needs_offset: bool = False
    coef_: NDArray[Any]
    intercept_: Any
    dual_gap_: Any

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, offset: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array_like or sparse (n_samples, n_features), a frame, Dask collection, file or source
            See :func:`elasticml.estimators.inputs.load_arrays`.
        y : array_like (n_samples,), optional if X contains it
            Labels of at least two classes, or numbers. Several targets of a regression,
            (n_samples, n_targets), are fitted one by one.
        sample_weight : array_like (n_samples,), optional
            Nonnegative.
        offset : array_like (n_samples,), or name or number of a column of X, optional
            Numbers that are added to the margins, as in a generalised linear model. Predictions
            then need theirs; a column of X is found in the rows, and its coefficient is 1.

        Raises
        ------
        ValueError
            When a parameter, the targets, the weights or the offset are invalid; with
            ``warm_start``, when the last model has other coefficients than this one.
        """
        self._validate_params()
        self._offset_at, self._fixed, self._unit = None, None, 1.0
        self._needs_offset = offset is not None and not _is_column(offset)
        with ExitStack() as stack:
            rows = self._rows_to_fit(stack, X, y, sample_weight, offset)
            self.solver_path_ = "in-process" if rows.client is None else "job"
            self._fit_rows(rows)
        if offset is not None:
            self._restore_offset()
        return self

    def _fit_rows(self, rows: ArrayRows | DaskRows) -> None:
        cases = self._cases(rows)
        with closing(parallel(self._threads(rows, cases))) as pool:
            self._keep(cases, solve_all(cases, rows, pool))

    # --- the table: what each estimator says of itself --------------------------------------------

    def _targets(self, rows: ArrayRows | DaskRows) -> list[Targets]:
        """Return what each model is fitted to."""
        raise NotImplementedError

    def _problem(self, rows: ArrayRows | DaskRows, targets: Targets, number: int) -> Problem:
        """Return the problem of the model of a number."""
        raise NotImplementedError

    def _units(self, targets: Targets) -> float:
        """Return the estimator's objective divided by that of its problem."""
        return 1.0

    def _only_here(self, rows: ArrayRows | DaskRows) -> str | None:
        """Return in words the model that no job can fit; None if a job can."""
        return None

    def _least_values(self, cases: Sequence[Case]) -> int:
        """Return the least stored values for which ``n_jobs`` threads pay."""
        return PRODUCT_VALUES_MIN

    def _warn_of(self, problem: Problem, solution: Solution) -> None:
        """Warn of a solution that has not converged."""
        warn_of_gap(solution.gap, problem.gap, solution.rounds)

    def _terms(self, weight: float, positive: bool = False) -> Any:
        """Return the function of one coefficient that is penalised: by default the absolute value.

        ``weight`` is the factor of the penalty: of a user's it is not 0.
        """
        penalty, options = getattr(self, "penalty", None), getattr(self, "penalty_options", None)
        if penalty is None and not options:
            return Absolute(positive)
        if isinstance(penalty, str) and ":" not in penalty:
            raise ConfigError(
                f"penalty: got {penalty!r}, wanted one of your own: a class, or its import path "
                "such as my_module:NAME; l1_ratio=0 is the L2 penalty, l1_ratio=1 the L1 penalty"
            )
        # Imported here: loading what jobs need takes longer than most fits.
        from elasticml.specification.algorithms import PrimalCoCoA

        settings = PrimalCoCoA(penalty=penalty, penalty_options=options, positive=positive)
        if not settings.certifies_gap or not weight > 0.0:
            raise ConfigError(
                f"penalty: got {settings.penalty} with the weight {weight:g}, wanted a method "
                "conjugate, which certifies the fit, and a weight above 0: see alpha, C and "
                "l1_ratio; em.PrimalCoCoA takes a penalty without conjugate"
            )
        return settings.penalty_terms

    # --- the fit ----------------------------------------------------------------------------------

    def _rows_to_fit(
        self, stack: ExitStack, X: Any, y: Any, sample_weight: Any, offset: Any
    ) -> ArrayRows | DaskRows:
        """Return the rows where they are fitted: on a cluster that has them, or in memory.

        The client, and the limit of threads in this process, are left with the stack.
        """
        given = getattr(self, "client", None)
        client = stack.enter_context(choose_client(given, JOB_VALUES_MIN)) if is_lazy(X) else None
        if client is not None:
            lazy = self._held(X, y, sample_weight, offset, client)
            what = "a model of several targets" if lazy is None else self._only_here(lazy)
            if lazy is not None and what is None:
                return lazy
            warn(
                f"{what} cannot be fitted where the partitions are: all rows are loaded into this "
                "process",
                UserWarning,
            )
        rows = ArrayRows(*self._checked(X, y, sample_weight, offset))
        n_values, what = stored_values(rows.X), None
        if given is not None or n_values >= JOB_VALUES_MIN:
            what = self._only_here(rows)
        if what is not None and given is not None:
            warn(
                f"{what} is fitted in this process, not as a job of client: leave client out, "
                "unless it is needed to compute Dask collections",
                UserWarning,
            )
        if what is not None:
            given, n_values = None, min(n_values, JOB_VALUES_MIN - 1)
        rows.client = stack.enter_context(choose_client(given, n_values))
        return rows

    def _held(
        self, X: Any, y: Any, sample_weight: Any, offset: Any, client: Any
    ) -> DaskRows | None:
        """Return the rows of Dask collections on a cluster; None for several targets."""
        if getattr(y, "ndim", 1) == 2 and y.shape[1] != 1:
            return None
        from elasticml.estimators.dask_rows import DaskRows

        self._rows = None
        validate_data(self, meta_of(X), skip_check_array=True)
        if offset is not None:
            if not _is_column(offset):
                raise ValueError(
                    "offset of a Dask collection: got numbers, wanted the name or number of a "
                    "column"
                )
            X, y, sample_weight = self._with_offset(X, y, sample_weight, offset)
        rows = DaskRows(X, y, sample_weight, client)
        if rows.encoding is not None:
            if offset is not None:
                raise ValueError(
                    "offset of a Dask frame with text or dates: got one, wanted numbers in all "
                    "columns"
                )
            self._rows = rows.encoding
            self._take_names()
        return rows

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, offset: Any
    ) -> tuple[Any, Any, F64 | None]:
        """Validate rows, targets and weights; weights are None if all are one."""
        client, rules = getattr(self, "client", None), self._rules_of_rows()
        is_frame = not is_named(X)
        X, y, sample_weight, self._rows = load_training(X, y, sample_weight, client=client)
        if "y_numeric" in rules and y is not None and np.asarray(y).dtype.kind in "OUT":
            refuse_text(y, "y", type(self).__name__)
        try:
            X, y = validate_data(self, X, y, **rules)
        except ValueError:
            if hasattr(X, "columns"):  # a frame, which has a name for the column
                refuse_text(X, "X", type(self).__name__)
            raise
        if is_frame:
            self._take_names()
        weights = weights_of(sample_weight, X)
        return (X, y, weights) if offset is None else self._with_offset(X, y, weights, offset)

    def _rules_of_rows(self) -> dict[str, Any]:
        return self._rules

    def _with_offset(self, X: Any, y: Any, weights: Any, offset: Any) -> tuple[Any, Any, Any]:
        """Return the rows, targets and weights of the problem with its offset."""
        raise NotImplementedError

    def _restore_offset(self) -> None:
        """Give each feature its coefficient, after a fit with an offset."""
        raise NotImplementedError

    def _find_offset(self, offset: Any, width: int) -> int | None:
        """Return the number of the column that is the offset, and note it; None: it is numbers."""
        if not _is_column(offset):
            return None
        rows = self._rows
        names = getattr(self, "feature_names_in_", ()) if rows is None else rows.feature_names()
        self._offset_at = _column_of(offset, list(names), width)
        return self._offset_at

    def _cases(self, rows: ArrayRows | DaskRows) -> list[Case]:
        """Return the problems of a fit."""
        targets = self._targets(rows)
        problems = [self._problem(rows, one, k) for k, one in enumerate(targets)]
        starts = self._starts([problem.n_models for problem in problems], rows.shape[1])
        return [
            Case(problem=problem, targets=one, start=start)
            for problem, one, start in zip(problems, targets, starts, strict=True)
        ]

    def _starts(self, n_models: list[int], d: int) -> list[tuple[F64, F64] | None]:
        """Return the first coefficients and intercepts of each problem: the last fit's, or none."""
        if not getattr(self, "warm_start", False) or not hasattr(self, "coef_"):
            return [None] * len(n_models)
        coef, intercept = np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)
        if self._offset_at is not None and self._fixed is None:
            coef = np.delete(coef, self._offset_at, axis=1)
        elif self._needs_offset and self._fixed is not None:
            coef = np.hstack([coef, np.ones((len(coef), 1))])
        if coef.shape != (sum(n_models), d):
            raise ValueError(
                f"warm_start: the last fit has coefficients of shape {coef.shape}, and these data "
                f"need {(sum(n_models), d)}: set warm_start=False, or fit a clone"
            )
        ends = np.cumsum(n_models)[:-1]
        return list(zip(np.split(coef, ends), np.split(intercept, ends), strict=True))

    def _threads(self, rows: ArrayRows | DaskRows, cases: Sequence[Case]) -> int:
        n_jobs = getattr(self, "n_jobs", None)
        if not isinstance(rows, ArrayRows):
            return 1
        return threads_for(n_jobs, rows.X, self._least_values(cases))

    def _keep(self, cases: Sequence[Case], solutions: Sequence[Solution]) -> None:
        """Set the attributes of the fitted model; warn of what has not converged."""
        self.coef_ = np.concatenate([one.coef for one in solutions])
        self.intercept_ = np.concatenate([one.intercept for one in solutions])
        pairs = list(zip(cases, solutions, strict=True))
        # In units of the estimator's objective.
        gaps = [self._units(case.targets) * one.gap for case, one in pairs]
        self.dual_gap_ = np.array([math.nan if math.isinf(gap) else gap for gap in gaps])
        for case, one in pairs:
            if not one.converged:
                self._warn_of(case.problem, one)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, offset: Any = None) -> float:
        """Return the weighted score of the predictions; accepts the same inputs as ``fit``.

        A classifier's score is its accuracy, a regressor's its coefficient of determination, and
        that of ``PoissonRegressor`` is D2, the share of the deviance that the model explains.
        """
        if is_lazy(X) and (self._metric == "accuracy" or self.coef_.ndim == 1):
            from elasticml.estimators.dask_rows import score_collections

            self._check_lazy(offset)
            with choose_client(getattr(self, "client", None), JOB_VALUES_MIN) as client:
                predict = part_function(self, "predict", np.float64, None)
                return score_collections(predict, X, y, sample_weight, client, self._metric)
        from sklearn import metrics

        of: dict[str, Callable[..., float]] = {
            "accuracy": metrics.accuracy_score,
            "r2": metrics.r2_score,
            "d2_poisson": partial(metrics.d2_tweedie_score, power=1),
        }
        check_is_fitted(self)
        rows = self._row_input() if is_named(X) else None
        X, y, sample_weight = load_arrays(
            X, y, sample_weight, n_columns=self.n_features_in_, rows=rows
        )
        predicted = self.predict(X, offset)
        return float(of[self._metric](y, predicted, sample_weight=sample_weight))

    def predict(self, X: Any, offset: Any = None) -> Any:
        """Return the prediction for each row."""
        raise NotImplementedError

    def _margins(self, X: Any, offset: Any = None) -> NDArray[Any]:
        X = self._rows_of(X)
        products: NDArray[Any] = safe_sparse_dot(X, self.coef_.T, dense_output=True)
        margins: NDArray[Any] = products + self.intercept_
        if offset is None:
            self._check_has_offset()
            return margins
        values = _offset_of(offset, len(margins))
        return margins + (values if margins.ndim == 1 else values[:, None])

    def _check_has_offset(self) -> None:
        if self._needs_offset:
            raise ValueError(
                f"{type(self).__name__} was fitted with an offset, and these rows have none: give "
                "offset=, one number per row (zeros for none)"
            )

    def _lazily(
        self, method: str, X: Any, offset: Any, dtype: Any, width: int | None = None
    ) -> Any:
        """Return the results of a method for a Dask collection, lazily; see :func:`lazily`."""
        self._check_lazy(offset)
        return lazily(self, method, X, dtype, width)

    def _check_lazy(self, offset: Any) -> None:
        """Refuse numbers as an offset of a lazy collection."""
        check_is_fitted(self)
        self._check_has_offset()
        if offset is not None:
            raise ValueError(
                "offset of a Dask collection: got numbers, wanted a model that was fitted with "
                "the name or number of a column as its offset"
            )

    def to_model(self) -> Model:
        """Return the fitted model as a function of rows (``elasticml/models/model.py``).

        With an offset that is no column, its rows have a further last column ``offset``.
        """
        check_is_fitted(self)
        from elasticml.models.model import LinearModel

        classes = getattr(self, "classes_", None)
        coef = np.atleast_2d(np.asarray(self.coef_, np.float64))
        rows = self._row_input()
        if self._needs_offset:
            rows = rows.with_column("offset")
            coef = np.hstack([coef, np.ones((len(coef), 1))])
        return LinearModel(
            {
                "coef": coef,
                "intercept": np.atleast_1d(np.asarray(self.intercept_, np.float64)),
            },
            None if classes is None else classes.tolist(),
            rows=rows,
            loss=getattr(self, "loss", self._loss),
        )

    def get_feature_names_out(self) -> NDArray[Any]:
        """Return a name for each coefficient: of the columns, encoded if the rows are a table."""
        check_is_fitted(self)
        return np.array(self._row_input().feature_names(), object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class LinearClassifier(ClassifierMixin, LinearEstimator):
    """A classifier by the sign of the margin, or by the largest of one margin per class."""

    _metric = "accuracy"
    # Not the mixin's, which knows no files and no collections.
    score = LinearEstimator.score
    classes_: NDArray[Any]

    def _begin(self, rows: ArrayRows | DaskRows) -> F64:
        """Set ``classes_``, and return the weight of each class, (n_classes,).

        Raises
        ------
        ValueError
            When there is one class, or an offset of more than two, which would all have the same.
        """
        labels = rows.labels
        self.classes_ = labels.values
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least 2 classes, but the data contain only one "
                f"class: {self.classes_[0]!r}"
            )
        if self._fixed is not None and len(self.classes_) > 2:
            raise ValueError(
                f"offset with {len(self.classes_)} classes: got one, wanted none, since all "
                "classes would have the same one"
            )
        given = getattr(self, "class_weight", None)
        if given is None:
            return np.ones(len(self.classes_))
        if given == "balanced":
            with np.errstate(divide="ignore"):
                found = labels.weights.sum() / (len(self.classes_) * labels.weights)
        else:
            found = compute_class_weight(given, classes=self.classes_, y=self.classes_)
        for label, weight in zip(self.classes_, found, strict=True):
            if not 0.0 <= weight < np.inf:
                raise ValueError(
                    f"class_weight: got {weight} for class {label!r}, wanted a finite number not "
                    "below 0"
                )
        return np.asarray(found, np.float64)

    def _with_offset(self, X: Any, y: Any, weights: Any, offset: Any) -> tuple[Any, Any, Any]:
        """Return rows that have the offset as a column."""
        self._fixed = self._find_offset(offset, X.shape[1])
        if self._fixed is None:
            self._fixed = X.shape[1]
            X = _appended(X, _offset_of(offset, X.shape[0]))
        return X, y, weights

    def _restore_offset(self) -> None:
        if self._needs_offset:
            self.coef_ = self.coef_[:, :-1]

    def decision_function(self, X: Any, offset: Any = None) -> Any:
        """Return the margins: (n_samples,) for two classes, else (n_samples, n_classes).

        For a Dask collection they are a lazy collection, as all predictions are. ``offset``,
        (n_samples,), is added; it is required if the model was fitted with one.
        """
        if is_lazy(X):
            width = None if len(self.classes_) == 2 else len(self.classes_)
            return self._lazily("decision_function", X, offset, np.float64, width)
        margins = self._margins(X, offset)
        return margins.ravel() if margins.shape[1] == 1 else margins

    def predict(self, X: Any, offset: Any = None) -> Any:
        """Return the label of each row; shape (n_samples,)."""
        if is_lazy(X):
            return self._lazily("predict", X, offset, self.classes_.dtype)
        margins = self.decision_function(X, offset)
        codes = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[codes]
        return labels


class LinearRegressor(RegressorMixin, LinearEstimator):
    """A regressor that predicts the margin.

    An offset is then no different from another target: ``y - offset`` is fitted.
    """

    _rules: ClassVar[dict[str, Any]] = {
        "accept_sparse": ["csr", "csc"],
        "dtype": np.float64,
        "y_numeric": True,
    }
    score = LinearEstimator.score

    def _targets(self, rows: ArrayRows | DaskRows) -> list[Targets]:
        self._has_one_target = getattr(rows, "y", np.empty(0)).ndim == 1
        return rows.numbers()

    def _keep(self, cases: Sequence[Case], solutions: Sequence[Solution]) -> None:
        super()._keep(cases, solutions)
        if len(solutions) == 1:
            self.coef_, self.dual_gap_ = self.coef_[0], float(self.dual_gap_[0])
        if self._has_one_target:
            self.intercept_ = float(self.intercept_[0])

    def _with_offset(self, X: Any, y: Any, weights: Any, offset: Any) -> tuple[Any, Any, Any]:
        at = self._find_offset(offset, X.shape[1])
        values, X = (_offset_of(offset, len(y)), X) if at is None else _taken_out(X, at)
        y = y if is_lazy(y) else np.asarray(y, np.float64)
        return X, *self._offset_targets(y, weights, values)

    def _offset_targets(self, y: Any, weights: Any, offset: Any) -> tuple[Any, Any]:
        """Return the targets and weights of the same problem without its offset."""
        return y - (offset if y.ndim == 1 else offset[:, None]), weights

    def _restore_offset(self) -> None:
        if self._offset_at is not None:
            self.coef_ = np.insert(self.coef_, self._offset_at, 1.0, axis=-1)

    def predict(self, X: Any, offset: Any = None) -> Any:
        """Return the prediction for each row; shape (n_samples,) or (n_samples, n_targets).

        ``offset``, (n_samples,), is added; it is required if the model was fitted with one.
        """
        if is_lazy(X):
            width = len(self.coef_) if self.coef_.ndim == 2 else None
            return self._lazily("predict", X, offset, np.float64, width)
        return self._margins(X, offset)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = "multi_output" in self._rules
        return tags


def weights_of(sample_weight: ArrayLike | None, X: Any) -> F64 | None:
    """Validate sample weights; None if none are given."""
    if sample_weight is None:
        return None
    checked = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return np.asarray(checked, np.float64)


# --- offsets of generalised linear models, which are added to the margins of rows ----------------


def _is_column(offset: Any) -> bool:
    """Whether an offset names a column instead of giving the numbers."""
    return isinstance(offset, str | int | np.integer) and not isinstance(offset, bool)


def _column_of(offset: Any, names: Sequence[Any], width: int) -> int:
    """Return the number of the offset's column.

    Raises
    ------
    ValueError
        When there is no such column.
    """
    if isinstance(offset, str):
        if offset not in names:
            listed = ", ".join(map(str, names[:8])) or "none, since X has no names"
            raise ValueError(f"offset is {offset!r}, wanted a column of X: {listed}")
        return list(names).index(offset)
    if not 0 <= offset < width:
        raise ValueError(f"offset is {offset}, wanted the number of a column of X below {width}")
    return int(offset)


def _offset_of(offset: Any, n: int) -> F64:
    """Return an offset as an array, (n,).

    Raises
    ------
    ValueError
        When it is not one finite number for each of n rows.
    """
    if is_lazy(offset):
        raise ValueError("offset is a Dask collection, wanted the name or number of a column of X")
    values = np.asarray(offset, np.float64)
    if values.shape == (n, 1):
        values = values[:, 0]
    if values.shape != (n,) or not np.isfinite(values).all():
        raise ValueError(f"offset has shape {values.shape}, wanted {n} finite numbers, one per row")
    return values


def _taken_out(X: Any, at: int) -> tuple[Any, Any]:
    """Return a column, (n,), and the rows without it; of a Dask collection, lazily."""
    if is_lazy(X) and hasattr(X, "columns"):
        name = X.columns[at]
        return X[name], X.drop(columns=[name])
    others = [j for j in range(X.shape[1]) if j != at]
    if is_lazy(X):
        return X[:, at], X[:, others]
    values = X[:, [at]]
    values = values.toarray() if scipy.sparse.issparse(values) else values
    return np.asarray(values, np.float64).ravel(), X[:, others]


def _appended(X: Any, values: F64) -> Any:
    """Return the rows with one more column."""
    column = values.astype(X.dtype)[:, None]
    if scipy.sparse.issparse(X):
        return type(X)(scipy.sparse.hstack([X, type(X)(column)]))
    return np.hstack([X, column])
