"""Trained models as users see them: linear models and networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from elasticml.algorithms.local_sgd.module_factory import INPUT_MEAN, INPUT_STD
from elasticml.arrays import F64
from elasticml.data.dataset_stats import DatasetStats
from elasticml.errors import ConfigError
from elasticml.specification.algorithms import LocalSGD, settings_from_section

if TYPE_CHECKING:
    from elasticml.algorithms.local_sgd.network import Network


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


class NetworkModel:
    """A network's weights by parameter name and, for classifiers, its classes.

    PyTorch is imported only for prediction.

    Attributes
    ----------
    arrays : mapping of ndarray
        Parameters and buffers, and ``input_mean`` and ``input_std``.
    classes_ : ndarray (n_classes,) or None
        Labels, ascending; None in regression.
    """

    def __init__(
        self, arrays: Mapping[str, F64], algorithm: Mapping[str, Any], facts: DatasetStats
    ) -> None:
        self.arrays = arrays
        self._settings = settings_from_section(LocalSGD, algorithm)
        self._facts = facts
        classes = facts.classes if self._settings.is_classification else None
        self.classes_: F64 | None = None if classes is None else np.array(classes)
        self._network: Network | None = None

    @property
    def module(self) -> Any:
        """The trained ``torch.nn.Module`` in evaluation mode; it expects normalised inputs.

        Raises
        ------
        ConfigError
            When PyTorch is not installed here, or the factory cannot be imported.
        """
        return self._loaded_network().module.eval()

    def decision_function(self, X: ArrayLike) -> F64:
        """Return the module's outputs, shape (n, outputs), for rows as in the data, not normalised.

        Parameters
        ----------
        X : array_like (n, columns), or (n, ...) with as many values per example

        Raises
        ------
        ConfigError
            As :attr:`module`, and when an example has another number of values.
        """
        network, rows = self._loaded_network(), np.array(X, np.float64)
        n_columns = self._facts.n_columns
        if rows.ndim < 2 or rows[0].size != n_columns:
            raise ConfigError(
                f"X has shape {rows.shape}, wanted {n_columns} values in each example, as the "
                "training data have"
            )
        mean, std = float(self.arrays[INPUT_MEAN][0]), float(self.arrays[INPUT_STD][0])
        x = network.inputs(network.tensor(rows.reshape(len(rows), n_columns)), mean, std)
        outputs: F64 = network.outputs(x).cpu().numpy().astype(np.float64)
        return outputs

    def predict(self, X: ArrayLike) -> F64:
        """Return the predicted labels, or values in regression, shape (n,)."""
        outputs = self.decision_function(X)
        if self.classes_ is None:
            return outputs.reshape(len(outputs), -1)[:, 0]
        labels: F64 = self.classes_[outputs[:, : len(self.classes_)].argmax(1)]
        return labels

    def _loaded_network(self) -> Network:
        from elasticml.algorithms.local_sgd.network import Network

        if self._network is None:
            self._network = Network(self._settings, self._facts, device="cpu")
            self._network.fill_named(self.arrays)
        return self._network
