"""Nearest centres against NumPy: of chunks, with sums and inertia; and with bounds."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.async_sgd.kmeans import inertia
from elasticml.algorithms.async_sgd.local_kmeans import Assignment, Rows, means_of
from elasticml.algorithms.async_sgd.nearest_centres import statistics_of, whole
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import sequence_chunk
from elasticml.data.chunks.ngrams import sequence_layout
from elasticml.errors import ConfigError
from tests.unit.data.rows import ID, chunk_of


def plainly(X, centres, weights=None):
    s = np.ones(len(X)) if weights is None else weights
    squares = ((X[:, None, :] - centres[None]) ** 2).sum(axis=2)
    labels = squares.argmin(axis=1)
    one_hot = np.eye(len(centres))[labels] * s[:, None]
    return labels, squares.min(axis=1), one_hot.T @ X, one_hot.sum(axis=0)


def assigned(X, centres):
    assignment = Assignment(Rows(X, None), centres, Serial())
    assignment.move_to(centres, is_exact=True)
    return assignment


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("n", "d", "k"), [(1, 1, 1), (7, 2, 5), (1501, 36, 100), (65, 13, 33)])
def test_dense_rows_find_their_centres(n, d, k, dtype):
    rng = np.random.default_rng([n, d, k])
    # Far from the origin single precision loses differences, unless they are taken first.
    X = (rng.standard_normal((n, d)) + 1000.0).astype(dtype)
    weights = rng.random(n)
    centres = rng.standard_normal((k, d)) + 1000.0
    chunk = chunk_of("dense", X, weights=weights, dtype=dtype)
    found = statistics_of(centres, whole([chunk]))
    exact = X.astype(np.float64)
    labels, squares, _, _ = plainly(exact, centres, weights)
    tolerance = 1e-9 if dtype == "float64" else 2e-4
    np.testing.assert_allclose(found.squares, squares, atol=tolerance * max(1.0, squares.max()))
    assert np.mean(found.labels == labels) >= (1.0 if dtype == "float64" else 0.98)
    one_hot = np.eye(k)[found.labels] * weights[:, None]
    np.testing.assert_allclose(found.sums, one_hot.T @ exact, rtol=1e-6)
    np.testing.assert_allclose(found.counts, one_hot.sum(axis=0))
    assert found.counts.sum() == pytest.approx(weights.sum())
    assert inertia(centres, [chunk]) == pytest.approx(squares @ weights, rel=1e-5)
    bounded = assigned(X, centres)
    assert np.array_equal(bounded.labels, labels)
    np.testing.assert_allclose(bounded.squares(), squares, rtol=1e-9)


def test_ties_go_to_the_first_centre():
    X, centres = np.array([[0.0], [1.0], [2.0]]), np.array([[2.0], [0.0], [0.0], [2.0]])
    chunk = chunk_of("dense", X)
    assert statistics_of(centres, whole([chunk])).labels.tolist() == [1, 0, 0]
    assert assigned(X, centres).labels.tolist() == [1, 0, 0]


@pytest.mark.parametrize("kind", ["csr", "binary_csr"])
def test_sparse_rows_are_those_of_the_dense_matrix(kind):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 9)) * (rng.random((80, 9)) < 0.3)
    X = X if kind == "csr" else (X != 0.0).astype(float)
    chunk, centres = chunk_of(kind, X), rng.standard_normal((4, 9))
    labels, squares, _, _ = plainly(X, centres)
    found = statistics_of(centres, whole([chunk]))
    assert np.array_equal(found.labels, labels)
    np.testing.assert_allclose(found.squares, squares, rtol=1e-12)


def test_narrow_rows_have_zeros_in_missing_columns():
    X, centres = np.array([[1.0], [2.0]]), np.array([[1.0, 0.5], [2.0, 3.0]])
    chunk = chunk_of("dense", X)
    _, squares, _, _ = plainly(np.hstack([X, np.zeros((2, 1))]), centres)
    assert np.array_equal(statistics_of(centres, whole([chunk])).squares, squares)


def test_sequences_are_refused_in_one_line():
    layout = sequence_layout("ACGT", 8, (1, 2))
    chunk = sequence_chunk(ID, np.zeros(2), np.zeros((2, 8), np.uint8), layout)
    with pytest.raises(ConfigError, match=r"sequence.*wanted numbers"):
        inertia(np.zeros((2, layout.n_columns)), [chunk])


@pytest.mark.parametrize(
    ("dtype", "large"), [("float64", 1e32), ("float64", 1e-30), ("float32", 1e25)]
)
def test_rows_of_any_magnitude_get_one_of_the_centres(dtype, large):
    # When scores exceeded the padding's, sums were written past the last centre.
    X = large * np.array([[0.01, 1.0], [0.01, 0.01], [-1.0, 1.0]])
    centres = large * np.array([[1.0, 1.0], [-1.0, 1.2], [0.5, -1.0]])
    chunk = chunk_of("dense", X, dtype=dtype)
    found = statistics_of(centres, whole([chunk]))
    labels = found.labels
    assert ((labels >= 0) & (labels < 3)).all()
    assert found.counts.sum() == 3
    if dtype == "float64":
        assert labels.tolist() == assigned(X, centres).labels.tolist() == [0, 2, 1]


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [0.0, 1e3, 1e6, 1e12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_centres_far_from_the_others_leave_labels_exact(far, dtype):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((3000, 7)) * rng.lognormal(0.0, 2.0, (3000, 7))
    X[:5] += far
    X = X.astype(dtype)
    centres = np.concatenate([X[:3], X[-60:]]).astype(np.float64)
    labels = statistics_of(centres, whole([chunk_of("dense", X, dtype=dtype)])).labels
    squares = ((X.astype(np.float64)[:, None] - centres[None]) ** 2).sum(axis=2)
    best = squares.min(axis=1)
    assert np.all(squares[np.arange(3000), labels] <= best * (1.0 + 1e-12))


@pytest.mark.parametrize("scale", [1e-23, 1e-22, 1e-21, 1e-20])
def test_rows_whose_squares_single_precision_cannot_hold_find_their_centres(scale):
    rng = np.random.default_rng(0)
    X, centres = scale * rng.standard_normal((2000, 2)), scale * rng.standard_normal((100, 2))
    labels = statistics_of(centres, whole([chunk_of("dense", X)])).labels
    squares = ((X[:, None] / scale - centres[None] / scale) ** 2).sum(axis=2)
    best = squares.min(axis=1)
    assert np.all(squares[np.arange(2000), labels] <= best * (1.0 + 1e-9))


def test_centres_that_single_precision_cannot_tell_apart_are_told_apart():
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=500)
    centres = np.array([[0.0, 0.0], [1.0, 0.0], [1.0 + 1e-9, 0.0]])
    X = centres[truth] + np.outer(np.zeros(500), np.ones(2))
    assert np.array_equal(assigned(X, centres).labels, truth)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("k", [3, 40, 300])
def test_bounds_leave_lloyds_algorithm_exact(kind, k):
    rng = np.random.default_rng(k)
    X = rng.standard_normal((4000, 6)) * (rng.random((4000, 6)) < 0.6)
    weights = rng.random(4000)
    centres = X[rng.choice(4000, k, replace=False)]
    assignment = Assignment(Rows(kind(X), weights), centres, Serial())
    for step in range(12):
        assignment.move_to(centres, is_exact=step % 4 == 3)
        squares = ((X[:, None, :] - centres[None]) ** 2).sum(axis=2)
        own = squares[np.arange(4000), assignment.labels]
        np.testing.assert_allclose(own, squares.min(axis=1), atol=1e-12)
        if step % 4 == 3:
            np.testing.assert_allclose(assignment.squares(), own, atol=1e-12)
        one_hot = np.eye(k)[assignment.labels] * weights[:, None]
        counts, has_rows = one_hot.sum(axis=0), one_hot.sum(axis=0) > 0.0
        expected = centres.copy()
        expected[has_rows] = (one_hot.T @ X)[has_rows] / counts[has_rows, None]
        sums, masses, _ = assignment.sums()
        centres = means_of(assignment.centres, sums, masses)
        np.testing.assert_allclose(centres, expected, atol=1e-9)
        np.testing.assert_allclose(masses, counts, atol=1e-9)
