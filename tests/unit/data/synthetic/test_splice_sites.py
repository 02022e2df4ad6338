"""Synthetic splice sites: reproducible by block, learnable, not trivial; problems with optima."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import average_precision_score

from elasticml.data.chunks.ngrams import letters_of_codes
from elasticml.data.chunks.products import make_adjoint, make_forward
from elasticml.data.source import load_all, merge_summaries, source_from_spec
from elasticml.data.synthetic.splice_sites import (
    BLOCK_ROWS,
    synthetic_splice,
)
from elasticml.errors import ConfigError


def margins_of(chunks, w):
    forward = make_forward(chunks[0].layout, w)
    outs = [np.empty(chunk.n_rows) for chunk in chunks]
    for chunk, out in zip(chunks, outs, strict=True):
        forward(chunk, out)
    return np.concatenate(outs)


def fit_logistic(chunks, l2, rounds):
    """Take a few L-BFGS steps on mean logistic loss plus l2 / 2 |w|^2."""
    y = np.concatenate([chunk.labels for chunk in chunks])
    layout, bounds = chunks[0].layout, np.cumsum([0] + [chunk.n_rows for chunk in chunks])

    def value_and_gradient(w):
        m = y * margins_of(chunks, w)
        adjoint, gradient = make_adjoint(layout, w.size), l2 * w
        slope = -y / (1 + np.exp(m)) / y.size
        for k, chunk in enumerate(chunks):
            adjoint.add(chunk, slope[bounds[k] : bounds[k + 1]])
        adjoint.result(gradient)
        return np.logaddexp(0, -m).mean() + l2 / 2 * w @ w, gradient

    start = np.zeros(layout.n_columns)
    return minimize(
        value_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": rounds}
    ).x


def test_blocks_can_be_drawn_alone_in_any_order_and_do_not_depend_on_the_number_of_rows():
    many, few = synthetic_splice(3 * BLOCK_ROWS), synthetic_splice(BLOCK_ROWS + 10)
    whole, part = many.read(1, 2**20, 2)[0], few.read(1, 2**20, 9)[0]
    assert [block.rows for block in few.blocks()] == [BLOCK_ROWS, 10]
    assert part[0].codes.tolist() == whole[0].codes[:10].tolist()
    again = synthetic_splice(3 * BLOCK_ROWS).read(1, 2**20, 2)[0]
    assert [chunk.content_id for chunk in again] == [chunk.content_id for chunk in whole]
    other = synthetic_splice(3 * BLOCK_ROWS, seed=1).read(1, 2**20, 2)[0]
    assert (other[0].codes != whole[0].codes).mean() > 0.5


def test_statistics_have_the_papers_features_and_the_requested_share_of_positives():
    source = synthetic_splice(20_000, positive_share=0.05)
    facts = merge_summaries([source.read(block.index, None, 4)[1] for block in source.blocks()])
    assert (facts.n_rows, facts.n_columns, facts.classes) == (20_000, 47_028, (-1.0, 1.0))
    # Four standard deviations of a binomial share.
    assert abs(facts.label_counts[1.0] / 20_000 - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 20_000)


@pytest.mark.parametrize("length", [8, 15, 141])
def test_every_row_has_its_ag_in_the_middle(length):
    spec = synthetic_splice(300, length=length, positive_share=0.3, ngrams=[1, 2]).spec()
    chunks = load_all(source_from_spec(spec))
    letters = np.concatenate([letters_of_codes(chunk.codes, chunk.layout) for chunk in chunks])
    centre = (length - 2) // 2
    assert letters.shape == (300, length)
    assert set(map(tuple, letters[:, centre : centre + 2].tolist())) == {(0, 2)}
    assert set(np.unique(letters)) == {0, 1, 2, 3}


def test_problem_is_learnable_but_not_trivial():
    train = load_all(synthetic_splice(6000, seed=0))
    test = load_all(synthetic_splice(6000, seed=1))
    truth = np.concatenate([chunk.labels for chunk in test]) > 0
    w = fit_logistic(train, l2=1e-3, rounds=12)
    auprc = average_precision_score(truth, margins_of(test, w))
    assert truth.mean() < 0.04
    assert 0.5 < auprc < 0.9


def test_test_rows_of_another_length_are_refused():
    source = synthetic_splice(10, length=30)
    assert source.with_columns(30 * 4 + 29 * 16 + 28 * 64 + 27 * 256).n_columns == 9_288
    with pytest.raises(ConfigError, match="have 9288 features, the training data 47028"):
        source.with_columns(47_028)
