"""A trained linear model, for users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]


class LinearModel:
    """Coefficients, intercept and, for classifiers, classes.

    Attributes
    ----------
    coef_ : ndarray (1, d)
    intercept_ : ndarray (1,)
    classes_ : ndarray (2,) or None
        Ascending; a positive margin predicts the larger one. None in regression.
    """

    def __init__(self, arrays: Mapping[str, F64], classes: Sequence[float] | None) -> None:
        self.coef_: F64 = arrays["coef"]
        self.intercept_: F64 = arrays["intercept"]
        self.classes_: F64 | None = None if classes is None else np.array(classes)

    def decision_function(self, X: ArrayLike | Any) -> F64:
        """Return the margins ``X @ coef + intercept``, shape (n,).

        Parameters
        ----------
        X : array_like (n, d), or any SciPy sparse matrix or array
        """
        rows: Any = X if hasattr(X, "tocsr") else np.asarray(X)
        margins: F64 = np.asarray(rows @ self.coef_[0], dtype=np.float64).reshape(-1)
        return margins + float(self.intercept_[0])

    def predict(self, X: ArrayLike | Any) -> F64:
        """Return the predicted labels, or values in regression, shape (n,)."""
        margins = self.decision_function(X)
        if self.classes_ is None:
            return margins
        labels: F64 = self.classes_[(margins > 0.0).astype(int)]
        return labels
