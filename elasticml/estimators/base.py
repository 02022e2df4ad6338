"""Base classes of linear estimators: validation of inputs, and prediction."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import compute_class_weight
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from elasticml.arrays import F64
from elasticml.estimators.inputs import load_arrays, load_rows

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


def warn_fitted_here(what: str) -> None:
    """Warn that the given client is not used for this model."""
    warn(
        f"{what} is fitted in this process, not as a job of client: leave client out, unless it "
        "is needed to compute Dask collections",
        UserWarning,
    )


class LinearEstimator(BaseEstimator):
    """An estimator with ``coef_`` and ``intercept_``, for dense and sparse rows."""

    coef_: NDArray[Any]
    intercept_: Any
    n_features_in_: int

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, **rules: Any
    ) -> tuple[Any, Any, F64 | None]:
        """Validate parameters, rows, targets and weights; weights are None if all are one."""
        self._validate_params()
        X, y, sample_weight = load_arrays(X, y, sample_weight, client=getattr(self, "client", None))
        X, y = validate_data(self, X, y, **rules)
        return X, y, weights_of(sample_weight, X)

    def _margins(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        X = load_rows(X, n_columns=self.n_features_in_)
        X = validate_data(
            self, X, accept_sparse=["csr", "csc"], dtype=[np.float64, np.float32], reset=False
        )
        products: NDArray[Any] = safe_sparse_dot(X, self.coef_.T, dense_output=True)
        margins: NDArray[Any] = products + self.intercept_
        return margins

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

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return the margins: (n_samples,) for two classes, else (n_samples, n_classes)."""
        margins = self._margins(X)
        return margins.ravel() if margins.shape[1] == 1 else margins

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the label of each row; shape (n_samples,)."""
        margins = self.decision_function(X)
        codes = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        labels: NDArray[Any] = self.classes_[codes]
        return labels

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the weighted accuracy; accepts the same inputs as ``fit``."""
        X, y, sample_weight = load_arrays(X, y, sample_weight, n_columns=self.n_features_in_)
        return float(super().score(X, y, sample_weight))


class LinearRegressor(RegressorMixin, LinearEstimator):
    """A regressor that predicts the margin."""

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the prediction for each row; shape (n_samples,) or (n_samples, n_targets)."""
        return self._margins(X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the coefficient of determination; accepts the same inputs as ``fit``."""
        X, y, sample_weight = load_arrays(X, y, sample_weight, n_columns=self.n_features_in_)
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
