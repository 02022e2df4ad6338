"""Metrics that are functions of sums over rows, by scikit-learn's names.

Members add up the sums, the driver makes scores of them. As in scikit-learn's ``scoring``, greater
is better: errors and losses have the prefix ``neg_``. Metrics that need all rows at once are
refused; ``roc_auc`` and ``average_precision`` are computed from a histogram.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from elasticml.arrays import F64
from elasticml.errors import ConfigError, DataError, JobFailedError, fault_of
from elasticml.ids import Role
from elasticml.specification.user_objects import imported

#: Bins of the histograms of ``roc_auc`` and ``average_precision``: this many between a margin and
#: its double, of either sign, from the least to the largest power of two. The order of the rows in
#: a bin is unknown, and taken as mixed evenly. ``roc_auc`` differs from scikit-learn's by at most
#: half the share of pairs of a positive and a negative row that are in the same bin,
#: ``average_precision`` by at most the sum over the bins of their share of the positive rows times
#: the range of the precision within them.
_BINS_PER_DOUBLING: Final = 128
_LEAST, _LARGEST = -24, 16
_BINS_OF_SIGN: Final = (_LARGEST - _LEAST) * _BINS_PER_DOUBLING
ROC_BINS: Final = 2 * _BINS_OF_SIGN + 1

#: Metrics that are no function of sums, and what to use.
_NOT_SUMS: Final = {
    "neg_median_absolute_error": "neg_mean_absolute_error",
    "neg_max_error": "neg_root_mean_squared_error",
    "max_error": "neg_root_mean_squared_error",
    "top_k_accuracy": "accuracy",
    "d2_absolute_error_score": "neg_mean_absolute_error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Predictions of some rows.

    ``weights`` (n,) are the sample weights. In regression ``targets`` (n,) are the labels and
    ``predictions`` (n,) numbers. In classification ``targets`` (n,) are class numbers, int, and
    ``predictions`` are margins of two classes (n,), positive for the larger label, or scores of all
    classes (n, k).
    """

    targets: Any
    predictions: F64
    weights: F64
    #: What all margins have in common, such as an intercept: rankings do not depend on it.
    common: float = 0.0

    def hits(self) -> Any:
        """Return the predicted class numbers, (n,)."""
        if self.predictions.ndim == 1:
            return (self.predictions > 0.0).astype(np.int64)
        return np.argmax(self.predictions, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a model predicts."""

    #: 0 in regression, else the number of classes.
    n_classes: int
    #: The predictions are log-odds, or logits of a softmax.
    has_probabilities: bool = False
    #: The labels, ascending, for own metrics.
    classes: tuple[float, ...] = ()


def class_numbers(labels: F64, classes: Sequence[float], role: Role) -> Any:
    """Return the numbers of labels among the training rows' classes, ascending, (n,) of int.

    Parameters
    ----------
    role : Role
        What the rows are for.

    Raises
    ------
    DataError
        When a label is not one of the classes.
    """
    known = np.asarray(classes)
    numbers = np.minimum(np.searchsorted(known, labels), known.size - 1)
    unknown = np.flatnonzero(known[numbers] != labels)
    if unknown.size:
        raise DataError(
            f"the {role} rows have the label {labels[unknown[0]]:g}, wanted one of the "
            f"{known.size} labels of the training rows; correct it, or name rows with the same "
            "labels"
        )
    return numbers


# --- sums -----------------------------------------------------------------------------------------


def _moments(rows: Scored, kind: Kind) -> F64:
    """Sum the weights times: label, label^2, error, error^2, |error|."""
    y, s = rows.targets, rows.weights
    error = rows.predictions - y
    return np.array([s @ y, s @ (y * y), s @ error, s @ (error * error), s @ np.abs(error)])


def _poisson_deviance(rows: Scored, kind: Kind) -> F64:
    y, mean, s = rows.targets, rows.predictions, rows.weights
    logs = np.log(np.where(y > 0.0, y, 1.0) / np.where(y > 0.0, mean, 1.0))
    return np.array([2.0 * (s @ (y * logs - y + mean))])


def _gamma_deviance(rows: Scored, kind: Kind) -> F64:
    ratios = rows.targets / rows.predictions
    return np.array([2.0 * (rows.weights @ (ratios - 1.0 - np.log(ratios)))])


def _confusion(rows: Scored, kind: Kind) -> F64:
    """Sum the weights of each class: rows with the label, with the prediction, with both."""
    y, hits, s, k = rows.targets, rows.hits(), rows.weights, kind.n_classes
    right = hits == y
    return np.concatenate(
        [
            np.bincount(y, s, minlength=k),
            np.bincount(hits, s, minlength=k),
            np.bincount(y[right], s[right], minlength=k),
        ]
    )


def _log_loss(rows: Scored, kind: Kind) -> F64:
    z, y, s = rows.predictions, rows.targets, rows.weights
    if z.ndim == 1:
        losses = np.logaddexp(0.0, np.where(y == 1, -z, z))
    else:
        most = z.max(axis=1)
        logs = np.log(np.exp(z - most[:, None]).sum(axis=1)) + most
        losses = logs - z[np.arange(y.size), y]
    return np.array([s @ losses])


def _brier(rows: Scored, kind: Kind) -> F64:
    error = _probabilities(rows.predictions) - rows.targets
    return np.array([rows.weights @ (error * error)])


def _histograms(rows: Scored, kind: Kind) -> F64:
    """Sum the weights of negative and positive rows by bins of their margin, and count the rows."""
    z = rows.predictions - rows.common
    if z.ndim == 2:
        z = z[:, 1] - z[:, 0]
    half, power = np.frexp(np.abs(z))  # |z| is half 2^power
    place = (power - 1.0 - _LEAST + 2.0 * half - 1.0) * _BINS_PER_DOUBLING
    size = np.clip(np.floor(place) + 1.0, 0.0, _BINS_OF_SIGN)
    bins = (_BINS_OF_SIGN + np.sign(z) * size).astype(np.int64)
    places = rows.targets * ROC_BINS + bins
    counts = np.bincount(places, rows.weights, minlength=2 * ROC_BINS)
    return np.append(counts, float(places.size))


def _probabilities(z: F64) -> F64:
    if z.ndim == 2:
        z = z[:, 1] - z[:, 0]
    return 0.5 * (1.0 + np.tanh(0.5 * z))


# --- scores ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Metric:
    """A score of the total weight and of sums, which several metrics may share."""

    sums: Callable[[Scored, Kind], F64]
    score: Callable[[float, F64], float]
    #: Whether there must be exactly two classes.
    needs_two: bool = False


def _r2(total: float, sums: F64) -> float:
    spread = sums[1] - sums[0] ** 2 / total
    return float(1.0 - sums[3] / spread) if spread > 0.0 else math.nan


def _explained_variance(total: float, sums: F64) -> float:
    spread = sums[1] - sums[0] ** 2 / total
    return float(1.0 - (sums[3] - sums[2] ** 2 / total) / spread) if spread > 0.0 else math.nan


def _balanced_accuracy(total: float, sums: F64) -> float:
    label, _, both = sums.reshape(3, -1)
    here = label > 0.0
    return float(np.mean(both[here] / label[here]))


def _ratio(over: Callable[[F64, F64], F64]) -> Callable[[float, F64], F64]:
    """Return ``both / over(label, prediction)`` of each class; 0 where it is not defined."""

    def ratios(total: float, sums: F64) -> F64:
        label, predicted, both = sums.reshape(3, -1)
        below = over(label, predicted)
        return np.divide(both, below, out=np.zeros_like(both), where=below > 0.0)

    return ratios


_PRECISION = _ratio(lambda label, predicted: predicted)
_RECALL = _ratio(lambda label, predicted: label)
_F1 = _ratio(lambda label, predicted: 0.5 * (label + predicted))


def _of_classes(name: str, ratios: Callable[[float, F64], F64]) -> dict[str, _Metric]:
    """Return a metric of the larger of two labels, and its means over classes."""

    def of_larger(total: float, sums: F64) -> float:
        return float(ratios(total, sums)[1])

    def macro(total: float, sums: F64) -> float:
        # scikit-learn averages over the labels that occur among rows or predictions.
        return float(np.mean(ratios(total, sums)[sums.reshape(3, -1)[:2].sum(axis=0) > 0.0]))

    def weighted(total: float, sums: F64) -> float:
        return float(sums.reshape(3, -1)[0] @ ratios(total, sums) / total)

    return {
        name: _Metric(_confusion, of_larger, needs_two=True),
        f"{name}_macro": _Metric(_confusion, macro),
        f"{name}_weighted": _Metric(_confusion, weighted),
    }


def _roc_auc(total: float, sums: F64) -> float:
    negative, positive = sums[:-1].reshape(2, -1)
    pairs = float(negative.sum() * positive.sum())
    below = np.cumsum(negative) - 0.5 * negative
    return float(positive @ below / pairs) if pairs > 0.0 else math.nan


def _average_precision(total: float, sums: F64) -> float:
    # (bins,), from the largest margin down.
    negative, positive = sums[:-1].reshape(2, -1)[:, ::-1]
    n_negative, n_positive = float(negative.sum()), float(positive.sum())
    if not (n_negative > 0.0 and n_positive > 0.0):
        return math.nan
    # The mean positive row of a bin comes after half of the others, and half of the negative rows.
    a_row = total / float(sums[-1])
    hits = np.cumsum(positive) - 0.5 * (positive - a_row)
    precision = hits / (hits + np.cumsum(negative) - 0.5 * negative)
    return float(positive @ precision / n_positive)


def _mean(index: int, sign: float = 1.0) -> Callable[[float, F64], float]:
    return lambda total, sums: sign * float(sums[index]) / total


_CLASSIFICATION: Final[Mapping[str, _Metric]] = {
    "accuracy": _Metric(_confusion, lambda t, sums: float(sums.reshape(3, -1)[2].sum()) / t),
    "balanced_accuracy": _Metric(_confusion, _balanced_accuracy),
    **_of_classes("precision", _PRECISION),
    **_of_classes("recall", _RECALL),
    **_of_classes("f1", _F1),
    "neg_log_loss": _Metric(_log_loss, _mean(0, -1.0)),
    "neg_brier_score": _Metric(_brier, _mean(0, -1.0), needs_two=True),
    "roc_auc": _Metric(_histograms, _roc_auc, needs_two=True),
    "average_precision": _Metric(_histograms, _average_precision, needs_two=True),
}
_REGRESSION: Final[Mapping[str, _Metric]] = {
    "r2": _Metric(_moments, _r2),
    "explained_variance": _Metric(_moments, _explained_variance),
    "neg_mean_squared_error": _Metric(_moments, _mean(3, -1.0)),
    "neg_root_mean_squared_error": _Metric(
        _moments, lambda total, sums: -math.sqrt(max(0.0, float(sums[3]) / total))
    ),
    "neg_mean_absolute_error": _Metric(_moments, _mean(4, -1.0)),
    "neg_mean_poisson_deviance": _Metric(_poisson_deviance, _mean(0, -1.0)),
    "neg_mean_gamma_deviance": _Metric(_gamma_deviance, _mean(0, -1.0)),
}
#: Metrics of probabilities.
_OF_PROBABILITIES: Final = ("neg_log_loss", "neg_brier_score")


def check_metric(name: str, kind: Kind, path: str = "validate.metric") -> None:
    """Check that a metric can be computed by sums for a kind of model.

    Parameters
    ----------
    path : str
        The setting that names it.

    Raises
    ------
    ConfigError
        When it is unknown, cannot be computed by sums, or is for other models.
    """
    if ":" in name:
        return
    table = _CLASSIFICATION if kind.n_classes else _REGRESSION
    if name in table:
        if name in _OF_PROBABILITIES and not kind.has_probabilities:
            why = "it needs probabilities, and this loss gives none; use accuracy"
            raise _refusal(name, why, path)
        if table[name].needs_two and kind.n_classes != 2:
            raise _refusal(name, f"it needs two classes, the data have {kind.n_classes}")
        return
    if name in _NOT_SUMS:
        why = f"it needs all rows at once, not sums over them; use {_NOT_SUMS[name]}"
        raise _refusal(name, why, path)
    other = _REGRESSION if kind.n_classes else _CLASSIFICATION
    if name in other:
        what = "regression" if kind.n_classes else "classification"
        raise _refusal(name, f"it is for {what}; wanted one of {', '.join(table)}", path)
    near = difflib.get_close_matches(name, [*table, f"neg_{name}"], 1, 0.5)
    guess = f"; did you mean {near[0]}?" if near and near[0] in table else ""
    raise _refusal(name, f"wanted module:function, or one of {', '.join(table)}{guess}", path)


def default_metric(kind: Kind) -> str:
    """Return the metric of validation rows for a job that names none."""
    if not kind.n_classes:
        return "neg_mean_squared_error"
    return "neg_log_loss" if kind.has_probabilities else "accuracy"


def default_metrics(kind: Kind, *, ranks: bool) -> tuple[str, ...]:
    """Return the metrics of training rows, and with ``ranks`` of test rows.

    A ranking of two classes needs a histogram of the margins.
    """
    if not kind.n_classes:
        return "r2", "neg_root_mean_squared_error"
    names = ("accuracy", "neg_log_loss") if kind.has_probabilities else ("accuracy",)
    return (*names, "roc_auc", "average_precision") if ranks and kind.n_classes == 2 else names


def _refusal(name: str, why: str, path: str = "metric") -> ConfigError:
    return ConfigError(f"{path}: got {name!r}: {why}")


def _own_metric(path: str) -> _Metric:
    """Return the mean of what a user's function of rows adds up."""
    function = imported("metric", path)
    if not callable(function):
        raise _refusal(path, f"it is a {type(function).__name__}, wanted a function")

    def add(rows: Scored, kind: Kind) -> F64:
        if not rows.weights.size:
            return np.zeros(1)
        targets = np.asarray(kind.classes)[rows.targets] if kind.n_classes else rows.targets
        try:
            value = float(function(targets, rows.predictions, rows.weights))
        except Exception as error:
            raise fault_of(error, path) from error
        if not math.isfinite(value):
            raise JobFailedError(
                f"{path} returned {value}, wanted a finite sum over the rows of weight times value"
            )
        return np.array([value])

    return _Metric(add, _mean(0))


class Metrics:
    """The metrics of a job: the sums that members compute, and the scores made of them.

    The first two sums are the number of rows and their weight.

    Parameters
    ----------
    names : sequence of str
        Names of scikit-learn, or ``module:function``: a function of targets, predictions and
        weights, (n,) each, that returns the sum over the rows of weight times value. Its score is
        the mean; greater is better. Targets are labels, in classification too; predictions are
        as in :class:`Scored`.
    kind : Kind

    Raises
    ------
    ConfigError
        When a metric is not for this kind of model, or cannot be imported.
    """

    def __init__(self, names: Sequence[str], kind: Kind) -> None:
        self.names = tuple(names)
        self.kind = kind
        table = _CLASSIFICATION if kind.n_classes else _REGRESSION
        for name in self.names:
            check_metric(name, kind)
        self._metrics = {n: _own_metric(n) if ":" in n else table[n] for n in self.names}
        k = kind.n_classes
        none = np.zeros((0, k) if k > 2 else 0)
        nothing = Scored(targets=np.zeros(0, np.int64), predictions=none, weights=np.zeros(0))
        self._places: dict[Callable[[Scored, Kind], F64], slice] = {}
        self.n_sums = 2
        for add in (metric.sums for metric in self._metrics.values()):
            if add not in self._places:
                size = add(nothing, kind).size
                self._places[add] = slice(self.n_sums, self.n_sums + size)
                self.n_sums += size

    def sums(self, rows: Scored) -> F64:
        """Return the sums over some rows, (n_sums,)."""
        out = np.zeros(self.n_sums)
        out[:2] = rows.weights.size, rows.weights.sum()
        for add, place in self._places.items():
            out[place] = add(rows, self.kind)
        return out

    def scores(self, sums: F64) -> dict[str, float | None]:
        """Return the scores of all rows by name; None where one is not defined."""
        total = float(sums[1])
        scores: dict[str, float | None] = {}
        for name, metric in self._metrics.items():
            some = sums[self._places[metric.sums]]
            value = metric.score(total, some) if total > 0.0 else math.nan
            scores[name] = value if math.isfinite(value) else None
        return scores
