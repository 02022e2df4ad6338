"""An estimator's rows prepared for kernels: labels encoded, products computed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from elasticml.algorithms.linear.row_blocks import RowBlocks
from elasticml.algorithms.parallel import Serial
from elasticml.estimators.rows import chunk_rows, classes_and_codes


class TwoThreads(Serial):
    n_threads = 2


def some_rows(n: int = 40, d: int = 7) -> sp.csr_matrix:
    return sp.random(n, d, density=0.4, format="csr", random_state=3)


def test_labels_other_than_two_signs_are_encoded() -> None:
    chunked = chunk_rows(np.ones((4, 1))).with_labels(np.array([2.0, 0.5, 2.0, 1.0]), None)
    assert chunked.facts.label_counts == {0.5: 1, 1.0: 1, 2.0: 2}


@pytest.mark.parametrize(
    "y",
    [
        np.array([3, 1, 3, 1]),
        np.array([-1.0, -1.0, 1.0]),
        np.array([True, False]),
        np.array([2, 1, 0, 1]),
        np.array([4, 4]),
        np.array(["b", "a"]),
        np.array([1, "a"], object).astype(str),
    ],
    ids=str,
)
def test_classes_and_codes_are_those_of_numpy(y) -> None:
    labels, codes = classes_and_codes(y)
    expected, places = np.unique(y, return_inverse=True)
    assert labels.dtype == expected.dtype
    assert labels.tolist() == expected.tolist()
    assert codes.tolist() == places.tolist()


@pytest.mark.parametrize("parallel", [Serial(), TwoThreads()], ids=["serial", "two parts"])
@pytest.mark.parametrize("kind", ["csr", "csc", "dense", "repeated"])
def test_products_with_rows_are_numpys(kind: str, parallel: Serial) -> None:
    X = some_rows()
    if kind == "repeated":
        pairs = np.repeat(X.indices, 2)
        X = sp.csr_matrix((np.repeat(X.data, 2), pairs, 2 * X.indptr), shape=X.shape)
        assert not X.has_canonical_format
    dense = X.toarray()
    value = {"csc": X.tocsc, "dense": X.toarray}.get(kind, lambda: X)()
    rows, rng = RowBlocks(value, parallel), np.random.default_rng(0)
    v, c = rng.standard_normal(7), rng.uniform(0.0, 1.0, 40)
    close = np.testing.assert_allclose
    close(rows.forward(v), dense @ v, rtol=1e-12, atol=1e-14)
    close(rows.forward(np.stack([v, v]).T), dense @ np.stack([v, v]).T, rtol=1e-12, atol=1e-14)
    close(rows.adjoint(c), dense.T @ c, rtol=1e-12, atol=1e-14)
    close(rows.squares(c), (dense * dense).T @ c, rtol=1e-12)
    close(rows.gram(c), (dense.T * c) @ dense, rtol=1e-12, atol=1e-14)
    image, p = rows.product(v, 0.5, c)
    close(p, c * (dense @ v + 0.5), rtol=1e-12, atol=1e-14)
    close(image, dense.T @ (c * (dense @ v + 0.5)), rtol=1e-12, atol=1e-14)
