"""Small problems for the local solver, and their dense counterparts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.local_pass import LocalSolver, PassOptions, PassRequest, PassResult
from elasticml.algorithms.parallel import Serial, shares
from elasticml.data.chunks.chunk import Chunk, sequence_chunk
from elasticml.data.chunks.ngrams import codes_of_letters, sequence_layout
from elasticml.data.chunks.products import make_forward
from elasticml.data.out_of_core.store import OutOfCoreStore
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import loss_named
from tests.unit.data.rows import chunk_of

KINDS = ("dense", "csr", "binary_csr", "sequence")


class SerialExecutor:
    """Run the work of several threads one after another."""

    n_nodes = 1

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item."""
        return [function(item) for item in items]

    def in_teams(self, function: Callable[[int, Any], Any], n: int) -> list[Any]:
        """Call the function for each team, with its share of the threads."""
        return [
            function(k, SerialExecutor(share)) for k, share in enumerate(shares(self.n_threads, n))
        ]


def sequences(id: ChunkId, X: np.ndarray, y: np.ndarray) -> Chunk:
    letters = (np.abs(X[:, :9]) * 10).astype(np.uint8) % 4
    return sequence_chunk(
        id, y, codes_of_letters(letters, 4, 3), sequence_layout("ACGT", 9, (1, 3))
    )


@dataclass
class Problem:
    """Pieces with weights, and the whole data as one dense matrix with the intercept's column."""

    pieces: list[Piece]
    X: np.ndarray
    y: np.ndarray
    s: np.ndarray
    loss: str
    dtype: str
    l2: float = 0.05

    @property
    def alpha(self) -> np.ndarray:
        return np.concatenate([piece.alpha for piece in self.pieces])

    def image(self) -> np.ndarray:
        fold = self.y if loss_named(self.loss).is_classification else 1.0
        return self.X.T @ (self.s * self.alpha * fold) / (self.l2 * self.s.sum())

    def dual(self) -> float:
        sums = loss_named(self.loss).minus_conjugate(self.alpha, self.y, self.s)
        v = self.image()
        return sums / self.s.sum() - 0.5 * self.l2 * float(v @ v)

    def primal(self, v: np.ndarray) -> float:
        loss = loss_named(self.loss)
        sums = loss.value_and_slope(self.X @ v, self.y, self.s, np.empty(self.y.size))
        return sums / self.s.sum() + 0.5 * self.l2 * float(v @ v)

    def solver(self, **changed: Any) -> LocalSolver:
        scaling = changed.pop("intercept_scaling", 0.5)
        return LocalSolver(
            loss=loss_named(self.loss),
            dtype=self.dtype,
            intercept_scaling=scaling,
            options=PassOptions(**{"values_per_thread": 0, **changed}),
        )

    def run(self, solver: LocalSolver, v: np.ndarray, serial: int, **changed: Any) -> PassResult:
        parallel = changed.pop("parallel", Serial())
        solver.bind(self.pieces)
        return solver.run(v, self.request(serial, **changed), parallel)

    def request(self, serial: int, **changed: Any) -> PassRequest:
        """Return one pass of a member that holds all rows."""
        total = float(self.s.sum())
        one = PassRequest(
            l2_total=self.l2 * total,
            total_weight=total,
            damping=1.0,
            epochs=1,
            seed=3,
            serial=serial,
        )
        return replace(one, **changed)


def problem(
    kind: str, loss: str, dtype: str = "float64", *, n: int = 230, weighted: bool = True
) -> Problem:
    """Draw rows with a planted model in chunks of 60 rows; labels are noisy."""
    rng = np.random.default_rng(5)
    X = np.round(rng.standard_normal((n, 12)) * (rng.random((n, 12)) < 0.4), 1)
    y = np.sign(X @ rng.standard_normal(12) + 0.6 * rng.standard_normal(n) + 1e-9)
    if not loss_named(loss).is_classification:
        y = y + 0.3 * rng.standard_normal(n)
    s = rng.random(n) + 0.5 if weighted else np.ones(n)
    pieces, dense = [], []
    for k, a in enumerate(range(0, n, 60)):
        id, some, own = ChunkId("local", 0, k), X[a : a + 60], y[a : a + 60]
        if kind == "sequence":
            chunk = sequences(id, some, own)
        else:
            chunk = chunk_of(kind, some, own, id=id, dtype=dtype)
        weights = s[a : a + 60].copy() if weighted else None
        targets = np.array(chunk.labels)
        pieces.append(Piece(chunk, targets, weights, np.zeros(chunk.n_rows)))
        dense.append(_dense(chunk))
    return Problem(pieces, np.vstack(dense), y, s, loss, dtype)


def on_disk(p: Problem, folder: Path, batch_bytes: int = 10_000) -> Problem:
    """Return the same problem with its chunks on disk, about two in a batch."""
    store = OutOfCoreStore(2**20, folder, lambda: 0)
    store.batch_bytes = batch_bytes
    chunks = store.settle([piece.chunk for piece in p.pieces])
    pieces = [
        Piece(chunk, piece.targets, piece.weights, np.zeros(chunk.n_rows))
        for chunk, piece in zip(chunks, p.pieces, strict=True)
    ]
    return replace(p, pieces=pieces)


def _dense(chunk: Chunk) -> np.ndarray:
    """Multiply by each unit vector in turn, and add the intercept's column."""
    d, out = chunk.layout.n_columns, np.empty(chunk.n_rows)
    columns = []
    for unit in np.eye(d):
        make_forward(chunk.layout, unit)(chunk, out)
        columns.append(out.copy())
    return np.column_stack([*columns, np.full(chunk.n_rows, 0.5)])
