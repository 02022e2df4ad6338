"""Trust-region conjugate gradients against linear algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest

from elasticml.algorithms.batch_gradient.trust_region import NewtonStep, conjugate_gradients

RNG = np.random.default_rng(6)
D = 8
ROOT = RNG.normal(size=(D, D))
HESSIAN = ROOT @ ROOT.T + 0.5 * np.eye(D)
GRADIENT = RNG.normal(size=D)
NEWTON = -np.linalg.solve(HESSIAN, GRADIENT)


def solve(hessian: np.ndarray, radius: float) -> NewtonStep:
    solving = conjugate_gradients(GRADIENT, radius, 1e-12)
    direction = next(solving)
    while True:
        try:
            direction = solving.send(hessian @ direction)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, math.inf])
def test_a_step_is_newtons_or_ends_on_the_boundary_of_its_region(share: float) -> None:
    radius = share * float(np.linalg.norm(NEWTON))
    result = solve(HESSIAN, radius)
    assert result.is_on_boundary == (share < 1.0)
    length = min(radius, np.linalg.norm(NEWTON))
    assert np.linalg.norm(result.step) == pytest.approx(length, rel=1e-8)
    fall = -GRADIENT @ result.step - 0.5 * result.step @ HESSIAN @ result.step
    assert result.promised == pytest.approx(fall, rel=1e-9)


@pytest.mark.parametrize("hessian", [-HESSIAN, np.zeros((D, D))])
def test_without_curvature_the_step_goes_to_the_boundary(hessian: np.ndarray) -> None:
    assert np.linalg.norm(solve(hessian, 3.0).step) == pytest.approx(3.0, rel=1e-12)
    np.testing.assert_array_equal(solve(hessian, math.inf).step, -GRADIENT)
