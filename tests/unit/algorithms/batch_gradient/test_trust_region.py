"""Trust-region conjugate gradients and the radius, against linear algebra and the rules."""

from __future__ import annotations

import math

import numpy as np
import pytest

from elasticml.algorithms.batch_gradient.trust_region import (
    NewtonStep,
    conjugate_gradients,
    next_radius,
)

RNG = np.random.default_rng(6)
D = 8
ROOT = RNG.normal(size=(D, D))
HESSIAN = ROOT @ ROOT.T + 0.5 * np.eye(D)
GRADIENT = RNG.normal(size=D)
NEWTON = -np.linalg.solve(HESSIAN, GRADIENT)


def stepped(on_boundary: bool, radius: float) -> NewtonStep:
    return NewtonStep(
        step=np.zeros(1), promised=1.0, is_on_boundary=on_boundary, products=1, radius=radius
    )


def solve(
    hessian: np.ndarray, radius: float, residual: float = 1e-12, *, widens: bool = False
) -> NewtonStep:
    solving = conjugate_gradients(GRADIENT, radius, residual, widens=widens)
    direction = next(solving)
    while True:
        try:
            direction = solving.send(hessian @ direction)
        except StopIteration as end:
            return end.value


def fall(hessian: np.ndarray, step: np.ndarray) -> float:
    return float(-GRADIENT @ step - 0.5 * step @ hessian @ step)


def test_an_unbounded_step_is_newtons() -> None:
    result = solve(HESSIAN, math.inf)
    np.testing.assert_allclose(result.step, NEWTON, rtol=1e-8)
    assert not result.is_on_boundary
    assert result.products <= D + 2
    assert result.promised == pytest.approx(fall(HESSIAN, NEWTON), rel=1e-9)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9])
def test_a_step_that_would_leave_the_region_ends_on_its_boundary(share: float) -> None:
    radius = share * float(np.linalg.norm(NEWTON))
    result = solve(HESSIAN, radius)
    assert result.is_on_boundary
    assert np.linalg.norm(result.step) == pytest.approx(radius, rel=1e-12)
    assert result.promised == pytest.approx(fall(HESSIAN, result.step), rel=1e-9)
    # At least as far as the gradient alone would reach within the region.
    along = -GRADIENT / np.linalg.norm(GRADIENT)
    best = min(radius, np.linalg.norm(GRADIENT) / (along @ HESSIAN @ along))
    assert result.promised >= fall(HESSIAN, best * along) * (1 - 1e-12)


@pytest.mark.parametrize("hessian", [-HESSIAN, np.zeros((D, D))])
def test_without_curvature_the_step_goes_to_the_boundary_or_along_the_gradient(
    hessian: np.ndarray,
) -> None:
    bounded = solve(hessian, 3.0)
    assert np.linalg.norm(bounded.step) == pytest.approx(3.0, rel=1e-12)
    np.testing.assert_array_equal(solve(hessian, math.inf).step, -GRADIENT)


@pytest.mark.parametrize(
    ("ratio", "on_boundary", "radius"),
    [
        (1.0, True, 8.0),  # as predicted, and the boundary was active: four times as long
        (1.0, False, 2.0),  # the boundary was not active
        (0.5, True, 2.0),
        (0.1, True, 1.0),  # half of it at most, but never below a quarter
        (-1.0, True, 0.5),
    ],
)
def test_the_radius_follows_the_ratio_of_actual_to_predicted_reduction(
    ratio: float, on_boundary: bool, radius: float
) -> None:
    # A step of length 2 in a radius of 2 whose quadratic model is exact except for the ratio.
    newton = stepped(on_boundary, radius=2.0)
    slope = -2.0
    actual = next_radius(2.0, slope, -ratio, newton)
    excess = -ratio - slope
    best = max(0.25, 1.0 / excess)
    expected = {1.0: radius, 0.5: min(max(0.5, best * 2.0), 8.0), 0.1: 1.0, -1.0: best * 2.0}
    assert actual == pytest.approx(expected[ratio])
    assert 0.5 <= actual <= 8.0


def test_a_radius_too_small_for_the_gradient_is_widened_on_request() -> None:
    tiny = solve(HESSIAN, 1e-9)
    wide = solve(HESSIAN, 1e-9, widens=True)
    along = GRADIENT @ GRADIENT / (GRADIENT @ HESSIAN @ GRADIENT) * np.linalg.norm(GRADIENT)
    assert (tiny.radius, wide.radius) == (1e-9, pytest.approx(along, rel=1e-12))
    assert wide.is_on_boundary
    assert np.linalg.norm(wide.step) == pytest.approx(along, rel=1e-12)
    assert solve(HESSIAN, 100.0, widens=True).radius == 100.0
