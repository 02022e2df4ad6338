"""Memory of a fit is freed with the rows' last reference, without a garbage collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import elasticml as em

N, D = 400, 12
MODELS = {
    "hinge": em.LinearSVC(loss="hinge", tol=1e-2),
    "hinge of large rows": em.LinearSVC(loss="hinge", tol=1e-2, fit_intercept=False),
    "squared hinge": em.LinearSVC(tol=1e-2),
    "sparse squared hinge": em.LinearSVC(penalty="l1"),
    "logistic": em.LogisticRegression(),
    "logistic without an intercept": em.LogisticRegression(fit_intercept=False),
    "sparse logistic": em.LogisticRegression(l1_ratio=1.0, C=10.0),
    "ridge": em.Ridge(),
    "positive ridge": em.Ridge(positive=True),
    "lasso": em.Lasso(alpha=0.01),
    "lasso path": em.LassoCV(cv=2, alphas=5),
    "elastic net": em.ElasticNet(alpha=0.01),
    "k-means": em.KMeans(n_clusters=3, random_state=0),
}


@pytest.fixture(autouse=True)
def _no_search() -> Generator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def values_after(model: Any, kind: str, classes: int) -> weakref.ref[np.ndarray]:
    """Fit rows without other references; return a function that tells whether their values are
    alive.
    """
    rng = np.random.default_rng(4)
    X: Any = np.round(rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.5), 1)
    y = np.argmax(X @ rng.normal(size=(D, classes)), axis=1)
    if kind != "dense":
        X = sp.csr_matrix(X, dtype=kind)
    model.fit(X, y)
    return weakref.ref(X if kind == "dense" else X.data)


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "kind", ["dense", "float64", pytest.param("float32", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", MODELS)
def test_rows_are_freed_with_their_last_reference(name: str, kind: str, classes: int) -> None:
    assert values_after(MODELS[name], kind, classes)() is None
