"""Damping of parallel steps: what a line search and a loss do to it."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.cocoa.damping import PATIENCE, RAISE, SHORT, Damping, adapted


@pytest.mark.parametrize(
    ("slope", "bend", "damping", "least", "most", "expected"),
    [
        # The best step along the sum was shorter, much longer, and about as long.
        (1.0, 2.0, 2.0, 1.0, 9.0, 2.0 * RAISE),
        (2.0, 1.0, 2.0, 1.0, 9.0, 2.0 / SHORT),
        (1.1, 1.0, 2.0, 1.0, 9.0, 2.0),
        # It stays within its limits, and without a curvature nothing is known.
        (1.0, 2.0, 8.0, 1.0, 9.0, 9.0),
        (2.0, 1.0, 1.1, 1.0, 9.0, 1.0),
        (1.0, 0.0, 2.0, 1.0, 9.0, 2.0),
    ],
)
def test_a_line_search_moves_the_damping(slope, bend, damping, least, most, expected) -> None:
    assert adapted(damping, slope, bend, least, most) == pytest.approx(expected)


def test_a_loss_halves_the_steps_and_visits_without_one_double_them() -> None:
    damping = Damping(0.125)
    assert not damping.accepts(-1.0, 1.0, 0.0)
    for _ in range(PATIENCE):
        assert damping.share == 0.5
        assert damping.accepts(1.0, 1.0, 0.0)
    assert damping.share == 1.0
    # A doubling that is taken back: the next one waits twice as long.
    assert not damping.accepts(np.nan, 1.0, 0.0)
    for _ in range(2 * PATIENCE):
        assert damping.share == 0.5
        # A loss of the size of rounding is none.
        assert damping.accepts(-0.5, 1.0, 0.5)
    assert damping.share == 1.0
    for _ in range(5):
        damping.accepts(-1.0, 1.0, 0.0)
    assert damping.share == 0.125
