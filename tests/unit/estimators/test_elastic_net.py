"""Lasso and ElasticNet: scikit-learn's contract and models, certified by a duality gap."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet as TheirElasticNet
from sklearn.linear_model import Lasso as TheirLasso
from sklearn.linear_model import Ridge as TheirRidge
from sklearn.preprocessing import StandardScaler

import elasticml as em
from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.algorithms.linear.coordinate_descent_kernels import Penalty
from elasticml.algorithms.linear.elastic_net import ElasticNetSolver
from tests.unit.estimators.contract import objective, tall, wide

DATA = Path(os.environ.get("ELASTICML_DATA", "../shared/data"))


def housing():
    pandas = pytest.importorskip("pandas")
    path = next((DATA / "california_housing").glob("housing.csv*"), None)
    if path is None:
        pytest.skip(f"california_housing is not in {DATA}")
    table = pandas.read_csv(path).select_dtypes("number")
    y = table.pop("median_house_value").to_numpy() / 1e5
    return table.fillna(table.mean()).to_numpy(), y


def protein():
    path = next((DATA / "uci_regression").rglob("protein*.csv*"), None)
    path = path or next((DATA / "uci_regression").rglob("protein/data.csv*"), None)
    if path is None:
        pytest.skip(f"protein is not in {DATA}")
    table = np.loadtxt(path, delimiter=",")
    return table[:, :-1], table[:, -1]


@pytest.mark.parametrize("data", [housing, protein])
@pytest.mark.parametrize("share", [0.3, 0.01, 0.001])
@pytest.mark.parametrize("l1_ratio", [1.0, 0.5])
def test_real_data_have_scikit_learns_support_at_a_gap_of_1e_8(data, share, l1_ratio):
    X, y = data()
    X = StandardScaler().fit_transform(X)
    largest = np.abs(X.T @ (y - y.mean())).max() / len(y)
    settings = {"alpha": share * largest / l1_ratio, "l1_ratio": l1_ratio, "max_iter": 100_000}
    theirs = TheirElasticNet(**settings, tol=1e-10, precompute=True).fit(X, y)
    ours = em.ElasticNet(**settings, tol=1e-8).fit(X, y)
    assert ours.dual_gap_ <= 1e-8 * np.var(y)
    assert np.array_equal(ours.coef_ != 0.0, theirs.coef_ != 0.0)
    assert objective(ours, X, y) <= objective(theirs, X, y) + 1e-8 * np.var(y)
    tight = em.ElasticNet(**settings, tol=1e-13).fit(X, y)
    np.testing.assert_allclose(tight.coef_, theirs.coef_, atol=1e-4 * np.abs(theirs.coef_).max())


def test_several_targets_are_fitted_one_by_one():
    X, Y = make_regression(80, 30, n_targets=3, noise=1.0, random_state=0)
    ours, theirs = em.Lasso(0.5, tol=1e-12).fit(X, Y), TheirLasso(0.5, tol=1e-12).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-6)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-5)
    assert ours.dual_gap_.shape == ours.intercept_.shape == (3,)


@pytest.mark.parametrize("data", [wide, tall], ids=["wide", "tall"])
@pytest.mark.parametrize("make", [np.asarray, sp.csc_array])
def test_a_warm_start_outside_the_constraint_ends_within_it(data, make):
    X, y = data()
    y = y - 5.0 * X[:, 0]
    model = em.Lasso(0.05, tol=1e-8, warm_start=True).fit(make(X), y)
    former = model.coef_
    assert former.min() < -0.5
    model.set_params(positive=True).fit(make(X), y)
    fresh = em.Lasso(0.05, tol=1e-8, positive=True).fit(make(X), y)
    assert model.coef_.min() == 0.0
    assert abs(objective(model, X, y) - objective(fresh, X, y)) <= 1e-8 * float(np.mean(y**2))
    # The same if one solver is given one penalty after another.
    matrix = ColumnMatrix(make(X), y, None, centred=True)
    for by_products in (True, False):
        solver = ElasticNetSolver(matrix, former, by_products=by_products)
        penalty = Penalty(a1=0.05 * len(y), a2=0.0, positive=True)
        result = solver.solve(penalty, 1e-8 * matrix.yy, 1000)
        assert result.w.min() == 0.0
        assert solver.gap(penalty) <= 2e-8 * matrix.yy


def test_constant_columns_and_targets_get_zeros():
    X, y = tall()
    X[:, 4] = 1e3
    assert em.Lasso(1e-3, max_iter=10_000).fit(X, y).coef_[4] == 0.0
    model = em.Lasso(0.1).fit(X, np.full(len(y), 7.0))
    assert not model.coef_.any()
    assert model.intercept_ == pytest.approx(7.0)


def test_the_data_are_not_modified():
    X, y = wide()
    X, before, targets = np.asfortranarray(X), X.copy(), y.copy()
    em.Lasso(0.3).fit(X, y, sample_weight=np.linspace(0.0, 2.0, len(y)))
    assert np.array_equal(X, before)
    assert np.array_equal(y, targets)


def test_the_gap_is_that_of_the_model_after_columns_were_dropped():
    X = np.linalg.qr(np.random.default_rng(0).standard_normal((150, 120)))[0]
    model = em.Lasso(1 / 150, warm_start=True, tol=1e-6, fit_intercept=False)
    model.fit(X, 5.0 * X[:, 0] + 1.02 * X[:, 1])
    assert model.coef_[1] > 0.0
    assert model.fit(X, 5.0 * X[:, 0]).dual_gap_ <= 1e-6 / 6.0
    assert model.coef_[1] == 0.0


@pytest.mark.parametrize("make", [np.asarray, sp.csc_array])
def test_a_column_that_has_become_zero_loses_its_coefficient(make):
    X = np.linalg.qr(np.random.default_rng(0).standard_normal((150, 5)))[0]
    y = X @ np.arange(1.0, 6.0)
    model = em.Lasso(1e-3, tol=1e-10, fit_intercept=False, warm_start=True).fit(make(X), y)
    assert model.coef_[2] != 0.0
    X[:, 2] = 0.0
    assert model.fit(make(X), X @ np.arange(1.0, 6.0)).coef_[2] == 0.0


def test_repeated_entries_of_a_sparse_column_are_added_up():
    X, y = tall()
    parts = sp.coo_array(X)
    rows, columns = np.tile(parts.row, 2), np.tile(parts.col, 2)
    indptr = np.searchsorted(np.sort(columns), np.arange(X.shape[1] + 1))
    order = np.argsort(columns, kind="stable")
    values = 0.5 * np.tile(parts.data, 2)
    repeated = sp.csc_array((values[order], rows[order], indptr), shape=X.shape)
    assert repeated.nnz == 2 * X.size
    of_parts = ColumnMatrix(repeated, y, None, centred=True)
    np.testing.assert_allclose(of_parts.norms, ColumnMatrix(X, y, None, centred=True).norms)
    assert repeated.nnz == 2 * X.size


@pytest.mark.parametrize("make", [em.Lasso, em.ElasticNet])
def test_without_a_penalty_the_warning_names_what_to_use(make):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 4)), rng.standard_normal(60)
    model = make(alpha=0.0)
    with pytest.warns(ConvergenceWarning, match="alpha=0 means no penalty.*em.Ridge"):
        model.fit(X, y)
    assert 0.0 < model.dual_gap_ < 1.0
    np.testing.assert_allclose(model.coef_, em.Ridge(alpha=0.0).fit(X, y).coef_, atol=1e-4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(em.ElasticNet(0.1), TheirElasticNet(0.1)), (em.Ridge(), TheirRidge())],
    ids=["elastic net", "ridge"],
)
def test_a_column_of_targets_has_the_shapes_of_scikit_learn(ours, theirs):
    X, y = tall()
    for model in (ours, theirs):
        model.fit(X, y[:, None])
    assert ours.coef_.shape == theirs.coef_.shape == (X.shape[1],)
    assert ours.intercept_.shape == theirs.intercept_.shape == (1,)
    assert ours.predict(X).shape == theirs.predict(X).shape == y.shape
    assert np.ndim(ours.dual_gap_) == 0


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize(
    "model",
    [em.Lasso(0.1), em.Ridge(), em.LinearSVC("l1"), em.LogisticRegression(l1_ratio=1.0)],
    ids=["lasso", "ridge", "svm", "logistic"],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_whose_squares_overflow_get_no_certificate(model, make):
    X, y = tall()
    with pytest.raises(ValueError, match="squares of column 0 of X add up to more than float64"):
        model.fit(make(X * 1e200), y > y.mean())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_targets_whose_squares_overflow_get_no_certificate():
    X, y = tall()
    with pytest.raises(ValueError, match="squares of y add up to more than float64"):
        em.Lasso().fit(X, y * 1e200)
