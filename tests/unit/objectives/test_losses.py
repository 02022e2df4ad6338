"""One contract of all losses: derivatives, conjugates, dual steps, and the loops made of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import mean_pinball_loss, mean_tweedie_deviance

from elasticml.arrays import address
from elasticml.errors import ConfigError
from elasticml.objectives.loss_kernels import MarginLoss, loss_named
from elasticml.objectives.losses import LOSSES, complete
from tests.log_cosh import LogCosh, Wide
from tests.reference import LOSSES as BY_NUMPY
from tests.reference import SETTINGS

#: Short steps after which the value is that of the best step.
SHORT_STEPS = 60
OWN = MarginLoss("tests.log_cosh:Wide", complete(Wide)(0.7))
ALL = [
    *(loss_named(name) for name in LOSSES),
    loss_named("huber", {"delta": 0.4}),
    loss_named("quantile", {"quantile": 0.8, "smoothing": 0.5}),
    *(loss_named("tweedie", {"power": power}) for power in (1.0, 1.1, 1.95, 2.0)),
    OWN,
]
each = pytest.mark.parametrize("loss", ALL, ids=lambda loss: f"{loss.name}{tuple(loss.terms)}")


def points(loss: MarginLoss) -> list[tuple[float, float]]:
    """Folded margins on both sides of every kink, with targets in the domain."""
    targets = {"any": (0.7, -1.3), "nonnegative": (0.0, 1.4), "positive": (0.3, 1.4)}
    y = (1.0, -1.0) if loss.is_classification else targets[loss.terms.domain()]
    return list(itertools.product(np.linspace(-3.033, 3.071, 31).tolist(), y))


def duals(loss: MarginLoss, y: float) -> list[float]:
    """Dual variables over the domain of the conjugate, with its finite ends."""
    low, high = ends(loss, y)
    return np.linspace(max(low, -2.0), min(high, 2.0), 9).tolist()


def ends(loss: MarginLoss, y: float) -> tuple[float, float]:
    found = np.array([-math.inf, math.inf])
    loss.clip(found, np.array([y, y]))
    return float(found[0]), float(found[1])


@each
def test_slope_and_curvature_are_the_derivatives(loss: MarginLoss) -> None:
    terms, h = loss.terms, 1e-6
    for m, y in points(loss):
        numeric = (terms.value(m + h, y) - terms.value(m - h, y)) / (2 * h)
        assert terms.slope(m, y) == pytest.approx(numeric, rel=1e-8, abs=2e-8)
        numeric = (terms.slope(m + h, y) - terms.slope(m - h, y)) / (2 * h)
        assert terms.curvature(m, y) == pytest.approx(numeric, rel=1e-8, abs=2e-8)
        assert 0.0 <= terms.curvature(m, y) <= loss.smoothness
        assert terms.value(m, y) >= -1e-15


@each
def test_the_conjugate_touches_where_the_slope_is_the_dual_variable(loss: MarginLoss) -> None:
    terms = loss.terms
    for m, y in points(loss):
        best = -terms.slope(m, y)
        assert terms.value(m, y) + best * m == pytest.approx(terms.minus(best, y), abs=1e-11)
        for a in [*duals(loss, y), best]:
            gap = terms.value(m, y) - terms.minus(a, y) + a * m
            assert gap >= -1e-11
            assert terms.gap(a, m, y) == pytest.approx(gap, abs=1e-11)


@each
def test_dual_variables_outside_the_domain_count_minus_infinity(loss: MarginLoss) -> None:
    for y in {y for _, y in points(loss)}:
        low, high = ends(loss, y)
        for inside, outside in ((low, low - 1e-3), (high, high + 1e-3)):
            if math.isfinite(inside):
                assert loss.terms.minus(outside, y) == -math.inf
                assert math.isfinite(loss.terms.minus(inside, y))


@each
def test_the_margin_of_a_dual_variable_has_its_slope(loss: MarginLoss) -> None:
    if not loss.terms.is_smooth():
        return
    for y in {y for _, y in points(loss)}:
        for a in duals(loss, y)[1:-1]:
            if a != 0.0:
                assert loss.terms.slope(loss.terms.margin(a, y), y) == pytest.approx(-a, rel=1e-9)


@each
def test_the_conjugate_bends_at_least_as_much_as_it_says(loss: MarginLoss) -> None:
    for y in {y for _, y in points(loss)}:
        for a, b in itertools.combinations(duals(loss, y), 2):
            # At 0 and 0 it is the bound for all pairs.
            c = max(loss.terms.minus_curvature(a, b), loss.terms.minus_curvature(0.0, 0.0))
            middle = loss.terms.minus(0.5 * (a + b), y)
            chord = 0.5 * (loss.terms.minus(a, y) + loss.terms.minus(b, y))
            assert middle >= chord + 0.125 * c * (b - a) ** 2 - 1e-11


@each
@pytest.mark.parametrize("q", [0.0, 1e-3, 0.3, 2.0, 50.0])
def test_a_step_maximises_the_dual_of_one_row(loss: MarginLoss, q: float) -> None:
    # The logistic steps are a few Newton steps.
    allowed = 0.02 if loss.name == "logistic" else 1e-9
    for y in {y for _, y in points(loss)}:
        for a, m in itertools.product(duals(loss, y), (-2.0, 0.4, 3.0)):
            dual = dual_of(loss, a, m, y, q)
            new = loss.terms.step(a, m, y, q)
            best = max(
                map(dual, [*duals(loss, y), *np.clip([new - 1e-4, new + 1e-4], *ends(loss, y))])
            )
            assert dual(new) >= dual(a) - 1e-12
            assert dual(new) >= best - allowed * max(1.0, best - dual(a))
            # A step sees the margin that the earlier ones have moved.
            short = a
            for _ in range(SHORT_STEPS):
                short = loss.terms.short_step(short, m + q * (short - a), y, q)
            assert dual(short) >= best - 1e-9 * max(1.0, best - dual(a))


def dual_of(loss: MarginLoss, a: float, m: float, y: float, q: float) -> Callable[[float], float]:
    return lambda b: loss.terms.minus(b, y) - (b - a) * m - 0.5 * q * (b - a) ** 2


@each
def test_a_row_that_rests_at_its_bound_leaves_it_after_its_slack(loss: MarginLoss) -> None:
    for m, y in points(loss):
        for a in ends(loss, y):
            if not math.isfinite(a) or loss.terms.slack(a, m) <= 0.0:
                continue
            sign = 1.0 if a == ends(loss, y)[1] else -1.0
            near, past = (m + sign * f * loss.terms.slack(a, m) for f in (0.999, 1.001))
            assert loss.terms.step(a, near, y, 1.0) == a
            assert loss.terms.step(a, past, y, 1.0) != a


def rows_of(loss: MarginLoss) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Margins, targets and folds, of more rows than a tile."""
    m, y = np.array(points(loss) * 20).T
    fold = y if loss.is_classification else np.ones(y.size)
    return np.ascontiguousarray(m * fold), np.ascontiguousarray(y), fold


@each
@pytest.mark.parametrize("is_weighted", [True, False])
def test_the_loops_sum_what_the_methods_return(loss: MarginLoss, is_weighted: bool) -> None:
    z, y, fold = rows_of(loss)
    s = np.linspace(0.5, 2.0, z.size) if is_weighted else None
    weights = np.ones(z.size) if s is None else s

    def of(method: Any, margins: np.ndarray = z) -> np.ndarray:
        return np.array([method(m, t) for m, t in zip(margins * fold, y, strict=True)])

    slopes, curvatures, alpha = (np.empty(z.size) for _ in range(3))
    value = loss.value_and_slope(z, y, s, slopes)
    assert value == pytest.approx(float(weights @ of(loss.terms.value)), rel=1e-13)
    np.testing.assert_allclose(
        slopes, weights * fold * of(loss.terms.slope), rtol=1e-14, atol=1e-15
    )
    loss.curvature(z, y, s, curvatures)
    np.testing.assert_allclose(
        curvatures, weights * of(loss.terms.curvature), rtol=1e-14, atol=1e-15
    )
    loss.alpha_from_margin(z, y, alpha)
    np.testing.assert_allclose(alpha, -of(loss.terms.slope), rtol=1e-14, atol=1e-15)
    loss.clip(alpha, y)
    minus = weights @ [loss.terms.minus(a, t) for a, t in zip(alpha, y, strict=True)]
    assert loss.minus_conjugate(alpha, y, s) == pytest.approx(float(minus), rel=1e-11)
    u = np.sin(np.arange(z.size))
    assert loss.curvature_along(z, u, y, s) == pytest.approx(float(curvatures @ u**2), rel=1e-12)
    steps, sums = np.array([0.0, 0.25, 2.0]), np.full((2, 3), 10.0)
    loss.along(z, u, y, s, steps, *sums)
    for j, t in enumerate(steps):
        assert sums[0, j] == pytest.approx(10.0 + loss.value_and_slope(z + t * u, y, s, slopes))
        assert sums[1, j] == pytest.approx(10.0 + float(slopes @ u), abs=1e-9)


@each
@pytest.mark.parametrize("is_weighted", [True, False])
def test_one_call_for_many_chunks_has_the_bits_of_one_call_each(
    loss: MarginLoss, is_weighted: bool
) -> None:
    z, y, _ = rows_of(loss)
    rng = np.random.default_rng(8)
    cuts = [slice(0, 1), slice(1, 1), slice(1, 18), slice(18, z.size)]
    u, steps = rng.normal(size=z.size), np.array([0.0, 0.3, -1.0])
    s = rng.uniform(0.5, 2.0, z.size) if is_weighted else None
    slopes, others = np.empty(z.size), np.empty(z.size)
    total, value = np.zeros(1), 0.0
    sums, expected = np.zeros((2, 3)), np.zeros((2, 3))

    def at(array: np.ndarray | None) -> np.ndarray:
        return np.array([0 if array is None else address(array[cut]) for cut in cuts])

    for cut in cuts:
        own = None if s is None else s[cut]
        value += loss.value_and_slope(z[cut], y[cut], own, slopes[cut])
        loss.along(z[cut], u[cut], y[cut], own, steps, *expected)
    rows = np.array([z[cut].size for cut in cuts])
    loss.values_and_slopes(rows, at(z), at(y), at(s), at(others), total)
    loss.along_chunks(rows, at(z), at(u), at(y), at(s), steps=steps, sums_out=sums)
    assert total.tolist() == [value]
    assert (slopes.tobytes(), expected.tobytes()) == (others.tobytes(), sums.tobytes())


@pytest.mark.parametrize("name", [name for name, terms in LOSSES.items() if terms.link != "log"])
def test_far_margins_neither_overflow_nor_vanish(name: str) -> None:
    z, y, slope = np.array([-800.0, 800.0]), np.array([1.0, 1.0]), np.empty(2)
    assert np.isfinite(loss_named(name).value_and_slope(z, y, None, slope))
    assert np.all(np.isfinite(slope))
    assert slope[0] < 0


def test_the_logistic_loss_is_exact_to_a_few_bits_wherever_the_margin_lies() -> None:
    rng, loss = np.random.default_rng(0), loss_named("logistic")
    sizes = 10.0 ** rng.uniform(-12, 2.8, 1500)
    z = np.concatenate([sizes * rng.choice([-1.0, 1.0], sizes.size), [0.0, -0.0]])
    ones, curvature = np.ones(z.size), np.empty(z.size)
    values, slope = loss.each(z, ones)
    loss.curvature(z, ones, None, curvature)
    e = [math.exp(-abs(m)) for m in z]
    expected = [math.log1p(a) + max(-m, 0.0) for a, m in zip(e, z, strict=True)]
    np.testing.assert_allclose(values, expected, rtol=1e-15, atol=1e-300)
    expected = [-(a if m > 0 else 1.0) / (1.0 + a) for a, m in zip(e, z, strict=True)]
    np.testing.assert_allclose(slope, expected, rtol=1e-15, atol=1e-300)
    expected = [a / (1.0 + a) ** 2 for a in e]
    np.testing.assert_allclose(curvature, expected, rtol=2e-15, atol=1e-300)


def test_the_logistic_loss_of_nan_is_nan() -> None:
    slope = np.empty(2)
    value = loss_named("logistic").value_and_slope(np.array([1.0, np.nan]), np.ones(2), None, slope)
    assert math.isnan(value)
    assert list(np.isnan(slope)) == [False, True]


@pytest.mark.parametrize("name", [name for name in BY_NUMPY if name in LOSSES])
def test_values_and_slopes_are_those_of_numpy(name: str) -> None:
    loss = loss_named(name, SETTINGS.get(name, {}))
    z, y, _ = rows_of(loss)
    for found, by_numpy in zip(loss.each(z, y), BY_NUMPY[name], strict=True):
        np.testing.assert_allclose(found, by_numpy(z, y), atol=1e-12)


@pytest.mark.parametrize("power", [1.0, 1.1, 1.5, 1.95, 2.0])
def test_half_deviances_are_scikit_learns(power: float) -> None:
    loss = loss_named("tweedie", {"power": power})
    z, y = np.linspace(-4.0, 4.0, 60), np.random.default_rng(0).gamma(1.0, 3.0, 60) + 1e-3
    expected = 30.0 * mean_tweedie_deviance(y, np.exp(z), power=power)
    assert loss.each(z, y)[0].sum() == pytest.approx(expected, rel=1e-12)


def test_a_quantile_loss_is_scikit_learns_and_smoothing_lowers_it_by_no_more_than_it_says() -> None:
    z, y = np.linspace(-3.0, 3.0, 50), np.zeros(50)
    exact = loss_named("quantile", {"quantile": 0.8}).each(z, y)[0]
    smooth = loss_named("quantile", {"quantile": 0.8, "smoothing": 0.5}).each(z, y)[0]
    expected = [mean_pinball_loss([0.0], [margin], alpha=0.8) for margin in z]
    np.testing.assert_allclose(exact, expected, atol=1e-15)
    assert np.all(exact - smooth >= -1e-15)
    assert np.all(exact - smooth <= 0.5 * 0.5 * 0.8**2 + 1e-15)


@pytest.mark.parametrize("wrong", [int, complete, type("Lacking", (LogCosh,), {"slope": None})])
def test_what_is_no_loss_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="wanted a NamedTuple with the methods value, slope"):
        complete(wrong)


def test_a_loss_derived_from_one_of_classes_takes_targets_as_they_are() -> None:
    folded, plain = (
        complete(type("Derived", (type(LOSSES["logistic"]),), {"link": link}))
        for link in ("logit", "identity")
    )
    assert (folded().fold(-1.0), plain().fold(-1.0)) == (-1.0, 1.0)
