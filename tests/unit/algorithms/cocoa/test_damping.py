"""Damping of parallel steps: what a line search, a loss and a repeated pass do to it."""

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


def test_a_loss_doubles_the_least_damping_and_passes_without_one_halve_it() -> None:
    damping = Damping(8.0)
    damping.begin(0, 8.0)
    assert not damping.accepts(-1.0, 1.0, 0.0)
    assert (damping.factor[1], damping.share) == (2.0, 0.5)
    for serial in range(1, PATIENCE + 1):
        assert damping.factor[1] == 2.0
        damping.begin(serial, 8.0)
        assert damping.accepts(1.0, 1.0, 0.0)
    assert damping.factor[1] == 1.0
    for serial in range(9, 14):
        damping.begin(serial, 8.0)
        damping.accepts(-1.0, 1.0, 0.0)
    assert damping.factor.tolist() == [8.0, 8.0]
    assert damping.is_safe


def test_a_repeated_pass_starts_from_the_state_of_its_first_attempt() -> None:
    damping = Damping(8.0)
    for _ in range(3):
        damping.begin(7, 8.0)
        damping.accepts(-1.0, 1.0, 0.0)
        np.testing.assert_array_equal(damping.factor, [8.0, 2.0])
