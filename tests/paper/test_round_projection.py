"""The papers' time projections, by the numbers that follow from their formulas."""

from __future__ import annotations

import pytest

from examples.papers.support.round_projection import (
    elapsed,
    local_sgd_rounds,
    micro_task_units,
    micro_task_units_mixed,
    uni_task_units,
    uni_task_units_mixed,
)

MEMBERS = (16, 14, 12, 10, 8, 6, 4, 2)
MIXED = [1.0] * 8 + [1.5] * 8


@pytest.mark.parametrize(
    ("tasks", "units"),
    [
        (16, (1, 2, 2, 2, 2, 3, 4, 8)),
        (24, (1.333, 1.333, 1.333, 2, 2, 2.667, 4, 8)),
        (32, (1, 1.5, 1.5, 2, 2, 3, 4, 8)),
        (64, (1, 1.25, 1.5, 1.75, 2, 2.75, 4, 8)),
    ],
)
def test_micro_tasks_run_in_waves(tasks: int, units: tuple[float, ...]) -> None:
    assert [round(micro_task_units(tasks, n), 3) for n in MEMBERS] == list(units)


def test_uni_tasks_use_every_member_whole() -> None:
    units = [1, 1.143, 1.333, 1.6, 2, 2.667, 4, 8]
    assert [round(uni_task_units(n), 3) for n in MEMBERS] == units
    assert [round(local_sgd_rounds(n), 3) for n in MEMBERS] == units


@pytest.mark.parametrize(("tasks", "units"), [(16, 1.5), (24, 1.333), (32, 1.5), (64, 1.25)])
def test_micro_tasks_on_eight_fast_and_eight_slow_members(tasks: int, units: float) -> None:
    assert round(micro_task_units_mixed(tasks, MIXED), 3) == units
    counts = range(tasks // 8 + 1)
    pairs = [(i, j) for i in counts for j in counts if 8 * (i + j) >= tasks]
    assert uni_task_units_mixed(MIXED) == pytest.approx(1.2, rel=1e-15)
    assert micro_task_units_mixed(tasks, MIXED) == pytest.approx(
        min(max(1.5 * i, 1.0 * j) for i, j in pairs) * 16 / tasks, rel=1e-12
    )


def test_members_change_at_round_boundaries_only() -> None:
    units = {n: uni_task_units(n) for n in (4, 8)}
    assert elapsed(4, [(0.0, 8), (3.0, 4)], units, unit_s=1.0) == [2.0, 4.0, 8.0, 12.0]
