"""The papers' time projections, by the numbers that follow from their formulas."""

from __future__ import annotations

import pytest

from examples.papers.support.round_projection import (
    elapsed,
    local_sgd_rounds,
    members_at,
    micro_task_units,
    micro_task_units_mixed,
    stepwise,
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
    assert micro_task_units_mixed(tasks, MIXED) == pytest.approx(
        min(max(1.5 * i, 1.0 * j) for i, j in pairs) * 16 / tasks, rel=1e-12
    )


def test_the_paper_s_example_gives_slow_members_three_tasks_and_fast_ones_five() -> None:
    assert micro_task_units_mixed(64, MIXED) == max(3 * 1.5, 5 * 1.0) * 16 / 64


def test_uni_tasks_balance_unequal_members() -> None:
    assert uni_task_units_mixed(MIXED) == pytest.approx(1.2, rel=1e-15)


def test_equal_members_make_both_formulas_one() -> None:
    for n in MEMBERS:
        assert uni_task_units_mixed([1.0] * n) == pytest.approx(uni_task_units(n))
        assert micro_task_units_mixed(64, [1.0] * n) == micro_task_units(64, n)


def test_the_schedule_changes_by_two_members_every_twenty_seconds() -> None:
    scale_in = stepwise(16, 2)
    assert [m for _, m in scale_in] == list(MEMBERS)
    assert [members_at(scale_in, t) for t in (0.0, 19.9, 20.0, 139.0, 140.0, 1e9)] == [
        16,
        16,
        14,
        4,
        2,
        2,
    ]
    assert stepwise(2, 16) == [(20.0 * k, 2 + 2 * k) for k in range(8)]


def test_members_change_at_round_boundaries_only() -> None:
    units = {n: uni_task_units(n) for n in (4, 8)}
    assert elapsed(4, [(0.0, 8), (3.0, 4)], units, unit_s=1.0) == [2.0, 4.0, 8.0, 12.0]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (micro_task_units, (0, 4)),
        (micro_task_units, (16, 0)),
        (uni_task_units, (0,)),
        (micro_task_units_mixed, (16, [])),
        (micro_task_units_mixed, (16, [1.0, 0.0])),
        (uni_task_units_mixed, ([1.0, -1.0],)),
    ],
)
def test_impossible_counts_are_refused(function, arguments) -> None:
    with pytest.raises(ValueError, match=r"at least 1|above 0"):
        function(*arguments)
