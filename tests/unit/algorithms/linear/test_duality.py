"""The lower bound of an elastic net: below every model, and of the best scale of its dual point."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from elasticml.algorithms.linear.duality import lower_bound, lower_bound_of_residual
from elasticml.objectives.loss_kernels import loss_named
from elasticml.objectives.penalties import Absolute
from elasticml.objectives.penalty_kernels import Penalty
from tests.reference import Reference

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 6))
Y = X @ [2.0, -1.0, 0.0, 0.0, 0.5, 0.0] + 0.3 * RNG.standard_normal(40)
LABELS = np.sign(Y)
PENALTIES = [
    Penalty(a1=a1, a2=a2, terms=Absolute(positive))
    for a1, a2, positive in itertools.product((0.0, 3.0, 40.0), (0.0, 2.0), (False, True))
    if a1 + a2 > 0.0
]


def minimum(loss, penalty):
    """Return the least sum of losses and penalty."""
    given = {"l1": penalty.a1 / 40, "l2": penalty.a2 / 40, "positive": penalty.terms.positive}
    y = Y if loss == "squared" else LABELS
    return 40.0 * Reference(X=X, y=y, loss=loss, **given).least


@pytest.mark.parametrize("penalty", PENALTIES)
def test_no_model_is_below_the_bound_of_any_residual_and_no_scale_has_a_better_one(penalty):
    least = minimum("squared", penalty)
    for spread in (0.0, 0.1, 3.0):
        w = np.abs(spread * RNG.standard_normal(6))
        r = Y - X @ w
        exact = lower_bound_of_residual(penalty, w, r, Y, X.T @ r)
        error = 0.1 * RNG.random(6)
        rough = lower_bound_of_residual(penalty, w, r, Y, X.T @ r + error, slack=error)
        assert max(exact.value, rough.value) <= least + 1e-8
        assert rough.scaled <= exact.scaled + 1e-9
        for share in np.linspace(-1.5, 1.5, 61):
            correlations = share * (X.T @ r - penalty.a2 * w)
            largest = correlations.max() if penalty.terms.positive else np.abs(correlations).max()
            if largest <= penalty.a1 and (share >= 0.0 or not penalty.terms.positive):
                square = r @ r + penalty.a2 * w @ w
                assert share * (r @ Y) - 0.5 * share**2 * square <= exact.scaled + 1e-9


@pytest.mark.parametrize("penalty", [p for p in PENALTIES if not p.terms.positive])
def test_no_model_is_below_the_bound_of_a_classifiers_dual_variables(penalty):
    loss, least = loss_named("logistic"), minimum("logistic", penalty)
    for spread in (0.0, 0.1, 3.0):
        w, alpha = spread * RNG.standard_normal(6), np.empty(40)
        loss.alpha_from_margin(X @ w, LABELS, alpha)
        dual = lower_bound(
            penalty,
            w,
            X.T @ (alpha * LABELS),
            lambda share, alpha=alpha: loss.minus_conjugate(share * alpha, LABELS, None),
        )
        assert dual.value <= least + 1e-6


@pytest.mark.parametrize("loss", ["squared", "logistic", "huber"])
@pytest.mark.parametrize("weights", [None, RNG.integers(0, 3, 40).astype(float)])
def test_balanced_dual_variables_are_feasible_with_a_free_intercept(loss, weights):
    dual, alpha = loss_named(loss), np.empty(40)
    targets = LABELS if loss == "logistic" else Y
    dual.alpha_from_margin(0.2 * X[:, 0], targets, alpha)
    balanced = dual.balanced(alpha, targets, weights)
    folded = balanced * targets if dual.is_classification else balanced
    assert abs(np.sum(folded if weights is None else weights * folded)) <= 1e-12
    assert np.isfinite(dual.minus_conjugate(balanced, targets, weights))
