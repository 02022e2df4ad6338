"""The guard of stand-ins without curvature, point by point."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.batch_gradient.elastic_gradient import Evaluated, Point
from elasticml.algorithms.batch_gradient.stand_in_guard import PATIENCE, Known, StandInGuard
from elasticml.algorithms.batch_gradient.stand_ins import Interval, Sums
from elasticml.ids import ExchangeId

NO_SUMS = Sums(loss=0.0, gradient=np.zeros(1), weight=1.0)


def elastic_with(n_flat: int, changes: int = 0) -> Any:
    """Return what the guard asks of the sums: the number of stand-ins without curvature."""
    return SimpleNamespace(
        changes=changes,
        note=None,
        rules=SimpleNamespace(guarded=True),
        stand_ins=SimpleNamespace(modes=lambda: {"taylor": n_flat}),
    )


def evaluated_at(serial: int) -> Evaluated:
    point = Point(serial=serial, w=np.array([float(serial)]))
    return Evaluated(point=point, exchange=ExchangeId(serial), sums=NO_SUMS)


def judged(
    guard: StandInGuard,
    elastic: Any,
    serial: int,
    estimated: float,
    error: Interval,
    known: Known | None = None,
) -> Point | None:
    return guard.judge(elastic, evaluated_at(serial), estimated, error, known)


def known_at(serial: int, value: float) -> Known:
    return Known(point=evaluated_at(serial).point, value=value, is_bound=False, round=serial)


def test_points_are_judged_by_what_is_certain_and_not_by_the_estimate() -> None:
    guard, elastic = StandInGuard(), elastic_with(1)
    # The estimate falls from point to point, and its error grows faster.
    for k in range(PATIENCE):
        assert judged(guard, elastic, k, -float(k), Interval(low=0.0, high=2.0 * k)) is None
    best = judged(guard, elastic, PATIENCE, -8.0, Interval(low=0.0, high=16.0))
    assert best is not None
    assert best.serial == 0
    assert guard.switches


@pytest.mark.parametrize("n_flat", [0, 1])
def test_when_examples_come_or_go_the_model_leaves_a_point_that_is_certainly_worse(
    n_flat: int,
) -> None:
    exact, best = Interval(low=0.0, high=0.0), known_at(0, 0.3)
    for value, expected in ((0.9, best.point), (0.2, None)):
        guard = StandInGuard()
        assert judged(guard, elastic_with(1), 1, -1.0, Interval(low=0.0, high=2.0), best) is None
        back = elastic_with(n_flat, changes=1)
        assert judged(guard, back, 2, value, exact, best) is expected
        assert judged(guard, back, 3, 0.3, exact, best) is None


def test_steps_without_flat_stand_ins_are_not_taken_back() -> None:
    guard, exact = StandInGuard(), Interval(low=0.0, high=0.0)
    assert judged(guard, elastic_with(0), 1, 0.5, exact, known_at(0, 0.3)) is None
    assert judged(guard, elastic_with(0, changes=1), 2, 0.9, exact, known_at(0, 0.3)) is None
