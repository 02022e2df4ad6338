"""Slopes of the gap, and the rules that detect a knee."""

from __future__ import annotations

import pytest

from elasticml.control.policy import Progress
from elasticml.policies.convergence import Point, extrapolated_slope, gap_points, is_knee, slope


def points(gaps, start: int = 0) -> list[Point]:
    return [
        Point(rounds=start + i, seconds=2.0 * (start + i), gap=gap) for i, gap in enumerate(gaps)
    ]


def exponential(q: float, n: int) -> list[Point]:
    return points([q**i for i in range(n)])


def fires_at(found: list[Point], **settings) -> int | None:
    """Return the round at which the rule first fires, seeing one gap after the other."""
    seen = (i for i in range(1, len(found) + 1) if is_knee(found[:i], **settings))
    first = next(seen, None)
    return None if first is None else found[first - 1].rounds


@pytest.mark.parametrize("q", [0.01, 0.1, 0.3, 0.5, 0.67, 0.9, 0.99])
@pytest.mark.parametrize("axis", ["rounds", "seconds"])
def test_log_rule_never_fires_on_an_exact_exponential(q, axis):
    assert fires_at(exponential(q, 60), axis=axis) is None


@pytest.mark.parametrize("q", [0.01, 0.1, 0.3, 0.5, 0.67])
def test_linear_rule_fires_at_round_3_on_every_exponential_that_falls_by_a_third_a_round(q):
    assert fires_at(exponential(q, 60), scale="linear") == 3


@pytest.mark.parametrize("q", [0.7, 0.9, 0.99])
def test_linear_rule_fires_on_slower_exponentials_too(q):
    assert fires_at(exponential(q, 400), scale="linear") is not None


@pytest.mark.parametrize("bend", [2, 3, 5, 10, 30])
def test_log_rule_fires_within_two_rounds_of_a_kink_of_slope_ratio_2(bend):
    decades = [0.4 * i for i in range(bend + 1)]
    decades += [decades[-1] + 0.2 * i for i in range(1, 20)]
    fired = fires_at(points([10**-d for d in decades]))
    assert bend < fired <= bend + 2


def test_slope_is_decades_or_the_gap_itself_per_round_or_second():
    two = points([1.0, 0.01])
    assert slope(two, "rounds", "log") == pytest.approx(2.0)
    assert slope(two, "seconds", "log") == pytest.approx(1.0)
    assert slope(two, "rounds", "linear") == pytest.approx(0.99)
    assert slope(two[:1]) == slope([]) == 0.0


def test_gap_of_zero_has_a_slope():
    assert slope(points([1.0, 0.0]), "rounds") == pytest.approx(300.0)


def test_a_fading_slope_is_extrapolated_and_a_straight_line_is_not():
    straight = [Point(rounds=i, seconds=i, gap=10.0**-i) for i in range(5)]
    assert extrapolated_slope(straight, 4) == pytest.approx(1.0)
    # 2 decades in two seconds, 1 in the next two: over the next four, a quarter of 3/4.
    decades = [0.0, 1.0, 2.0, 2.5, 3.0]
    bent = [Point(rounds=i, seconds=i, gap=10.0**-d) for i, d in enumerate(decades)]
    assert extrapolated_slope(bent, 4) == pytest.approx(0.75 / 4)
    assert extrapolated_slope(bent[::-1], 4) == slope(bent[::-1])
    assert extrapolated_slope([], 4) == 0.0


def rows(*gaps, members=4, first=0, **more) -> list[Progress]:
    return [
        Progress(round=first + i, seconds=first + i + 1.0, members=members, gap=gap, **more)
        for i, gap in enumerate(gaps)
    ]


def test_a_stage_starts_with_the_last_gap_of_the_previous_number_of_members():
    history = [*rows(1.0, 0.5, members=8), *rows(0.2, 0.1, first=2)]
    assert [(p.rounds, p.gap) for p in gap_points(history, 4)] == [(2, 0.5), (3, 0.2), (4, 0.1)]
    assert gap_points(history, 8) == []


def test_a_stage_restarts_on_request():
    history = rows(1.0, 0.5, 0.2, 0.1)
    assert [p.rounds for p in gap_points(history, 4, since_round=3)] == [3, 4]
    assert gap_points(history, 4, since_round=4) == []


def test_rounds_without_a_gap_and_bounds_are_skipped():
    history = [*rows(1.0, None, 0.5, None), *rows(0.1, first=4, gap_is_bound=True)]
    assert [(p.rounds, p.gap) for p in gap_points(history, 4)] == [(1, 1.0), (3, 0.5)]


def test_gap_that_rises_counts_as_the_best_so_far():
    assert [p.gap for p in gap_points(rows(1.0, 0.2, 0.4, 0.1), 4)] == [1.0, 0.2, 0.2, 0.1]
