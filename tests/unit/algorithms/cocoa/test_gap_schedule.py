"""When CoCoA certifies, and what a certificate is."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.cocoa.gap_schedule import Certificate, GapSchedule


def cadence(**settings: Any) -> GapSchedule:
    made = GapSchedule(**{"every": None, "target": 0.0, "rows": 100, **settings})
    made.certified(1.0)
    return made


def rounds_due(
    made: GapSchedule, gaps: dict[int, float], passes: int, visited: float = 100.0
) -> list[int]:
    """Return the rounds in which a certificate was due; their gaps are taken from ``gaps``."""
    results = []
    for number in range(1, passes + 1):
        made.passed(visited)
        if made.is_due():
            results.append(number)
            made.certified(gaps.get(number, 0.5))
    return results


def test_an_interval_of_n_certifies_every_nth_round() -> None:
    assert rounds_due(cadence(every=3), {}, 9) == [3, 6, 9]


def test_without_a_target_a_fifth_of_the_work_certifies() -> None:
    rounds = rounds_due(cadence(), {}, 60)
    # A certificate costs as much as half a pass.
    share = 0.5 * len(rounds) / (60 + 0.5 * len(rounds))
    assert 0.18 <= share <= 0.22


def test_without_estimates_a_target_changes_nothing() -> None:
    assert rounds_due(cadence(target=1e-9), {}, 60) == rounds_due(cadence(), {}, 60)


def test_debts_of_certificates_that_estimates_asked_for_are_limited() -> None:
    """Absent rows are not estimated: a hundred certificates found a gap above the target."""
    made = cadence(target=1e-3)
    for _ in range(100):
        made.passed(100.0, gap_estimate=1e-4)
        assert made.is_due()
        made.certified(1.0)
    made.gap_estimate = math.nan
    assert rounds_due(made, {}, 12)


def test_a_resumed_schedule_goes_on_as_before() -> None:
    one, other = cadence(target=1e-3), cadence(target=1e-3)
    one.passed(100.0, gap_estimate=0.5)
    one.certified(0.6)
    other.restore(json.loads(json.dumps(one.state())))
    assert rounds_due(other, {}, 30) == rounds_due(one, {}, 30)


def test_a_certificate_is_taken_when_passes_estimate_a_gap_near_the_target() -> None:
    assert certified_round(cadence(target=0.5**13.5, is_seldom=True)) == [8, 14]
    assert certified_round(cadence(target=0.5**13.5)) == [1, 6, 8, 10, 12, 14]


def certified_round(made: GapSchedule) -> list[int]:
    """Return in which of 14 passes that halve the gap a certificate was due."""
    results = []
    for number in range(1, 15):
        # The rows' contributions, measured as they are visited, are twice the gap that they leave.
        made.passed(100.0, gap_estimate=2.0 * 0.5**number)
        if made.is_due():
            results.append(number)
            made.certified(0.5**number)
    return results


def test_the_lowest_primal_and_the_highest_dual_objective_give_the_gap() -> None:
    first = Certificate(primal=1.0, dual=0.2, v=np.zeros(1))
    later = Certificate(primal=1.5, dual=0.9, v=np.ones(1), is_bound=True)
    best = later.better(first)
    assert (best.primal, best.dual, best.v[0], best.is_bound) == (1.0, 0.9, 0.0, False)
    assert first.better(later).gap == pytest.approx(0.1)
    assert Certificate(primal=1.0, dual=1.0 + 1e-16, v=np.zeros(1)).gap == 0.0
