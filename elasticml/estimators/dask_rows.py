"""Rows of Dask collections for estimators: statistics of labels, sources of jobs, certificates.

Import this inside functions only: it loads Dask. All rows stay on the cluster; what comes here are
labels, sums and one vector of the model's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

import dask
import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax, xlogy

from elasticml.algorithms.linear.newton import Minimum, Point
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
from elasticml.estimators.job_backend import minimise_by_jobs
from elasticml.objectives.loss_kernels import balancing_factors, loss_named

#: More distinct labels than this are no classes.
CLASSES_MAX: Final = 1000
#: Blocks of columns for each worker: workers that come later take some.
BLOCKS_PER_WORKER: Final = 4
#: Partial results that one task adds.
_FAN_IN: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelStatistics:
    """Counts and weights of labels."""

    #: Labels, sorted, with their rows and weights; empty if there are more than CLASSES_MAX.
    labels: NDArray[Any]
    counts: NDArray[np.int64]
    weights: F64
    #: Sums over all rows: rows, weights, and weighted targets and squares if labels are numbers.
    sums: F64
    #: The least label; infinity if labels are not numbers.
    least: float

    def spread(self, *, centred: bool) -> float:
        """Return the weighted mean square of the targets, which are numbers, or their variance.

        Raises
        ------
        ValueError
            When all weights are 0.
        """
        _, total, linear, squares = self.sums
        if total <= 0.0:
            raise ValueError("the weights of all rows are 0, wanted some above 0")
        return max(float(squares / total - ((linear / total) ** 2 if centred else 0.0)), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a model is fitted to: targets and weights, partition by partition."""

    y: Sequence[Any]
    #: None if all are one.
    weights: Sequence[Any] | None
    #: Sum of the weights.
    total: float


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
        self._collections = (X, y, sample_weight)
        is_single = hasattr(X, "chunks") and X.dtype == np.float32
        self.dtype: Dtype = "float32" if is_single else "float64"

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.parts.columns

    def labels(self) -> LabelStatistics:
        """Count the labels, in one pass over them."""
        count = dask.delayed(_count_labels, pure=True)
        weights = self.parts.weights or [None] * len(self.parts.y)
        counted = [count(y, s) for y, s in zip(self.parts.y, weights, strict=True)]
        return cast(LabelStatistics, self._reduced(counted, _merge_labels))

    def against_rest(self, labels: LabelStatistics, positive: int, of_class: F64 | None) -> Targets:
        """Return the targets -1 and +1 of one class, and the weights of rows.

        Parameters
        ----------
        of_class : ndarray (2,), optional
            Weights of the rest and of the class, by which sample weights are multiplied.
        """
        label = labels.labels[positive]
        of_class = None if of_class is None or (of_class == 1.0).all() else of_class
        target = dask.delayed(_signs, pure=True)
        y = [target(part, label) for part in self.parts.y]
        own, all_ = float(labels.weights[positive]), float(labels.weights.sum())
        if of_class is None:
            return Targets(y=y, weights=self.parts.weights, total=all_)
        weigh = dask.delayed(_weights_of_signs, pure=True)
        given = self.parts.weights or [None] * len(y)
        weights = [weigh(signs, s, of_class) for signs, s in zip(y, given, strict=True)]
        total = float(of_class[1]) * own + float(of_class[0]) * (all_ - own)
        return Targets(y=y, weights=weights, total=total)

    def codes(self, labels: LabelStatistics, of_class: F64) -> Targets:
        """Return the numbers of the classes as targets, and the weights of rows.

        Parameters
        ----------
        of_class : ndarray (classes,)
            Weight of each class, by which sample weights are multiplied.
        """
        number = dask.delayed(_codes, pure=True)
        y = [number(part, labels.labels) for part in self.parts.y]
        total = float(of_class @ labels.weights)
        if (of_class == 1.0).all():
            return Targets(y=y, weights=self.parts.weights, total=total)
        weigh = dask.delayed(_weights_of_codes, pure=True)
        given = self.parts.weights or [None] * len(y)
        weights = [weigh(codes, s, of_class) for codes, s in zip(y, given, strict=True)]
        return Targets(y=y, weights=weights, total=total)

    def numbers(self, labels: LabelStatistics) -> Targets:
        """Return the labels as targets."""
        return Targets(y=self.parts.y, weights=self.parts.weights, total=float(labels.sums[1]))

    def source(self, targets: Targets) -> DaskArraySource:
        """Return the data of a job."""
        return array_source(self._with(targets), self.dtype, self._collections)

    def columns(self, targets: Targets, constant: float | None = None) -> DaskArraySource:
        """Return the data of a job by columns, with one more column if ``constant`` is given."""
        n_blocks = min(self.n_columns, BLOCKS_PER_WORKER * max(len(self.client.nthreads()), 1))
        return column_source(self._with(targets), n_blocks, constant, self._collections)

    def _with(self, targets: Targets) -> RowParts:
        return replace(self.parts, y=targets.y, weights=targets.weights)

    def minimise(
        self,
        targets: Targets,
        *,
        loss: str,
        l2: float,
        intercept: bool,
        gap: float,
        rounds: int,
        of_classes: F64 | None = None,
        fixed: int | None = None,
    ) -> Minimum:
        """Minimise a smooth loss with a free intercept by jobs, and certify the model.

        Parameters
        ----------
        of_classes : ndarray (classes,), optional
            Total weight of each class's rows, if targets are the numbers of several classes: the
            loss is softmax, and a model has each class's coefficients and intercept in turn.
            Other parameters are those of :func:`minimise_by_jobs`.
        """

        def certified(w: F64) -> Point:
            return self.point(targets, w, loss, l2, intercept, fixed, of_classes)

        models = 1 if of_classes is None else of_classes.size
        zero = np.zeros(models * (self.n_columns + intercept))
        if fixed is not None:
            zero[fixed] = 1.0
        return minimise_by_jobs(
            certified,
            zero,
            self.source(targets),
            self.client,
            loss=loss,
            l2=l2,
            intercept=intercept,
            fixed=fixed,
            gap=gap,
            rounds=rounds,
        )

    def point(
        self,
        targets: Targets,
        w: F64,
        loss: str,
        l2: float,
        intercept: bool,
        fixed: int | None = None,
        of_classes: F64 | None = None,
    ) -> Point:
        """Return value, gradient and certified gap of a model, in at most two passes over the rows.

        Other parameters are those of :meth:`minimise`. Without an intercept the gap is that of a
        strongly convex function; with one, that of the model's dual variables, made feasible.
        """
        d, total = self.n_columns, targets.total
        W = w.reshape(-1, d + intercept)
        weights = targets.weights or [None] * len(targets.y)
        rows = list(zip(self.parts.X, targets.y, weights, strict=True))
        model = dask.delayed(W, pure=True)

        def summed(of_part: Callable[..., F64], *parameters: Any) -> F64:
            each = dask.delayed(of_part, pure=True)
            parts = [each(*row, model, loss, intercept, *parameters) for row in rows]
            total: F64 = self._reduced(parts, _add)
            return total

        sums = summed(_sums_at)
        slopes, penalised = sums[3:].reshape(W.shape), l2 * W
        penalised[:, d:] = 0.0
        if fixed is not None:
            penalised[0, fixed] = slopes[0, fixed] = 0.0
        value = sums[0] / total + 0.5 * float((penalised * W).sum())
        gradient = (slopes / total + penalised).ravel()
        gap = math.nan
        if l2 > 0.0 and not intercept:
            gap = 0.5 / l2 * float(gradient @ gradient)
        elif l2 > 0.0:
            # Dual variables of `MarginLoss.balanced` and `softmax_objective.balanced`.
            if of_classes is not None:
                of_model = slopes[:, d] + of_classes
                kept = min(1.0, float((of_classes / np.maximum(of_model, 1e-300)).min()))
                balance = np.append(kept, (of_classes - kept * of_model) / total)
            elif loss == "squared":
                balance = np.array([1.0, 1.0, (sums[2] - sums[1]) / total])
            else:
                balance = np.array([*balancing_factors(float(sums[1]), float(sums[2])), 0.0])
            dual = summed(_dual_at, balance) / total
            minus, image = float(dual[0]), dual[1:]
            if fixed is not None:  # the offset is linear in the dual problem
                minus, image[fixed] = minus + float(image[fixed]), 0.0
            gap = value - (minus - 0.5 / l2 * float(image @ image))
        return Point(w=w, value=value, gradient=gradient, product=_no_product, gap=gap)

    def _reduced(self, parts: Sequence[Any], add: Callable[[Sequence[Any]], Any]) -> Any:
        """Add partial results in a tree on the cluster; return the sum."""
        level, merge = list(parts), dask.delayed(add, pure=True)
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


def _checked_weights(weights: Any, rows: int) -> F64:
    if weights is None:
        return np.ones(rows)
    checked = np.asarray(vector_of_part(weights), np.float64)
    if checked.size != rows or not np.isfinite(checked).all() or (checked < 0.0).any():
        raise ValueError("sample_weight: wanted a finite number not below 0 for each row")
    return checked


def _count_labels(y: Any, weights: Any) -> LabelStatistics:
    values = vector_of_part(y)
    s = _checked_weights(weights, values.size)
    labels, codes = np.unique(values, return_inverse=True)
    sums, least = np.array([values.size, s.sum(), 0.0, 0.0]), math.inf
    if values.dtype.kind in "biuf":
        targets = values.astype(np.float64)
        if not np.isfinite(targets).all():
            raise ValueError("y contains NaN or infinity")
        sums[2:] = s @ targets, s @ (targets * targets)
        least = float(targets.min(initial=math.inf))
    is_cut = labels.size > CLASSES_MAX
    return LabelStatistics(
        labels=labels[:0] if is_cut else labels,
        counts=np.bincount(codes, minlength=labels.size) * (not is_cut),
        weights=np.bincount(codes, s, minlength=labels.size).astype(np.float64),
        sums=sums,
        least=least,
    )


def _merge_labels(parts: Sequence[LabelStatistics]) -> LabelStatistics:
    is_cut = any(part.sums[0] and not part.labels.size for part in parts)
    filled = [part for part in parts if part.labels.size]
    sums, least = np.sum([part.sums for part in parts], axis=0), min(part.least for part in parts)
    if is_cut or not filled:
        none = np.empty(0)
        return LabelStatistics(
            labels=none, counts=none.astype(int), weights=none, sums=sums, least=least
        )
    labels, codes = np.unique(np.concatenate([p.labels for p in filled]), return_inverse=True)
    counts = np.bincount(codes, np.concatenate([p.counts for p in filled]))
    weights = np.bincount(codes, np.concatenate([p.weights for p in filled])).astype(np.float64)
    if labels.size > CLASSES_MAX:
        labels = labels[:0]
    return LabelStatistics(
        labels=labels, counts=counts.astype(np.int64), weights=weights, sums=sums, least=least
    )


def _signs(y: Any, label: Any) -> F64:
    return np.where(vector_of_part(y) == label, 1.0, -1.0)


def _weights_of_signs(signs: F64, weights: Any, of_class: F64) -> F64:
    each: F64 = np.where(signs > 0.0, of_class[1], of_class[0])
    return each if weights is None else each * vector_of_part(weights)


def _codes(y: Any, labels: Any) -> F64:
    return np.searchsorted(labels, vector_of_part(y)).astype(np.float64)


def _weights_of_codes(codes: F64, weights: Any, of_class: F64) -> F64:
    each: F64 = of_class[codes.astype(np.int64)]
    return each if weights is None else each * vector_of_part(weights)


def _add(parts: Sequence[Any]) -> Any:
    return sum(parts[1:], start=parts[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A partition's rows, and what they give at a model."""

    matrix: Any
    #: (n,)
    targets: F64
    weights: F64
    #: (n, models) margins, and the derivatives of the weighted losses with respect to them.
    margins: F64
    slopes: F64
    #: Sum of the losses.
    value: float

    @staticmethod
    def at(X: Any, y: Any, weights: Any, W: F64, loss: str, intercept: bool) -> _Part:
        matrix, d = matrix_of_part(X), W.shape[1] - intercept
        z = np.asarray(matrix @ W[:, :d].T, np.float64)
        z = np.ascontiguousarray(z + W[:, d] if intercept else z)
        t = np.ascontiguousarray(vector_of_part(y), np.float64)
        s = np.ones(t.size)
        if weights is not None:
            s = np.ascontiguousarray(vector_of_part(weights), np.float64)
        if len(W) > 1:
            own = np.arange(t.size), t.astype(np.int64)
            slopes = s[:, None] * softmax(z, axis=1)
            slopes[own] -= s
            value = float(s @ (np.logaddexp.reduce(z, axis=1) - z[own]))
        else:
            slopes = np.empty(z.shape)
            value = loss_named(loss).value_and_slope(z[:, 0], t, s, slopes[:, 0])
        return _Part(matrix=matrix, targets=t, weights=s, margins=z, slopes=slopes, value=value)


def _sums_at(X: Any, y: Any, weights: Any, W: F64, loss: str, intercept: bool) -> F64:
    """Return a partition's losses, its positive and negative slopes, and the gradient."""
    part = _Part.at(X, y, weights, W, loss, intercept)
    up, down = np.maximum(part.slopes, 0.0).sum(), np.maximum(-part.slopes, 0.0).sum()
    gradient = np.asarray(part.matrix.T @ part.slopes, np.float64).T
    if intercept:
        gradient = np.column_stack([gradient, part.slopes.sum(axis=0)])
    return np.concatenate([[part.value, up, down], gradient.ravel()])


def _dual_at(X: Any, y: Any, weights: Any, W: F64, loss: str, intercept: bool, balance: F64) -> F64:
    """Return minus a partition's conjugates at balanced dual variables, and their image."""
    part = _Part.at(X, y, weights, W, loss, intercept)
    s, t = part.weights, part.targets
    if len(W) > 1:
        q = balance[0] * softmax(part.margins, axis=1) + balance[1:]
        minus = -float(s @ (q * np.log(np.maximum(q, 1e-300))).sum(axis=1))
        u = s[:, None] * q
        u[np.arange(t.size), t.astype(np.int64)] -= s
    else:
        dual, alpha = loss_named(loss), np.empty(t.size)
        dual.alpha_from_margin(part.margins[:, 0], t, alpha)
        alpha = alpha * np.where(part.slopes[:, 0] > 0.0, balance[0], balance[1]) - balance[2]
        minus = dual.minus_conjugate(alpha, t, s)
        u = -(s * alpha * t if dual.is_classification else s * alpha)[:, None]
    return np.append(minus, np.asarray(part.matrix.T @ u, np.float64).T.ravel())


# Scores: sums over partitions of labels and predictions.

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
