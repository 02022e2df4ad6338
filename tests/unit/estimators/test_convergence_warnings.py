"""Warnings name the line that called fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import elasticml as em

_rng = np.random.default_rng(2)
X = _rng.normal(size=(80, 6))
Y = np.sign(X @ _rng.normal(size=6) + _rng.normal(size=80))
HURRIED: dict[str, Any] = {
    "hinge": em.LinearSVC(loss="hinge", tol=1e-9, max_iter=1),
    "squared hinge": em.LinearSVC(tol=1e-12, max_iter=1),
    "logistic": em.LogisticRegression(tol=1e-12, max_iter=1),
    "logistic without a penalty": em.LogisticRegression(C=np.inf, tol=1e-12, max_iter=1),
    "sparse logistic": em.LogisticRegression(l1_ratio=1.0, tol=1e-12, max_iter=1),
    "positive ridge": em.Ridge(positive=True, tol=1e-15, max_iter=1),
    "lasso": em.Lasso(alpha=1e-6, tol=1e-15, max_iter=1),
    "least squares": em.Lasso(alpha=0.0),
    "path": em.LassoCV(cv=2, alphas=[1e-6], tol=1e-15, max_iter=1),
    "k-means": em.KMeans(n_clusters=3, random_state=0),
}


@pytest.mark.parametrize("name", HURRIED)
def test_a_warning_names_the_caller_s_line(name: str) -> None:
    rows = np.ones_like(X) if name == "k-means" else X
    with pytest.warns(ConvergenceWarning) as caught:
        HURRIED[name].fit(rows, Y)
    assert {one.filename for one in caught} == {__file__}


def test_a_pipeline_counts_as_the_caller_of_its_steps() -> None:
    with pytest.warns(ConvergenceWarning, match="duality gap") as caught:
        make_pipeline(StandardScaler(), HURRIED["hinge"]).fit(X, Y)
    assert [one.filename.rpartition("/")[2] for one in caught] == ["pipeline.py"]
