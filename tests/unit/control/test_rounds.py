"""Rounds: the history, stop conditions, the plan of faults, the pace of idle rounds."""

from __future__ import annotations

import pytest

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.control.rounds import UNPLANNED_PACE_S, Rounds
from elasticml.specification.sections import Fault
from elasticml.story.history import HistoryRow
from tests.sim.small_jobs import arrival


def rounds(n_members: int = 4, **settings) -> Rounds:
    state = JobState(settings=DriverSettings(**settings))
    for slot in range(n_members):
        state.membership.enter(state.membership.admit(arrival(slot)), "active")
    return Rounds(state)


def test_gap_taken_at_the_end_of_a_round_is_in_the_next_ones_row():
    book = rounds()
    book.finish(
        HistoryRow({"gap": 3.0, "gap_is_bound": False, "next_gap": 2.0, "next_gap_is_bound": True}),
        1,
    )
    second = book.finish(HistoryRow({"gap": None, "gap_is_bound": False}), 2.0)[0].row.columns
    assert (second["gap"], second["gap_is_bound"]) == (2.0, True)
    third = book.finish(HistoryRow({"gap": None, "gap_is_bound": False, "next_gap": 1.0}), 3.0)[
        0
    ].row.columns
    assert third["gap"] is None
    assert not {"next_gap", "next_gap_is_bound"} & third.keys()
    fourth = book.finish(HistoryRow({"gap": 0.5, "gap_is_bound": False}), 4.0)[0].row.columns
    assert fourth["gap"] == 0.5


def test_idle_round_has_no_figures_of_another_model():
    book = rounds()
    row = {"objective": 5.0, "objective_kind": "bound", "gap": 3.0, "visited": 9.0}
    book.finish(HistoryRow({**row, "next_gap": 2.0, "next_gap_is_bound": True}), 1.0)
    idle = book.finish(book.last_row, 2.0, idle=True)[0].row.columns
    assert (idle["objective"], idle["objective_kind"], idle["gap"]) == (None, None, 2.0)
    assert "visited" not in idle
    book.finish(HistoryRow(row), 3.0)
    idle = book.finish(book.last_row, 4.0, idle=True)[0].row.columns
    assert (idle["objective"], idle["gap"]) == (None, None)


def test_idle_round_keeps_the_gap_of_an_unchanged_model():
    book = rounds()
    book.finish(
        HistoryRow({"objective": 5.0, "gap": 3.0, "next_objective": 5.0, "next_gap": None}), 1.0
    )
    idle = book.finish(book.last_row, 2.0, idle=True)[0].row.columns
    assert (idle["objective"], idle["gap"], idle["gap_is_bound"]) == (5.0, 3.0, False)


@pytest.mark.parametrize(
    ("settings", "row", "now_s", "reason"),
    [
        ({"rounds_max": 1}, {}, 0.0, "1 rounds"),
        ({"rounds_max": 2}, {}, 0.0, None),
        ({"seconds_max": 5.0}, {}, 5.0, "5 seconds"),
        ({"seconds_max": 5.0}, {}, 4.9, None),
        ({"objective_target": 0.1}, {"objective": 0.1, "objective_kind": "exact"}, 0, "objective"),
        ({"objective_target": 0.1}, {"objective": 0.1, "objective_kind": "estimated"}, 0, None),
        ({"objective_target": 0.1}, {"objective": None, "objective_kind": "exact"}, 0, None),
        ({"gap_target": 1e-3}, {"gap": 1e-4}, 0.0, "gap <= 0.001"),
        ({"gap_target": 1e-3}, {"gap": None}, 0.0, None),
        ({"gap_target": 1e-3}, {"gap": 1.0, "next_gap": 1e-4}, 0.0, "gap <= 0.001"),
        ({"gap_target": 1e-3}, {"gap": 1e-4, "next_gap": 1.0}, 0.0, None),
        ({"gap_target": 1}, {"next_gap": 0.5, "next_gap_is_bound": True}, 0.0, "gap <= 1"),
    ],
)
def test_stop_reasons(settings, row, now_s, reason):
    book = rounds(**settings)
    book.finish(HistoryRow(row), now_s)
    result = book.stop_reason(now_s)
    assert (result is None) == (reason is None)
    assert reason is None or result.startswith(reason)


def rounds_until_the_end(gaps, idle: int | None = None) -> int | None:
    """The round after which a job ends that certifies these gaps; None: it does not."""
    book = rounds(ends_without_progress=True)
    for k, gap in enumerate(gaps):
        row = HistoryRow({"objective": 1.0, "gap": 0.5, "next_gap": gap})
        book.finish(row, float(k), idle=k == idle)
        if book.stop_reason(0.0) is not None:
            assert book.stop_reason(0.0) == "no progress in 100 rounds"
            return k
    return None


def test_a_job_ends_after_a_hundred_rounds_in_which_only_rounding_errors_change():
    assert rounds_until_the_end([0.5 - 1e-17 * k for k in range(200)]) == 100
    assert rounds_until_the_end([0.5 - 1e-15 * k for k in range(400)]) is None
    # Rounds without a certificate do not tell.
    assert rounds_until_the_end([0.5] + [None] * 150 + [0.5]) == 151
    assert rounds_until_the_end([0.5] + [None] * 150 + [0.4] * 101) == 251
    # Nor do rounds in which examples are absent, and those before them.
    assert rounds_until_the_end([0.5] * 200, idle=50) == 150


def test_a_resumed_job_whose_dual_objective_rises_makes_progress():
    # Its best model has a gap of 0.5, and its dual variables have begun anew: CoCoA was ended.
    book = rounds(ends_without_progress=True)
    for k in range(300):
        columns = {"objective": 1.0, "gap": 0.5}
        # Not every round has a certificate; the next row has its dual objective.
        columns |= {"next_gap": 0.5} if k % 3 == 0 else {}
        columns |= {"dual": min(0.4, 0.4 - 0.9**k)} if k % 3 == 1 else {}
        book.finish(HistoryRow(columns), float(k))
        if book.stop_reason(0.0) is not None:
            break
    assert k > 250


def test_a_job_whose_lower_bound_of_the_minimum_rises_makes_progress():
    book = rounds(ends_without_progress=True)
    for k in range(300):
        row = HistoryRow({"objective": 1.0, "next_objective": 1.0 + 1e-6 * k, "next_gap": 0.5})
        book.finish(row, float(k), idle=False)
        assert book.stop_reason(0.0) is None


def test_a_fault_whose_phase_never_came_does_not_speed_up_idle_rounds():
    book = rounds(faults=(Fault(round=1, lose=[0], phase="load"),))
    assert book.pace_s() < UNPLANNED_PACE_S
    book.state.round = 2
    assert book.pace_s() == UNPLANNED_PACE_S
