"""CoCoA's local solver in this process: passes over all rows, each with the exact line search."""

from __future__ import annotations

from typing import Any

import numpy as np

from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.damping import Aggregation
from elasticml.algorithms.cocoa.line_search import LineModel
from elasticml.algorithms.cocoa.local_pass import LocalSolver, PassRequest
from elasticml.data.chunks.chunk import csr_chunk
from elasticml.ids import ChunkId
from elasticml.objectives.loss_kernels import loss_named
from elasticml.runtime.executors import parallel
from tests.bench.peers.problems import F64, Data, Problem

LOSSES = ("hinge", "squared_hinge", "logistic")
#: Rows of a chunk: about 1 MiB of texts.
CHUNK_ROWS = 1700


class CocoaPasses:
    """A member alone; ``device`` is "cpu" or "cuda"."""

    def __init__(self, data: Data, loss: str, l2: float, threads: int, device: str = "cpu") -> None:
        self._data, self._problem, self.l2 = data, Problem(model=loss, l2=l2), l2
        self._loss, self._weight = loss, float(data.n)
        self._parallel = parallel(threads)
        self._chunks = chunks_of(data)
        settings: dict[str, Any] = {
            "loss": loss_named(loss),
            "dtype": "float32",
            "intercept_scaling": None,
        }
        make: Any = LocalSolver
        if device == "cuda":
            from elasticml.algorithms.cocoa.cuda_solver import CudaSolver

            make = CudaSolver
        self.solver = make(**settings)
        self.reset()

    def reset(self) -> None:
        """Begin again from zero."""
        self._pieces = [
            Piece(c, np.array(c.labels), None, np.zeros(c.n_rows)) for c in self._chunks
        ]
        self.v, self.passes = np.zeros(self._data.d), 0
        self._aggregation = Aggregation(gamma=None)
        self.solver.bind(self._pieces)

    def step(self) -> None:
        """Make a pass, and a line search on the dual objective along its update."""
        self.solver.bind(self._pieces)
        before = [piece.alpha.copy() for piece in self._pieces]
        request = PassRequest(
            l2_total=self.l2 * self._weight,
            total_weight=self._weight,
            damping=self._aggregation.damping,
            epochs=1,
            seed=0,
            serial=self.passes,
        )
        update = self.solver.run(self.v, request, self._parallel)
        curvature, dual = update.curvature, update.dual
        settings: dict[str, Any] = {"curvature": curvature, "weight": self._weight, "l2": self.l2}
        along = LineModel.of(self.v, update.dv, dual=dual, **settings)
        gamma = self._aggregation.length(along)
        if gamma < 1.0:
            for piece, old in zip(self._pieces, before, strict=True):
                piece.alpha[:] = old + gamma * (piece.alpha - old)
        self.v = self.v + gamma * update.dv
        self._aggregation = self._aggregation.adapted(along, update.partitions)
        self.passes += 1

    def objectives(self) -> tuple[float, float]:
        """Return the primal objective, and the dual one at the dual variables' own model."""
        alpha = np.concatenate([piece.alpha for piece in self._pieces])
        data, y = self._data, self._data.labels
        dual = loss_named(self._loss).minus_conjugate(alpha, y, None) / data.n
        image: F64 = data.X.T @ (alpha * y) / (self.l2 * data.n)
        penalty = 0.5 * self.l2 * float(image @ image)
        return data.objective(self._problem, self.v), float(dual) - penalty


def chunks_of(data: Data) -> list[Any]:
    """Cut the data into chunks of float32 values."""
    chunks = []
    for k, a in enumerate(range(0, data.n, CHUNK_ROWS)):
        X, y = data.X[a : a + CHUNK_ROWS], data.labels[a : a + CHUNK_ROWS]
        ip, columns = X.indptr.astype(np.int64), X.indices
        chunk_id = ChunkId("bench", 0, k)
        chunks.append(csr_chunk(chunk_id, y, ip, columns, X.data, data.d, dtype="float32"))
    return chunks
