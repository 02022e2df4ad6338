"""Trained models as functions of rows: linear models, K-Means and networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray

from elasticml.arrays import F64, is_lazy, is_named
from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.storage.filesystem import write_whole
from elasticml.errors import ConfigError, DataError, how_to_install
from elasticml.models.file_format import file_arrays, npz_bytes
from elasticml.models.row_input import Batch, RowInput, map_partitions
from elasticml.objectives.links import class_scores, predictions
from elasticml.objectives.losses import LOSSES, Tweedie
from elasticml.specification.algorithms import LocalSGD, settings_from_section
from elasticml.specification.user_objects import give_again, is_importable, path_of

if TYPE_CHECKING:
    from elasticml.algorithms.local_sgd.network import Network

#: Rows whose distances to centres are computed at once.
_ROWS: int = 4096


class Model:
    """A trained model and what turns a user's rows into its numbers.

    Rows are a DataFrame (pandas, polars or any library that exports Arrow), an Arrow table, an
    array, a SciPy sparse matrix, the path or URL of a file, a source, or a Dask collection, whose
    predictions are lazy too. A row's prediction does not depend on the other rows.

    Attributes
    ----------
    rows : RowInput
        Names, encoding and number of columns.
    classes_ : ndarray (n_classes,) or None
        Labels, ascending; None without classes.
    """

    kind: ClassVar[str]
    rows: RowInput
    classes_: NDArray[Any] | None = None

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the columns of the training data, (n_features,), as in scikit-learn.

        Raises
        ------
        AttributeError
            When they have none.
        """
        names = self.rows.columns()
        if not names:
            raise AttributeError("the model was trained on columns without names")
        return np.array(names, object)

    def get_feature_names_out(self) -> NDArray[Any]:
        """Return the names of the encoded columns, of which each has a coefficient.

        A category is ``column=value``; columns without names are x0, x1, ...
        """
        return np.array(self.rows.feature_names(), object)

    def predict(self, X: Any) -> Any:
        """Return the predicted labels, values, or clusters, shape (n,).

        Raises
        ------
        ConfigError, DataError
            When the rows cannot be read or do not fit the model.
        """
        return self._map(self._predicted, X)

    def score(self, X: Any, y: ArrayLike | None = None, sample_weight: Any = None) -> float:
        """Return the weighted accuracy, or in regression the coefficient of determination.

        That is R2, or D2, the share of the deviance that the model explains, of the losses
        ``poisson``, ``gamma`` and ``tweedie``, as in scikit-learn.

        Parameters
        ----------
        X : rows
        y : array_like (n,), optional
            Labels; by default those in the table or file.
        sample_weight : array_like (n,), optional
            By default those in the table or file, if y is not given.
        """
        from sklearn.metrics import accuracy_score

        if y is None:
            # The rows of all batches together may not fit into memory.
            parts = [
                (self._predicted(batch.X), self._words(batch.labels), batch.weights)
                for batch in self.rows.batches(X, labelled=True)
            ]
            predicted = np.concatenate([part[0] for part in parts])
            y = np.concatenate([part[1] for part in parts])
            if sample_weight is None and parts[0][2] is not None:
                sample_weight = np.concatenate([part[2] for part in parts])
        else:
            predicted = np.asarray(self.predict(X))
        measure = self._determination if self.classes_ is None else accuracy_score
        return float(measure(y, predicted, sample_weight=sample_weight))

    def outputs(self, X: Any) -> dict[str, NDArray[Any]]:
        """Return the columns that ``elasticml predict`` writes, for rows of numbers."""
        return {"prediction": self._predicted(X)}

    def batches(self, data: Any, keep: Sequence[str] = ()) -> Iterator[Batch]:
        """Yield the rows of a file; see :meth:`RowInput.batches`."""
        return self.rows.batches(data, keep)

    def save(self, path: str | Path) -> None:
        """Write the model to a file, whole, then renamed; ``em.load_model`` reads it.

        Raises
        ------
        ConfigError
            When it cannot be written.
        """
        write_whole(str(path), npz_bytes(self.file_arrays()))

    def file_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the entries of the model's file, the header included."""
        return file_arrays(
            self.parameters(),
            self.classes_,
            kind=self.kind,
            rows=self.rows.to_json(),
            settings=self.settings(),
        )

    def to_sklearn(self) -> Any:
        """Return a fitted scikit-learn ``Pipeline`` with the same predictions.

        Numbers, filled values and plain categories use scikit-learn's own transformers. Dates,
        hashed and rare categories, and categories that are not text use a function of this package,
        which must then be installed where the pipeline is unpickled.

        Raises
        ------
        ConfigError
            When scikit-learn has no such model.
        """
        from elasticml.models.sklearn_export import pipeline

        return pipeline(self.rows, self._sklearn, is_linear=isinstance(self, LinearModel))

    def to_onnx(self, path: str | Path | None = None) -> Any:
        """Return the model as an ``onnx.ModelProto``, and write it if a path is given.

        Inputs are one column each, (n, 1): double for numbers (NaN is missing; dates are days since
        1970), string for categories (the empty string is missing). Models of numbers have the
        single input X, (n, d). Outputs: ``label``, and ``probabilities`` or ``margins``; ``value``
        in regression; ``cluster`` and ``distances`` of K-Means.

        Raises
        ------
        ConfigError
            When onnx is not installed, or the model or a column's encoding has no such operators.
        """
        from elasticml.models.onnx_export import OnnxGraph

        graph = OnnxGraph()
        self._add_onnx(graph, graph.rows(self.rows))
        made = graph.model()
        if path is not None:
            write_whole(str(path), made.SerializeToString())
        return made

    def parameters(self) -> dict[str, NDArray[Any]]:
        """Return the model's arrays by name, as ``model.npz`` has them."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """Return what the file's header says besides rows and classes, as JSON."""
        raise NotImplementedError

    def _predicted(self, X: Any) -> NDArray[Any]:
        raise NotImplementedError

    def _determination(self, y: Any, predicted: Any, *, sample_weight: Any) -> float:
        from sklearn.metrics import r2_score

        return float(r2_score(y, predicted, sample_weight=sample_weight))

    def _sklearn(self, order: NDArray[np.int64]) -> Any:
        """Return a fitted estimator for the model's columns in another order."""
        raise ConfigError("to_sklearn: scikit-learn has no such network; use model.module")

    def _add_onnx(self, graph: Any, rows: str) -> None:
        """Add the model's outputs for the encoded rows, a name in the graph."""
        raise ConfigError("to_onnx: networks are exported by torch.onnx.export(model.module, ...)")

    def _words(self, codes: F64 | None) -> NDArray[Any]:
        """Return the labels of codes, if classes are words; else numbers unchanged."""
        if codes is None:
            raise DataError("the rows have no labels, which score needs; give y")
        encoder = self.rows.encoder
        if self.classes_ is None or encoder is None or encoder.classes is None:
            return codes
        words: NDArray[Any] = self.classes_[codes.astype(np.int64)]
        return words

    def _map(self, function: Callable[[Any], NDArray[Any]], X: Any) -> Any:
        """Apply a function of rows of numbers to whatever the user gives."""
        if is_lazy(X) or is_named(X):
            empty = function(scipy.sparse.csr_array((1, self.rows.n_columns)))[:0]
        if is_lazy(X):
            width = empty.shape[1] if empty.ndim == 2 else None
            return map_partitions(
                lambda part: function(self.rows.matrix(part)), X, empty.dtype, width
            )
        if is_named(X):
            return np.concatenate([*(function(b.X) for b in self.batches(X)), empty])
        return function(self.rows.matrix(X))


def products(X: Any, coef: F64) -> F64:
    """Return ``X @ coef`` (n,) with sums that depend on the row alone, unlike those of BLAS."""
    if scipy.sparse.issparse(X):
        sparse: F64 = np.asarray(X @ coef, np.float64).reshape(-1)
        return sparse
    dense: F64 = np.einsum("ij,j->i", np.ascontiguousarray(X, np.float64), coef)
    return dense


#: Longest name of a column in a model's repr, in characters.
_NAME_MAX: Final = 40


def class_names(classes: NDArray[Any]) -> list[str]:
    """Return the labels as text: whole numbers without a decimal point.

    >>> class_names(np.array([0.0, 1.0, 2.5]))
    ['0', '1', '2.5']
    """
    return [
        str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)
        for label in classes.tolist()
    ]


def _cut(name: str) -> str:
    """Return a column's name for one line: a category may be a whole paragraph of text."""
    return name if len(name) <= _NAME_MAX else f"{name[: _NAME_MAX - 1]}…"


def _first(values: NDArray[np.float64]) -> str:
    """Return the first numbers for one line, and whether there are more."""
    return "/".join(f"{v:+.4g}" for v in values[:4]) + "/…" * (len(values) > 4)


class LinearModel(Model):
    """Coefficients, intercept and, for classifiers, classes.

    Attributes
    ----------
    coef_ : ndarray (1, d), or (n_classes, d) with more than two classes
    intercept_ : ndarray (1,) or (n_classes,)
    classes_ : ndarray (n_classes,) or None
        Ascending; with two, a positive margin predicts the larger one. None in regression.
    loss : str or None
        The loss that was minimised.
    power : float or None
        Of the loss ``poisson``, ``gamma`` or ``tweedie``: the variance is proportional to the mean
        to this power. None of other losses.
    one_against_rest : bool
        With more than two classes: each class has a model of its own, against all others;
        otherwise, with the logistic loss, one multinomial model has all classes.
    link : "identity", "log", "logit" or "sign"
        How a margin becomes a prediction.
    """

    kind = "linear"

    def __init__(
        self,
        arrays: Mapping[str, F64],
        classes: Sequence[Any] | None,
        *,
        rows: RowInput | None = None,
        loss: str | None = None,
        power: float | None = None,
        one_against_rest: bool = False,
        link: str | None = None,
    ) -> None:
        self.coef_: F64 = np.atleast_2d(arrays["coef"])
        self.intercept_: F64 = np.ravel(arrays["intercept"])
        self.classes_ = None if classes is None else np.array(classes)
        self.rows = rows or RowInput(n_columns=self.coef_.shape[1])
        self.loss = loss
        known = LOSSES.get(str(loss))
        unknown = "identity" if classes is None else "sign"
        self.link = link or (unknown if known is None else known.link)
        self.power = (power or known.power) if isinstance(known, Tweedie) else None
        self.one_against_rest = one_against_rest and len(self.coef_) > 1

    def __repr__(self) -> str:
        names, w = self.rows.feature_names(), np.abs(self.coef_).max(axis=0)
        largest = [int(j) for j in np.argsort(-w, kind="stable")[:3] if w[j]]
        shown = ", ".join(f"{_cut(names[j])} {_first(self.coef_[:, j])}" for j in largest)
        what = "regression"
        if self.classes_ is not None:
            more = f" and {len(self.classes_) - 5} more" if len(self.classes_) > 5 else ""
            what = "classes " + " / ".join(class_names(self.classes_[:5])) + more
        raw = (
            "" if self.rows.encoder is None else f" from {len(self.rows.encoder.columns)} features"
        )
        intercept = _first(self.intercept_)
        return (
            f"LinearModel({self.loss or 'linear'}, {what}, {self.coef_.shape[1]} columns{raw}, "
            f"{np.count_nonzero(w)} nonzero; intercept {intercept}; largest: {shown or 'none'})"
        )

    def decision_function(self, X: Any) -> Any:
        """Return the margins ``X @ coef + intercept``, (n,), or (n, n_classes) with more than two.

        Parameters
        ----------
        X : rows, as :class:`Model` describes
        """
        return self._map(self._margins, X)

    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of the classes, (n, n_classes); for the logistic loss.

        Raises
        ------
        ConfigError
            When the loss does not define probabilities.
        """
        if self.classes_ is None or self.loss != "logistic":
            raise ConfigError(
                f"predict_proba: the model's loss is {self.loss or 'unknown'}, which has no "
                "probabilities; train with loss: logistic, or use decision_function"
            )
        return self._map(self._probabilities, X)

    def outputs(self, X: Any) -> dict[str, NDArray[Any]]:
        """Return the prediction, and the probabilities or the margin."""
        found = super().outputs(X)
        if self.classes_ is None:
            targets = found["prediction"]
            if targets.ndim == 1:
                return found
            return {f"prediction_{k}": column for k, column in enumerate(targets.T)}
        kind, each = "margin", self._margins
        if self.loss == "logistic":
            kind, each = "probability", self._probabilities
        values = each(X)
        if values.ndim == 1:
            return found | {kind: values}
        names = [f"{kind}_{name}" for name in class_names(self.classes_)]
        return found | dict(zip(names, values.T, strict=True))

    def parameters(self) -> dict[str, NDArray[Any]]:
        """Return ``coef`` and ``intercept``."""
        return {"coef": self.coef_, "intercept": self.intercept_}

    def settings(self) -> dict[str, Any]:
        """Return the loss, the link from margins to predictions, and the power if it is log.

        Models of more than two classes, each against the rest, have ``one_against_rest``.
        """
        more: dict[str, Any] = {} if self.power is None else {"power": self.power}
        if self.one_against_rest:
            more["one_against_rest"] = True
        return {"loss": self.loss, "link": self.link, **more}

    def _determination(self, y: Any, predicted: Any, *, sample_weight: Any) -> float:
        if self.power is None:
            return super()._determination(y, predicted, sample_weight=sample_weight)
        from sklearn.metrics import d2_tweedie_score

        return float(d2_tweedie_score(y, predicted, sample_weight=sample_weight, power=self.power))

    def _sklearn(self, order: NDArray[np.int64]) -> Any:
        from sklearn.linear_model import LogisticRegression, Ridge, TweedieRegressor
        from sklearn.svm import LinearSVC

        if self.classes_ is None:
            regressor = Ridge()
            if self.power is not None:
                regressor = TweedieRegressor(power=self.power, link="log")
                regressor._base_loss = regressor._get_loss()  # has the link; fit would set it
            regressor.coef_, regressor.intercept_ = self.coef_[:, order], self.intercept_.copy()
            if len(self.coef_) == 1:
                regressor.coef_ = regressor.coef_[0]
                regressor.intercept_ = float(self.intercept_[0])
            regressor.n_features_in_ = len(order)
            return regressor
        coef = np.ascontiguousarray(self.coef_[:, order])

        def fitted(coef: F64, intercept: F64, classes: NDArray[Any]) -> Any:
            classifier = LogisticRegression() if self.loss == "logistic" else LinearSVC()
            classifier.coef_, classifier.intercept_ = coef, intercept
            classifier.classes_, classifier.n_features_in_ = classes, len(order)
            return classifier

        if not self.one_against_rest or self.loss != "logistic":
            return fitted(coef, self.intercept_.copy(), self.classes_)
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.preprocessing import LabelBinarizer

        rest = OneVsRestClassifier(LogisticRegression())
        rest.estimators_ = [
            fitted(coef[k : k + 1], self.intercept_[k : k + 1], np.array([0, 1]))
            for k in range(len(coef))
        ]
        rest.label_binarizer_ = LabelBinarizer(sparse_output=True).fit(self.classes_)
        rest.classes_, rest.n_features_in_ = self.classes_, len(order)
        return rest

    def _add_onnx(self, graph: Any, rows: str) -> None:
        is_logistic = self.loss == "logistic"
        is_log = self.link == "log"
        graph.linear(
            rows,
            self.coef_,
            self.intercept_,
            self.classes_,
            is_logistic,
            is_log=is_log,
            one_against_rest=self.one_against_rest,
        )

    def _margins(self, X: Any) -> F64:
        each = [products(X, w) + b for w, b in zip(self.coef_, self.intercept_, strict=True)]
        return each[0] if len(each) == 1 else np.column_stack(each)

    def _probabilities(self, X: Any) -> F64:
        margins = self._margins(X)
        if margins.ndim == 1:
            margins = np.column_stack([np.zeros(len(margins)), margins])
        margins = class_scores(self.loss, margins, one_against_rest=self.one_against_rest)
        powers = np.exp(margins - margins.max(axis=1, keepdims=True))
        shares: F64 = powers / powers.sum(axis=1, keepdims=True)
        return shares

    def _predicted(self, X: Any) -> NDArray[Any]:
        margins = self._margins(X)
        if self.classes_ is None:
            return predictions(self.link, margins)
        is_binary = margins.ndim == 1
        labels: NDArray[Any] = self.classes_[
            (margins > 0.0).astype(int) if is_binary else margins.argmax(axis=1)
        ]
        return labels


class KMeansModel(Model):
    """The centres of K-Means.

    Attributes
    ----------
    cluster_centers_ : ndarray (k, d)
    counts_ : ndarray (k,) or None
        Weight of the examples of each centre.
    """

    kind = "kmeans"

    def __init__(self, arrays: Mapping[str, F64], *, rows: RowInput | None = None) -> None:
        self.cluster_centers_: F64 = np.ascontiguousarray(arrays["centres"], np.float64)
        self.counts_: F64 | None = arrays.get("counts")
        self.rows = rows or RowInput(n_columns=self.cluster_centers_.shape[1])

    def __repr__(self) -> str:
        k, d = self.cluster_centers_.shape
        return f"KMeansModel({k} centres, {d} columns)"

    def transform(self, X: Any) -> Any:
        """Return the distances to all centres, shape (n, k)."""
        return self._map(self._distances, X)

    def score(self, X: Any, y: ArrayLike | None = None, sample_weight: Any = None) -> float:
        """Return minus the weighted sum of squared distances to the nearest centres."""
        nearest = np.asarray(self._map(lambda rows: self._distances(rows).min(axis=1), X))
        weights = np.ones(len(nearest)) if sample_weight is None else np.asarray(sample_weight)
        return -float(weights @ nearest**2)

    def outputs(self, X: Any) -> dict[str, NDArray[Any]]:
        """Return the cluster and the distance to its centre."""
        distances = self._distances(X)
        return {"cluster": distances.argmin(axis=1), "distance": distances.min(axis=1)}

    def parameters(self) -> dict[str, NDArray[Any]]:
        """Return ``centres``, and ``counts`` if there are any."""
        return {
            "centres": self.cluster_centers_,
            **({} if self.counts_ is None else {"counts": self.counts_}),
        }

    def settings(self) -> dict[str, Any]:
        """Return nothing: centres are all."""
        return {}

    def _predicted(self, X: Any) -> NDArray[Any]:
        nearest: NDArray[Any] = self._distances(X).argmin(axis=1)
        return nearest

    def _sklearn(self, order: NDArray[np.int64]) -> Any:
        from sklearn.cluster import KMeans

        centres = np.ascontiguousarray(self.cluster_centers_[:, order])
        means = KMeans(n_clusters=len(centres), init=centres, n_init=1, max_iter=1).fit(centres)
        means.cluster_centers_ = centres
        return means

    def _add_onnx(self, graph: Any, rows: str) -> None:
        graph.kmeans(rows, self.cluster_centers_)

    def _distances(self, X: Any) -> F64:
        parts = [np.empty((0, len(self.cluster_centers_)))]
        for start in range(0, X.shape[0], _ROWS):
            some = X[start : start + _ROWS]
            dense = some.toarray() if scipy.sparse.issparse(some) else np.asarray(some, np.float64)
            each = [dense - centre for centre in self.cluster_centers_]
            parts.append(np.column_stack([np.sqrt(np.einsum("ij,ij->i", x, x)) for x in each]))
        return np.concatenate(parts)


class NetworkModel(Model):
    """A network's weights by parameter name and, for classifiers, its classes.

    PyTorch is imported only for prediction.

    Attributes
    ----------
    arrays : mapping of ndarray
        Parameters and buffers, and ``input_mean`` and ``input_std``.
    classes_ : ndarray (n_classes,) or None
        Labels, ascending; None in regression.
    """

    kind = "network"

    def __init__(
        self,
        arrays: Mapping[str, F64],
        algorithm: Mapping[str, Any],
        facts: DatasetStats,
        *,
        classes: Sequence[Any] | None = None,
        rows: RowInput | None = None,
        file: str | None = None,
    ) -> None:
        self.arrays = arrays
        self._file = file
        self._algorithm = {k: v for k, v in algorithm.items() if k != "warm_start"}
        self._settings = settings_from_section(LocalSGD, algorithm)
        self._facts = facts
        classes = facts.classes if classes is None else classes
        is_classifier = self._settings.is_classification and classes is not None
        self.classes_ = np.array(classes) if is_classifier else None
        self.rows = rows or RowInput(n_columns=facts.n_columns)
        self._network: Network | None = None

    def __repr__(self) -> str:
        n = sum(np.size(array) for array in self.arrays.values())
        return f"NetworkModel({n} values in {len(self.arrays)} arrays, classes {self.classes_})"

    @property
    def module(self) -> Any:
        """The trained ``torch.nn.Module`` in evaluation mode; it expects normalised inputs.

        Raises
        ------
        ConfigError
            When PyTorch is not installed here, or the factory cannot be imported, or a file names
            it and the user has not trusted it.
        """
        return self._loaded_network().module.eval()

    def trust(self, code: Any = ()) -> None:
        """Allow the functions that the model's file names, if ``code`` has all of them.

        Parameters
        ----------
        code : import path, function or class, or a list of them

        Raises
        ------
        ConfigError
            When the file names another one: importing or calling it would run what the file says.
        """
        given = list(code) if isinstance(code, list | tuple) else [code]
        named = {one for one in given if isinstance(one, str)}
        objects = [one for one in given if not isinstance(one, str)]
        named |= {path_of(one) for one in objects if is_importable(one)}
        give_again(self.settings(), [one for one in objects if not is_importable(one)])
        own = [str(self._settings.model), str(self._settings.loss)]
        # What a script defined is in this process, or has been given: nothing is imported.
        strange = sorted(p for p in own if ":" in p and p not in named and is_importable(p))
        if self._file is not None and strange:
            wanted = strange[0] if len(strange) == 1 else strange
            raise ConfigError(
                f"{self._file}: the network is made by {' and '.join(strange)}, which is code that "
                f"the file names; if you trust it: em.load_model(path, trust={wanted!r}) or "
                f"elasticml predict {' '.join(f'--trust {path}' for path in strange)}"
            )
        self._file = None

    def decision_function(self, X: Any) -> Any:
        """Return the module's outputs, shape (n, outputs), for rows as in the data, not normalised.

        Parameters
        ----------
        X : rows, as :class:`Model` describes, or (n, ...) with as many values per example

        Raises
        ------
        ConfigError, DataError
            As :attr:`module`, and when an example has another number of values.
        """
        return self._map(self._outputs, X)

    def to_safetensors(self, path: str | Path) -> None:
        """Write all arrays as a safetensors file, in float32 as PyTorch has them.

        Raises
        ------
        ConfigError
            When safetensors is not installed.
        """
        try:
            from safetensors.numpy import save
        except ImportError:
            raise ConfigError(f"safetensors is not installed; {how_to_install('export')}") from None
        named = {name: np.ascontiguousarray(a, np.float32) for name, a in self.arrays.items()}
        write_whole(str(path), save(named, metadata={"format": "pt"}))

    def parameters(self) -> dict[str, NDArray[Any]]:
        """Return the network's arrays."""
        return dict(self.arrays)

    def settings(self) -> dict[str, Any]:
        """Return the algorithm's settings and the statistics that make the network."""
        facts = self._facts.to_json() | {"encoder": None, "vocabularies": {}, "notes": []}
        return {"algorithm": self._algorithm, "facts": facts}

    def _outputs(self, X: Any) -> F64:
        rows = X.toarray() if scipy.sparse.issparse(X) else np.array(X, np.float64)
        network = self._loaded_network()
        inputs = network.tensor(rows.reshape(len(rows), self._facts.n_columns))
        return network.predicted(inputs, self.arrays)

    def _predicted(self, X: Any) -> NDArray[Any]:
        outputs = self._outputs(X)
        if self.classes_ is None:
            return outputs.reshape(len(outputs), -1)[:, 0]
        labels: NDArray[Any] = self.classes_[outputs[:, : len(self.classes_)].argmax(1)]
        return labels

    def _loaded_network(self) -> Network:
        from elasticml.algorithms.local_sgd.network import Network

        self.trust()
        if self._network is None:
            self._network = Network(self._settings, self._facts, device="cpu")
            self._network.fill_named(self.arrays)
        return self._network
