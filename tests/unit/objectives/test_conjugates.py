"""Conjugates and dual steps against finite differences, brute force and Fenchel-Young."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.errors import ConfigError
from elasticml.objectives import dual_kernels
from elasticml.objectives.conjugates import DUAL_LOSSES, DualLoss, dual_loss_named

ALL = pytest.mark.parametrize("dual", list(DUAL_LOSSES.values()), ids=list(DUAL_LOSSES))


def feasible(dual: DualLoss) -> np.ndarray:
    """Dual variables over the whole feasible interval, including its finite ends."""
    return np.linspace(max(dual.low, -4.0), min(dual.high, 4.0), 101)


def minus(dual: DualLoss, a: np.ndarray, y: float) -> np.ndarray:
    return np.array(
        [dual.minus_conjugate(a[i : i + 1], np.array([y]), None) for i in range(a.size)]
    )


@ALL
def test_minus_conjugate_is_the_negative_conjugate_at_the_negative_dual(dual: DualLoss) -> None:
    a = feasible(dual)
    for y in (1.0, -1.0) if dual.folds_labels() else (0.3, -2.0):
        # The conjugate takes the derivative with respect to the signed margin.
        slope = -a * y if dual.folds_labels() else -a
        conjugate = np.empty(a.size)
        dual.loss.conjugate(slope, np.full(a.size, y), conjugate)
        np.testing.assert_allclose(minus(dual, a, y), -conjugate, atol=1e-15)


@ALL
def test_infeasible_duals_count_minus_infinity(dual: DualLoss) -> None:
    ends = [end for end in (dual.low - 1e-9, dual.high + 1e-9) if np.isfinite(end)]
    assert [float(minus(dual, np.array([end]), 1.0)[0]) for end in ends] == [-np.inf] * len(ends)
    inside = np.clip(np.array([dual.low, dual.high]), -5, 5)
    assert np.all(np.isfinite(minus(dual, inside, 1.0)))


@ALL
def test_fenchel_young_holds_with_equality_at_the_dual_of_the_margin(dual: DualLoss) -> None:
    z = np.linspace(-3.03, 3.07, 83)
    y = np.where(np.arange(z.size) % 2, 1.0, -1.0) * (1.0 if dual.folds_labels() else 0.7)
    fold = y if dual.folds_labels() else np.ones(z.size)
    a, none = np.empty(z.size), np.empty(1)
    dual.alpha_from_margin(z, y, a)
    assert dual.low <= a.min()
    assert a.max() <= dual.high
    for i in range(z.size):
        at, target = z[i : i + 1], y[i : i + 1]
        loss = dual.loss.value_and_slope(at, target, None, none)
        slack = loss - minus(dual, feasible(dual), target[0]) + feasible(dual) * z[i] * fold[i]
        assert slack.min() >= -1e-12
        best = loss - minus(dual, a[i : i + 1], target[0]) + a[i] * z[i] * fold[i]
        np.testing.assert_allclose(best, 0.0, atol=1e-12)


@ALL
def test_the_curvature_is_minus_the_second_derivative(dual: DualLoss) -> None:
    a, h = feasible(dual)[1:-1], 1e-4
    second = (minus(dual, a + h, 0.7) - 2 * minus(dual, a, 0.7) + minus(dual, a - h, 0.7)) / h**2
    if dual.name == "logistic":
        assert np.all(second < 0.0)
    else:
        np.testing.assert_allclose(second, -dual.curvature, atol=1e-6)


@ALL
@pytest.mark.parametrize("q", [0.0, 1e-3, 0.3, 2.0, 50.0])
def test_a_step_maximises_the_dual_of_one_row(dual: DualLoss, q: float) -> None:
    a, m = (
        part.ravel()
        for part in np.meshgrid(np.linspace(max(dual.low, -2), min(dual.high, 2), 9), [-2, 0.4, 3])
    )
    y = 1.0 if dual.folds_labels() else 0.7
    # The logistic step is a few Newton steps: repeated, it ends in the maximum.
    new = np.array(
        [dual_kernels.stepped(dual.code, a[i], m[i], y, q, dual.box) for i in range(a.size)]
    )
    fine = np.linspace(max(dual.low, -60.0), min(dual.high, 60.0), 240_001)
    values = minus_grid(dual, fine, y)
    for i in range(a.size):
        objective = values - (fine - a[i]) * m[i] - 0.5 * q * (fine - a[i]) ** 2
        taken = (
            minus(dual, new[i : i + 1], y)[0]
            - (new[i] - a[i]) * m[i]
            - 0.5 * q * (new[i] - a[i]) ** 2
        )
        before = minus(dual, a[i : i + 1], y)[0]
        assert taken >= before - 1e-12
        slack = 0.02 if dual.name == "logistic" else 1e-9
        assert taken >= objective.max() - slack * max(1.0, objective.max() - before)


def minus_grid(dual: DualLoss, a: np.ndarray, y: float) -> np.ndarray:
    """``minus`` of many values at once, by the conjugate of the loss."""
    out = np.empty(a.size)
    dual.loss.conjugate(-a * (y if dual.folds_labels() else 1.0), np.full(a.size, y), out)
    return -out


def test_weights_multiply_their_rows() -> None:
    dual = dual_loss_named("squared_hinge")
    a, y, s = np.array([0.5, 1.0, 3.0]), np.ones(3), np.array([2.0, 0.0, 0.25])
    assert dual.minus_conjugate(a, y, s) == pytest.approx(float(s @ minus(dual, a, 1.0)))


def test_an_unknown_loss_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"'hing', wanted one of hinge, squared_hinge"):
        dual_loss_named("hing")
