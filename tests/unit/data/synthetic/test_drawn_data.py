"""Drawn data are the same wherever a block is drawn, and have what they are drawn for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.data.chunks.ngrams import letters_of_codes
from elasticml.data.chunks.rows import matrix_of, rows_of_chunk
from elasticml.data.source import Source, load_all, merge_summaries, source_from_spec
from elasticml.data.synthetic import splice_sites
from elasticml.data.synthetic.splice_sites import synthetic_splice
from elasticml.errors import ConfigError
from examples.papers.support import clusters
from examples.papers.support.clusters import synthetic_clusters


def rows(source: Source) -> tuple[Any, np.ndarray]:
    """Values and labels of all rows."""
    chunks = load_all(source)
    parts = [sp.csr_array(matrix_of(rows_of_chunk(chunk))) for chunk in chunks]
    X = sp.vstack(parts).tocsr()
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
    return X, np.concatenate([chunk.labels for chunk in chunks])


#: By kind: rows of a block, and what draws a number of rows.
KINDS = {
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
    for name in ("codes", "values"):
        some, all_of = (getattr(chunk, name).ravel() for chunk in (first, second))
        np.testing.assert_array_equal(some, all_of[: some.size])
    assert draw(size + 10, 8).read(0, 2**18, 1)[0][0].content_id != drawn[0][0].content_id


def test_test_data_must_have_the_columns_of_the_training_data() -> None:
    letters = synthetic_splice(10, length=30)
    assert letters.with_columns(30 * 4 + 29 * 16 + 28 * 64 + 27 * 256).n_columns == 9_288
    with pytest.raises(ConfigError, match="have 9288 features, the training data 47028"):
        letters.with_columns(47_028)


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
