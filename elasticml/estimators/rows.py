"""The problem of a fit, what its models are fitted to, and rows in memory with their layouts.

``DaskRows`` (``elasticml/estimators/dask_rows.py``) has the same interface for rows on a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from scipy.special import xlogy

from elasticml.algorithms.base import Parallel
from elasticml.algorithms.parallel import Serial
from elasticml.arrays import F64

if TYPE_CHECKING:
    from elasticml.algorithms.linear.design import Design
    from elasticml.algorithms.linear.dual_descent import MemoryRows
    from elasticml.data.chunks.chunk import Chunk
    from elasticml.data.dataset_stats import DatasetStats
    from elasticml.data.source import Source

#: Target number of chunks, and the bounds of their size; each chunk costs a few microseconds.
_CHUNKS: Final = 64
_CHUNK_BYTES: Final = 2**20
_CHUNK_BYTES_MAX: Final = 2**24
_NAME: Final = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The classes of a fit."""

    #: (n_classes,) sorted.
    values: NDArray[Any]
    #: (n_classes,) sum of the weights of each class's rows.
    weights: F64


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What one model is fitted to; fields beside the first three are those of numbers."""

    #: (n,): -1 and +1, numbers of classes, or numbers; of Dask rows, one such part for each
    #: partition.
    y: Any
    #: Like ``y``; None if all are one.
    weights: Any
    #: Sum of the weights.
    total: float
    #: Weighted means of y, of its square, of its squared distance from the mean, and of y log y.
    mean: float = 0.0
    square: float = 0.0
    variance: float = 0.0
    y_log_y: float = 0.0
    least: float = 0.0

    @staticmethod
    def of(y: Any, weights: Any, summed: F64) -> Targets:
        """Return targets that are numbers with these :func:`moments`."""
        total, mean, squares, y_log_y, least = summed.tolist()
        variance = squares / max(total, 1e-300)
        return Targets(
            y=y,
            weights=weights,
            total=total,
            mean=mean,
            square=variance + mean * mean,
            variance=variance,
            y_log_y=y_log_y / max(total, 1e-300),
            least=least,
        )


def moments(y: F64, s: F64 | None) -> F64:
    """Return numbers' weight, mean, squares about the mean, sum of y log y, and least, (5,).

    Where one is negative, the sum of y log y is 0: it has no logarithm.
    """
    total = float(y.size if s is None else s.sum())
    mean = float(y.sum() if s is None else s @ y) / max(total, 1e-300)
    away, least, logs = y - mean, float(y.min(initial=math.inf)), 0.0
    if least >= 0.0:
        logs = float(xlogy(y, y).sum() if s is None else s @ xlogy(y, y))
    with np.errstate(over="ignore"):
        squares = float((away if s is None else s * away) @ away)
    return np.array([total, mean, squares, logs, least])


class ArrayRows:
    """Rows in this process, fitted here or, with a client, as a job to which they are sent.

    Layouts are made once, also if several threads ask for them at the same time.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64 or float32
    y : ndarray (n,) of labels or numbers, or (n, n_targets)
    weights : ndarray (n,), optional
        None if all are one.
    parallel : Parallel, optional
        Threads for one problem; by default the calling thread alone.
    """

    def __init__(
        self, X: Any, y: Any = None, weights: F64 | None = None, parallel: Parallel | None = None
    ) -> None:
        self.X, self.y, self.weights = X, y, weights
        self.client: Any = None
        self.parallel: Parallel = Serial() if parallel is None else parallel
        self.shape: tuple[int, int] = X.shape
        self._layouts: dict[Any, Any] = {}
        self._converting = RLock()

    @cached_property
    def _encoded(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        encoded = classes_and_codes(self.y) if self.y.dtype.kind in "biuf" else None
        # Two integers are classes. scikit-learn checks other labels, for which it sorts the rows.
        if encoded is None or encoded[0].size != 2 or (encoded[0] % 1 != 0).any():
            from sklearn.utils.multiclass import check_classification_targets

            check_classification_targets(self.y)
        return encoded or classes_and_codes(self.y)

    @cached_property
    def labels(self) -> Labels:
        """The labels as classes."""
        values, codes = self._encoded
        counted = np.bincount(codes, self.weights, minlength=values.size)
        return Labels(values=values, weights=counted.astype(np.float64))

    def against_rest(self, positive: int, rest: float, own: float) -> Targets:
        """Return the targets -1 and +1 of one class.

        Parameters
        ----------
        rest, own : float
            Weights of the other classes and of this one, by which sample weights are multiplied.
        """
        is_own = self._encoded[1] == positive
        each = None if rest == own == 1.0 else np.where(is_own, own, rest)
        return self._targets(np.where(is_own, 1.0, -1.0), each)

    def codes(self, of_class: F64) -> Targets:
        """Return the numbers of the classes, whose rows' weights are multiplied by ``of_class``."""
        codes = self._encoded[1]
        return self._targets(codes, None if (of_class == 1.0).all() else of_class[codes])

    def numbers(self) -> list[Targets]:
        """Return the numbers of each column of ``y``."""
        each = np.ascontiguousarray(np.asarray(self.y, np.float64).reshape(len(self.y), -1).T)
        return [Targets.of(one, self.weights, moments(one, self.weights)) for one in each]

    def _targets(self, y: Any, each: F64 | None) -> Targets:
        weights = self.weights
        if each is not None:
            weights = each if weights is None else each * weights
        return Targets(
            y=y, weights=weights, total=float(len(y) if weights is None else weights.sum())
        )

    def source(self, targets: Targets) -> Source:
        """Return the data of a job by rows."""
        # Imported here: loading what jobs need takes longer than most fits.
        from elasticml.data.readers.arrays import from_arrays

        return from_arrays(self.X, np.asarray(targets.y, np.float64), targets.weights)

    def column_source(self, targets: Targets, constant: float | None) -> Source:
        """Return the data of a job by columns, with one more column if ``constant`` is given."""
        from elasticml.data.readers.arrays import from_arrays

        X = self.X if constant is None else self.columns(constant)
        return from_arrays(X, targets.y, targets.weights, by="columns")

    # --- layouts ----------------------------------------------------------------------------------

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        with self._converting:
            if key not in self._layouts:
                self._layouts[key] = make()
            return self._layouts[key]

    @property
    def chunked(self) -> ChunkedRows:
        """The rows in chunks, for CoCoA's kernels."""
        made: ChunkedRows = self._once("chunks", lambda: chunk_rows(self.X))
        return made

    @property
    def memory(self) -> MemoryRows:
        """The rows as they are, for dual coordinate descent in one thread."""
        from elasticml.algorithms.linear.dual_descent import memory_rows

        made: MemoryRows = self._once("memory", lambda: memory_rows(self.X))
        return made

    @property
    def blocks(self) -> Design:
        """The rows in blocks of float64, for matrix products."""
        from elasticml.algorithms.linear.design import Design

        def make() -> Design:
            X = self.X
            if X.dtype != np.float64:
                X = (
                    type(X)((X.data.astype(np.float64), X.indices, X.indptr), shape=X.shape)
                    if scipy.sparse.issparse(X)
                    else X.astype(np.float64)
                )
            return Design(X, self.parallel)

        made: Design = self._once("blocks", make)
        return made

    def columns(self, constant: float | None) -> Any:
        """Return the rows in column-major layout, (n, d), with a constant column unless None."""

        def make() -> Any:
            X = self.X.tocsc() if scipy.sparse.issparse(self.X) else np.asfortranarray(self.X)
            if constant is None:
                return X
            extra = np.full((X.shape[0], 1), constant)
            if scipy.sparse.issparse(X):
                return scipy.sparse.hstack([X, type(X)(extra)], format="csc")
            return np.asfortranarray(np.hstack([X, extra]))

        return self._once(constant, make)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedRows:
    """Rows in chunks, whose labels and weights can be replaced."""

    chunks: Sequence[Chunk]
    facts: DatasetStats

    def with_labels(self, labels: F64, weights: F64 | None) -> ChunkedRows:
        """Return the same rows, shared, with other labels and weights and without state.

        Parameters
        ----------
        labels : ndarray (n,)
        weights : ndarray (n,), optional
            None if all are one.
        """
        from elasticml.data.chunks import zero_copy_chunks

        chunks, at = [], 0
        for chunk in self.chunks:
            rows = slice(at, at + chunk.n_rows)
            some = None if weights is None else weights[rows]
            chunks.append(zero_copy_chunks.with_labels(chunk, labels[rows], some))
            at += chunk.n_rows
        counts = _counts(labels)
        facts = replace(
            self.facts,
            classes=tuple(counts),
            label_counts=counts,
            weight_sum=float(at if weights is None else weights.sum()),
        )
        return ChunkedRows(chunks=chunks, facts=facts)


def _counts(labels: F64) -> dict[float, int]:
    """Return the number of rows of each label, by ascending label."""
    # Labels -1 and +1, the usual case, need no sorting.
    both = {sign: int(np.count_nonzero(labels == sign)) for sign in (-1.0, 1.0)}
    if sum(both.values()) == labels.size:
        return {sign: count for sign, count in both.items() if count}
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def chunk_rows(X: Any) -> ChunkedRows:
    """Split rows into chunks that share their memory; all labels are 0.

    Parameters
    ----------
    X : ndarray or sparse (n, d), float64 or float32
        Finite.
    """
    from elasticml.data.chunks import zero_copy_chunks
    from elasticml.data.dataset_stats import merge_summaries, summarise

    size = X.nnz * 8 if hasattr(X, "nnz") else X.nbytes
    chunks = zero_copy_chunks.view_rows(
        X, _NAME, min(max(size // _CHUNKS, _CHUNK_BYTES), _CHUNK_BYTES_MAX)
    )
    return ChunkedRows(
        chunks=chunks,
        facts=merge_summaries([summarise(0, chunks, chunks[0].layout)], name=_NAME),
    )


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
