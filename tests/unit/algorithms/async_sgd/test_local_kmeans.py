"""K-Means in one process: labels of double precision, exact bounds."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.async_sgd.local_kmeans import Assignment, Rows
from elasticml.algorithms.parallel import Serial
from elasticml.runtime.executors import parallel


def squares_of(X, centres):
    return ((X[:, None, :] - centres[None]) ** 2).sum(axis=2)


def assigned(X, centres):
    assignment = Assignment(Rows(X, None), centres, Serial())
    assignment.move_to(centres, is_exact=True)
    return assignment


@pytest.mark.parametrize(("n", "d", "k"), [(1, 1, 1), (7, 2, 5), (1501, 36, 100), (65, 13, 33)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_labels_are_those_of_double_precision(n, d, k, dtype):
    rng = np.random.default_rng([n, d, k])
    X = (rng.standard_normal((n, d)) + 1000.0).astype(dtype)
    centres = rng.standard_normal((k, d)) + 1000.0
    squares = squares_of(X.astype(np.float64), centres)
    result = assigned(X, centres)
    assert np.array_equal(result.labels, squares.argmin(axis=1))
    np.testing.assert_allclose(result.squares(), squares.min(axis=1), rtol=1e-9)


def test_centres_that_single_precision_cannot_tell_apart_are_told_apart():
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=500)
    centres = np.array([[0.0, 0.0], [1.0, 0.0], [1.0 + 1e-9, 0.0]])
    X = centres[truth] + np.outer(np.zeros(500), np.ones(2))
    assert np.array_equal(assigned(X, centres).labels, truth)


def test_ties_go_to_the_first_centre():
    X, centres = np.array([[0.0], [1.0], [2.0]]), np.array([[2.0], [0.0], [0.0], [2.0]])
    assert assigned(X, centres).labels.tolist() == [1, 0, 0]


@pytest.mark.parametrize("scale", [1e-30, 1e32])
def test_rows_of_any_magnitude_get_their_centres(scale):
    X = scale * np.array([[0.01, 1.0], [0.01, 0.01], [-1.0, 1.0]])
    centres = scale * np.array([[1.0, 1.0], [-1.0, 1.2], [0.5, -1.0]])
    assert assigned(X, centres).labels.tolist() == [0, 2, 1]


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
        squares = squares_of(X, centres)
        own = squares[np.arange(4000), assignment.labels]
        np.testing.assert_allclose(own, squares.min(axis=1), atol=1e-12)
        if step % 4 == 3:
            np.testing.assert_allclose(assignment.squares(), own, atol=1e-12)
        one_hot = np.eye(k)[assignment.labels] * weights[:, None]
        counts, has_rows = one_hot.sum(axis=0), one_hot.sum(axis=0) > 0.0
        expected = centres.copy()
        expected[has_rows] = (one_hot.T @ X)[has_rows] / counts[has_rows, None]
        centres, masses, _ = assignment.means()
        np.testing.assert_allclose(centres, expected, atol=1e-9)
        np.testing.assert_allclose(masses, counts, atol=1e-9)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_threads_do_not_change_a_bit(kind):
    X = np.random.default_rng(0).standard_normal((5000, 20))
    results = []
    for n_threads in (1, 3):
        with closing(parallel(n_threads)) as threads:
            assignment = Assignment(Rows(kind(X), None), X[:40], threads)
            assignment.move_to(X[40:80], is_exact=True)
        results.append((assignment.labels.tobytes(), assignment.squares().tobytes()))
    assert results[0] == results[1]
