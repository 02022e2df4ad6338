"""Series derived from a run: windows, marks, clocks, curves; and its timeline in words."""

import math
from pathlib import Path

import numpy as np

from elasticml.report.plots import split_exact
from elasticml.report.run_reader import RunData, parse_history, read_run
from elasticml.report.series import (
    absence_windows,
    clock,
    full_objective,
    members_over_time,
    membership_marks,
    wants_log,
)
from elasticml.report.timeline import seconds_text, timeline
from elasticml.story.records import JobEnded, RoundStarted, records_from_json
from tests.unit.report.fabricate import fabricate_run


def history(text):
    return parse_history(text, [], finished=True)


def test_rounds_with_absent_examples_make_windows():
    table = "round,absent_examples\n0,0\n1,5\n2,7\n3,0\n4,2\n"
    windows = [(w.start_round, w.end_round, w.examples) for w in absence_windows(history(table))]
    assert windows == [(1, 3, 7), (4, 5, 2)]


def test_losses_and_returns_are_counted_by_round(tmp_path):
    run = read_run(fabricate_run(tmp_path / "r", rounds=20, at=5, back=10))
    marks = [(m.kind, m.round, m.count) for m in membership_marks(run.records)]
    assert marks == [("lost", 5, 7), ("back", 10, 7)]


def test_clock_gives_each_round_its_start_and_the_last_row_the_end(tmp_path):
    run = read_run(fabricate_run(tmp_path / "r", rounds=20, at=5, back=10))
    starts = {r.round: r.t for r in run.records if isinstance(r, RoundStarted)}
    times = clock(run)
    np.testing.assert_allclose([times.at(r) for r in range(20)], list(starts.values()), atol=1e-12)
    ended = run.first(JobEnded).t
    assert times.at(20) == ended


def test_members_count_from_taking_part_until_lost(tmp_path):
    run = read_run(fabricate_run(tmp_path / "r", rounds=20, at=5, back=10))
    seconds, counts = members_over_time(run)
    assert counts.max() == 14
    assert counts[-1] == 14
    lost_at = next(m.at_s for m in membership_marks(run.records) if m.kind == "lost")
    assert counts[seconds >= lost_at].min() == 7
    assert (np.diff(seconds) >= 0).all()


def test_full_objective_prefers_the_evaluator_and_omits_estimates():
    table = (
        "round,objective,objective_kind,objective_full\n"
        "0,4,exact,\n1,3,estimated,\n2,2,estimated,2.5\n3,1,exact,\n"
    )
    rounds, values = full_objective(history(table))
    assert (rounds.tolist(), values.tolist()) == ([0, 2, 3], [4, 2.5, 1])


def test_log_axis_is_for_positive_values_far_apart():
    assert wants_log(np.array([1.0, np.nan, 10.0]))
    assert not wants_log(np.array([1.0, 2.0]))
    assert not wants_log(np.array([0.0, 10.0]))
    assert not wants_log(np.array([np.nan]))


def test_timeline_has_a_round_s_losses_in_one_sentence(tmp_path):
    run = read_run(fabricate_run(tmp_path / "r", rounds=20, at=5, back=10))
    lost = [e for e in timeline(run.records) if "lost" in e.text]
    assert [(e.round, e.text) for e in lost] == [
        (5, "7 members lost (killed without notice): 0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0.")
    ]


def test_timeline_of_records_without_fields_still_has_a_line_for_each():
    events = (
        "JobStarted DataLoaded MemberJoined MemberActive MemberNoticed MemberLost ChunksAbsent "
        "GroupReturned ChunksMoved FaultInjected DataDealt GroupReadmitted MoveFailed "
        "NoticeWithdrawn JobEnded Unheard"
    ).split()
    entries = timeline(records_from_json({"t": 0.0, "event": event} for event in events))
    assert len(entries) == len(events) - 1
    assert all(entry.text.endswith(".") for entry in entries)


def test_durations_read_well():
    assert [seconds_text(s) for s in (0.0123, 59.5, 61, 7260, math.nan)] == [
        "0.0123 s",
        "59.5 s",
        "1 min 1 s",
        "2 h 1 min",
        "–",
    ]


def test_objective_is_split_into_exact_and_estimated_stretches():
    table = "round,objective,objective_kind\n" + "".join(
        f"{r},{10 - r},{'estimated' if r in (2, 4, 5) else 'exact'}\n" for r in range(8)
    )
    solid, dashed = split_exact(history(table), np.arange(8.0))
    np.testing.assert_equal(solid[0], [0, 1, 2, np.nan, 3, 4, np.nan, 6, 7, np.nan])
    np.testing.assert_equal(dashed[0], [2, 3, np.nan, 4, 5, 6, np.nan])
    np.testing.assert_equal(dashed[1], 10 - dashed[0])


def test_clock_of_a_run_without_a_story_is_the_history_s():
    run = RunData(path=Path("r"), name="r", history=history("round,seconds\n0,1.5\n1,\n2,3.5\n"))
    assert [clock(run).at(r) for r in (0, 1, 2)] == [1.5, 2.5, 3.5]
