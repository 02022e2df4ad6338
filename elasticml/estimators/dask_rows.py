"""Rows of Dask collections for estimators: sums over labels, sources of jobs, certificates, scores.

Import this inside functions only: it loads Dask. All rows stay on the cluster; what comes here are
labels, sums and one vector of the model's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Literal

import dask
import numpy as np
from scipy.special import softmax, xlogy

from elasticml.algorithms.linear.newton import Point
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Dtype
from elasticml.data.readers.dask_columns import column_source
from elasticml.data.readers.dask_partitions import (
    DaskArraySource,
    RowParts,
    array_source,
    matrix_of_part,
    row_parts,
    vector_of_part,
)
from elasticml.data.readers.dask_tables import encoded_partitions
from elasticml.estimators.rows import Labels, Problem, Targets
from elasticml.models.row_input import RowInput

#: More distinct labels than this are no classes.
CLASSES_MAX: Final = 1000
#: Blocks of columns for each worker: workers that come later take some.
BLOCKS_PER_WORKER: Final = 4
#: Partial results that one task adds.
_FAN_IN: Final = 8


class DaskRows:
    """Rows, labels and weights of Dask collections on a client's cluster.

    Parameters
    ----------
    X : dask array (n, d) or dask dataframe
    y : dask array (n,) or series, or array_like if the sizes of X's chunks are known
    sample_weight : like y, optional
    client : distributed.Client

    Raises
    ------
    ConfigError
        When partitions do not match.
    """

    def __init__(self, X: Any, y: Any, sample_weight: Any, client: Any) -> None:
        self.client = client
        self.parts: RowParts = row_parts(X, y, sample_weight)
        #: What encodes a frame with text or dates; None for numbers.
        self.encoding: RowInput | None = None
        encoded = encoded_partitions(X, client) if hasattr(X, "columns") else None
        if encoded is not None:
            parts, encoder = encoded
            self.encoding = RowInput(n_columns=encoder.n_columns, encoder=encoder)
            self.parts = replace(self.parts, X=parts, columns=encoder.n_columns)
        self._collections = (X, y, sample_weight)
        is_single = hasattr(X, "chunks") and X.dtype == np.float32
        self.dtype: Dtype = "float32" if is_single else "float64"
        known = [n for n in self.parts.rows if n is not None]
        #: Rows, of which 0 stands for a number that is not known, and columns.
        self.shape = sum(known) * (len(known) == len(self.parts.rows)), self.parts.columns

    @cached_property
    def labels(self) -> Labels:
        """The labels as classes, from one pass over them."""
        found: Labels = self._summed(_count_labels, self.parts.y, add=_merge_labels)
        if not 0 < found.values.size <= CLASSES_MAX or (
            found.values.dtype.kind == "f" and (found.values % 1 != 0).any()
        ):
            raise ValueError("Unknown label type: continuous. wanted at most 1000 classes")
        return found

    def against_rest(self, positive: int, rest: float, own: float) -> Targets:
        """See :meth:`elasticml.estimators.rows.ArrayRows.against_rest`."""
        labels = self.labels
        y = self._mapped(_signs, self.parts.y, labels.values[positive])
        weights, of_own = self.parts.weights, float(labels.weights[positive])
        if rest != 1.0 or own != 1.0:
            weights = self._mapped(_weighted, y, np.array([rest, own]))
        return Targets(
            y=y,
            weights=weights,
            total=own * of_own + rest * (float(labels.weights.sum()) - of_own),
        )

    def codes(self, of_class: F64) -> Targets:
        """See :meth:`elasticml.estimators.rows.ArrayRows.codes`."""
        labels = self.labels
        y, weights = self._mapped(_codes, self.parts.y, labels.values), self.parts.weights
        if not (of_class == 1.0).all():
            weights = self._mapped(_weighted, y, of_class)
        of_classes = of_class * labels.weights
        return Targets(y=y, weights=weights, total=float(of_classes.sum()), of_classes=of_classes)

    def numbers(self) -> list[Targets]:
        """Return the labels as numbers, from one pass over them."""
        sums = self._summed(_moments, self.parts.y, add=_add_moments)
        mean, square, y_log_y = (sums[1:4] / max(sums[0], 1e-300)).tolist()
        return [
            Targets(
                y=self.parts.y,
                weights=self.parts.weights,
                total=float(sums[0]),
                mean=mean,
                square=square,
                variance=max(square - mean * mean, 0.0),
                y_log_y=y_log_y,
                least=float(sums[4]),
            )
        ]

    def source(self, targets: Targets) -> DaskArraySource:
        """Return the data of a job."""
        return array_source(self._with(targets), self.dtype, self._collections)

    def column_source(self, targets: Targets, constant: float | None) -> DaskArraySource:
        """Return the data of a job by columns, with one more column if ``constant`` is given."""
        n_blocks = min(self.shape[1], BLOCKS_PER_WORKER * max(len(self.client.nthreads()), 1))
        return column_source(self._with(targets), n_blocks, constant, self._collections)

    def _with(self, targets: Targets) -> RowParts:
        return replace(self.parts, y=targets.y, weights=targets.weights)

    def point_of(self, problem: Problem, targets: Targets) -> Callable[[F64], Point]:
        """Return a function of a model: its value, gradient and gap, in two passes over the rows.

        The loss is squared or logistic. The dual variables of a model, ``-loss'``, are made
        feasible with a free intercept: those of the squared loss by their mean, and the
        distributions of classes by :func:`elasticml.algorithms.linear.softmax_objective.balanced`.
        """
        l2, d, total, fixed = problem.l2, self.shape[1], targets.total, problem.fixed
        is_free = problem.intercept is not None
        of_classes = targets.of_classes
        if problem.loss == "logistic" and of_classes is None:  # of -1 and +1
            ones = self._summed(_positive, targets.y, targets.weights, add=_add)
            of_classes = np.array([total - float(ones), float(ones)])

        def at(w: F64) -> Point:
            W = w.reshape(-1, d + is_free)
            rows = self.parts.X, targets.y, targets.weights
            model = dask.delayed((W, problem.loss, is_free), pure=True)
            sums = self._summed(_sums_at, *rows, extra=(model, None), add=_add)
            slopes, penalised = sums[1:].reshape(-1, d + is_free), l2 * W
            penalised[:, d:] = 0.0
            balance = np.zeros(1)
            if problem.loss == "squared":
                balance = slopes[:, d] / total if is_free else balance
            elif is_free and of_classes is not None:
                own = slopes[:, d] if len(W) > 1 else np.array([-slopes[0, d], slopes[0, d]])
                kept = min(1.0, float((of_classes / np.maximum(own + of_classes, 1e-300)).min()))
                balance = np.append(kept, (of_classes - kept * (own + of_classes)) / total)
            elif of_classes is not None:
                balance = np.append(1.0, np.zeros(of_classes.size))
            if fixed is not None:
                penalised[0, fixed] = slopes[0, fixed] = 0.0
            value = sums[0] / total + 0.5 * float((penalised * W).sum())
            dual = self._summed(_sums_at, *rows, extra=(model, balance), add=_add) / total
            minus, image = float(dual[0]), dual[1:].reshape(-1, d + is_free)[:, :d]
            if fixed is not None:  # the offset is linear in the dual problem
                minus, image[0, fixed] = minus + float(image[0, fixed]), 0.0
            return Point(
                w=w,
                value=value,
                gradient=(slopes / total + penalised).ravel(),
                product=_no_product,
                gap=value - (minus - 0.5 / l2 * float((image * image).sum())),
            )

        return at

    def _mapped(self, function: Callable[..., Any], vectors: Sequence[Any], what: Any) -> list[Any]:
        """Apply a function of a vector, weights and one more value to each partition."""
        each = dask.delayed(function, pure=True)
        weights = self.parts.weights or [None] * len(vectors)
        return [each(part, s, what) for part, s in zip(vectors, weights, strict=True)]

    def _summed(
        self,
        function: Callable[..., Any],
        *vectors: Any,
        add: Callable[[Sequence[Any]], Any],
        extra: tuple[Any, ...] = (),
    ) -> Any:
        """Add a function's results for each partition in a tree on the cluster."""
        each, merge = dask.delayed(function, pure=True), dask.delayed(add, pure=True)
        if len(vectors) == 1:
            vectors = (*vectors, self.parts.weights)
        columns = [one or [None] * len(self.parts.y) for one in vectors]
        level = [each(*row, *extra) for row in zip(*columns, strict=True)]
        while len(level) > 1:
            level = [merge(level[k : k + _FAN_IN]) for k in range(0, len(level), _FAN_IN)]
        return self.client.compute(level[0]).result()


def totals(collections: Sequence[Any], client: Any) -> list[float]:
    """Return the sum of each collection of numbers, in one graph on a client's cluster."""
    return [
        float(total) for total in dask.compute(*(c.sum() for c in collections), scheduler=client)
    ]


def _no_product(v: F64) -> F64:
    raise NotImplementedError("products with the Hessian are computed by the members")


# --- of one partition -----------------------------------------------------------------------------


def _checked_weights(weights: Any, rows: int) -> F64:
    if weights is None:
        return np.ones(rows)
    checked = np.asarray(vector_of_part(weights), np.float64)
    if checked.size != rows or not np.isfinite(checked).all() or (checked < 0.0).any():
        raise ValueError("sample_weight: wanted a finite number not below 0 for each row")
    return checked


def _count_labels(y: Any, weights: Any) -> Labels:
    values = vector_of_part(y)
    _refuse_infinite(values)
    found, codes = np.unique(values, return_inverse=True)
    s = _checked_weights(weights, values.size)
    return Labels(
        values=found[: CLASSES_MAX + 1],
        weights=np.bincount(codes, s, found.size).astype(np.float64),
    )


def _merge_labels(parts: Sequence[Labels]) -> Labels:
    parts = [part for part in parts if part.values.size] or list(parts[:1])
    found, codes = np.unique(np.concatenate([p.values for p in parts]), return_inverse=True)
    weights = np.concatenate([p.weights[: p.values.size] for p in parts])
    counted = np.bincount(codes, weights, found.size).astype(np.float64)
    return Labels(values=found[: CLASSES_MAX + 1], weights=counted[: CLASSES_MAX + 1])


def _moments(y: Any, weights: Any) -> F64:
    """Return sums of weights, of targets, squares and y log y, and the least target."""
    t = vector_of_part(y).astype(np.float64)
    _refuse_infinite(t)
    s, least, up = _checked_weights(weights, t.size), t.min(initial=math.inf), np.maximum(t, 0.0)
    return np.array([s.sum(), s @ t, s @ (t * t), s @ xlogy(up, up), least])


def _add_moments(parts: Sequence[F64]) -> F64:
    stacked = np.stack(parts)
    return np.append(stacked[:, :4].sum(axis=0), stacked[:, 4].min())


def _refuse_infinite(values: Any) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("y contains NaN or infinity")


def _positive(y: F64, weights: Any) -> float:
    return float(_checked_weights(weights, y.size)[y > 0.0].sum())


def _signs(y: Any, weights: Any, label: Any) -> F64:
    return np.where(vector_of_part(y) == label, 1.0, -1.0)


def _codes(y: Any, weights: Any, labels: Any) -> F64:
    return np.searchsorted(labels, vector_of_part(y)).astype(np.float64)


def _weighted(classes: F64, weights: Any, of_class: F64) -> F64:
    """Return the weights of rows times those of their classes, which are signs or numbers."""
    each: F64 = of_class[np.maximum(classes, 0.0).astype(np.int64)]
    return each if weights is None else each * vector_of_part(weights)


def _add(parts: Sequence[Any]) -> Any:
    return sum(parts[1:], start=parts[0])


def _sums_at(
    X: Any, y: Any, weights: Any, model: tuple[F64, str, bool], balance: F64 | None
) -> F64:
    """Return a partition's loss, or minus its conjugates at dual variables, and their image.

    Parameters
    ----------
    balance : ndarray, optional
        None: the loss and its gradient. For the squared loss the mean slope, which is subtracted;
        for classes the share of their distributions, and the rest, which is added.
    """
    W, loss, intercept = model
    matrix, d = matrix_of_part(X), W.shape[1] - intercept
    z = np.asarray(matrix @ W[:, :d].T, np.float64)
    z = z + W[:, d] if intercept else z
    t = np.asarray(vector_of_part(y), np.float64)
    s = _checked_weights(weights, t.size)[:, None]
    if loss == "squared":
        u = z - t[:, None] - (0.0 if balance is None else balance)
        # Minus the conjugate of -u is -u (y + u / 2).
        value = 0.5 * u**2 if balance is None else -u * (t[:, None] + 0.5 * u)
    else:
        classes = np.maximum(t, 0.0).astype(np.int64)
        if len(W) == 1:
            z = np.hstack([np.zeros((t.size, 1)), z])
        u, own = softmax(z, axis=1), (np.arange(t.size), classes)
        if balance is None:
            value = (np.logaddexp.reduce(z, axis=1) - z[own])[:, None]
        else:
            u = balance[0] * u + balance[1:]
            value = -xlogy(u, u)
        u[own] -= 1.0
        u = u[:, -len(W) :]
    slopes = s * u
    image = np.asarray(matrix.T @ slopes, np.float64).T
    if intercept:
        image = np.column_stack([image, slopes.sum(axis=0)])
    return np.append((s * value).sum(), image.ravel())


# --- scores: sums over partitions of labels and predictions ---------------------------------------

#: Weighted accuracy, coefficient of determination, or the share of the Poisson deviance.
Metric = Literal["accuracy", "r2", "d2_poisson"]


def score_collections(
    predict: Callable[[Any], Any], X: Any, y: Any, weights: Any, client: Any, metric: Metric
) -> float:
    """Return a weighted score of predictions.

    Parameters
    ----------
    predict : callable
        Of one partition's rows.
    client : distributed.Client or None
        None: Dask's default scheduler.
    """
    parts = row_parts(X, y, weights)
    sums = dask.delayed(_score_sums, pure=True)
    given = parts.weights or [None] * len(parts.y)
    each = [sums(predict, *row, metric) for row in zip(parts.X, parts.y, given, strict=True)]
    scheduler = {} if client is None else {"scheduler": client}
    total = np.sum(dask.compute(*each, **scheduler), axis=0)
    if metric == "accuracy":
        return float(total[1] / total[0])
    if metric == "r2":
        spread = total[3] - total[2] ** 2 / total[0]
    else:
        spread = total[3] - float(xlogy(total[2], total[2] / total[0]))
    return float(1.0 - total[1] / spread) if spread > 0.0 else float(total[1] == 0.0)


def _score_sums(predict: Callable[[Any], Any], X: Any, y: Any, weights: Any, metric: Metric) -> F64:
    """Return a partition's sums: weights, losses, and of labels and of a function of them."""
    labels = vector_of_part(y)
    if not labels.size:
        return np.zeros(4)
    s = _checked_weights(weights, labels.size)
    predicted = vector_of_part(predict(X))
    if metric == "accuracy":
        return np.array([s.sum(), s @ (predicted == labels), 0.0, 0.0])
    t = labels.astype(np.float64)
    if metric == "r2":
        return np.array([s.sum(), s @ (t - predicted) ** 2, s @ t, s @ (t * t)])
    logs = xlogy(t, t)
    losses = logs - xlogy(t, predicted) - t + predicted
    return np.array([s.sum(), s @ losses, s @ t, s @ logs])
