"""The interface of scorers, the reader of their data, and the metrics that scorers share."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Arrays
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import BlockSummary
from elasticml.data.readers.images import image_shape
from elasticml.data.source import Source, listed_once, read_block, resolve_chunk_bytes
from elasticml.errors import DataError
from elasticml.ids import is_validation
from elasticml.user_cache import CacheSetting

#: Data up to this size stay in memory between passes.
KEPT_BYTES_MAX = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Objective and metrics of one model on one data set."""

    #: Mean loss plus penalty: ``sum_i s_i loss_i / sum_i s_i + l2/2 ||w||^2``.
    objective: float
    #: Mean loss; NaN if it is unknown.
    loss: float = math.nan
    #: accuracy, auroc, auprc, logloss in classification; rmse, r2 in regression. AUROC and AUPRC
    #: for test data only, log loss for the logistic loss only, each only if it is defined.
    metrics: Mapping[str, float]


class Scorer(Protocol):
    """Scores models of one kind on the data of a reader."""

    def training(self, reader: DataReader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on the training data: exact objective, no ranking metrics."""
        ...

    def test(self, reader: DataReader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on test data, with ranking metrics if the model has them."""
        ...


def ranking(is_positive: NDArray[np.bool_], margins: F64, weights: F64 | None) -> dict[str, float]:
    """Return AUROC and AUPRC of margins (n,) for labels (n,); {} if there is only one class."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    if is_positive.all() or not is_positive.any():
        return {}
    return {
        "auroc": float(roc_auc_score(is_positive, margins, sample_weight=weights)),
        "auprc": float(average_precision_score(is_positive, margins, sample_weight=weights)),
    }


def row_length_error(length: int | str, expected: int | None) -> DataError:
    """Return the error for test rows whose length is not that of a network's input."""
    return DataError(
        f"rows have {length} columns, wanted {expected} as the training data have; name data of "
        "the same shape"
    )


def check_image_shapes(test: Source, training_shape: Callable[[], tuple[int, ...] | None]) -> None:
    """Reject test images of another shape, even with as many pixels: they mean something else.

    Parameters
    ----------
    training_shape : callable
        Returns the shape of the training images, None if there are none; called only if the test
        data are images.

    Raises
    ------
    ConfigError, DataError
        When the shapes differ, or a file cannot be read.
    """
    test_shape = image_shape(test)
    shape = None if test_shape is None else training_shape()
    if (
        test_shape is not None
        and shape is not None
        and len(shape) == len(test_shape)
        and shape != test_shape
    ):
        raise DataError(
            f"pictures have shape {list(test_shape)}, wanted {list(shape)} as in training; name "
            "pictures of the same shape, or set size and mode alike for both"
        )


class DataReader:
    """Reads a source block by block, repeatedly, with read-ahead."""

    def __init__(
        self,
        source: Source,
        n_threads: int,
        cache: CacheSetting,
        chunk_bytes: int | None = None,
        n_members: int = 1,
    ) -> None:
        source = self._source = listed_once(source)
        self._chunk_bytes = resolve_chunk_bytes(source, chunk_bytes, n_members)
        self._blocks = source.blocks()
        self._n_ahead = n_threads
        self._cache = cache
        self._keeps = sum(block.nbytes for block in self._blocks) <= KEPT_BYTES_MAX
        self._kept: list[list[Chunk]] = []
        self._summaries: dict[int, BlockSummary] = {}

    @property
    def n_threads(self) -> int:
        """Number of reading threads."""
        return self._n_ahead

    def batches(self, pool: ThreadPoolExecutor) -> Iterator[list[Chunk]]:
        """Yield the chunks of each block, in order."""
        if self._kept:
            yield from self._kept
            return
        kept: list[list[Chunk]] = []
        waiting: deque[Future[tuple[list[Chunk], BlockSummary]]] = deque()
        for block in self._blocks:
            waiting.append(pool.submit(self._read, block.index))
            if len(waiting) > self._n_ahead:
                yield self._take(waiting.popleft(), kept)
        while waiting:
            yield self._take(waiting.popleft(), kept)
        self._kept = kept

    def _read(self, block: int) -> tuple[list[Chunk], BlockSummary]:
        return read_block(self._source, block, self._chunk_bytes, 1, self._cache)

    def _take(
        self, future: Future[tuple[list[Chunk], BlockSummary]], kept: list[list[Chunk]]
    ) -> list[Chunk]:
        read, summary = future.result()
        chunks = [chunk for chunk in read if not is_validation(chunk.id)]
        self._summaries[summary.block] = summary
        if self._keeps:
            kept.append(chunks)
        return chunks

    def notes(self) -> tuple[str, ...]:
        """Return the notes of all blocks, with their counts added up."""
        return tuple(text.format(count) for text, count in self.counts().items() if count)

    def counts(self) -> Mapping[str, int]:
        """Return the counts of the blocks read so far, added up, by note template."""
        counts: dict[str, int] = {}
        for summary in self._summaries.values():
            for text, count in summary.counts.items():
                counts[text] = counts.get(text, 0) + count
        return counts
