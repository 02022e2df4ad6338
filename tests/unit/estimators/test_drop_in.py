"""Estimators in place of scikit-learn's: its other parameters, and copies that share a client."""

from __future__ import annotations

import copy
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import elasticml as em

X = np.random.default_rng(0).normal(size=(40, 3))
Y = (X[:, 0] > 0).astype(int)

SETTINGS = [
    (em.LogisticRegression, {"solver": "saga", "verbose": 1, "dual": True}),
    (em.LinearSVC, {"verbose": 1}),
    (em.Ridge, {"copy_X": False, "solver": "lsqr"}),
    (em.Lasso, {"precompute": True, "selection": "random"}),
    (em.ElasticNet, {"copy_X": False}),
    (em.LassoCV, {"verbose": 2, "cv": 2, "alphas": 3}),
    (em.KMeans, {"n_clusters": 2, "n_init": 10, "algorithm": "elkan", "copy_x": False}),
]


@pytest.mark.parametrize(("make", "settings"), SETTINGS)
def test_scikit_learns_other_parameters_are_ignored_with_one_warning(make, settings):
    model = clone(make(**settings, random_state=0))
    assert model.get_params().items() >= settings.items()
    with pytest.warns(UserWarning, match="without meaning here, and ignored: ") as caught:
        model.fit(X, Y)
    (ignored,) = [w for w in caught if w.category is UserWarning]
    used = {"n_clusters", "cv", "alphas"}
    for name in settings.keys() - used:
        assert f"{name}={settings[name]!r}" in str(ignored.message)
    plain = make(**{name: settings[name] for name in settings.keys() & used}, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain.fit(X, Y)
    assert np.array_equal(plain.predict(X), model.predict(X))


def test_another_scheme_of_classes_is_refused():
    with pytest.raises(ValueError, match="'multi_class' parameter of LinearSVC must be"):
        em.LinearSVC(multi_class="crammer_singer").fit(X, Y)


class UncopiedClient:
    scheduler = SimpleNamespace(address="tcp://10.0.0.5:8786")

    def __deepcopy__(self, memo):
        raise AssertionError("copied")

    def __reduce__(self):
        raise AssertionError("pickled")


@pytest.mark.parametrize("make", [em.LinearSVC, em.LogisticRegression, em.Lasso, em.KMeans])
def test_a_client_is_shared_by_clones_and_is_its_address_in_copies(make):
    client = UncopiedClient()
    model = make(client=client, tol=0.5)
    assert clone(model).client is client
    assert clone(model).tol == 0.5
    assert clone(make_pipeline(StandardScaler(), model))[-1].client is client
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert other.client == "tcp://10.0.0.5:8786"
    assert model.client is client
