"""Columns that are nearly dependent, far from zero or sparse: the models and gaps of easy ones."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import logsumexp

import elasticml as em
from elasticml.algorithms.linear import gram
from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem
from elasticml.algorithms.linear.design import Design
from elasticml.algorithms.linear.gram_descent import SWEEPS, _factors, _step, descend
from elasticml.algorithms.linear.prox_newton import SparseColumns, measure, solve_quadratic_model
from elasticml.algorithms.linear.sparse_classifier import SparseClassifier
from elasticml.algorithms.parallel import Serial
from elasticml.objectives.loss_kernels import loss_named
from elasticml.objectives.penalties import Absolute
from elasticml.objectives.penalty_kernels import Penalty

# --- far from zero --------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
N = 80
#: Multiples of a power of two, which a column represents exactly after any shift.
X = np.round(RNG.normal(size=(N, 5)) * 2.0**10) / 2.0**10
Y = 3.0 * X[:, 0] + X[:, 1] + RNG.normal(size=N)
OFFSETS = np.array([2.0**30, 0.0, 2.0**24, 0.0, -(2.0**30)])


@pytest.mark.parametrize("weights", [None, RNG.uniform(0.5, 2.0, N)])
def test_sparse_columns_far_from_zero_have_the_products_of_centred_ones(weights):
    near = ColumnMatrix(X, Y, weights, centred=True)
    far = ColumnMatrix(sp.csc_array(X + OFFSETS), Y, weights, centred=True)
    every, penalty, ends = np.arange(5), Penalty(a1=1.0, a2=0.0), []
    np.testing.assert_allclose(far.offsets, near.offsets + OFFSETS, rtol=1e-15, atol=1e-12)
    for one in (near, far):
        w, r = np.zeros(5), near.y.copy()
        one.sweep(every, w, r, penalty, 3)
        ends.append([one.norms, one.products(every, every), one.linear, w, r])
        ends[-1].append(one.combination(every, Y[:5]))
    for found, expected in zip(*ends, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-6)


@pytest.mark.parametrize("value", [0.1, 1e7 + 0.1])
def test_constant_sparse_columns_stay_constant_and_rows_without_an_entry_count(value):
    A = np.full((2000, 2), value)
    A[7, 1] = 0.0
    matrix = ColumnMatrix(sp.csc_array(A), np.arange(2000.0), None, centred=True)
    assert matrix.norms[0] == 0.0
    np.testing.assert_allclose(matrix.norms[1], value**2 * (1.0 - 1.0 / 2000), rtol=1e-9)
    np.testing.assert_allclose(matrix.offsets, A.mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("share", [1e-7, 1e-3])
def test_a_row_without_an_entry_is_shifted_with_its_column(share):
    # The row has hardly any weight: the column hardly varies, and yet that row is far off.
    weights = np.ones(40)
    weights[3] = share
    A = np.arange(40.0)[:, None] % 2.0 * 1e-4 + 1.0
    A[3] = 0.0
    far, near = (
        ColumnMatrix(one, np.arange(40.0), weights, centred=True) for one in (sp.csc_array(A), A)
    )
    np.testing.assert_allclose(far.norms, near.norms, rtol=1e-8)
    np.testing.assert_allclose(far.linear, near.linear, rtol=1e-8)


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_models_of_columns_far_from_zero_are_those_of_centred_ones(classes, make):
    if classes:
        y = np.digitize(Y, [0.0] if classes == 2 else [-1.0, 1.0])
        model = em.LogisticRegression(l1_ratio=0.9, tol=1e-8, max_iter=300)
    else:
        y, model = Y, em.Lasso(alpha=0.05, tol=1e-9)

    def objective(w, b):
        z = X @ np.atleast_2d(w).T + b
        if not classes:
            return 0.5 * np.mean((Y - z[:, 0]) ** 2) + 0.05 * np.abs(w).sum()
        z = np.hstack([np.zeros((N, 1)), z]) if classes == 2 else z
        losses = logsumexp(z, axis=1) - z[np.arange(N), y]
        return 0.9 * np.abs(w).sum() + 0.05 * (w**2).sum() + losses.sum()

    model.fit(X, y)
    best, least = model.coef_, objective(model.coef_, model.intercept_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(make(X + OFFSETS), y, sample_weight=np.ones(N))
    np.testing.assert_allclose(model.coef_, best, atol=1e-3 if classes else 1e-4)
    # Intercepts for the raw columns are that far from zero, too.
    left = objective(model.coef_, model.intercept_ + model.coef_ @ OFFSETS) - least
    assert left <= model.dual_gap_ + 1e-5
    model.set_params(warm_start=True).fit(make(X + OFFSETS), y)
    assert np.max(model.n_iter_) <= 1


# --- linearly dependent: models must not depend on rounding ---------------------------------------


def inner_products(A, b):
    return GramProblem(A.T @ A, A.T @ b, float(b @ b))


# Found by scikit-learn's check of weights against repeated rows: the models differed by about 1e-9
# with one OpenBLAS kernel, and passed with another. With more columns than rows the first step, on
# equations made solvable by 1e-11 on their diagonal, amplified rounding to 1e-6.
def test_rounding_of_inner_products_stays_rounding_of_the_model():
    rng = np.random.default_rng(42)
    A, b = rng.random((15, 30)), rng.integers(0, 3, 15).astype(float)
    G, linear, yy = inner_products(A - A.mean(axis=0), b - b.mean())
    penalty = Penalty(a1=1e-3 * np.abs(linear).max(), a2=0.0)

    def model(G, gap):
        w, q = np.zeros(30), linear.copy()
        steps = descend(GramProblem(G, linear, yy), penalty, gap * yy, 2000, w, q)[0]
        assert steps > SWEEPS  # A step on the equations was taken.
        return w

    for gap in (1e-3, 1e-5, 1e-9):
        expected = model(G, gap)
        for seed in range(3):
            # Like another order of rows or another CPU.
            noise = np.random.default_rng(seed).standard_normal(G.shape)
            other = G * (1.0 + 4.0 * np.finfo(float).eps * (noise + noise.T))
            np.testing.assert_allclose(model(other, gap), expected, atol=1e-10)


def dependent_columns():
    """Make columns that are sums of others, in one order of rows and in three more."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((50, 6))
    A = np.concatenate([A, A[:, :3], A[:, :1] + A[:, 1:2]], axis=1)
    b = A @ rng.random(10) + 0.1 * rng.standard_normal(50)
    return A, b, [np.random.default_rng(seed).permutation(50) for seed in range(4)]


# At the optimum the gradient is rounding, and so is its part along flat directions. It was followed
# until the curvature of rounding ended it: coefficients of 1e16 in one order of four.
@pytest.mark.parametrize("positive", [False, True])
def test_rounding_is_not_followed_along_flat_directions(positive):
    A, b, orders = dependent_columns()
    results = []
    for rows in orders:
        products = inner_products(A[rows], b[rows])
        w, q = np.zeros(10), products.linear.copy()
        descend(products, Penalty(a1=0.0, a2=0.0, terms=Absolute(positive)), 0.0, 3000, w, q)
        results.append(w)
    assert np.abs(results).max() < 10.0
    np.testing.assert_allclose(A @ np.transpose(results), (A @ results[0])[:, None] + np.zeros(4))


@pytest.mark.parametrize("start", [0.0, 3.0])
def test_indicators_that_add_up_to_one_in_groups_have_the_same_model_in_every_order(start):
    """A sum can move from group to group at the cost of the L1 norm alone: sweeps are slow."""
    rng = np.random.default_rng(0)
    A = (rng.integers(0, 4, (600, 12, 1)) == np.arange(4)).reshape(600, 48).astype(float)
    A *= np.sqrt(rng.uniform(0.5, 2.0, (600, 1)))
    b, w0 = A @ rng.normal(size=48) + rng.normal(size=600), start * rng.normal(size=48)
    results = []
    for rows in [rng.permutation(600) for _ in range(6)]:
        products, w = inner_products(A[rows], b[rows]), w0.copy()
        q = products.linear - products.G @ w
        sweeps, gap = descend(products, Penalty(a1=0.5, a2=0.0), 1e-12 * products.yy, 150, w, q)
        assert gap <= 1e-12 * products.yy
        assert sweeps < 150
        np.testing.assert_allclose(q, A.T @ (b - A @ w), atol=1e-8)
        results.append(w)
    np.testing.assert_allclose(results, [results[0]] * 6, atol=1e-8)


# Their difference has a curvature below DEPENDENT, and the model needs it: a fit that took it for
# flat stalled at coefficients near zero, with an R2 of 1e-5 and an accuracy of 0.52.
@pytest.mark.parametrize("apart", [1e-6, 2e-6, 2.8e-6])
def test_nearly_dependent_columns_have_the_model_of_their_difference(apart):
    rng = np.random.default_rng(1)
    base, difference, noise = rng.normal(size=(3, 500))
    A, y = np.stack([base, base + apart * difference], axis=1), difference + 0.1 * noise
    lasso = em.Lasso(alpha=1e-8).fit(A, y)
    # With a penalty of this size the two coefficients have opposite signs.
    apart_columns = np.stack([base, difference], axis=1)
    exact = apart_columns - apart_columns.mean(axis=0)
    c = np.linalg.solve(
        exact.T @ exact, exact.T @ (y - y.mean()) - 500 * 1e-8 * np.array([-1.0, 2.0 / apart])
    )
    least = 0.5 * np.mean((y - y.mean() - exact @ c) ** 2) + 1e-8 * (2.0 * c[1] / apart - c[0])
    value = 0.5 * np.mean((y - lasso.predict(A)) ** 2) + 1e-8 * np.abs(lasso.coef_).sum()
    assert lasso.dual_gap_ <= 1e-4 * np.var(y)
    assert least - 1e-9 <= value <= least + lasso.dual_gap_ + 1e-9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the gap
        classifier = em.LogisticRegression(l1_ratio=1.0, C=1e6, tol=1e-6).fit(A, y > 0.0)
    assert classifier.score(A, y > 0.0) > 0.97


# The way to the zero leads past the minimum: the objective rose from 0.332 to 0.5.
@pytest.mark.parametrize("signs", [(-1.0, 1.0), (1.0, -1.0)])
def test_a_step_along_nearly_dependent_columns_ends_at_the_minimum(signs):
    x, z = np.linalg.qr(np.random.default_rng(3).normal(size=(200, 2)))[0].T
    apart = 3e-6
    A, b = np.stack([x, x + apart * z], axis=1), x + z
    w = np.array([-1.8 / apart, 1.8 / apart + 1.0])
    A, w, products = A * signs, w * signs, inner_products(A * signs, b)
    q = A.T @ (b - A @ w)
    _step(products.G, products.linear, Penalty(a1=1e-8, a2=0.0), w, q)
    np.testing.assert_allclose(q, A.T @ (b - A @ w), atol=1e-8)
    r = b - A @ w
    assert 0.5 * r @ r + 1e-8 * np.abs(w).sum() < 0.00665


def test_a_matrix_of_rounding_errors_has_no_inverse_instead_of_a_wrong_one():
    H = np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    flat, inverse = _factors(H)
    assert flat.shape == (3, 1)
    assert not inverse.any()
    w, q = np.array([1.0, 1.0, 1.0]), np.array([1.0, 0.9, 0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _step(H, np.ones(3), Penalty(a1=1e-3, a2=0.0), w, q)
    assert np.isfinite(w).all()


@pytest.mark.filterwarnings("ignore:alpha=0")
@pytest.mark.parametrize(
    "model", [em.Lasso(alpha=0.0), em.LogisticRegression(l1_ratio=1.0, tol=1e-8)]
)
def test_a_model_is_the_same_in_every_order_of_rows(model):
    A, b, orders = dependent_columns()
    y = b if isinstance(model, em.Lasso) else np.digitize(b, np.quantile(b, [0.3, 0.6]))
    results = [model.fit(A[rows], y[rows]).coef_ for rows in orders]
    np.testing.assert_allclose(results, [results[0]] * 4, atol=1e-5)


# --- sparse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [63, 1000])
def test_inner_products_by_dense_blocks_are_those_of_the_columns(n):
    A = sp.random(n, 6, density=0.5, format="csc", random_state=n)
    for one, other in (([0, 1, 2, 5], [0, 1, 2, 5]), ([3, 1], [5, 2, 3, 1])):
        result = gram.products(A.indptr, A.indices, A.data, n, np.array(one), np.array(other))
        expected = (A[:, one].T @ A[:, other]).toarray()
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("intercept", [False, True])
def test_a_step_on_sparse_columns_leaves_no_coordinate_to_improve(intercept):
    rng = np.random.default_rng(0)
    A = sp.random(300, 120, 0.1, "csc", random_state=rng, data_rvs=rng.standard_normal)
    slopes, curvature = rng.standard_normal(300), 0.05 + rng.random(300)
    w = np.where(rng.random(120) < 0.2, rng.standard_normal(120), 0.0)
    arrays = A.indptr.astype(np.int32), A.indices.astype(np.int32), A.data
    columns = SparseColumns(np.arange(120), *arrays)
    found = solve_quadratic_model(
        columns, measure(columns, curvature, slopes, slopes), w, slopes, curvature,
        Penalty(a1=2.0, a2=0.7), intercept=intercept, goal=1e-3, sweeps_max=1000,
    )  # fmt: skip
    there = slopes + curvature * (A @ (found.w - w) + found.rise)
    gradient, is_free = A.T @ there + 0.7 * found.w, found.w != 0.0
    assert found.sweeps < 1000
    np.testing.assert_allclose(gradient[is_free], -2.0 * np.sign(found.w[is_free]), atol=1e-3)
    assert np.abs(gradient[~is_free]).max() <= 2.0 + 1e-3
    assert not intercept or abs(there.sum()) <= 1e-9 * np.abs(slopes).sum()


def test_dense_blocks_are_used_for_full_columns_and_not_for_nearly_empty_ones():
    indptr, columns = np.array([0, 1000, 2000, 2010, 2020], np.int32), np.arange(4)
    assert gram.pays(indptr, 1000, columns[:2], columns[:2])
    assert not gram.pays(indptr, 1000, columns[2:], columns[2:])


# With strong curvature, rough steps alone took 1111 steps instead of 141.
def test_steps_become_finer_where_rough_ones_gain_little():
    rng = np.random.default_rng(1)
    A = sp.random(300, 2000, 0.02, "csr", random_state=rng, data_rvs=rng.standard_normal)
    w = rng.normal(size=2000) * (rng.random(2000) < 0.1)
    unit = A / (np.sqrt(A.multiply(A).sum(0)) + 1e-30)
    y = np.where(unit @ w + 0.05 * rng.logistic(size=300) > 0.0, 1.0, -1.0)
    solver = SparseClassifier(A.tocsc(), y, None, loss=loss_named("squared_hinge"), intercept=False)
    assert solver.solve(Penalty(a1=0.01, a2=0.0), 3e-4, 300).converged


# Where only the penalty acts, sweeps alone crawl: 33 and more than 40 steps.
@pytest.mark.parametrize("intercept", [False, True])
def test_indicators_of_letters_take_few_steps(intercept):
    rng = np.random.default_rng(0)
    indices = (4 * np.arange(40) + rng.integers(0, 4, (3000, 40))).ravel()
    A = sp.csr_matrix((np.ones(indices.size), indices, 40 * np.arange(3001)), shape=(3000, 160))
    margins = A @ rng.normal(size=160)
    y = np.where(margins + rng.logistic(size=3000) > np.quantile(margins, 0.97), 1.0, -1.0)
    solver = SparseClassifier(A.tocsc(), y, None, loss=loss_named("logistic"), intercept=intercept)
    assert solver.solve(Penalty(a1=0.01, a2=0.0), 1e-6, 24).converged


def tall(noise):
    """Return rows of 12 indicators, labels of a linear model, and weights."""
    rng = np.random.default_rng(2)
    indices = (5 * np.arange(12) + rng.integers(0, 5, (4000, 12))).ravel()
    values = rng.exponential(size=indices.size) + 0.1
    A = sp.csr_matrix((values, indices, 12 * np.arange(4001)), shape=(4000, 60))
    margins = A @ rng.normal(size=60)
    y = np.where(margins + noise * rng.logistic(size=4000) > np.median(margins), 1.0, -1.0)
    return A, y, rng.exponential(size=4000) * (rng.random(4000) < 0.9)


def solver_of(A, y, weights, *, intercept, by_rows):
    rows = Design(A, Serial()) if by_rows else None
    return SparseClassifier(
        A.tocsc(), y, weights, loss=loss_named("logistic"), intercept=intercept, rows=rows
    )  # fmt: skip


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("a2", [0.0, 0.3])
def test_steps_on_the_rows_gram_matrix_find_the_same_minimum(intercept, weighted, a2):
    A, y, weights = tall(1.0)
    one, other = (
        solver_of(A, y, weights if weighted else None, intercept=intercept, by_rows=by_rows).solve(
            Penalty(a1=0.5, a2=a2), 1e-7, 300
        )
        for by_rows in (True, False)
    )
    assert one.converged
    assert other.converged
    np.testing.assert_allclose(one.w, other.w, atol=1e-5)
    if intercept:
        np.testing.assert_allclose(one.b, other.b, atol=1e-4)
