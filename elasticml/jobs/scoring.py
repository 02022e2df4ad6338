"""What scores models of a job: a reader of data, and what every kind of model answers of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Arrays
from elasticml.data.cache import Setting
from elasticml.data.chunk import Chunk
from elasticml.data.facts import BlockSummary
from elasticml.data.picture_shapes import picture_shape
from elasticml.data.source import Source, read_block, resolve_chunk_bytes
from elasticml.errors import DataError

F64 = NDArray[np.float64]
#: Data up to this size are kept between passes.
KEPT_BYTES_MAX = 2**28


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one model is worth on one data set."""

    #: Mean loss plus penalty: ``sum_i s_i loss_i / sum_i s_i + l2/2 ||w||^2``.
    objective: float
    #: accuracy, auroc, auprc, logloss in classification; rmse, r2 in regression. AUROC and AUPRC
    #: only where rankings were asked for, log loss only for the logistic loss, each only where it
    #: is defined.
    metrics: Mapping[str, float]


class Scorer(Protocol):
    """Scores models of one kind of algorithm on data that a reader reads."""

    def training(self, reader: Reader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on the training data: exact objective, no rankings."""
        ...

    def test(self, reader: Reader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on data that were not trained on, with rankings where there are any."""
        ...


def ranking(is_positive: NDArray[np.bool_], margins: F64, weights: F64 | None) -> dict[str, float]:
    """Rank examples by their margins, (n,) each; nothing where only one class is there."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    if is_positive.all() or not is_positive.any():
        return {}
    return {
        "auroc": float(roc_auc_score(is_positive, margins, sample_weight=weights)),
        "auprc": float(average_precision_score(is_positive, margins, sample_weight=weights)),
    }


def rows_differ(found: int | str, wanted: int | None) -> DataError:
    """Make the error for test rows that a network does not take."""
    return DataError(
        f"rows have {found} columns, wanted {wanted} as the training data have; name data of the "
        "same shape"
    )


def check_pictures(test: Source, wanted: Callable[[], tuple[int, ...] | None]) -> None:
    """Refuse test pictures of another shape: as many pixels, which mean something else.

    Parameters
    ----------
    wanted : callable
        Returns the shape of the training data's pictures, None where they have none; asked only
        where the test data are pictures.

    Raises
    ------
    ConfigError, DataError
        Also when a file cannot be read.
    """
    found = picture_shape(test)
    shape = None if found is None else wanted()
    if found is not None and shape is not None and len(shape) == len(found) and shape != found:
        raise DataError(
            f"pictures have shape {list(found)}, wanted {list(shape)} as in training; name "
            "pictures of the same shape, or set size and mode alike for both"
        )


class Reader:
    """Reads a source again and again, block after block, some blocks ahead."""

    def __init__(
        self,
        source: Source,
        n_threads: int,
        cache: Setting,
        chunk_bytes: int | None = None,
        n_members: int = 1,
    ) -> None:
        self._source = source
        self._chunk_bytes = resolve_chunk_bytes(source, chunk_bytes, n_members)
        self._blocks = source.blocks()
        self._n_ahead = n_threads
        self._cache = cache
        self._keeps = sum(block.nbytes for block in self._blocks) <= KEPT_BYTES_MAX
        self._kept: list[list[Chunk]] = []
        self._summaries: dict[int, BlockSummary] = {}

    @property
    def n_threads(self) -> int:
        """Threads that read."""
        return self._n_ahead

    def batches(self, pool: ThreadPoolExecutor) -> Iterator[list[Chunk]]:
        """Yield the chunks of one block after the other, in order."""
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
        chunks, summary = future.result()
        self._summaries[summary.block] = summary
        if self._keeps:
            kept.append(chunks)
        return chunks

    def notes(self) -> tuple[str, ...]:
        """Say what the blocks' summaries have to say, counts added up."""
        return tuple(text.format(count) for text, count in self.counts().items() if count)

    def counts(self) -> Mapping[str, int]:
        """Add up what was counted in the blocks read so far, by the sentence about it."""
        counts: dict[str, int] = {}
        for summary in self._summaries.values():
            for text, count in summary.counts.items():
                counts[text] = counts.get(text, 0) + count
        return counts
