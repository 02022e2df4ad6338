"""Multinomial regression whose columns have unequal sizes: the Hessian, and what is certified."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.linear import softmax_objective
from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.linear.softmax_objective import SoftmaxObjective
from elasticml.algorithms.parallel import Serial

SIZES = np.array([1e-3, 1.0, 1.0, 1e3, 1e6])


def objective(*, intercept: bool = True, is_sparse: bool = False) -> SoftmaxObjective:
    rng = np.random.default_rng(3)
    X = (rng.standard_normal((900, 5)) + np.array([0.0, 0.0, 1.0, 2.0, 3.0])) * SIZES
    margins = (X / SIZES) @ rng.standard_normal((5, 3))
    codes = (margins + rng.gumbel(size=margins.shape)).argmax(axis=1)
    rows = RowBlocks(sp.csr_matrix(X) if is_sparse else X, Serial())
    return SoftmaxObjective(rows, codes, None, classes=3, l2=1e-3, intercept=intercept)


def test_the_hessian_of_a_block_is_the_product_with_its_unit_vectors():
    function = objective()
    w = 0.1 * np.random.default_rng(0).standard_normal(function.n_model)
    columns = np.stack([function.at(w).product(e) for e in np.eye(function.n_model)], axis=1)
    assert function.block is not None
    hessian = function.hessian(w)
    # Steps that differ between the classes; to the same step of all, the Hessian adds curvature.
    for a, b in ((0, 1), (1, 2)):
        step = np.zeros((3, 6))
        step[a], step[b] = 1.0, -1.0
        np.testing.assert_allclose(
            hessian @ step.ravel(), columns @ step.ravel(), rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("most", [512, 9])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_large_columns_are_certified_in_few_steps(monkeypatch, intercept, most, is_sparse):
    """A gradient of 1e-12 in a column of 1e6 left a gap of thousands: hundreds of products."""
    monkeypatch.setattr(softmax_objective, "BLOCK_MAX", most)
    function = objective(intercept=intercept, is_sparse=is_sparse)
    found = function.minimum(function.zero(), gap=1e-8, steps=15)
    assert found.converged
    assert 0.0 <= found.point.gap <= 1e-8
