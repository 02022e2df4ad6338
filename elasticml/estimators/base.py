"""Base classes of linear estimators: validation of inputs, and prediction."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import partial
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import compute_class_weight
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from elasticml.arrays import F64
from elasticml.estimators.backend_choice import JOB_VALUES_MIN, choose_client
from elasticml.estimators.inputs import is_named, load_arrays, load_rows, load_training

if TYPE_CHECKING:
    from elasticml.estimators.dask_rows import DaskRows, LabelStatistics, Metric
    from elasticml.models.model import Model
    from elasticml.models.row_input import RowInput

# Warnings of estimators, attributed to the user's line that called into the package.

_PACKAGE = __name__.partition(".")[0]


def warn(message: str, category: type[Warning] = ConvergenceWarning) -> None:
    """Issue a warning, attributed to the nearest caller outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == _PACKAGE


def warn_of_gap(gap: float, tolerance: float, rounds: int) -> None:
    """Warn if the iterations ended before the gap reached the tolerance; ``gap`` may be NaN."""
    if not gap <= tolerance:
        warn(
            f"the duality gap is {gap:.3g} after {rounds} iterations, wanted {tolerance:.3g}: "
            "raise max_iter or tol, or scale the columns"
        )


def warn_without_minimum(steps: int) -> None:
    """Warn that steps still reduce an unpenalised objective, which may have no minimiser."""
    warn(
        f"without a penalty (C=inf) there is no certificate, and the objective still decreases "
        f"after {steps} steps: if the classes are linearly separable there is no finite minimiser, "
        "so use a finite C; else raise max_iter"
    )


def warn_without_penalty(gap: float, tolerance: float) -> None:
    """Warn that the gap of an unpenalised model is not a measure of its quality."""
    if not gap <= tolerance:
        warn(
            f"alpha=0 means no penalty, and then the gap ({gap:.3g}) is the whole objective, "
            "however good the model: use em.Ridge(alpha=0), which solves least squares"
        )


def warn_loaded_here(what: str) -> None:
    """Warn that rows of a cluster are loaded into this process."""
    warn(
        f"{what} cannot be fitted where the partitions are: all rows are loaded into this process",
        UserWarning,
    )


def warn_fitted_here(what: str) -> None:
    """Warn that the given client is not used for this model."""
    warn(
        f"{what} is fitted in this process, not as a job of client: leave client out, unless it "
        "is needed to compute Dask collections",
        UserWarning,
    )


# Dask collections: predictions are lazy, partition by partition.


def is_lazy(X: Any) -> bool:
    """Whether X is a Dask collection."""
    return hasattr(X, "__dask_graph__")


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


class ElasticEstimator(BaseEstimator):
    """What all estimators here share: a client that is never copied, and models that are saved.

    Copies for scikit-learn (``clone``) have the same client. Pickles and deep copies have the
    address of its scheduler instead.
    """

    #: Parameters that scikit-learn's estimator has, and that have no meaning here.
    _without_meaning: ClassVar[tuple[str, ...]] = ()
    #: What turns tables into rows, if the model was fitted to a table in a file.
    _rows: RowInput | None = None
    n_features_in_: int

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
        parameters = signature(type(self)).parameters
        defaults = {name: parameters[name].default for name in self._without_meaning}
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

    def _of_table(self, X: Any) -> Any:
        """Return the rows of a table by the names of its columns; None if X is none.

        A table is a file of a known format or its source; and a frame, if the model was fitted to a
        file, whose categories it knows.
        """
        check_is_fitted(self)
        is_frame = self._rows is not None and hasattr(X, "__arrow_c_stream__")
        if not is_frame and not is_named(X):
            return None
        rows = self._row_input()
        if is_frame:
            return rows.matrix(X)
        from elasticml.estimators.file_inputs import read_table

        return read_table(X, rows)


class LinearEstimator(ElasticEstimator):
    """An estimator with ``coef_`` and ``intercept_``, for dense and sparse rows."""

    #: The loss that ``fit`` minimises, unless a parameter says so.
    _loss: ClassVar[str] = "squared"
    coef_: NDArray[Any]
    intercept_: Any

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, **rules: Any
    ) -> tuple[Any, Any, F64 | None]:
        """Validate parameters, rows, targets and weights; weights are None if all are one."""
        self._validate_params()
        client = getattr(self, "client", None)
        X, y, sample_weight, self._rows = load_training(X, y, sample_weight, client=client)
        X, y = validate_data(self, X, y, **rules)
        return X, y, weights_of(sample_weight, X)

    @contextmanager
    def _collections(self, X: Any, y: Any, sample_weight: Any) -> Iterator[DaskRows | None]:
        """Yield the rows of Dask collections if a cluster can fit the model where they are."""
        if not is_lazy(X):
            yield None
            return
        with choose_client(getattr(self, "client", None), JOB_VALUES_MIN) as client:
            if client is None:
                yield None
                return
            if getattr(y, "ndim", 1) == 2 and y.shape[1] != 1:
                warn_loaded_here("a model of several targets")
                yield None
                return
            from elasticml.estimators.dask_rows import DaskRows

            self._validate_params()
            rows, self._rows = DaskRows(X, y, sample_weight, client), None
            validate_data(self, meta_of(X), skip_check_array=True)
            yield rows

    def _score_collections(self, X: Any, y: Any, weights: Any, metric: Metric) -> float:
        from elasticml.estimators.dask_rows import score_collections

        check_is_fitted(self)
        with choose_client(getattr(self, "client", None), JOB_VALUES_MIN) as client:
            predict = part_function(self, "predict", np.float64, None)
            return score_collections(predict, X, y, weights, client, metric)

    def _margins(self, X: Any) -> NDArray[Any]:
        table = self._of_table(X)
        if table is None:
            X = load_rows(X, n_columns=self.n_features_in_)
            X = validate_data(
                self, X, accept_sparse=["csr", "csc"], dtype=[np.float64, np.float32], reset=False
            )
        else:
            X = table
        products: NDArray[Any] = safe_sparse_dot(X, self.coef_.T, dense_output=True)
        margins: NDArray[Any] = products + self.intercept_
        return margins

    def _loaded(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
        """Return the rows, labels and weights of ``score`` in memory."""
        return load_arrays(X, y, sample_weight, n_columns=self.n_features_in_, rows=self._rows)

    def to_model(self) -> Model:
        """Return the fitted model as a function of rows (``elasticml/models/model.py``)."""
        check_is_fitted(self)
        from elasticml.models.model import LinearModel

        classes = getattr(self, "classes_", None)
        return LinearModel(
            {
                "coef": np.atleast_2d(np.asarray(self.coef_, np.float64)),
                "intercept": np.atleast_1d(np.asarray(self.intercept_, np.float64)),
            },
            None if classes is None else classes.tolist(),
            rows=self._row_input(),
            loss=getattr(self, "loss", self._loss),
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class LinearClassifier(ClassifierMixin, LinearEstimator):
    """A classifier by the sign of the margin, or by the largest of one margin per class."""

    classes_: NDArray[Any]

    def _codes(self, y: Any) -> NDArray[np.int64]:
        """Set ``classes_`` and return the class index of each row, (n_samples,)."""
        encoded = classes_and_codes(y) if y.dtype.kind in "biuf" else None
        # Two integers are classes. scikit-learn checks other labels, for which it sorts the rows.
        if encoded is None or encoded[0].size != 2 or (encoded[0] % 1 != 0).any():
            check_classification_targets(y)
        self.classes_, codes = encoded or classes_and_codes(y)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least 2 classes, but the data contain only one "
                f"class: {self.classes_[0]!r}"
            )
        return codes

    def _classes_of(self, labels: LabelStatistics) -> None:
        """Set ``classes_`` to the labels that were counted."""
        found = labels.labels
        if not found.size or (found.dtype.kind == "f" and (found % 1 != 0).any()):
            raise ValueError("Unknown label type: continuous. wanted at most 1000 classes")
        if found.size < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least 2 classes, but the data contain only one "
                f"class: {found[0]!r}"
            )
        self.classes_ = found

    def _weights_of_counts(self, given: Any, labels: LabelStatistics) -> F64:
        """Return the weight of each class, (n_classes,), from counts of the labels."""
        if given is None or isinstance(given, str):
            if given is None:
                return np.ones(len(self.classes_))
            balanced: F64 = labels.weights.sum() / (len(self.classes_) * labels.weights)
            return balanced
        return self._weights_of_classes(given, self.classes_, None)

    def _weights_of_classes(self, class_weight: Any, y: Any, weights: F64 | None) -> F64:
        """Return the weight of each class, (n_classes,)."""
        if class_weight is None:
            return np.ones(len(self.classes_))
        of_class = compute_class_weight(
            class_weight, classes=self.classes_, y=y, sample_weight=weights
        )
        for label, weight in zip(self.classes_, of_class, strict=True):
            if not 0.0 <= weight < np.inf:
                raise ValueError(
                    f"class_weight: got {weight} for class {label!r}, wanted a finite number not "
                    "below 0"
                )
        return np.asarray(of_class, np.float64)

    def decision_function(self, X: Any) -> Any:
        """Return the margins: (n_samples,) for two classes, else (n_samples, n_classes).

        For a Dask collection they are a lazy collection, as all predictions are.
        """
        if is_lazy(X):
            check_is_fitted(self)
            width = None if len(self.classes_) == 2 else len(self.classes_)
            return lazily(self, "decision_function", X, np.float64, width)
        margins = self._margins(X)
        return margins.ravel() if margins.shape[1] == 1 else margins

    def predict(self, X: Any) -> Any:
        """Return the label of each row; shape (n_samples,)."""
        if is_lazy(X):
            check_is_fitted(self)
            return lazily(self, "predict", X, self.classes_.dtype)
        margins = self.decision_function(X)
        codes = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[codes]
        return labels

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the weighted accuracy; accepts the same inputs as ``fit``."""
        if is_lazy(X):
            return self._score_collections(X, y, sample_weight, "accuracy")
        X, y, sample_weight = self._loaded(X, y, sample_weight)
        return float(super().score(X, y, sample_weight))


class LinearRegressor(RegressorMixin, LinearEstimator):
    """A regressor that predicts the margin."""

    def predict(self, X: Any) -> Any:
        """Return the prediction for each row; shape (n_samples,) or (n_samples, n_targets)."""
        if is_lazy(X):
            check_is_fitted(self)
            width = len(self.coef_) if self.coef_.ndim == 2 else None
            return lazily(self, "predict", X, np.float64, width)
        return self._margins(X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination; accepts the same inputs as ``fit``."""
        if is_lazy(X) and self.coef_.ndim == 1:
            return self._score_collections(X, y, sample_weight, "r2")
        X, y, sample_weight = self._loaded(X, y, sample_weight)
        return float(super().score(X, y, sample_weight))


def classes_and_codes(y: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the sorted labels (n_classes,), and the class index of each row (n,).

    Equals ``np.unique(y, return_inverse=True)``, but does not sort the rows of two classes.
    """
    if y.dtype.kind in "biuf" and y.size:
        is_first = y == y[0]
        others = y[~is_first]
        if others.size and (others == others[0]).all():
            is_upper = is_first if y[0] > others[0] else ~is_first
            return np.array(sorted((y[0], others[0])), y.dtype), is_upper.astype(np.int64)
    labels, codes = np.unique(y, return_inverse=True)
    return labels, codes.ravel()


def weights_of(sample_weight: ArrayLike | None, X: Any) -> F64 | None:
    """Validate sample weights; None if none are given."""
    if sample_weight is None:
        return None
    checked = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    return np.asarray(checked, np.float64)
