"""Chunks in blocks: a few calls settle, sum and certify all of them.

With thousands of small chunks, calls for each chunk took ten times as long as the passes. A block
of one chunk is as if there were no blocks; all are such where chunks are out of core and have their
arrays in a file.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np

from elasticml.algorithms.cocoa.chunk_pointers import ChunkCache, Piece
from elasticml.algorithms.cocoa.coordinates import array_for
from elasticml.algorithms.cocoa.line_search import sum_steps
from elasticml.algorithms.targets import Targets
from elasticml.arrays import F64, I64, address
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import Bodies
from elasticml.data.out_of_core.store import kept, release, store_of
from elasticml.objectives.loss_kernels import MarginLoss, loss_named

#: Rows of a block of several chunks, at most: settling needs memory for one block more.
ROWS_MAX: Final = 65_536
_NONE: Final = np.zeros(0)


class DualBlock:
    """Consecutive chunks of one layout, at least one; arrays (n_rows,) have the rows of all."""

    def __init__(self, chunks: Sequence[Chunk], targets: Targets) -> None:
        self.chunks = tuple(chunks)
        stops = np.cumsum([0, *(chunk.n_rows for chunk in chunks)])
        self.n_rows = int(stops[-1])
        #: Where each chunk's rows are.
        self.slices = [slice(a, b) for a, b in itertools.pairwise(stops.tolist())]
        self._offsets = 8 * stops[:-1]
        labels = np.concatenate([np.asarray(chunk.labels, np.float64) for chunk in chunks])
        sample = None
        if any(chunk.weights is not None for chunk in chunks):
            ones = [np.ones(c.n_rows) if c.weights is None else c.weights for c in chunks]
            sample = np.concatenate(ones)
        weights = targets.weights(labels, sample)
        self.targets = kept(chunks[0], targets.of(labels))
        #: Sample weight times class weight; None if all are one.
        self.weights = None if weights is None else kept(chunks[0], weights)
        self.weight = float(self.n_rows if self.weights is None else self.weights.sum())
        release(chunks)  # their labels were read
        #: The rows that a pass visits, a piece of each chunk, and the dual variables that it
        #: changes; made by the first one.
        self.pieces: Sequence[Piece] = ()
        self.alpha, self.offsets = _NONE, _NONE
        self._bodies: Bodies | None = None

    def begin_pass(
        self, rows: Sequence[Chunk], offsets: F64 | None, caches: Sequence[ChunkCache]
    ) -> None:
        """Take the rows that passes visit, those of each chunk, and what is kept of them."""
        self.alpha, self.offsets = array_for(self.chunks), _NONE if offsets is None else offsets
        self.pieces = [
            Piece(
                chunk,
                self.targets[part],
                None if self.weights is None else self.weights[part],
                self.alpha[part],
                None if offsets is None else offsets[part],
                cache,
            )
            for chunk, part, cache in zip(rows, self.slices, caches, strict=True)
        ]

    @property
    def bodies(self) -> Bodies:
        """Where the bodies are, which are loaded."""
        if self._bodies is None:
            self._bodies = Bodies.of(self.chunks)
        return self._bodies

    def places_in(self, array: F64) -> I64:
        """Return the addresses of the chunks' parts of an array (n_rows,)."""
        return address(array) + self._offsets

    def coefficients(self, alpha: F64, loss: MarginLoss) -> F64:
        """Return what dual variables (n_rows,), or their steps, multiply the rows by."""
        out = alpha * self.targets if loss.is_classification else alpha.copy()
        if self.weights is not None:
            out *= self.weights
        return out

    def step_from(self, alpha: F64, loss: MarginLoss) -> tuple[F64, F64]:
        """Return the step of a pass from these dual variables, and the line search's sums (2,)."""
        step, sums = array_for(self.chunks), np.zeros(2)
        weights = _NONE if self.weights is None else self.weights
        rows = alpha, self.alpha, self.targets, weights, self.offsets
        sum_steps(loss.terms, *rows, step, sums)
        return step, sums


def divided(chunks: Sequence[Chunk]) -> list[Sequence[Chunk]]:
    """Divide chunks into those of a block; single ones where any is out of core."""
    if store_of(chunks) is not None:
        return [[chunk] for chunk in chunks]
    starts, rows = [0], 0
    for k, chunk in enumerate(chunks):
        if k and (chunk.layout != chunks[starts[-1]].layout or rows + chunk.n_rows > ROWS_MAX):
            starts.append(k)
            rows = 0
        rows += chunk.n_rows
    return [chunks[a:b] for a, b in itertools.pairwise([*starts, len(chunks)])]


def warm_kernels(kind: str | None = None, dtype: str | None = None) -> None:
    """Compile the loops over rows of the hinge, or load their machine code from the cache."""
    warm_up(loss_named("hinge"))


def warm_up(loss: MarginLoss) -> None:
    """Compile the loops over rows with this loss."""
    loss.warm_up(with_dual=True)
    one = np.zeros(1)
    sum_steps(loss.terms, one, one, one, one, one, one, np.zeros(2))
