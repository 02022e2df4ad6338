"""Products with chunks against scipy, an expansion of n-grams, and the adjoint identity."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.arrays import address
from elasticml.data.chunks.chunk import Chunk, sequence_chunk
from elasticml.data.chunks.kernels import add_sums
from elasticml.data.chunks.ngrams import codes_of_letters, sequence_layout
from elasticml.data.chunks.products import Bodies, make_adjoint, make_forward
from tests.unit.data.rows import ID, chunk_of

KINDS = ("dense", "csr", "binary_csr", "sequence")


def expand(letters, sigma, lo, hi):
    """Expand positional n-grams as they are defined: number all features, then set each row."""
    length = letters.shape[1]
    columns = {}
    for n in range(lo, hi + 1):
        for p in range(length - n + 1):
            for gram in itertools.product(range(sigma), repeat=n):
                columns[n, p, gram] = len(columns)
    matrix = sp.lil_matrix((letters.shape[0], len(columns)))
    for i, row in enumerate(letters.tolist()):
        for n in range(lo, hi + 1):
            for p in range(length - n + 1):
                matrix[i, columns[n, p, tuple(row[p : p + n])]] = 1.0
    return matrix.tocsr()


def make_chunk(kind, rng, n, d, *, dtype="float64"):
    """Return a chunk of this kind with random content, its matrix as scipy CSR, and its layout."""
    if kind == "sequence":
        letters = rng.integers(0, 3, (n, d)).astype(np.uint8)
        layout = sequence_layout("abc", d, (1, min(3, d)))
        codes = codes_of_letters(letters, 3, layout.ngrams[1])
        return sequence_chunk(ID, np.ones(n), codes, layout), expand(letters, 3, *layout.ngrams)
    matrix = sp.random(n, d, density=0.4, format="csr", rng=rng, dtype=np.float64)
    matrix = matrix.astype(dtype)
    if kind == "binary_csr":
        matrix.data[:] = 1.0
    return chunk_of(kind, matrix.toarray(), dtype=dtype), matrix.astype(np.float64)


def forward_of(chunk: Chunk, w):
    out = np.full(chunk.n_rows, np.nan)
    make_forward(chunk.layout, w)(chunk, out)
    return out


def adjoint_of(chunk: Chunk, c, d):
    adjoint = make_adjoint(chunk.layout, d)
    adjoint.add(chunk, c)
    out = np.zeros(d)
    adjoint.result(out)
    return out


@settings(max_examples=100)
@given(
    kind=st.sampled_from(KINDS),
    n=st.integers(0, 40),
    d=st.integers(1, 21),
    more=st.integers(0, 2),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["float64", "float32"]),
    offset=st.sampled_from([0.0, -1.5]),
)
def test_products_agree_with_scipy_and_with_each_other(kind, n, d, more, seed, dtype, offset):
    rng = np.random.default_rng(seed)
    chunk, matrix = make_chunk(kind, rng, n, d, dtype=dtype)
    if kind != "sequence":  # the model has columns that this chunk does not have
        matrix = sp.csr_matrix((matrix.data, matrix.indices, matrix.indptr), (n, d + more))
    w = rng.standard_normal(matrix.shape[1])
    c = rng.uniform(-1.0, 2.0, n) * (rng.random(n) < 0.8)
    margins, gradient = forward_of(chunk, w), adjoint_of(chunk, c, w.size)
    np.testing.assert_allclose(margins, matrix @ w, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gradient, matrix.T @ c, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(margins @ c, gradient @ w, rtol=1e-10, atol=1e-10)
    products, hv = np.full(n, np.nan), np.ones(w.size)
    adjoint = make_adjoint(chunk.layout, w.size)
    adjoint.add_product(chunk, make_forward(chunk.layout, w), offset, c, products)
    adjoint.result(hv)
    expected = c * (matrix @ w + offset)
    np.testing.assert_allclose(products, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(hv, 1.0 + matrix.T @ expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_many_chunks_have_the_products_of_the_stacked_rows_and_in_one_call_the_same_bits(kind):
    rng = np.random.default_rng(3)
    pairs = [make_chunk(kind, rng, n, 7) for n in (3, 0, 300, 1)]
    chunks, stacked = [chunk for chunk, _ in pairs], sp.vstack([matrix for _, matrix in pairs])
    layout, d = chunks[0].layout, chunks[0].layout.n_columns
    w, c = rng.standard_normal(d), [rng.standard_normal(chunk.n_rows) for chunk in chunks]
    outs = [np.full(chunk.n_rows, np.nan) for chunk in chunks]
    forward = make_forward(layout, w)
    one, at_once, parts = (make_adjoint(layout, d) for _ in range(3))
    forward.write_all(Bodies.of(chunks), -1.5, np.array([address(out) for out in outs]))
    at_once.add_all(Bodies.of(chunks), np.array([address(own) for own in c]))
    for k, (chunk, own, out) in enumerate(zip(chunks, c, outs, strict=True)):
        one.add(chunk, own)
        if k:
            parts.add(chunk, own)
        alone = np.empty(chunk.n_rows)
        forward(chunk, alone)
        np.testing.assert_array_equal(out, alone - 1.5)
    results = np.ones((4, d))
    one.result(results[0])
    at_once.result(results[1])
    np.testing.assert_array_equal(results[0], results[1])
    one.clear()
    one.result(results[2])
    assert results[2].tolist() == [1.0] * d
    one.add(chunks[0], c[0])
    one.merge(parts)
    one.result(results[3])
    wanted = 1.0 + stacked.T @ np.concatenate(c)
    np.testing.assert_allclose(results[[1, 3]], [wanted, wanted], atol=1e-12)


def test_sums_over_chunks_have_the_bits_of_numpys():
    rng = np.random.default_rng(2)
    chunks = [rng.standard_normal(n) * 10.0 ** rng.integers(-9, 9, n) for n in (*range(300), 4099)]
    total = np.zeros(1)
    add_sums(
        np.array([own.size for own in chunks]), np.array([address(own) for own in chunks]), total
    )
    assert total[0] == sum(float(own.sum()) for own in chunks)


@pytest.mark.parametrize(
    ("alphabet", "lo", "hi", "length"),
    [
        ("ACGT", 1, 4, 4),
        ("ACGT", 1, 4, 9),
        ("ACGT", 2, 3, 17),
        ("ACGT", 4, 4, 8),
        ("ACGT", 1, 1, 5),
        ("01", 1, 4, 8),
        ("ACGTN", 1, 3, 11),
        ("ABCDEFGHIJKLMNOP", 1, 2, 10),
    ],
)
def test_table_of_codes_equals_the_explicit_expansion_up_to_the_tail(alphabet, lo, hi, length):
    rng = np.random.default_rng(length)
    sigma = len(alphabet)
    letters = rng.integers(0, sigma, (23, length)).astype(np.uint8)
    layout = sequence_layout(alphabet, length, (lo, hi))
    chunk = sequence_chunk(ID, np.ones(23), codes_of_letters(letters, sigma, hi), layout)
    matrix = expand(letters, sigma, lo, hi)
    # Powers of two add without rounding: each feature must be counted exactly once.
    w = 2.0 ** rng.integers(-8, 8, matrix.shape[1])
    assert layout.n_columns == matrix.shape[1]
    np.testing.assert_array_equal(forward_of(chunk, w), matrix @ w)
    for i in range(3):
        unit = np.eye(23)[i]
        row = adjoint_of(chunk, unit, w.size)
        np.testing.assert_array_equal(row, matrix[[i]].toarray()[0])


@pytest.mark.parametrize(("length", "columns"), [(141, 47_028), (140, 46_688)])
def test_papers_number_of_features(length, columns):
    layout = sequence_layout("ACGT", length, (1, 4))
    assert (layout.kind, layout.n_columns) == ("sequence", columns)
    # Codes beyond a byte.
    assert sequence_layout("ABCDEFGHIJKLMNOPQRST", 50, (1, 2)).kind == "binary_csr"


def test_chunks_and_arrays_that_do_not_fit_are_refused():
    rng = np.random.default_rng(0)
    (csr, _), (short, _), (long, _) = (
        make_chunk(kind, rng, 4, d) for kind, d in (("csr", 6), ("sequence", 6), ("sequence", 7))
    )
    width = short.layout.n_columns
    for call, words in (
        (lambda: make_forward(csr.layout, np.zeros(5))(csr, np.zeros(4)), "has 6 columns, the mo"),
        (lambda: make_adjoint(csr.layout, 5).add(csr, np.zeros(4)), "has 6 columns, the model 5"),
        (lambda: forward_of(short, np.zeros(3)), "wanted"),
        (lambda: make_adjoint(short.layout, 3), "wanted at least"),
        (lambda: make_adjoint(short.layout, width).add(short, np.zeros(3)), "wanted \\(4,\\)"),
        (lambda: make_adjoint(long.layout, 999).add(short, np.zeros(4)), "has layout"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
