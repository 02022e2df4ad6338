"""Drawn data are the same wherever a block is drawn, shaped as published, and learnable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.metrics import roc_auc_score
from sklearn.svm import LinearSVC

from elasticml.data.chunks.ngrams import letters_of_codes
from elasticml.data.chunks.rows import matrix_of, rows_of_chunk
from elasticml.data.source import Source, load_all, merge_summaries, source_from_spec
from elasticml.data.synthetic import splice_sites
from elasticml.data.synthetic.splice_sites import synthetic_splice
from elasticml.errors import ConfigError
from examples.papers.support import clusters, shaped_rows
from examples.papers.support.clusters import synthetic_clusters
from examples.papers.support.shaped_rows import SHAPES, synthetic


def rows(source: Source) -> tuple[Any, np.ndarray]:
    """Values and labels of all rows."""
    chunks = load_all(source)
    parts = [sp.csr_array(matrix_of(rows_of_chunk(chunk))) for chunk in chunks]
    X = sp.vstack(parts).tocsr()
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return X, np.concatenate([chunk.labels for chunk in chunks])


#: By kind: rows of a block, and what draws a number of rows.
KINDS = {
    "sparse": (
        shaped_rows.BLOCK_ROWS,
        lambda n, seed=0: synthetic("rcv1", n, seed=seed, columns=900),
    ),
    "clusters": (
        clusters.BLOCK_ROWS,
        lambda n, seed=0: synthetic_clusters(n, columns=3, seed=seed),
    ),
    "splice": (
        splice_sites.BLOCK_ROWS,
        lambda n, seed=0: synthetic_splice(n, length=30, seed=seed),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_the_same_wherever_it_is_drawn_and_whatever_the_number_of_rows(kind) -> None:
    size, draw = KINDS[kind]
    many, few = draw(2 * size + 1, 7), draw(size + 10, 7)
    assert [block.rows for block in many.blocks()] == [size, size, 1]
    assert [block.rows for block in few.blocks()] == [size, 10]
    drawn = [many.read(block.index, 2**18, 1)[0] for block in many.blocks()]
    again = source_from_spec(many.spec()).read(1, 2**18, 1)[0]
    assert [(str(c.id), c.content_id) for c in again] == [
        (str(c.id), c.content_id) for c in drawn[1]
    ]
    ids = [chunk.content_id for part in drawn for chunk in part]
    assert len(set(ids)) == len(ids)
    first, second = few.read(1, None, 1)[0][0], drawn[1][0]
    assert first.labels.tolist() == second.labels[:10].tolist()
    for name in ("codes", "indices", "values"):
        some, all_of = (getattr(chunk, name).ravel() for chunk in (first, second))
        np.testing.assert_array_equal(some, all_of[: some.size])
    assert draw(size + 10, 8).read(0, 2**18, 1)[0][0].content_id != drawn[0][0].content_id


def test_test_data_must_have_the_columns_of_the_training_data_or_lose_some() -> None:
    source = synthetic_clusters(10, columns=3)
    assert source.with_columns(3).fingerprint() == source.fingerprint()
    with pytest.raises(ConfigError, match="3 columns, the training data 4"):
        source.with_columns(4)
    letters = synthetic_splice(10, length=30)
    assert letters.with_columns(30 * 4 + 29 * 16 + 28 * 64 + 27 * 256).n_columns == 9_288
    with pytest.raises(ConfigError, match="have 9288 features, the training data 47028"):
        letters.with_columns(47_028)
    some = synthetic("rcv1", 20, seed=1, columns=1000)
    chunks, summary = some.with_columns(900).read(0, None, 1)
    assert {c.layout.n_columns for c in chunks} == {900}
    assert any("dropped" in note for note in summary.counts)
    assert some.with_columns(1000).read(0, None, 1)[0][0].layout.n_columns == 1000


# --- the shapes of published data -----------------------------------------------------------------

#: Table 1 of the elastic-CoCoA paper; for KDDA, the columns are what it lists as examples.
PUBLISHED = {
    "rcv1": (47_236, 0.0016),
    "criteo": (999_999, 3.9e-5),
    "kdda": (20_216_830, 1.8e-6),
}
#: Standard deviation of the number of values of a row, by its mean.
SPREADS = {"rcv1": 0.55, "criteo": 0.0, "kdda": 0.2}


@pytest.mark.parametrize("name", SHAPES)
def test_columns_density_labels_lengths_and_frequencies_are_as_published(name) -> None:
    source = synthetic(name, 2 * shaped_rows.BLOCK_ROWS, dtype="float32")
    X, y = rows(source)
    columns, density = PUBLISHED[name]
    assert X.shape == (2 * shaped_rows.BLOCK_ROWS, columns)
    assert X.nnz / X.shape[0] / columns == pytest.approx(density, rel=0.03)
    assert X.nnz / X.shape[0] == pytest.approx(SHAPES[name].stored, rel=0.01)
    rises = np.diff(X.indices.astype(np.int64))
    rises[X.indptr[1:-1] - 1] = 1
    assert rises.min() > 0
    np.testing.assert_allclose(np.sqrt(X.multiply(X).sum(axis=1)), 1.0, rtol=1e-5)
    assert set(np.unique(y)) == {-1.0, 1.0}
    assert np.mean(y > 0) == pytest.approx(SHAPES[name].positive_share, abs=0.02)
    stored = np.diff(X.indptr)
    assert stored.std() / stored.mean() == pytest.approx(SPREADS[name], rel=0.15)
    assert stored.min() >= 5
    nbytes = sum(chunk.nbytes for chunk in load_all(source))
    assert sum(block.nbytes for block in source.blocks()) == pytest.approx(nbytes, rel=0.05)
    # Columns follow a power law; fields of different sizes overlap.
    seen, counts = np.unique(X.indices, return_counts=True)
    ordered, ranks = np.sort(counts)[::-1], np.arange(50, 2000)
    slope = np.polyfit(np.log(ranks), np.log(ordered[ranks]), 1)[0]
    assert -1.35 < slope < -0.85
    assert 0.4 < ordered[0] / X.shape[0] < 0.7
    # Frequent columns are spread over the whole width.
    frequent = seen[np.argsort(counts)[-40:]]
    assert frequent.min() < 0.15 * X.shape[1]
    assert frequent.max() > 0.85 * X.shape[1]


def shaped(name: str, n: int, **more: Any) -> Callable[[int], Source]:
    """Draw this many blocks to fit, and one to predict."""
    return lambda seed: synthetic(
        name, (1 if seed else n) * shaped_rows.BLOCK_ROWS, seed=seed, dtype="float32", **more
    )


@pytest.mark.parametrize(
    ("draw", "least", "most"),
    [
        (shaped("rcv1", 2), 0.9, 0.99),
        pytest.param(shaped("criteo", 2), 0.72, 0.85, marks=pytest.mark.slow),
        (shaped("kdda", 1, columns=100_000), 0.65, 0.9),
    ],
)
def test_a_fitted_model_classifies_fresh_rows_and_not_all(draw, least, most) -> None:
    (X, y), (fresh, truth) = (rows(draw(seed)) for seed in (0, 1))
    margins = LinearSVC(C=0.3, tol=1e-2).fit(X, y).decision_function(fresh)
    assert least < roc_auc_score(truth, margins) < most


# --- sequences and clusters -----------------------------------------------------------------------


def test_sequences_have_the_papers_features_and_the_requested_share_of_positives() -> None:
    source = synthetic_splice(20_000, positive_share=0.05)
    facts = merge_summaries([source.read(block.index, None, 4)[1] for block in source.blocks()])
    assert (facts.n_rows, facts.n_columns, facts.classes) == (20_000, 47_028, (-1.0, 1.0))
    # Four standard deviations of a binomial share.
    assert abs(facts.label_counts[1.0] / 20_000 - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 20_000)


@pytest.mark.parametrize("length", [8, 15, 141])
def test_every_sequence_has_its_ag_in_the_middle(length) -> None:
    spec = synthetic_splice(300, length=length, positive_share=0.3, ngrams=[1, 2]).spec()
    chunks = load_all(source_from_spec(spec))
    letters = np.concatenate([letters_of_codes(chunk.codes, chunk.layout) for chunk in chunks])
    centre = (length - 2) // 2
    assert letters.shape == (300, length)
    assert set(map(tuple, letters[:, centre : centre + 2].tolist())) == {(0, 2)}
    assert set(np.unique(letters)) == {0, 1, 2, 3}


def test_rows_lie_around_distant_centres_with_their_spread() -> None:
    source = synthetic_clusters(
        40_000, columns=4, clusters=5, spread=0.2, variation=0.5, min_distance=0.3
    )
    X, y = rows(source)
    assert np.bincount(y.astype(int), minlength=5).min() > 7_500
    for k in range(5):
        own = X.toarray()[y == k]
        np.testing.assert_allclose(own.mean(axis=0), source.centres()[k], atol=0.02)
        assert own.std(axis=0).mean() == pytest.approx(source.spreads()[k], rel=0.03)
    assert 0.1 <= source.spreads().min() < source.spreads().max() <= 0.3
    centres = source.centres()
    apart = np.sqrt(((centres[:, None] - centres[None]) ** 2).sum(axis=2))
    assert apart[~np.eye(5, dtype=bool)].min() >= 0.3
    assert 0.0 <= centres.min() < centres.max() <= 1.0
    other = synthetic_clusters(500, columns=2, clusters=3, problem=1)
    assert not np.array_equal(
        other.centres(), synthetic_clusters(500, columns=2, clusters=3).centres()
    )
