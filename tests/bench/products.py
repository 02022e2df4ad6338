"""Time the products with chunks on one core: ``python tests/bench/products.py [rows]``.

For each kind of chunk (1 MiB each): examples per second and milliseconds of ``X @ w`` and of
``X.T @ c`` over all rows, and the ratio to the time of reading the chunks' bytes once. The three
take turns; the fastest of each counts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import scipy.sparse as sp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from elasticml.data.chunks.chunk import binary_csr_chunk, csr_chunk, dense_chunk, sequence_chunk
from elasticml.data.chunks.ngrams import (
    codes_of_letters,
    first_columns,
    indices_of_letters,
    sequence_layout,
)
from elasticml.data.chunks.products import make_adjoint, make_forward
from elasticml.ids import ChunkId
from tests.bench import harness

MIB = 2**20
REPEATS = 7


def in_chunks(n, row_bytes, build):
    """Build chunks of about 1 MiB from row ranges."""
    rows = max(1, MIB // row_bytes)
    starts = range(0, n, rows)
    return [build(ChunkId("bench", 0, k), a, min(a + rows, n)) for k, a in enumerate(starts)]


def kinds(n, rng):
    """Yield a name and its chunks; splice-like sequences, text-like CSR, wide dense."""
    letters = rng.choice(4, p=[0.32, 0.18, 0.18, 0.32], size=(n, 141)).astype(np.uint8)
    layout = sequence_layout("ACGT", 141, (1, 4))
    codes, y = codes_of_letters(letters, 4, 4), np.ones(n)
    yield (
        "sequence 141 nt",
        in_chunks(n, 149, lambda id, a, b: sequence_chunk(id, y[a:b], codes[a:b], layout)),
    )
    few = min(n, 10_000)
    first = first_columns(4, 141, (1, 4))
    grams = indices_of_letters(letters[:few], 4, 1, 4, first)
    pointers = np.arange(few + 1) * grams.shape[1]

    def binary(id, a, b):
        columns = grams[a:b].ravel()
        return binary_csr_chunk(id, y[a:b], pointers[: b - a + 1], columns, layout.n_columns)

    yield "the same as binary CSR", in_chunks(few, 4 * 558, binary)
    text = sp.random(few, 47_236, density=75 / 47_236, format="csr", rng=rng)

    def sparse(id, a, b):
        part = text[a:b]
        part.sort_indices()
        return csr_chunk(id, y[a:b], part.indptr, part.indices, part.data, 47_236)

    yield "CSR 75 of 47,236", in_chunks(few, 12 * 75, sparse)
    values = rng.standard_normal((n, 128))
    for dtype in ("float64", "float32"):
        yield (
            f"dense 128 {dtype}",
            in_chunks(
                n, 1024, lambda id, a, b, t=dtype: dense_chunk(id, y[a:b], values[a:b], dtype=t)
            ),
        )


def main(n):
    """Print the table."""
    rng = np.random.default_rng(0)
    print(f"{'':24}{'rows':>8}{'product':>9}{'ms':>9}{'examples/s':>14}{'x read':>9}")
    for name, chunks in kinds(n, rng):
        layout = chunks[0].layout
        rows = sum(chunk.n_rows for chunk in chunks)
        w = rng.standard_normal(layout.n_columns)
        outs = [np.empty(chunk.n_rows) for chunk in chunks]
        coefficients = [rng.standard_normal(chunk.n_rows) for chunk in chunks]
        words = [np.frombuffer(c.body[: len(c.body) // 8 * 8], np.uint64) for c in chunks]

        def forward(chunks=chunks, outs=outs, layout=layout, w=w):
            product = make_forward(layout, w)
            for chunk, out in zip(chunks, outs, strict=True):
                product(chunk, out)

        def adjoint(chunks=chunks, coefficients=coefficients, layout=layout, w=w):
            product = make_adjoint(layout, w.size)
            for chunk, c in zip(chunks, coefficients, strict=True):
                product.add(chunk, c)
            product.result(np.zeros(w.size))

        ways = {
            "read": lambda words=words: [int(part.max()) for part in words],
            "X w": forward,
            "X' c": adjoint,
        }
        timers = {label: harness.seconds_of(function) for label, function in ways.items()}
        figures = harness.interleaved(timers, REPEATS, warm_up=1)
        best_s = {label: min(seconds) for label, seconds in figures.items()}
        for label in ("X w", "X' c"):
            print(
                f"{name:24}{rows:8}{label:>9}{1e3 * best_s[label]:9.2f}"
                f"{rows / best_s[label]:14,.0f}{best_s[label] / best_s['read']:9.1f}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 70_000)
