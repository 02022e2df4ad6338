"""Click logs hashed into few columns: shaped as published, reproducible by block, learnable."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import roc_auc_score

from elasticml.errors import ConfigError
from tests.bench.peers.criteo_shaped import BLOCK_ROWS, SIZES, criteo_shaped

WIDTH = 1_000_000


def matrix(blocks):
    blocks = list(blocks)
    parts = [
        sp.csr_matrix((b.values, b.indices, b.indptr), (len(b.labels), b.n_columns)) for b in blocks
    ]
    return sp.vstack(parts).tocsr(), np.concatenate([b.labels for b in blocks])


@pytest.fixture(scope="module")
def drawn():
    return matrix(criteo_shaped(2 * BLOCK_ROWS))


def test_every_row_has_a_value_of_each_of_39_fields(drawn):
    X, _ = drawn
    assert X.dtype == np.float32
    assert X.shape == (2 * BLOCK_ROWS, WIDTH)
    np.testing.assert_allclose(X.sum(axis=1), np.sqrt(len(SIZES)), rtol=1e-5)
    # Fields share columns; rows are wide enough that few collide.
    assert 38.9 < X.nnz / X.shape[0] < 39


def test_rows_are_sorted(drawn):
    X, _ = drawn
    rises = np.diff(X.indices.astype(np.int64))
    rises[X.indptr[1:-1] - 1] = 1
    assert rises.min() > 0


def test_a_quarter_of_the_labels_is_positive(drawn):
    _, y = drawn
    assert set(np.unique(y)) == {-1.0, 1.0}
    assert np.mean(y > 0) == pytest.approx(0.256, abs=0.02)


def test_columns_follow_a_power_law_and_most_are_rare(drawn):
    X, _ = drawn
    counts = np.sort(np.bincount(X.indices, minlength=WIDTH))[::-1]
    assert 0.4 < counts[0] / X.shape[0] < 0.7
    ranks = np.arange(200, 5000)
    slope = np.polyfit(np.log(ranks), np.log(counts[ranks]), 1)[0]
    assert -1.6 < slope < -0.8
    assert np.mean(counts[counts > 0] == 1) > 0.4


def test_fewer_columns_are_shared_by_more_values():
    X, _ = matrix(criteo_shaped(1000, columns=len(SIZES)))
    assert X.shape == (1000, len(SIZES))
    assert X.nnz / X.shape[0] < 30
    np.testing.assert_allclose(X.sum(axis=1), np.sqrt(len(SIZES)), rtol=1e-5)


def test_rows_do_not_depend_on_their_number_and_blocks_can_be_skipped(drawn):
    X, y = drawn
    few, labels = matrix(criteo_shaped(BLOCK_ROWS + 7))
    assert (few != X[: BLOCK_ROWS + 7]).nnz == 0
    np.testing.assert_array_equal(labels, y[: BLOCK_ROWS + 7])
    rest, labels = matrix(criteo_shaped(BLOCK_ROWS + 7, first_block=1))
    assert (rest != X[BLOCK_ROWS : BLOCK_ROWS + 7]).nnz == 0
    np.testing.assert_array_equal(labels, y[BLOCK_ROWS : BLOCK_ROWS + 7])


def test_another_seed_gives_other_rows_of_the_same_problem(drawn):
    X, y = drawn
    other, labels = matrix(criteo_shaped(BLOCK_ROWS, seed=1))
    assert (other != X[:BLOCK_ROWS]).nnz > 0
    fitted = SGDClassifier(loss="log_loss", alpha=1e-5, max_iter=5, tol=None, random_state=0)
    auc = roc_auc_score(labels, fitted.fit(X, y).decision_function(other))
    assert 0.65 < auc < 0.95


@pytest.mark.parametrize(
    "settings",
    [{"rows": 0}, {"rows": 10, "columns": 38}, {"rows": 10, "seed": -1}, {"rows": 1.5}],
    ids=str,
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(ConfigError):
        list(criteo_shaped(**settings))
