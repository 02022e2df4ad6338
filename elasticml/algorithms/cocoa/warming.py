"""Compile the kernels of a local pass in advance."""

from __future__ import annotations

import numpy as np

from elasticml.algorithms.cocoa.local import LocalSolver
from elasticml.algorithms.cocoa.passes import Pass
from elasticml.algorithms.cocoa.tables import Piece
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunk import Dtype, dense_chunk
from elasticml.terms import ChunkId


def warm_kernels() -> None:
    """Compile the kernels for both types of values, or load their machine code from the cache."""
    dtypes: tuple[Dtype, ...] = ("float32", "float64")
    for dtype in dtypes:
        chunk = dense_chunk(ChunkId("warm", 0, 0), np.ones(1), np.ones((1, 1)), dtype=dtype)
        solver = LocalSolver(loss="hinge", dtype=dtype, bucket=None, intercept_scaling=None)
        one = np.ones(1)
        solver.bind([Piece(chunk, one, one, np.zeros(1))])
        request = Pass(l2_total=1.0, total_weight=1.0, damping=1.0, epochs=1, seed=0, serial=0)
        solver.run(one, request, Serial())
