"""Saved estimators: the loaded model gives the same predictions, for arrays, frames and files."""

from __future__ import annotations

import numpy as np
import pandas
import pytest
from sklearn.datasets import make_classification

import elasticml as em

X, Y = make_classification(200, 5, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
NAMES = [f"x{j}" for j in range(5)]
CLASSES = np.array(["bird", "cat", "dog"])

MODELS = {
    "svm": (em.LinearSVC(), CLASSES[Y]),
    "logistic": (em.LogisticRegression(), CLASSES[Y].astype(object)),
    "two classes": (em.LogisticRegression(), Y == 1),
    "ridge": (em.Ridge(), X @ np.arange(5.0)),
    "targets": (em.Ridge(), np.stack([X[:, 0], X[:, 1] + 1.0], axis=1)),
    "lasso": (em.Lasso(0.1), X[:, 2]),
    "counts": (em.PoissonRegressor(), np.exp(X[:, 0]).round()),
    "lasso path": (em.LassoCV(cv=3, alphas=5), X[:, 2]),
    "k-means": (em.KMeans(4, random_state=0), None),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_predicts_the_same(tmp_path, name):
    model, y = MODELS[name]
    frame = pandas.DataFrame(X, columns=NAMES)
    model.fit(frame, y)
    model.save(tmp_path / "model.npz")
    loaded = em.load_model(tmp_path / "model.npz")
    expected = model.predict(frame)
    frame.sample(frac=1.0, axis="columns", random_state=1).to_csv(tmp_path / "X.csv", index=False)
    rows = (frame, X, frame[NAMES[::-1]], tmp_path / "X.csv")
    predicted = [loaded.predict(some) for some in rows]
    # The estimator itself finds the columns of a file by their names.
    for given in (*predicted, model.predict(tmp_path / "X.csv")):
        if expected.dtype.kind == "f":  # BLAS adds in an order of its own
            np.testing.assert_allclose(given, expected, rtol=1e-12, atol=1e-12)
        else:
            assert np.array_equal(given, expected)
    if hasattr(model, "predict_proba"):
        shares = model.predict_proba(frame)
        np.testing.assert_allclose(loaded.predict_proba(frame), shares, atol=1e-14)


def test_an_estimator_of_a_file_keeps_its_categories(tmp_path):
    city = np.random.default_rng(0).choice(["Bern", "Rome", "Oslo"], 200)
    late = np.where((city == "Rome") ^ (X[:, 0] > 1.0), "yes", "no")
    frame = pandas.DataFrame({"delay": X[:, 0], "city": city, "late": late})
    frame.to_csv(tmp_path / "all.csv", index=False)
    model = em.LogisticRegression().fit(tmp_path / "all.csv", "late")
    expected = model.predict(tmp_path / "all.csv")
    assert set(expected) == {"no", "yes"}
    assert model.score(tmp_path / "all.csv", "late") == np.mean(expected == late)
    # A few rows have few of the cities, and no labels.
    frame[["city", "delay"]].head(5).to_csv(tmp_path / "few.csv", index=False)
    for rows in (tmp_path / "few.csv", frame.head(5)):
        assert np.array_equal(model.predict(rows), expected[:5])
    model.save(tmp_path / "model.npz")
    loaded = em.load_model(tmp_path / "model.npz")
    assert np.array_equal(loaded.predict(tmp_path / "few.csv"), expected[:5])
    assert loaded.score(tmp_path / "all.csv") == np.mean(expected == late)
