"""When rows rest, and when they are woken."""

import numpy as np

from elasticml.algorithms.cocoa.shrinking import Shrinking


def rests_after(steps: list[float]) -> int:
    """Rest left of a row that was given 64 epochs before the last of these steps of the model."""
    rests = Shrinking(is_used=True)
    rests.bind([1], [None])
    v = np.zeros(2)
    for serial, step in enumerate([0.0, *steps]):
        if serial == len(steps):
            rests.views([1])[0][:] = 64
        v = v + np.array([step, 0.0])
        rests.begin(v, serial)
    return int(rests.views([1])[0][0])


def test_a_jump_of_the_model_wakes_every_row() -> None:
    # Members were away: the others had all but converged, and their rows rested for long. When the
    # absent came back the model jumped, and a job took 175 rounds instead of 25.
    assert rests_after([1.0, 0.01, 0.01, 0.5]) == 0


def test_steps_that_stay_alike_wake_nobody() -> None:
    assert rests_after([1.0, 0.9, 1.1, 1.0]) == 64


def test_a_repeated_pass_finds_the_rests_as_they_were() -> None:
    rests = Shrinking(is_used=True)
    rests.bind([1], [None])
    rests.begin(np.ones(2), 1)
    reach = rests.begin(np.full(2, 1.5), 2)
    rests.views([1])[0][:] = 7
    assert rests.begin(np.full(2, 1.5), 2) == reach
    assert rests.views([1])[0][0] == 0


def test_a_repeated_pass_after_a_jump_finds_all_rows_awake_again() -> None:
    rests, v = Shrinking(is_used=True), np.zeros(3)
    rests.bind([4], [None])
    (left,) = rests.views([4])
    for serial, at in enumerate((0.0, 1.0, 1.1)):
        rests.begin(v + at, serial)
    left[:] = 9
    first = rests.begin(v + 5.0, 3)
    assert not left.any()
    left[:] = 7
    assert rests.begin(v + 5.0, 3) == first
    assert not left.any()
