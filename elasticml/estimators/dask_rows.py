"""Rows of Dask collections for estimators: sums over labels, sources of jobs, scores.

Import this inside functions only: it loads Dask. All rows stay on the cluster; what comes here are
labels, sums and one vector of the model's size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import dask
import numpy as np
from scipy.special import xlogy

from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Dtype
from elasticml.data.readers.dask_partitions import (
    DaskArraySource,
    RowParts,
    array_source,
    column_source,
    row_parts,
    vector_of_part,
)
from elasticml.estimators.rows import Labels, Targets, moments

if TYPE_CHECKING:
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
        if hasattr(X, "columns"):
            self._encode(X)
        self._collections = (X, y, sample_weight)
        is_single = hasattr(X, "chunks") and X.dtype == np.float32
        self.dtype: Dtype = "float32" if is_single else "float64"
        known = [n for n in self.parts.rows if n is not None]
        #: Rows, of which 0 stands for a number that is not known, and columns.
        self.shape = sum(known) * (len(known) == len(self.parts.rows)), self.parts.columns

    def _encode(self, frame: Any) -> None:
        # Imported here: the scheduler imports this file for its functions in a task graph, and
        # need not load pandas.
        from elasticml.data.readers.dask_collections import encoded_partitions
        from elasticml.models.row_input import RowInput

        encoded = encoded_partitions(frame, self.client)
        if encoded is not None:
            parts, encoder = encoded
            self.encoding = RowInput(n_columns=encoder.n_columns, encoder=encoder)
            self.parts = replace(self.parts, X=parts, columns=encoder.n_columns)

    @cached_property
    def labels(self) -> Labels:
        """The labels as classes, from one pass over them."""
        found: Labels = self._summed(_count_labels, _merge_labels)
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
        return Targets(y=y, weights=weights, total=float(of_class @ labels.weights))

    def numbers(self) -> list[Targets]:
        """Return the labels as numbers, from one pass over them."""
        sums = self._summed(_moments, _merge_moments)
        return [Targets.of(self.parts.y, self.parts.weights, sums)]

    def source(self, targets: Targets) -> DaskArraySource:
        """Return the data of a job."""
        return array_source(self._with(targets), self.dtype, self._collections)

    def column_source(self, targets: Targets, constant: float | None) -> DaskArraySource:
        """Return the data of a job by columns, with one more column if ``constant`` is given."""
        n_blocks = min(self.shape[1], BLOCKS_PER_WORKER * max(len(self.client.nthreads()), 1))
        return column_source(self._with(targets), n_blocks, constant, self._collections)

    def _with(self, targets: Targets) -> RowParts:
        return replace(self.parts, y=targets.y, weights=targets.weights)

    def _mapped(
        self, function: Callable[..., Any], vectors: Sequence[Any], *what: Any
    ) -> list[Any]:
        """Apply a function of a vector, weights and other values to each partition."""
        each = dask.delayed(function, pure=True)
        weights = self.parts.weights or [None] * len(vectors)
        return [each(part, s, *what) for part, s in zip(vectors, weights, strict=True)]

    def _summed(self, function: Callable[..., Any], add: Callable[[Sequence[Any]], Any]) -> Any:
        """Add a function of each partition's labels and weights in a tree on the cluster."""
        merge = dask.delayed(add, pure=True)
        level = self._mapped(function, self.parts.y)
        while len(level) > 1:
            level = [merge(level[k : k + _FAN_IN]) for k in range(0, len(level), _FAN_IN)]
        return self.client.compute(level[0]).result()


def totals(collections: Sequence[Any], client: Any) -> list[float]:
    """Return the sum of each collection of numbers, in one graph on a client's cluster."""
    return [
        float(total) for total in dask.compute(*(c.sum() for c in collections), scheduler=client)
    ]


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
    t = vector_of_part(y).astype(np.float64)
    _refuse_infinite(t)
    return moments(t, _checked_weights(weights, t.size))


def _merge_moments(parts: Sequence[F64]) -> F64:
    every = np.stack(parts)
    # Partitions without weight have no mean.
    each = every[every[:, 0] > 0.0]
    total, mean = each[:, 0].sum(), each[:, 0] @ each[:, 1] / max(each[:, 0].sum(), 1e-300)
    squares = each[:, 2].sum() + each[:, 0] @ (each[:, 1] - mean) ** 2
    return np.array([total, mean, squares, each[:, 3].sum(), every[:, 4].min()])


def _refuse_infinite(values: Any) -> None:
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("y contains NaN or infinity")


def _signs(y: Any, weights: Any, label: Any) -> F64:
    return np.where(vector_of_part(y) == label, 1.0, -1.0)


def _codes(y: Any, weights: Any, labels: Any) -> F64:
    return np.searchsorted(labels, vector_of_part(y)).astype(np.float64)


def _weighted(classes: F64, weights: Any, of_class: F64) -> F64:
    """Return the weights of rows times those of their classes, which are signs or numbers."""
    each: F64 = of_class[np.maximum(classes, 0.0).astype(np.int64)]
    return each if weights is None else each * vector_of_part(weights)


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
