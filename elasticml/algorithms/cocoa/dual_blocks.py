"""Dual variables of many chunks in one array, so that a few calls settle and sum all of them.

With thousands of small chunks, calls for each chunk took ten times as long as the passes. The
arrays in a chunk's state are views of those of its block. They are replaced and never changed: a
state that is being sent stays as it is. A block of one chunk is as if there were no blocks; all are
such where chunks are out of core and have their arrays in a file.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.coordinates import Coordinates, Settling
from elasticml.algorithms.cocoa.line_search import sum_steps
from elasticml.arrays import F64, I64, address
from elasticml.compiled import kernel, vector_at
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.kernels import add_sums
from elasticml.data.out_of_core.store import row_array
from elasticml.objectives.loss_kernels import MarginLoss, loss_named

#: Rows of a block of several chunks, at most: settling needs memory for one block more.
ROWS_MAX: Final = 65_536


class DualBlock:
    """Consecutive chunks with their dual variables in one array, and their steps in another.

    Parameters
    ----------
    duals : Coordinates
    pieces : sequence of Piece
        At least one, with the rows that a pass visits.
    chunks : sequence of Chunk
        The chunks that have the states.
    """

    def __init__(
        self, duals: Coordinates, pieces: Sequence[Piece], chunks: Sequence[Chunk]
    ) -> None:
        self.duals, self.pieces, self.chunks = duals, pieces, chunks
        stops = np.cumsum([chunk.n_rows for chunk in chunks]).tolist()
        self._places = [slice(a, b) for a, b in itertools.pairwise([0, *stops])]
        self.n_rows: int = stops[-1]
        self._table = np.array(
            [
                [0 if each is None else address(each) for each in arrays]
                for arrays in ((p.alpha, p.targets, p.weights, p.offsets) for p in pieces)
            ]
        )
        self._stops = np.array(stops)
        #: The arrays written last, the chunks' parts of the first, and their serial.
        self._written: tuple[F64, F64, Sequence[F64], int] | None = None

    def settled(self, loss: MarginLoss, exchange: Settling) -> F64 | None:
        """Return the dual variables with the last step applied, once, as ``Coordinates`` do.

        Nothing is written. None if a chunk's state is another one than was written last.
        """
        if self._written is None:
            return None
        alpha, step, parts, own = self._written
        name = self.duals.prefix + self.duals.name
        present = [chunk.state.get(name) for chunk in self.chunks]
        is_known = own in (exchange.serial, exchange.settle)
        if not is_known or not all(map(operator.is_, present, parts)):
            return None
        if own == exchange.serial or exchange.gamma == 0.0:
            return alpha
        settled = self._array()
        _settle_parts(loss.terms, alpha, step, exchange.gamma, self._stops, self._table, settled)
        return settled

    def gathered(self) -> F64:
        """Return the chunks' dual variables."""
        each = [self.duals.values(chunk) for chunk in self.chunks]
        return each[0] if len(each) == 1 else np.concatenate(each)

    def begin(self, alpha: F64) -> None:
        """Copy these dual variables to the pieces."""
        _copy_parts(alpha, self._stops, self._table)

    def end(self, alpha: F64, loss: MarginLoss, serial: int) -> F64:
        """Write the chunks' steps from ``alpha`` to the pieces' dual variables.

        Returns
        -------
        ndarray (chunks, 2)
            The line search's sums, see :func:`elasticml.algorithms.cocoa.line_search.sum_steps`.
        """
        step, sums = self._array(), np.zeros((len(self.chunks), 2))
        _sum_steps_of_parts(loss.terms, alpha, self._stops, self._table, step, sums)
        self.write(alpha, step, serial)
        return sums

    def write(self, alpha: F64, step: F64, serial: int) -> None:
        """Replace the chunks' dual variables and steps by views of these arrays."""
        alphas, steps = [alpha], [step]
        if len(self.chunks) > 1:
            alphas, steps = ([a[place] for place in self._places] for a in (alpha, step))
        (a, s, n), number = self.duals.names, np.array([serial], np.int64)
        for chunk, own, taken in zip(self.chunks, alphas, steps, strict=True):
            chunk.state = {**chunk.state, a: own, s: taken, n: number}
            chunk.state_version += 1
        self._written = alpha, step, alphas, serial

    def _array(self) -> F64:
        return np.empty(self.n_rows) if len(self.chunks) > 1 else row_array(self.chunks[0])


def divided(chunks: Sequence[Chunk]) -> list[Sequence[Chunk]]:
    """Divide chunks into consecutive ones of at most :data:`ROWS_MAX` rows, or single ones."""
    first, rows, starts = 0, 0, []
    for k, chunk in enumerate(chunks):
        if k == first or chunk.out_of_core is not None or rows + chunk.n_rows > ROWS_MAX:
            starts.append(k)
            first, rows = k, 0
        rows += chunk.n_rows
    return [chunks[low:high] for low, high in itertools.pairwise([*starts, len(chunks)])]


def blocks_of(
    duals: Coordinates, pieces: Sequence[Piece], chunks: Sequence[Chunk]
) -> list[DualBlock]:
    """Divide chunks into blocks: of at most :data:`ROWS_MAX` rows, or of one chunk."""
    rest = iter(pieces)
    return [
        DualBlock(duals, list(itertools.islice(rest, len(some))), some) for some in divided(chunks)
    ]


def moved(loss: MarginLoss, targets: F64, chunk: Chunk, alpha: F64, step: F64, gamma: float) -> F64:
    """Return a chunk's dual variables with a share of their step added."""
    out = row_array(chunk)
    _settle(loss.terms, alpha, step, gamma, targets, out)
    return out


@kernel
def _settle(loss: Any, alpha: F64, step: F64, gamma: float, targets: F64, out: F64) -> None:
    """Write ``alpha + gamma step``, which may round beyond a bound that the step ended on."""
    for i in range(alpha.size):
        out[i] = loss.clip(alpha[i] + gamma * step[i], targets[i])


@kernel
def _settle_parts(
    loss: Any, alpha: F64, step: F64, gamma: float, stops: I64, table: I64, out: F64
) -> None:
    """Do so for parts that end at ``stops``; addresses of targets are in the second column."""
    first = 0
    for c in range(stops.size):
        own = slice(first, stops[c])
        targets = vector_at(table[c, 1], stops[c] - first, alpha)
        _settle(loss, alpha[own], step[own], gamma, targets, out[own])
        first = stops[c]


@kernel
def _copy_parts(alpha: F64, stops: I64, table: I64) -> None:
    """Copy the parts of ``alpha`` that end at ``stops`` to the addresses in the first column."""
    first = 0
    for c in range(stops.size):
        own = vector_at(table[c, 0], stops[c] - first, alpha)
        for i in range(own.size):
            own[i] = alpha[first + i]
        first = stops[c]


@kernel
def _sum_steps_of_parts(
    loss: Any, alpha: F64, stops: I64, table: I64, step: F64, sums: F64
) -> None:
    """Write each part's steps, and its sums into ``sums`` (parts, 2); addresses are 0 for none."""
    first = 0
    for c in range(stops.size):
        n = stops[c] - first
        sum_steps(
            loss,
            alpha[first : stops[c]],
            vector_at(table[c, 0], n, alpha),
            vector_at(table[c, 1], n, alpha),
            vector_at(table[c, 2], n if table[c, 2] != 0 else 0, alpha),
            vector_at(table[c, 3], n if table[c, 3] != 0 else 0, alpha),
            step[first : stops[c]],
            sums[c],
        )
        first = stops[c]


@kernel
def write_coefficients(
    folds: bool, rows: I64, alphas: I64, targets: I64, weights: I64, out: I64
) -> None:
    """Write ``s_i a_i``, times the label if it ``folds``, for each chunk; see ``loss_kernels``."""
    like = np.empty(0)
    for c in range(rows.size):
        n = rows[c]
        alpha, y = vector_at(alphas[c], n, like), vector_at(targets[c], n, like)
        weight = vector_at(weights[c], n if weights[c] else 0, like)
        own = vector_at(out[c], n, like)
        for i in range(n):
            value = alpha[i] * y[i] if folds else alpha[i]
            own[i] = value * weight[i] if weight.size > 0 else value


def warm_kernels(kind: str | None = None, dtype: str | None = None) -> None:
    """Compile the loops over blocks, or load their machine code from the cache."""
    none, parts, table = np.zeros(0), np.zeros(0, np.int64), np.zeros((0, 4), np.int64)
    _copy_parts(none, parts, table)
    write_coefficients(True, parts, parts, parts, parts, parts)
    add_sums(parts, parts, none)
    warm_up(loss_named("hinge"))


def warm_up(loss: MarginLoss) -> None:
    """Do so with the loops of a loss."""
    loss.warm_up(with_dual=True)
    none, parts, table = np.zeros(0), np.zeros(0, np.int64), np.zeros((0, 4), np.int64)
    _settle_parts(loss.terms, none, none, 1.0, parts, table, none)
    _sum_steps_of_parts(loss.terms, none, parts, table, none, np.zeros((0, 2)))
