"""Newton steps of sparse classifiers when rounding has made the quadratic model useless."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from elasticml.algorithms.linear import sparse_softmax
from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.elastic_net import ElasticNetSolver
from elasticml.algorithms.linear.sparse_classifier import SparseClassifier
from elasticml.algorithms.linear.sparse_softmax import SparseSoftmax

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 3))
Y = X[:, 0] + 0.5 * RNG.standard_normal(30)
PENALTY = Penalty(a1=0.1, a2=0.1)
BAD = [np.nan, -1e3]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_step_on_two_classes_is_not_taken(bad, monkeypatch):
    model = SparseClassifier(X, np.sign(Y), None, loss="logistic", intercept=True)
    model.settle_intercept()
    z, b, value = model.z.copy(), model.b, model.value
    solve = ElasticNetSolver.solve

    def rounded(self, *given):
        result = solve(self, *given)
        return replace(result, w=bad * result.w)

    with monkeypatch.context() as patch:
        patch.setattr(ElasticNetSolver, "solve", rounded)
        model.newton_step(PENALTY, np.arange(3), 1e-9)
    assert not model.is_measurable
    assert not model.w.any()
    assert (model.b, model.value) == (b, value)
    assert np.array_equal(model.z, z)
    # The next step is not affected.
    model.newton_step(PENALTY, np.arange(3), 1e-9)
    assert model.is_measurable
    assert model.value + PENALTY.of(model.w) < value


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_step_on_three_classes_is_not_taken(bad, monkeypatch):
    codes = np.digitize(Y, [-0.5, 0.5])
    model = SparseSoftmax(X, codes, None, classes=3, intercept=True)
    value, descend = model.value, sparse_softmax.descend

    def rounded(*given):
        result = descend(*given)
        given[-2][:] *= bad
        return result

    with monkeypatch.context() as patch:
        patch.setattr(sparse_softmax, "descend", rounded)
        assert not model.newton_step(PENALTY, np.arange(9))
    assert not model.W.any()
    assert not model.b.any()
    assert model.value == value
    assert model.newton_step(PENALTY, np.arange(9))
    assert model.value + PENALTY.of(model.W.ravel()) < value
