"""The inverse Hessian of L-BFGS against the BFGS formula written out."""

from __future__ import annotations

import numpy as np

from elasticml.algorithms.batch_gradient.lbfgs import Pairs

RNG = np.random.default_rng(4)
D = 6
ROOT = RNG.normal(size=(D, D))
HESSIAN = ROOT @ ROOT.T + 0.1 * np.eye(D)


def of_steps(steps: np.ndarray) -> Pairs:
    pairs = Pairs()
    for step in steps:
        pairs = pairs.with_step(step, HESSIAN @ step)
    return pairs


def written_out(steps: np.ndarray) -> np.ndarray:
    """``H+ = (I - s y'/sy) H (I - y s'/sy) + s s'/sy``, from the last pair's scaled identity."""
    last = HESSIAN @ steps[-1]
    inverse = np.eye(D) * (steps[-1] @ last) / (last @ last)
    for s in steps:
        y = HESSIAN @ s
        left = np.eye(D) - np.outer(s, y) / (s @ y)
        inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
    return inverse


def test_the_two_loop_recursion_is_the_bfgs_formula() -> None:
    steps = RNG.normal(size=(4, D))
    vector = RNG.normal(size=D)
    actual = of_steps(steps).times(vector)
    np.testing.assert_allclose(actual, written_out(steps) @ vector, rtol=1e-10)


def test_a_step_with_a_gradient_that_does_not_rise_makes_no_pair() -> None:
    step = RNG.normal(size=D)
    pairs = of_steps(RNG.normal(size=(2, D)))
    assert pairs.with_step(step, -step) is pairs
    assert pairs.with_step(step, np.zeros(D)) is pairs
    assert pairs.with_step(np.zeros(D), np.zeros(D)) is pairs
