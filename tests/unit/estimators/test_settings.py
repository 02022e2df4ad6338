"""Settings of estimators: scikit-learn's other parameters, refusals, warnings, clients, threads."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

import elasticml as em
from elasticml.algorithms.cocoa.local_pass import PassOptions
from elasticml.estimators import base, logistic, solver, svm
from elasticml.estimators.backend_choice import PRODUCT_VALUES_MIN, choose_client
from tests.unit.estimators.contract import objective

RNG = np.random.default_rng(2)
X = RNG.normal(size=(80, 6))
Y = np.sign(X @ RNG.normal(size=6) + RNG.normal(size=80))
THREE = np.arange(80) % 3

# --- scikit-learn's parameters --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (em.LogisticRegression, {"solver": "saga", "verbose": 1, "dual": True}),
        (em.LinearSVC, {"verbose": 1}),
        (em.Ridge, {"copy_X": False, "solver": "lsqr"}),
        (em.Lasso, {"precompute": True, "selection": "random"}),
        (em.ElasticNet, {"copy_X": False}),
        (em.LassoCV, {"verbose": 2, "cv": 2, "alphas": 3}),
        (em.KMeans, {"n_clusters": 2, "n_init": 10, "algorithm": "elkan", "copy_x": False}),
    ],
)
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


L1 = em.LogisticRegression(l1_ratio=1.0)
REFUSED: list[tuple[Any, str]] = [
    (em.LinearSVC(C=0.0), "'C' parameter of LinearSVC must be a float in the range"),
    (em.LinearSVC(loss="hinge", dual=False), "dual=False with loss='hinge'"),
    (em.LinearSVC(penalty="l1", loss="hinge"), "penalty='l1' with loss='hinge'"),
    (em.LinearSVC(penalty="l1", dual=True), "penalty='l1' with .* dual=True"),
    (em.LinearSVC(tol=0.0), "'tol' parameter"),
    (em.LinearSVC(multi_class="crammer_singer"), "'multi_class' parameter of LinearSVC must be"),
    (em.LinearSVC(n_jobs=0), "n_jobs=0 has no meaning"),
    (em.LogisticRegression(n_jobs=0), "n_jobs=0 has no meaning"),
    (em.LogisticRegression(l1_ratio=1.5), "'l1_ratio' parameter of LogisticRegression"),
    (em.Ridge([0.1, 30.0]), "alpha has 2 values for 1 targets"),
    (em.Ridge([-1.0]), "alpha: got .*, wanted finite numbers not below 0"),
    (em.Ridge([math.nan]), "alpha: got .*, wanted finite numbers not below 0"),
    (em.Ridge([math.inf]), "alpha: got .*, wanted finite numbers not below 0"),
    *(
        (clone(model).set_params(class_weight={1.0: weight}), f"class_weight: got {weight} for cl")
        for model in (em.LogisticRegression(), em.LinearSVC())
        for weight in (-1.0, math.nan, math.inf)
    ),
    *(
        (make(client=client), r"client: got .*, wanted a distributed.Client, a clu")
        for make in (em.LogisticRegression, em.LinearSVC, em.Lasso, em.Ridge)
        for client in (5, ["tcp://nowhere:1"])
    ),
]


@pytest.mark.parametrize(("model", "message"), REFUSED, ids=[str(model) for model, _ in REFUSED])
def test_a_wrong_setting_is_named(model, message):
    with pytest.raises((ValueError, em.errors.ConfigError), match=message):
        model.fit(X, Y)


def test_rows_without_any_weight_are_refused():
    with pytest.raises(ValueError, match=r"at least one non-zero|wanted some above 0"):
        em.LinearSVC().fit(X, Y, sample_weight=np.zeros(80))


# --- warnings -------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("make", [em.Lasso, em.ElasticNet])
def test_without_a_penalty_the_warning_names_what_to_use(make):
    model = make(alpha=0.0)
    with pytest.warns(ConvergenceWarning, match="alpha=0 means no penalty.*em.Ridge"):
        model.fit(X, Y)
    assert 0.0 < model.dual_gap_ < 1.0
    np.testing.assert_allclose(model.coef_, em.Ridge(alpha=0.0).fit(X, Y).coef_, atol=1e-4)


def test_without_a_penalty_a_warning_names_no_gap():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        em.LogisticRegression(C=np.inf).fit(X, X[:, 0] + X[:, 1] ** 2 > 0.5)
    # The first column separates the classes: the longer the model, the better.
    with pytest.warns(ConvergenceWarning, match="no certificate") as caught:
        em.LogisticRegression(C=np.inf, max_iter=5).fit(X, X[:, 0] > 0.0)
    assert "gap" not in str(caught[0].message)


# --- clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "y", "what"),
    [
        (em.Ridge(0.0, positive=True), Y, "Ridge with positive=True and alpha=0"),
        (em.Lasso(0.0), Y, "Lasso with alpha=0"),
        (em.ElasticNet(0.0), Y, "ElasticNet with alpha=0"),
        (L1, THREE, "LogisticRegression with an L1 penalty and 3 classes"),
    ],
)
def test_a_model_that_no_job_fits_is_fitted_here_whatever_the_client(model, y, what):
    here = clone(model)
    # The client is not asked: nothing listens there.
    model = clone(model).set_params(client="tcp://127.0.0.1:1")
    with pytest.warns(UserWarning, match=f"{what}.* is fitted") as caught:
        model.fit(X, y)
    assert (caught[0].filename, model.solver_path_) == (__file__, "in-process")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        np.testing.assert_array_equal(here.fit(X, y).coef_, model.coef_)


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


# --- threads --------------------------------------------------------------------------------------


#: Make the local solver use threads for any amount of work.
FEW_VALUES = {**PassOptions.__init__.__kwdefaults__, "values_per_thread": 0}
THREADED: list[tuple[Any, float]] = [
    (em.LinearSVC("l2", loss="hinge", dual=True, C=0.1, tol=1e-12, max_iter=20_000), 1e-6),
    (em.LinearSVC(dual=True, C=0.1, tol=1e-12, max_iter=20_000), 1e-6),
    (em.LinearSVC(dual=False, C=0.1, tol=1e-12, max_iter=20_000), 1e-6),
    (em.LogisticRegression(C=0.1, tol=1e-14), 1e-6),
    (em.LogisticRegression(C=0.1, tol=1e-6, fit_intercept=False), 1e-2),
]


@pytest.mark.parametrize(("model", "atol"), THREADED, ids=[str(model) for model, _ in THREADED])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
def test_any_number_of_threads_reaches_the_same_model(model, atol, make, monkeypatch):
    model = clone(model).set_params(random_state=0)
    columns = 90 if isinstance(model, em.LogisticRegression) else 12  # passes pay with many
    rows, y = make_classification(400, columns, random_state=0)
    rows = make(rows)
    # If a second thread were started, it would take its share.
    monkeypatch.setattr(PassOptions.__init__, "__kwdefaults__", FEW_VALUES)
    few = [clone(model).set_params(n_jobs=n).fit(rows, y).coef_ for n in (1, 3)]
    assert np.array_equal(*few)
    # Even so few values are worth a thread here, so that rows are split over three.
    for module, name in (
        (svm, "STEP_VALUES_MIN"),
        (svm, "PRODUCT_VALUES_MIN"),
        (solver, "STEP_VALUES_MIN"),
        (logistic, "VALUES_MIN"),
        (base, "PRODUCT_VALUES_MIN"),
    ):
        monkeypatch.setattr(module, name, 0)
    alone, beside, again = (clone(model).set_params(n_jobs=n).fit(rows, y) for n in (1, 3, 3))
    np.testing.assert_allclose(alone.coef_, beside.coef_, atol=atol)
    assert not np.array_equal(alone.coef_, beside.coef_)
    assert np.array_equal(again.coef_, beside.coef_)
    assert np.max(beside.dual_gap_) <= model.tol * 0.1 * 400


@pytest.mark.parametrize("dual", [True, False])
def test_classes_fitted_in_parallel_have_the_same_bits(dual, monkeypatch):
    monkeypatch.setattr(svm, "MODEL_VALUES_MIN", 0)
    rows, y = make_classification(200, 9, n_informative=6, n_classes=5, random_state=3)
    settings = {"dual": dual, "tol": 1e-3, "random_state": 0}
    alone = em.LinearSVC(**settings).fit(rows, y)
    beside = em.LinearSVC(**settings, n_jobs=3).fit(rows, y)
    assert np.array_equal(alone.coef_, beside.coef_)
    assert np.array_equal(alone.dual_gap_, beside.dual_gap_)


def test_small_fits_here_call_blas_with_one_thread_until_the_last_has_ended() -> None:
    import scipy.linalg  # noqa: F401  # whose BLAS the estimators call

    def threads() -> set[int]:
        return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}

    with threadpool_limits(limits=2, user_api="blas"):
        first, second = choose_client(None, 1000), choose_client(None, 1000)
        first.__enter__()
        second.__enter__()
        assert threads() == {1}
        first.__exit__(None, None, None)
        assert threads() == {1}
        second.__exit__(None, None, None)
        assert threads() == {2}
        # Large fits and jobs leave it alone.
        for client, values in (
            (None, PRODUCT_VALUES_MIN),
            (SimpleNamespace(sync=lambda: None), 1000),
        ):
            with choose_client(client, values):
                assert threads() == {2}


# --- methods of the logistic regression -----------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "C", "method"),
    [(20, 0.01, "newton"), (100, 0.01, "dual"), (100, 1.0, "newton"), (600, 1.0, "dual")],
)
def test_few_values_are_fitted_as_their_shape_and_the_penalty_say(columns, C, method):
    rows = np.random.default_rng(0).standard_normal((500, columns))
    model = em.LogisticRegression(C=C, fit_intercept=False).fit(rows, np.sign(rows[:, 0]))
    assert model.method_ == method


def test_many_rows_are_fitted_by_dual_coordinate_ascent(monkeypatch):
    """Many begin here at few, so that the scene is small."""
    for module, name in ((logistic, "VALUES_MIN"), (solver, "STEP_VALUES_MIN")):
        monkeypatch.setattr(module, name, 100_000)
    rng = np.random.default_rng(3)
    rows = sp.random(4000, 500, 0.06, "csr", random_state=rng)
    rows = sp.csr_matrix(rows.multiply(1.0 / np.sqrt(rows.multiply(rows).sum(axis=1))))
    margins = rows @ rng.standard_normal(500)
    y = np.sign(margins + margins.std() * rng.standard_normal(4000))

    def fitted(**settings: Any) -> Any:
        return em.LogisticRegression(**{"fit_intercept": False, **settings}).fit(rows, y)

    dual, newton = fitted(tol=1e-5), fitted(tol=1e-9, warm_start=True)
    assert (dual.method_, newton.method_) == ("dual", "newton")
    assert dual.dual_gap_ <= 1e-5 * len(y) * math.log(2.0)
    more = objective(dual, rows, y) - objective(newton, rows, y)
    assert -newton.dual_gap_ <= more <= dual.dual_gap_
    # Where passes end, Newton steps continue.
    model = fitted(tol=1e-6, max_iter=3)
    assert model.method_ == "newton"
    assert model.dual_gap_ <= 1e-6 * len(y) * math.log(2.0)
    assert fitted(tol=1e-2, fit_intercept=True).method_ == "newton"
    assert fitted(tol=1e-2, C=1000.0).method_ == "newton"
