"""Losses against finite differences, each other and the definition of the conjugate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import mean_pinball_loss, mean_tweedie_deviance

from elasticml.arrays import address
from elasticml.errors import ConfigError
from elasticml.objectives.links import LINKS
from elasticml.objectives.losses import (
    LOSSES,
    Loss,
    MarginLoss,
    huber,
    loss_named,
    quantile,
    tweedie,
)
from elasticml.objectives.penalties import L2
from elasticml.specification.algorithms import REGRESSION_LOSSES

ALL = pytest.mark.parametrize("loss", list(LOSSES.values()), ids=list(LOSSES))


def grid(loss: Loss) -> tuple[np.ndarray, np.ndarray]:
    """Margins on both sides of every kink, with both labels (or real targets)."""
    z = np.concatenate([np.linspace(-3.03, 3.07, 41), [-600.0, 600.0]])
    y = np.where(np.arange(z.size) % 2, 1.0, -1.0)
    if loss.link == "log":  # nonnegative targets, and zero where it is allowed
        return z, np.where(y > 0.0, 1.4, 0.3 if loss.name == "gamma" else 0.0)
    return z, y if loss.is_classification else y * 0.7


def values(loss: Loss, z: np.ndarray, y: np.ndarray) -> np.ndarray:
    slope = np.empty(1)
    return np.array(
        [loss.value_and_slope(z[i : i + 1], y[i : i + 1], None, slope) for i in range(z.size)]
    )


@ALL
def test_slope_and_curvature_are_the_derivatives(loss: Loss) -> None:
    z, y = grid(loss)
    h = 1e-6
    slope, up, down, curvature = (np.empty(z.size) for _ in range(4))
    loss.value_and_slope(z, y, None, slope)
    near = np.abs(z) < 10
    numeric = (values(loss, z + h, y) - values(loss, z - h, y)) / (2 * h)
    np.testing.assert_allclose(slope[near], numeric[near], atol=2e-8)
    loss.value_and_slope(z + h, y, None, up)
    loss.value_and_slope(z - h, y, None, down)
    loss.curvature(z, y, None, curvature)
    np.testing.assert_allclose(curvature[near], ((up - down) / (2 * h))[near], atol=1e-8)
    assert curvature.max() <= loss.smoothness


@pytest.mark.parametrize("name", [name for name, link in LINKS.items() if link != "log"])
def test_far_margins_neither_overflow_nor_vanish(name: str) -> None:
    loss = LOSSES[name]
    z, y = np.array([-800.0, 800.0]), np.array([1.0, 1.0])
    slope = np.empty(2)
    assert np.isfinite(loss.value_and_slope(z, y, None, slope))
    assert np.all(np.isfinite(slope))
    assert slope[0] < 0


@ALL
def test_values_and_slopes_along_a_direction_are_those_at_the_points(loss: Loss) -> None:
    z, y = grid(loss)
    z, y = z[:-2], y[:-2]
    u, s = np.sin(np.arange(z.size)), np.linspace(0.5, 2.0, z.size)
    steps, values_out, slopes_out = np.array([0.0, 0.25, 2.0]), np.full(3, 10.0), np.full(3, 20.0)
    loss.along(z, u, y, s, steps, values_out, slopes_out)
    slope = np.empty(z.size)
    for j, t in enumerate(steps):
        expected = 10.0 + loss.value_and_slope(z + t * u, y, s, slope)
        np.testing.assert_allclose(values_out[j], expected, rtol=1e-14)
        np.testing.assert_allclose(slopes_out[j], 20.0 + slope @ u, rtol=1e-13)


@ALL
def test_curvature_along_is_the_weighted_sum_of_curvatures(loss: Loss) -> None:
    z, y = grid(loss)
    u, s = np.cos(np.arange(z.size)), np.linspace(0.5, 2.0, z.size)
    each = np.empty(z.size)
    loss.curvature(z, y, s, each)
    np.testing.assert_allclose(loss.curvature_along(z, u, y, s), np.sum(each * u * u), rtol=1e-13)


@ALL
def test_fenchel_young_holds_with_equality_at_the_slope(loss: Loss) -> None:
    z, y = grid(loss)
    z, y = z[:-2], y[:-2]
    slope, conjugate = np.empty(z.size), np.empty(z.size)
    loss.value_and_slope(z, y, None, slope)
    loss.conjugate(slope, y, conjugate)
    np.testing.assert_allclose(values(loss, z, y) + conjugate, slope * z, atol=1e-12)
    other = np.roll(slope, 3)
    loss.conjugate(other, y, conjugate)
    assert np.all(values(loss, z, y) + conjugate - other * z >= -1e-12)


@ALL
def test_missing_weights_are_weights_of_one(loss: Loss) -> None:
    z, y = grid(loss)
    a, b = np.empty(z.size), np.empty(z.size)
    ones = np.ones(z.size)
    assert loss.value_and_slope(z, y, None, a) == loss.value_and_slope(z, y, ones, b)
    np.testing.assert_array_equal(a, b)


def test_an_unknown_loss_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"'hing', wanted one of logistic"):
        loss_named("hing")


def test_the_penalty_leaves_the_intercept_alone() -> None:
    penalty = L2(strength=3.0, n_penalised=2)
    w, d = np.array([1.0, -2.0, 50.0]), np.array([0.5, 0.25, 7.0])
    assert penalty.value(w) == 7.5
    np.testing.assert_array_equal(penalty.gradient(w), [3.0, -6.0, 0.0])
    steps = np.array([0.0, 1.0, 4.0])
    expected = [penalty.value(w + t * d) for t in steps]
    np.testing.assert_allclose(penalty.value_along(w, d, steps), expected, rtol=1e-14)
    slopes = [penalty.gradient(w + t * d) @ d for t in steps]
    np.testing.assert_allclose(penalty.slope_along(w, d, steps), slopes, rtol=1e-14)


def test_the_conjugate_is_what_it_says() -> None:
    penalty = L2(strength=3.0, n_penalised=2)
    w = np.array([1.0, -2.0, 50.0])
    g = penalty.gradient(w)
    np.testing.assert_allclose(penalty.value(w) + penalty.conjugate(g), g @ w)
    assert penalty.conjugate(np.array([0.0, 0.0, 1.0])) == np.inf


def logistic_margins() -> np.ndarray:
    """Margins of every size and sign, more than a tile of rows."""
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-12, 2.8, 1500)
    return np.concatenate([sizes * rng.choice([-1.0, 1.0], sizes.size), [0.0, -0.0]])


def test_the_logistic_loss_is_exact_to_a_few_bits_wherever_the_margin_lies() -> None:
    z, loss = logistic_margins(), LOSSES["logistic"]
    ones, slope, curvature = np.ones(z.size), np.empty(z.size), np.empty(z.size)
    loss.value_and_slope(z, ones, None, slope)
    loss.curvature(z, ones, None, curvature)
    e = [math.exp(-abs(m)) for m in z]
    expected = [math.log1p(a) + max(-m, 0.0) for a, m in zip(e, z, strict=True)]
    np.testing.assert_allclose(values(loss, z, ones), expected, rtol=1e-15, atol=1e-300)
    expected = [-(a if m > 0 else 1.0) / (1.0 + a) for a, m in zip(e, z, strict=True)]
    np.testing.assert_allclose(slope, expected, rtol=1e-15, atol=1e-300)
    expected = [a / (1.0 + a) ** 2 for a in e]
    np.testing.assert_allclose(curvature, expected, rtol=2e-15, atol=1e-300)


def test_the_bits_of_a_logistic_row_do_not_depend_on_the_rows_beside_it() -> None:
    z, loss = logistic_margins(), LOSSES["logistic"]
    ones, whole, alone = np.ones(z.size), np.empty(z.size), np.empty(z.size)
    loss.value_and_slope(z, ones, None, whole)
    for i in range(z.size):
        loss.value_and_slope(z[i : i + 1], ones[i : i + 1], None, alone[i : i + 1])
    np.testing.assert_array_equal(whole, alone)
    loss.curvature(z, ones, None, whole)
    for i in range(z.size):
        loss.curvature(z[i : i + 1], ones[i : i + 1], None, alone[i : i + 1])
    np.testing.assert_array_equal(whole, alone)


def test_the_logistic_loss_of_nan_is_nan() -> None:
    slope = np.empty(2)
    value = LOSSES["logistic"].value_and_slope(np.array([1.0, np.nan]), np.ones(2), None, slope)
    assert math.isnan(value)
    assert list(np.isnan(slope)) == [False, True]


def test_losses_are_named_alike_everywhere() -> None:
    assert set(REGRESSION_LOSSES) == {n for n, one in LOSSES.items() if not one.is_classification}
    assert LINKS.keys() == LOSSES.keys()


@pytest.mark.parametrize("power", [1.0, 1.1, 1.5, 1.95, 2.0])
def test_half_deviances_are_scikit_learns_and_their_conjugates_theirs(power: float) -> None:
    loss = tweedie(power)
    z, y = np.linspace(-4.0, 4.0, 60), np.random.default_rng(0).gamma(1.0, 3.0, 60) + 1e-3
    slope, conjugate = np.empty(60), np.empty(60)
    total = loss.value_and_slope(z, y, None, slope)
    expected = 30.0 * mean_tweedie_deviance(y, np.exp(z), power=power)
    assert total == pytest.approx(expected, rel=1e-12)
    loss.conjugate(slope, y, conjugate)
    np.testing.assert_allclose(values(loss, z, y) + conjugate, slope * z, atol=1e-9)


def test_a_quantile_loss_is_scikit_learns_and_smoothing_lowers_it_by_no_more_than_it_says() -> None:
    z, y = np.linspace(-3.0, 3.0, 50), np.zeros(50)
    exact, smooth = values(quantile(0.8), z, y), values(quantile(0.8, 0.5), z, y)
    expected = [mean_pinball_loss([0.0], [margin], alpha=0.8) for margin in z]
    np.testing.assert_allclose(exact, expected, atol=1e-15)
    assert np.all(exact - smooth >= -1e-15)
    assert np.all(exact - smooth <= 0.5 * 0.5 * 0.8**2 + 1e-15)


def test_hubers_loss_with_a_large_delta_is_the_squared_loss() -> None:
    z, y = grid(LOSSES["squared"])
    np.testing.assert_allclose(
        values(huber(1e4), z, y), values(LOSSES["squared"], z, y), rtol=1e-15
    )
    assert loss_named("huber", {"delta": 2.0}) == huber(2.0)


@ALL
@pytest.mark.parametrize("is_weighted", [True, False])
def test_one_call_for_many_chunks_has_the_bits_of_one_call_each(
    loss: MarginLoss, is_weighted: bool
) -> None:
    z, y = grid(loss)
    rng = np.random.default_rng(8)
    cuts = [slice(0, 1), slice(1, 1), slice(1, 18), slice(18, z.size)]
    u, steps = rng.normal(size=z.size), np.array([0.0, 0.3, -1.0])
    s = rng.uniform(0.5, 2.0, z.size) if is_weighted else None
    slopes, others = np.empty(z.size), np.empty(z.size)
    total, value, sums, expected = np.zeros(1), 0.0, np.zeros((2, 3)), np.zeros((2, 3))

    def at(array: np.ndarray | None) -> np.ndarray:
        return np.array([0 if array is None else address(array[cut]) for cut in cuts])

    for cut in cuts:
        own = None if s is None else s[cut]
        value += loss.value_and_slope(z[cut], y[cut], own, slopes[cut])
        loss.along(z[cut], u[cut], y[cut], own, steps, *expected)
    rows = np.array([z[cut].size for cut in cuts])
    loss.values_and_slopes(rows, at(z), at(y), at(s), at(others), total)
    loss.along_chunks(rows, at(z), at(u), at(y), at(s), steps=steps, sums_out=sums)
    assert total.tobytes() == np.array([value]).tobytes()
    assert (slopes.tobytes(), expected.tobytes()) == (others.tobytes(), sums.tobytes())
