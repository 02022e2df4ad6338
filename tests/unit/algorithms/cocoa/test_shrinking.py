"""Shrinking: when rows are skipped, and when they are woken."""

import numpy as np

from elasticml.algorithms.cocoa.shrinking import Shrinking


def skipped_after(steps: list[float]) -> int:
    """Return the epochs left of a row that was to be skipped for 64 before the last of these
    steps.
    """
    shrinking = Shrinking(is_used=True)
    shrinking.bind([1], [None])
    v = np.zeros(2)
    for serial, step in enumerate([0.0, *steps]):
        if serial == len(steps):
            shrinking.views([1])[0][:] = 64
        v = v + np.array([step, 0.0])
        shrinking.begin(v, serial)
    return int(shrinking.views([1])[0][0])


def test_a_jump_of_the_model_wakes_every_row() -> None:
    # Members were absent: the others had nearly converged, and their rows were skipped for long.
    # When the absent members returned the model jumped, and a job took 175 rounds instead of 25.
    assert skipped_after([1.0, 0.01, 0.01, 0.5]) == 0


def test_steps_of_similar_length_wake_no_row() -> None:
    assert skipped_after([1.0, 0.9, 1.1, 1.0]) == 64


def test_a_repeated_pass_starts_from_the_same_skip_counts() -> None:
    shrinking = Shrinking(is_used=True)
    shrinking.bind([1], [None])
    shrinking.begin(np.ones(2), 1)
    reach = shrinking.begin(np.full(2, 1.5), 2)
    shrinking.views([1])[0][:] = 7
    assert shrinking.begin(np.full(2, 1.5), 2) == reach
    assert shrinking.views([1])[0][0] == 0


def test_a_repeated_pass_after_a_jump_starts_with_all_rows_awake() -> None:
    shrinking, v = Shrinking(is_used=True), np.zeros(3)
    shrinking.bind([4], [None])
    (left,) = shrinking.views([4])
    for serial, at in enumerate((0.0, 1.0, 1.1)):
        shrinking.begin(v + at, serial)
    left[:] = 9
    first = shrinking.begin(v + 5.0, 3)
    assert not left.any()
    left[:] = 7
    assert shrinking.begin(v + 5.0, 3) == first
    assert not left.any()
