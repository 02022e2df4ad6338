"""Synthetic clusters: around known centres, reproducible by block, far enough apart."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.data.source import load_all, source_from_spec
from elasticml.data.synthetic.clusters import BLOCK_ROWS, synthetic_clusters
from elasticml.errors import ConfigError


def arrays(source):
    chunks = load_all(source)
    return np.concatenate([c.values for c in chunks]), np.concatenate([c.labels for c in chunks])


def test_rows_lie_around_the_centre_of_their_label_with_its_spread():
    source = synthetic_clusters(40_000, columns=4, clusters=5, spread=0.2, variation=0.5)
    X, y = arrays(source)
    counts = np.bincount(y.astype(int), minlength=5)
    assert counts.min() > 7_500
    for k in range(5):
        own = X[y == k]
        np.testing.assert_allclose(own.mean(axis=0), source.centres()[k], atol=0.02)
        assert own.std(axis=0).mean() == pytest.approx(source.spreads()[k], rel=0.03)
    assert 0.1 <= source.spreads().min() < source.spreads().max() <= 0.3


def test_centres_keep_their_distance():
    source = synthetic_clusters(1, columns=3, clusters=12, min_distance=0.3)
    centres = source.centres()
    apart = np.sqrt(((centres[:, None] - centres[None]) ** 2).sum(axis=2))
    assert apart[~np.eye(12, dtype=bool)].min() >= 0.3
    assert 0.0 <= centres.min() < centres.max() <= 1.0


def test_the_seed_changes_the_rows_and_the_problem_changes_the_centres():
    base, seed, problem = (
        synthetic_clusters(500, columns=2, clusters=3, **settings)
        for settings in ({}, {"seed": 1}, {"problem": 1})
    )
    assert np.array_equal(base.centres(), seed.centres())
    assert not np.array_equal(arrays(base)[0], arrays(seed)[0])
    assert not np.array_equal(base.centres(), problem.centres())


def test_the_first_rows_do_not_depend_on_the_number_of_rows():
    few, many = (arrays(synthetic_clusters(n, columns=3))[0] for n in (100, BLOCK_ROWS + 1))
    assert np.array_equal(few, many[:100])
    assert len(many) == BLOCK_ROWS + 1


def test_a_block_is_the_same_wherever_it_is_drawn():
    source = synthetic_clusters(3 * BLOCK_ROWS, columns=3, seed=7, dtype="float32")
    whole = source.read(1, 2**14, 1)[0]
    again = source_from_spec(source.spec()).read(1, 2**14, 1)[0]
    assert [c.content_id for c in again] == [c.content_id for c in whole]
    assert {c.layout.dtype for c in again} == {"float32"}


def test_test_data_must_have_the_columns_of_the_training_data():
    source = synthetic_clusters(10, columns=3)
    assert source.with_columns(3).fingerprint() == source.fingerprint()
    with pytest.raises(ConfigError, match="3 columns, the training data 4"):
        source.with_columns(4)
