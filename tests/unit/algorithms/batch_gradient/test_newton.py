"""Newton's method in jobs: the minimum of L-BFGS in every layout, and few rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.local_runner import train_locally
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.registry import algorithm
from elasticml.data.dataset_stats import merge_summaries
from elasticml.data.readers.arrays import from_arrays
from elasticml.errors import ConfigError
from elasticml.specification.algorithms import BatchGradient

RNG = np.random.default_rng(21)
ROWS = 1600
#: A column like seconds since 1970, one of small values, and some of zeros and ones.
DENSE = np.column_stack(
    [
        1.7e9 + 100.0 * RNG.normal(size=ROWS),
        1e-4 * RNG.normal(size=ROWS),
        RNG.normal(size=(ROWS, 3)),
        RNG.random((ROWS, 4)) < 0.3,
    ]
)
BINARY = sp.csr_matrix(RNG.random((ROWS, 40)) < 0.08, dtype=float)
SPARSE = sp.random_array((ROWS, 60), density=0.1, rng=RNG, format="csr")
#: So many columns that the Hessian is computed from a share of the rows.
WIDE = RNG.normal(size=(ROWS * 10, 200))
LAYOUTS = {
    "dense": (DENSE, "standard"),
    "dense, only numbers scaled": (DENSE, "auto"),
    "sparse": (SPARSE, "none"),
    "sparse, scaled": (SPARSE, "standard"),
    "binary": (BINARY, "none"),
    "binary, nearly dense blocks": (sp.hstack([BINARY] * 3, format="csr"), "standard"),
    "wide": (WIDE, "none"),
}


def train(X: Any, y: Any, weights: Any, **settings: Any) -> Any:
    source = from_arrays(X, y, weights)
    parts = [source.read(block.index, 2**14, 1) for block in source.blocks()]
    facts = merge_summaries([part[1] for part in parts])
    section = BatchGradient(**settings).section()
    return train_locally(
        algorithm("batch_gradient"),
        section,
        facts,
        [chunk for part in parts for chunk in part[0]],
        rounds=2000,
        parallel=Serial(),
    )


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_every_layout_has_the_minimum_of_lbfgs(name: str, intercept: bool, loss: str) -> None:
    X, scale = LAYOUTS[name]
    n = X.shape[0]
    columns = X.toarray() if sp.issparse(X) else X
    spread = np.where(columns.std(axis=0) > 0.0, columns.std(axis=0), 1.0)
    z = (columns - columns.mean(axis=0)) / spread @ np.cos(np.arange(X.shape[1])) / 3.0
    y = z + RNG.normal(size=n) if loss == "squared" else np.where(z + RNG.normal(size=n) > 0, 1, 0)
    weights = RNG.uniform(0.5, 2.0, n)
    given = {"loss": loss, "scale": scale, "intercept": intercept, "l2": 1e-3}
    newton = train(X, y, weights, **given, optimizer="newton", tolerance=1e-9)
    other = train(X, y, weights, **given, optimizer="lbfgs", tolerance=1e-8)
    assert newton.model.converged
    assert newton.rounds <= (10 if loss == "logistic" else 3)
    np.testing.assert_allclose(newton.model.objective, other.model.objective, rtol=1e-9)


def test_many_classes_have_the_minimum_of_lbfgs() -> None:
    """Their Hessian has many blocks: each class's own one preconditions."""
    X = RNG.normal(size=(ROWS, 40))
    y = np.argmax(X @ RNG.normal(size=(40, 41)) + 3.0 * RNG.gumbel(size=(ROWS, 41)), axis=1)
    newton = train(X, y, None, l2=1e-2, optimizer="newton", tolerance=1e-9)
    other = train(X, y, None, l2=1e-2, optimizer="lbfgs", tolerance=1e-8)
    assert newton.model.converged
    assert newton.rounds <= 20
    np.testing.assert_allclose(newton.model.objective, other.model.objective, rtol=1e-10)


def test_columns_that_depend_on_each_other_have_a_minimum_without_a_penalty() -> None:
    X = np.column_stack([DENSE[:, 2:5], DENSE[:, 2], np.zeros(ROWS), np.ones(ROWS)])
    y = X[:, 0] - X[:, 1] + RNG.normal(size=ROWS)
    found = train(X, y, None, loss="squared", l2=0.0, optimizer="newton").model
    residual = y - X @ found.arrays["coef"][0] - found.arrays["intercept"][0]
    exact = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
    np.testing.assert_allclose(residual, exact, atol=1e-6)


def test_the_shape_decides_and_too_many_columns_are_refused() -> None:
    y = np.arange(ROWS) % 2
    few = train(DENSE[:, 2:], y, None, scale="standard", optimizer="auto")
    assert few.model.converged
    assert few.rounds <= 8
    many = sp.csr_matrix((np.ones(ROWS), (np.arange(ROWS), np.arange(ROWS) * 3)))
    with pytest.raises(ConfigError, match=r"wanted at most 4,096; use tron or lbfgs"):
        train(many, y, None, optimizer="newton")
