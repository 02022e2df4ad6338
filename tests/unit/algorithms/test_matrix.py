from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.matrix import Matrix
from tests.unit.data.rows import chunk_of


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_products_of_a_chunk_are_those_of_its_matrix(kind):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((5, 3)) * (rng.random((5, 3)) < 0.6)
    chunk = chunk_of(kind, x)
    # The data set has a fourth column that this chunk does not know.
    w, c = rng.standard_normal(4), rng.standard_normal(5)
    X = Matrix(chunk, 4)

    assert X.shape == (5, 4)
    np.testing.assert_allclose(X @ w, x @ w[:3])
    np.testing.assert_allclose(c @ X, np.append(c @ x, 0.0))
