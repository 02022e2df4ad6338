"""KMeans: scikit-learn's contract, and results as good as scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.cluster import KMeans as Lloyd
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score

import elasticml as em


def blobs(seed=0, dtype=np.float64):
    X, y = make_blobs(3000, 5, centers=8, cluster_std=0.5, random_state=seed)
    return X.astype(dtype), y


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_it_finds_clusters(dtype):
    X, y = blobs(dtype=dtype)
    model = em.KMeans(8, random_state=0).fit(X)
    assert adjusted_rand_score(y, model.labels_) == pytest.approx(1.0)
    assert model.cluster_centers_.dtype == dtype
    assert np.array_equal(model.predict(X), model.labels_)
    best = Lloyd(8, n_init=3, random_state=0).fit(X)
    assert model.inertia_ == pytest.approx(best.inertia_, rel=1e-3)
    assert model.score(X) == pytest.approx(-model.inertia_, rel=1e-9)
    distances = model.transform(X)
    assert distances.shape == (3000, 8)
    assert np.array_equal(distances.argmin(axis=1), model.labels_)


def test_sparse_rows_give_the_result_of_dense_ones_also_where_a_value_is_stored_in_parts():
    X, _ = blobs()
    X[np.abs(X) < 3.0] = 0.0
    # The local search of k-means++ looks at 2,000 rows of either.
    dense = em.KMeans(5, random_state=1).fit(X)
    rows = sp.csr_matrix(X)
    halves = np.repeat(rows.data / 2.0, 2), np.repeat(rows.indices, 2), 2 * rows.indptr
    for stored in (rows, sp.csr_matrix(halves, X.shape)):
        sparse = em.KMeans(5, random_state=1).fit(stored)
        assert np.array_equal(dense.labels_, sparse.labels_)
        np.testing.assert_allclose(sparse.cluster_centers_, dense.cluster_centers_, rtol=1e-9)
        assert sparse.inertia_ == pytest.approx(dense.inertia_, rel=1e-9)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_it_is_as_good_as_scikit_learns(kind):
    """Over seeds on average; without structure no start is much better than another."""
    X = np.random.default_rng(0).standard_normal((4000, 8))
    ours = np.mean([em.KMeans(40, random_state=s).fit(kind(X)).inertia_ for s in range(5)])
    theirs = np.mean([Lloyd(40, random_state=s).fit(X).inertia_ for s in range(5)])
    assert ours <= 1.002 * theirs


def test_partial_fits_end_near_one_fit_of_all_rows():
    X, y = blobs()
    model = em.KMeans(8, random_state=0)
    order = np.random.default_rng(0).permutation(3000)
    for start in range(0, 3000, 500):
        model.partial_fit(X[order[start : start + 500]])
    assert model.counts_.sum() == 3000
    assert adjusted_rand_score(y, model.predict(X)) > 0.99


def test_rows_without_weight_have_no_effect():
    X, _ = blobs()
    s = np.zeros(3000)
    s[:900] = 1.0
    model = em.KMeans(4, random_state=0).fit(X, sample_weight=s)
    assert model.counts_.sum() == pytest.approx(900)
    lone = em.KMeans(4, init=model.cluster_centers_, max_iter=0).fit(X[:900])
    assert lone.inertia_ == pytest.approx(model.inertia_)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_clusters": 0}, r"The 'n_clusters' parameter of KMeans must be an int in the range \["),
        ({"init": "best"}, "The 'init' parameter of KMeans must be a str among"),
        ({"n_clusters": 100}, "n_samples=10 should be >= n_clusters=100"),
        (
            {"n_clusters": 2, "init": np.eye(2, 3)},
            r"The shape of the initial centers \(2, 3\) does not match the number of features of "
            "the data 2",
        ),
        ({"n_clusters": 2, "init": [[0.0, np.nan], [1.0, 1.0]]}, "contains NaN"),
    ],
)
def test_a_wrong_setting_is_named(settings, message):
    with pytest.raises(ValueError, match=message):
        em.KMeans(**settings).fit(np.random.default_rng(0).random((10, 2)))


def test_a_second_fit_needs_enough_rows_too():
    X = np.random.default_rng(0).random((20, 2))
    model = em.KMeans(8).fit(X)
    with pytest.raises(ValueError, match="n_samples=3 should be >= n_clusters=8"):
        model.fit(X[:3])
    assert model.partial_fit(X[:3]).labels_.shape == (3,)


@pytest.mark.parametrize("init", ["k-means++", "random"])
@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("different", [1, 3])
def test_fewer_different_rows_than_clusters_are_warned_of(init, kind, different):
    rows = np.arange(1.0, 2 * different + 1).reshape(different, 2)
    X = np.tile(rows, (40, 1))
    message = rf"Number of distinct clusters \({different}\) found smaller than n_clusters \(5\)"
    with pytest.warns(ConvergenceWarning, match=message):
        model = em.KMeans(5, init=init, random_state=0).fit(kind(X))
    assert model.cluster_centers_.shape == (5, 2)
    assert model.inertia_ == 0.0


def test_rare_rows_are_in_the_sample_of_many():
    X = np.zeros((200_000, 2))
    X[::20_000] = np.arange(20.0).reshape(10, 2) + 1.0
    model = em.KMeans(11, random_state=0).fit(X)
    assert model.inertia_ == 0.0


def test_threads_do_not_change_a_bit():
    X = np.random.default_rng(1).standard_normal((60_000, 8))

    def fitted(n_jobs):
        model = em.KMeans(20, random_state=3, n_jobs=n_jobs)
        return model.fit(X)

    one, three = fitted(None), fitted(3)
    assert np.array_equal(one.cluster_centers_, three.cluster_centers_)
    assert np.array_equal(one.labels_, three.labels_)
    assert one.inertia_ == three.inertia_
    assert np.array_equal(one.predict(X), three.predict(X))
    step = [m.partial_fit(X[:5000]).cluster_centers_ for m in (one, three)]
    assert np.array_equal(*step)
