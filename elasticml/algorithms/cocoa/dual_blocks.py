"""Chunks in blocks: a few compiled calls settle, sum and certify all of them.

With thousands of small chunks, calls for each chunk took ten times as long as the passes. The
arrays in a chunk's state are views of those of its block. They are replaced and never changed: a
state that is being sent stays as it is. A block of one chunk is as if there were no blocks; all are
such where chunks are out of core and have their arrays in a file.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.coordinates import Coordinates, Settling
from elasticml.algorithms.cocoa.line_search import sum_steps
from elasticml.arrays import F64, I64, address
from elasticml.compiled import kernel, vector_at
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.kernels import add_sums
from elasticml.data.chunks.products import Bodies
from elasticml.data.out_of_core.store import row_array, store_of
from elasticml.objectives.loss_kernels import MarginLoss, loss_named

#: Rows of a block of several chunks, at most: settling needs memory for one block more.
ROWS_MAX: Final = 65_536


@dataclass(slots=True)
class HeldChunk:
    """What a member keeps of a chunk between exchanges; all arrays have shape (n_rows,)."""

    chunk: Chunk
    targets: F64
    #: Sample weight times class weight; None if all are one.
    weights: F64 | None
    weight: float
    #: The rows that a pass visits and their dual variables; created by the first pass.
    piece: Piece | None = None


class DualBlock:
    """Consecutive chunks of one layout: their dual variables are in one array, their steps too.

    Parameters
    ----------
    duals : Coordinates
    held : sequence of HeldChunk
        At least one.
    """

    def __init__(self, duals: Coordinates, held: Sequence[HeldChunk]) -> None:
        self.duals, self.chunks = duals, [own.chunk for own in held]
        self.pieces: Sequence[Piece] = ()
        self.weights = [own.weight for own in held]
        stops = np.cumsum([0, *(chunk.n_rows for chunk in self.chunks)])
        self.n_rows = int(stops[-1])
        #: Where each chunk's rows are in an array of all rows; the addresses from its beginning.
        self.slices = [slice(a, b) for a, b in itertools.pairwise(stops.tolist())]
        self._offsets = 8 * stops[:-1]
        #: (m,) numbers of rows; (4, m) addresses of targets, of weights, of the pieces' dual
        #: variables and of their offsets, 0 for none.
        self.rows = np.diff(stops)
        self.table = np.zeros((4, len(held)), np.int64)
        self.table[:2] = _addresses([own.targets for own in held], [own.weights for own in held])
        self._bodies: Bodies | None = None
        #: The arrays written last, the chunks' parts of the first, and their serial.
        self._written: tuple[F64, F64, Sequence[F64], int] | None = None

    def take(self, pieces: Sequence[Piece]) -> None:
        """Take the rows that a pass visits, a piece of each chunk."""
        self.pieces = pieces
        self.table[2:] = _addresses([p.alpha for p in pieces], [p.offsets for p in pieces])

    @property
    def bodies(self) -> Bodies:
        """Where the bodies are, which are loaded."""
        if self._bodies is None:
            self._bodies = Bodies.of(self.chunks)
        return self._bodies

    def places_in(self, array: F64) -> I64:
        """Return the addresses of the chunks' parts of an array (n_rows,)."""
        return address(array) + self._offsets

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
        places = self.places_in(alpha), self.places_in(step), self.places_in(settled)
        _settle_parts(loss.terms, exchange.gamma, self.rows, self.table, *places)
        return settled

    def gathered(self) -> F64:
        """Return the chunks' dual variables."""
        each = [self.duals.values(chunk) for chunk in self.chunks]
        return each[0] if len(each) == 1 else np.concatenate(each)

    def begin(self, alpha: F64) -> None:
        """Copy these dual variables to the pieces."""
        _copy_parts(self.rows, self.places_in(alpha), self.table[2])

    def end(self, alpha: F64, loss: MarginLoss, serial: int) -> F64:
        """Write the chunks' steps from ``alpha`` to the pieces' dual variables.

        Returns
        -------
        ndarray (chunks, 2)
            The line search's sums, see :func:`elasticml.algorithms.cocoa.line_search.sum_steps`.
        """
        step, sums = self._array(), np.zeros((len(self.chunks), 2))
        places = self.places_in(alpha), self.places_in(step)
        _sum_steps_of_parts(loss.terms, self.rows, self.table, *places, sums)
        self.write(alpha, step, serial)
        return sums

    def write(self, alpha: F64, step: F64, serial: int) -> None:
        """Replace the chunks' dual variables and steps by views of these arrays."""
        alphas, steps = [alpha], [step]
        if len(self.chunks) > 1:
            alphas, steps = ([a[place] for place in self.slices] for a in (alpha, step))
        (a, s, n), number = self.duals.names, np.array([serial], np.int64)
        for chunk, own, taken in zip(self.chunks, alphas, steps, strict=True):
            chunk.state = {**chunk.state, a: own, s: taken, n: number}
            chunk.state_version += 1
        self._written = alpha, step, alphas, serial

    def _array(self) -> F64:
        return np.empty(self.n_rows) if len(self.chunks) > 1 else row_array(self.chunks[0])


def _addresses(*arrays: Sequence[F64 | None]) -> list[list[int]]:
    """Return the addresses of arrays, 0 for none."""
    return [[0 if a is None else address(a) for a in some] for some in arrays]


def divided(held: Sequence[HeldChunk]) -> list[Sequence[HeldChunk]]:
    """Divide chunks into those of a block; single ones where any is out of core."""
    rows_max = 0 if store_of([own.chunk for own in held]) is not None else ROWS_MAX
    starts, rows = [0], 0
    for k, own in enumerate(held):
        is_other = own.chunk.layout != held[starts[-1]].chunk.layout
        if k and (is_other or rows + own.chunk.n_rows > rows_max):
            starts.append(k)
            rows = 0
        rows += own.chunk.n_rows
    return [held[a:b] for a, b in itertools.pairwise([*starts, len(held)])]


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
    loss: Any, gamma: float, rows: I64, table: I64, alphas: I64, steps: I64, out: I64
) -> None:
    """Do so for parts of these numbers of rows at these addresses; targets are in the table."""
    like = np.empty(0)
    for c in range(rows.size):
        n = rows[c]
        alpha, step = vector_at(alphas[c], n, like), vector_at(steps[c], n, like)
        targets, own = vector_at(table[0, c], n, like), vector_at(out[c], n, like)
        _settle(loss, alpha, step, gamma, targets, own)


@kernel
def _copy_parts(rows: I64, alphas: I64, out: I64) -> None:
    """Copy parts of these numbers of rows from addresses to others."""
    like = np.empty(0)
    for c in range(rows.size):
        alpha, own = vector_at(alphas[c], rows[c], like), vector_at(out[c], rows[c], like)
        for i in range(own.size):
            own[i] = alpha[i]


@kernel
def _sum_steps_of_parts(
    loss: Any, rows: I64, table: I64, alphas: I64, steps: I64, sums: F64
) -> None:
    """Write each part's steps, and its sums into ``sums`` (parts, 2); the table is a block's."""
    like = np.empty(0)
    for c in range(rows.size):
        n = rows[c]
        sum_steps(
            loss,
            vector_at(alphas[c], n, like),
            vector_at(table[2, c], n, like),
            vector_at(table[0, c], n, like),
            vector_at(table[1, c], n if table[1, c] != 0 else 0, like),
            vector_at(table[3, c], n if table[3, c] != 0 else 0, like),
            vector_at(steps[c], n, like),
            sums[c],
        )


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
    parts = np.zeros(0, np.int64)
    _copy_parts(parts, parts, parts)
    write_coefficients(True, parts, parts, parts, parts, parts)
    add_sums(parts, parts, np.zeros(0))
    warm_up(loss_named("hinge"))


def warm_up(loss: MarginLoss) -> None:
    """Do so with the loops of a loss."""
    loss.warm_up(with_dual=True)
    parts, table = np.zeros(0, np.int64), np.zeros((4, 0), np.int64)
    _settle_parts(loss.terms, 1.0, parts, table, parts, parts, parts)
    _sum_steps_of_parts(loss.terms, parts, table, parts, parts, np.zeros((0, 2)))
