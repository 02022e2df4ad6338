"""Measure the local pass in bytes per second for each kind of chunk.

    python tests/bench/cocoa_kernels.py [MiB of data, 256 by default]

A pass visits the rows of all chunks in random buckets; after some passes most rows are visited and
few are changed. In turns with it: one sequential read of the chunks' bytes, which shows the memory
bandwidth of a core, and a pass in the order of the rows. The fastest of each counts.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from elasticml.algorithms.cocoa import sdca_kernels
from elasticml.algorithms.cocoa.chunk_pointers import Piece
from elasticml.algorithms.cocoa.local_pass import LocalSolver, PassOptions, PassRequest
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import binary_csr_chunk, dense_chunk, sequence_chunk
from elasticml.data.chunks.ngrams import sequence_layout
from elasticml.data.synthetic.sparse import synthetic
from elasticml.ids import ChunkId
from tests.bench import harness

PASSES, REPEATS = 3, 7


def text(mib, kind, dtype):
    """Yield chunks with the shape of RCV1; all values are 1 if ``kind`` is binary."""
    per_row = {"csr float32": 600, "csr float64": 900, "binary csr": 310}[kind]
    source = synthetic("rcv1", max(2000, mib * 2**20 // per_row), dtype=dtype)
    for block in source.blocks():
        for c in source.read(block.index, 2**20, 1)[0]:
            if kind == "binary csr":
                c = binary_csr_chunk(c.id, c.labels, c.indptr, c.indices, c.layout.n_columns)
            yield c


def dense(mib, width, dtype):
    """Yield chunks of normal numbers with a planted model."""
    rng = np.random.default_rng(0)
    itemsize = 4 if dtype == "float32" else 8
    rows = 2**20 // (width * itemsize)
    w = rng.standard_normal(width)
    for k in range(mib):
        X = rng.standard_normal((rows, width))
        y = np.sign(X @ w + 5.0 * rng.standard_normal(rows))
        yield dense_chunk(ChunkId("dense", 0, k), y, X, dtype=dtype)


def sequences(mib):
    """Yield chunks of random sequences of 141 letters, with n-grams of 1 to 4."""
    rng = np.random.default_rng(0)
    layout = sequence_layout("ACGT", 141, (1, 4))
    for k in range(max(1, mib // 8)):
        codes = rng.integers(0, 256, (7000, 141), np.uint8)
        y = np.where(rng.random(7000) < 0.5, 1.0, -1.0)
        yield sequence_chunk(ChunkId("letters", 0, k), y, codes, layout)


def measure(name, chunks, dtype):
    """Print the line of one kind of chunk."""
    chunks = list(chunks)
    rows, nbytes = (sum(getattr(c, key) for c in chunks) for key in ("n_rows", "nbytes"))
    pieces = [Piece(c, np.array(c.labels), None, np.zeros(c.n_rows)) for c in chunks]
    d = max(c.layout.n_columns for c in chunks)
    one = PassRequest(
        l2_total=1e-2 * rows, total_weight=float(rows), damping=1.0, epochs=1, seed=0, serial=0
    )
    solver = LocalSolver(
        loss="hinge", dtype=dtype, intercept_scaling=None, options=PassOptions(shrink=False)
    )
    solver.bind(pieces)
    words = [np.frombuffer(c.body[: len(c.body) // 8 * 8], np.uint64) for c in chunks]
    v = np.zeros(d)
    for serial in range(PASSES):
        update = solver.run(v, replace(one, serial=serial), Serial())
        v = v + update.dv
    serials = itertools.count(PASSES)
    shuffle = sdca_kernels.shuffle

    def read():
        sum(int(part.max()) for part in words)

    def make_pass():
        serial = next(serials)
        solver.run(v, replace(one, seed=(serial - PASSES) // 2, serial=serial), Serial())

    def in_order():
        sdca_kernels.shuffle = lambda order, seed: None
        try:
            return harness.timed(make_pass)[1]
        finally:
            sdca_kernels.shuffle = shuffle

    ways = {"read": harness.seconds_of(read), "random": harness.seconds_of(make_pass)}
    figures = harness.interleaved({**ways, "in order": in_order}, REPEATS)
    best = {way: min(seconds) for way, seconds in figures.items()}
    rates = [f"{nbytes / seconds / 1e9:.1f}" for seconds in best.values()]
    each = best["random"] / update.stored * 1e9
    share = best["read"] / best["random"]
    harness.row(name, f"{nbytes / 2**20:.0f}", *rates, f"{share:.2f}", f"{each:.2f}")


def main(mib):
    """Print the table."""
    columns = ("read GB/s", "pass GB/s", "pass in order", "pass / read", "ns a value")
    harness.head("kind", "MiB", *columns)
    for kind, dtype in (
        ("csr float32", "float32"),
        ("csr float64", "float64"),
        ("binary csr", "float64"),
    ):
        measure(kind, text(mib, kind, dtype), dtype)
    for width in (32, 256):
        for dtype in ("float32", "float64"):
            measure(f"dense {width} {dtype}", dense(mib, width, dtype), dtype)
    measure("sequences 141", sequences(mib), "float64")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 256)
