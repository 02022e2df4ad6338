"""Each linear estimator finds the model of a second implementation, and certifies its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.linear_model as theirs
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC

import elasticml as em
from tests.unit.estimators.contract import counts, objective, tall, wide, wine

BOTH = [True, False]
#: Methods of classifiers, and the largest difference of their results.
METHODS = {"decision_function": 1e-5, "predict_proba": 1e-6, "predict_log_proba": 1e-5}


def iris():
    X, y = load_iris(return_X_y=True)
    return X - X.mean(axis=0), y


def named_iris():
    X, y = iris()
    return X, np.array(["a", "b", "c"])[y]


def two_classes(seed=0):
    return make_classification(300, 12, random_state=seed)


def wide_classes():
    return make_classification(60, 200, n_informative=8, random_state=1)


@dataclass(frozen=True)
class Pair:
    """Two estimators of the same model."""

    ours: Any
    theirs: Any
    data: Callable[[], Any]
    #: Largest gap, given the targets and weights.
    gap: Callable[[Any, Any], float] = lambda y, s: math.inf
    atol: float = 1e-6
    weighted: tuple[bool, ...] = (True,)

    @property
    def name(self) -> str:
        return f"{self.ours} {self.data.__name__}"


def regressions():
    for data in (wide, tall):
        for intercept in BOTH:
            settings = {"alpha": 0.3, "fit_intercept": intercept, "max_iter": 100_000, "tol": 1e-13}
            for more in (
                {"l1_ratio": 1.0},
                {"l1_ratio": 0.4},
                {"l1_ratio": 0.7, "positive": True},
            ):
                # In the order of the columns, theirs takes 80,000 passes instead of 1,500.
                other = theirs.ElasticNet(**settings, **more, selection="random", random_state=0)
                yield Pair(
                    em.ElasticNet(**settings, **more), other, data,
                    lambda y, s: 1e-13 * np.average(y * y, weights=s), 1e-5, (False, True),
                )  # fmt: skip
            settings = {"alpha": 0.7, "fit_intercept": intercept}
            for solver in ("cholesky", "newton"):
                yield Pair(
                    em.Ridge(**settings, solver=solver, tol=1e-16),
                    theirs.Ridge(**settings, solver="svd"), data,
                    lambda y, s: 1e-10 * len(y) * np.average(y * y, weights=s), 1e-6, (False, True),
                )  # fmt: skip
    for intercept in BOTH:
        settings = {"alpha": 0.3, "fit_intercept": intercept}
        yield Pair(
            em.PoissonRegressor(**settings, tol=1e-13),
            theirs.PoissonRegressor(
                **settings, solver="newton-cholesky", tol=1e-10, max_iter=1000
            ),
            counts, lambda y, s: 1e-12,
        )  # fmt: skip


def logistic_regressions():
    for data in (two_classes, iris):
        for settings in (
            {"C": 1.0},
            {"C": 0.01, "class_weight": "balanced"},
            {"C": 5.0, "fit_intercept": False, "class_weight": {1: 3.0}},
        ):
            other = theirs.LogisticRegression(
                **settings, solver="newton-cholesky", tol=1e-11, max_iter=1000
            )
            yield Pair(em.LogisticRegression(**settings, tol=1e-14), other, data)
    for data in (two_classes, wine, wide_classes):
        for ratio in (1.0, 0.4):
            for settings in (
                {"C": 0.3, "l1_ratio": ratio},
                {"C": 0.1, "l1_ratio": ratio, "class_weight": "balanced", "fit_intercept": False},
            ):
                other = theirs.LogisticRegression(
                    **settings, solver="saga", tol=1e-12, max_iter=100_000
                )
                yield Pair(em.LogisticRegression(**settings, tol=1e-15), other, data)


def support_vectors():
    exact = {"tol": 1e-10, "max_iter": 10**6, "random_state": 0}
    for loss, dual in (("hinge", True), ("squared_hinge", True), ("squared_hinge", False)):
        settings = {"loss": loss, "C": 0.1, "class_weight": "balanced"}
        yield Pair(
            em.LinearSVC(**settings, dual=dual, tol=1e-13, max_iter=20_000, random_state=0),
            LinearSVC(**settings, dual=True, **exact), two_classes,
        )  # fmt: skip
    for scaling in (1.0, 7.0, None):
        for C in (0.01, 1.0):
            settings = {"penalty": "l1", "C": C, "class_weight": "balanced"}
            settings |= {"fit_intercept": scaling is not None, "intercept_scaling": scaling or 1.0}
            yield Pair(
                em.LinearSVC(**settings, tol=1e-13), LinearSVC(**settings, dual=False, **exact),
                two_classes, lambda y, s, C=C: 1e-13 * C * 4 * len(y),
            )  # fmt: skip
    for weight in (None, "balanced", {"a": 0.3, "c": 5.0}):
        for scaling in (1.0, 7.0):
            settings = {"C": 0.7, "class_weight": weight, "intercept_scaling": scaling}
            yield Pair(
                em.LinearSVC(**settings, tol=1e-13), LinearSVC(**settings, dual=False, **exact),
                named_iris, weighted=(False,),
            )  # fmt: skip
    settings = {"penalty": "l1", "C": 0.7, "class_weight": {0: 0.3, 2: 5.0}}
    yield Pair(
        em.LinearSVC(**settings, tol=1e-13, n_jobs=2), LinearSVC(**settings, dual=False, **exact),
        iris, atol=1e-5, weighted=(False,),
    )  # fmt: skip


PAIRS = [*regressions(), *logistic_regressions(), *support_vectors()]


@pytest.mark.parametrize("pair", PAIRS, ids=[pair.name for pair in PAIRS])
def test_it_finds_the_other_implementations_model(pair):
    X, y = pair.data()
    ours, other = pair.ours, pair.theirs
    is_l1 = getattr(ours, "penalty", "") == "l1" or getattr(ours, "l1_ratio", 0.0) > 0.0
    for weighted in pair.weighted:
        rng = np.random.default_rng(0)
        s = rng.integers(0, 4, len(y)).astype(float) if weighted else None
        other.fit(X, y, sample_weight=s)
        for layout in (np.asarray, sp.csr_matrix, sp.csc_array):
            ours.fit(layout(X), y, sample_weight=s)
            np.testing.assert_allclose(ours.coef_, other.coef_, atol=pair.atol)
            is_net = isinstance(ours, em.ElasticNet)
            atol = 10.0 * pair.atol if is_net else pair.atol
            np.testing.assert_allclose(ours.intercept_, other.intercept_, atol=atol)
            if is_net:
                least = objective(other, X, y, s)
                assert objective(ours, X, y, s) == pytest.approx(least, rel=1e-10)
            if is_l1:
                assert np.array_equal(ours.coef_ != 0.0, np.abs(other.coef_) > 1e-9)
            assert np.min(ours.dual_gap_) >= 0.0
            assert np.max(ours.dual_gap_) <= pair.gap(y, s)
            assert ours.solver_path_ == "in-process"
            assert ours.score(X, y, s) == pytest.approx(other.score(X, y, s), abs=1e-8)
            for method, atol in METHODS.items():
                if hasattr(ours, method) and hasattr(other, method):
                    found, expected = getattr(ours, method)(X), getattr(other, method)(X)
                    np.testing.assert_allclose(found, expected, atol=atol)
            if hasattr(ours, "classes_"):
                assert np.array_equal(ours.predict(X), other.predict(X))
            elif isinstance(ours, em.PoissonRegressor):
                np.testing.assert_allclose(ours.predict(X), other.predict(X), rtol=1e-6)
            else:
                atol = 10.0 * pair.atol
                np.testing.assert_allclose(ours.predict(X), other.predict(X), atol=atol)


@dataclass(frozen=True)
class Rough:
    """An estimator that ends too early, after some numbers of steps."""

    model: Any
    data: Callable[[], Any]
    steps: tuple[int, ...]
    #: Rows to leave out, so that classes have unequal sizes: with a free intercept the dual
    #: variables must be made feasible.
    without: int = 0

    @property
    def name(self) -> str:
        return f"{self.model} {self.data.__name__}"


def rough_models():
    for data in (wide, tall):
        for ratio in (1.0, 0.5, 0.0):
            yield Rough(em.ElasticNet(0.05, l1_ratio=ratio), data, (1, 3, 10))
    for intercept in BOTH:
        for data in (two_classes, iris):
            model = em.LogisticRegression(C=0.5, fit_intercept=intercept)
            yield Rough(model, data, (1, 2, 3), 25)
        for data in (two_classes, wine, wide_classes):
            for ratio in (1.0, 0.4):
                model = em.LogisticRegression(C=2.0, fit_intercept=intercept, l1_ratio=ratio)
                yield Rough(model, data, (1, 2, 4), 12)
    yield Rough(em.PoissonRegressor(alpha=0.1), counts, (2,))
    for settings in ({"dual": True}, {"dual": False}, {"penalty": "l1"}):
        yield Rough(em.LinearSVC(C=0.1, **settings), two_classes, (1, 2))


ROUGH = list(rough_models())


@pytest.mark.parametrize("rough", ROUGH, ids=[rough.name for rough in ROUGH])
def test_the_gap_bounds_the_suboptimality(rough):
    X, y = (values[rough.without :] for values in rough.data())
    exact = {"tol": 1e-13, "max_iter": 100_000}
    if isinstance(rough.model, em.LinearSVC) and rough.model.penalty == "l2":
        exact["dual"] = False
    model, settings = rough.model, rough.model.get_params()
    least = objective(model.set_params(**exact).fit(X, y), X, y)
    model.set_params(**settings)
    for steps in rough.steps:
        with pytest.warns(ConvergenceWarning, match="duality gap"):
            model.set_params(tol=1e-14, max_iter=steps).fit(X, y)
        left = objective(model, X, y) - least
        assert -1e-9 * least <= left <= model.dual_gap_ + 1e-9 * least
        assert math.isfinite(model.dual_gap_)


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (em.LogisticRegression(l1_ratio=1.0, tol=1e-8), two_classes),
        (em.LogisticRegression(l1_ratio=1.0, tol=1e-8), wine),
        (em.Lasso(0.3, tol=1e-10), wide),
    ],
)
def test_a_warm_start_at_the_optimum_takes_no_iteration(model, data):
    X, y = data()
    model = clone(model).set_params(warm_start=True).fit(X, y)
    first, coef = np.max(model.n_iter_), model.coef_.copy()
    assert np.max(model.fit(X, y).n_iter_) == 0 < first
    np.testing.assert_allclose(model.coef_, coef, rtol=1e-12)
    assert np.max(clone(model).fit(X, y).n_iter_) == first


@pytest.mark.filterwarnings("error")
def test_several_classes_take_at_most_a_step_from_their_optimum():
    X, y = load_iris(return_X_y=True)
    model = em.LogisticRegression(tol=1e-8, warm_start=True).fit(X, y)
    assert model.fit(X, y).n_iter_[0] <= 1
