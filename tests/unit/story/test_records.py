"""Story records: their JSON, and stories of other versions."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from elasticml.story.reader import parse_story
from elasticml.story.records import (
    ChunksLoaded,
    DataLoaded,
    ExchangeEnded,
    FaultInjected,
    JobBegun,
    JobEnded,
    MemberLost,
    PolicyDecided,
    RoundEnded,
    RoundStarted,
    StoryRecord,
    UnknownRecord,
    first_of,
    record_from_json,
    records_from_json,
    records_of,
)
from elasticml.story.summary import MemberCounts, summary_from_json
from tests.sim.small_jobs import play


def test_the_records_of_a_run_have_the_same_json_when_they_are_read_again() -> None:
    faults = [{"round": 2, "lose": 2, "how": "kill", "phase": "compute"}, {"round": 4, "return": 2}]
    story = json.loads(json.dumps(list(play(faults=faults, stop={"rounds": 8}).story), default=str))
    records = records_from_json(story)
    assert [json.dumps(record.to_json()) for record in records] == [json.dumps(r) for r in story]
    assert not any(isinstance(record, UnknownRecord) for record in records)


def test_fields_are_in_the_order_of_their_declaration() -> None:
    lost = MemberLost(t=1.5, cause="link", round=3, member="2.1", reason="closed", chunks=4, pid=7)
    assert list(lost.to_json().items()) == [
        ("t", 1.5),
        ("event", "MemberLost"),
        ("cause", "link"),
        ("round", 3),
        ("member", "2.1"),
        ("reason", "closed"),
        ("chunks", 4),
        ("pid", 7),
    ]


def test_a_redeclared_field_has_its_new_position() -> None:
    ended = JobEnded(state="done", reason="", converged=True, round=8, computations={}, digest="ab")
    assert list(ended.to_json())[3:] == [
        "state",
        "reason",
        "converged",
        "round",
        "computations",
        "digest",
    ]


@pytest.mark.parametrize(
    ("record", "absent"),
    [
        (ChunksLoaded(member="0.1", chunks="0.1"), {"source", "order", "round"}),
        (RoundStarted(round=1), {"rows"}),
        (FaultInjected(round=1, kind="return", count=2), {"how", "phase", "members"}),
        (PolicyDecided(policy="knee", suggestion="Move", why="", chunks=3), {"group", "value"}),
    ],
)
def test_optional_fields_are_left_out(record: StoryRecord, absent: set[str]) -> None:
    assert not absent & record.to_json().keys()
    assert record_from_json(record.to_json()) == record


def test_null_is_written_where_a_field_is_not_optional() -> None:
    (values,) = [{"event": "DataLoaded", "rows": 3, "features": None}]
    assert record_from_json(values).to_json()["features"] is None


@pytest.mark.parametrize(
    "value", [None, "many", [1], {"a": 1}, True, float("nan"), float("inf"), 1e400]
)
def test_damaged_values_count_as_missing(value: Any) -> None:
    record = record_from_json(
        {"event": "ExchangeEnded", "exchange": value, "start_t": value, "anchor_parts": [value]}
    )
    assert isinstance(record, ExchangeEnded)
    assert (record.exchange, record.start_t, record.anchor_parts) == (0, None, ())


def test_every_record_can_be_read_from_an_empty_one() -> None:
    for name, kind in StoryRecord.kinds.items():
        record = record_from_json({"event": name})
        assert isinstance(record, kind)
        assert {f.name for f in fields(record)} >= {"t", "cause", "round"}


def test_unknown_fields_and_events_are_kept() -> None:
    newer = {"t": 1.0, "event": "MemberSpare", "cause": "", "member": "0.1", "mood": "good"}
    assert record_from_json(newer).to_json() == newer
    strange = {"t": 1.0, "event": "MemberSang", "cause": "", "song": ["la", "la"]}
    record = record_from_json(strange)
    assert isinstance(record, UnknownRecord)
    assert (record.event, record.to_json()) == ("MemberSang", strange)


def test_columns_of_a_row_are_those_of_the_record() -> None:
    record = record_from_json(
        {"event": "RoundEnded", "round": 4, "idle": False, "gap": 0.5, "primal": 1.0}
    )
    assert isinstance(record, RoundEnded)
    assert (record.row.round, record.row.gap, record.row.objective) == (4, 0.5, None)
    assert record.row.columns == {"round": 4, "gap": 0.5, "primal": 1.0}


def test_records_are_selected_by_class() -> None:
    story: list[dict[str, Any]] = [
        {"event": "JobStarted", "job": "a", "spec": {}},
        {"event": "RoundStarted", "round": 0},
        {"event": "JobResumed", "job": "a", "spec": {}},
    ]
    assert [record.event for record in records_of(JobBegun, story)] == ["JobStarted", "JobResumed"]
    assert first_of(RoundStarted, records_from_json(story)) == RoundStarted(round=0)
    assert first_of(DataLoaded, records_from_json(story)) is None


def test_the_end_of_a_job_may_lack_its_number_of_rounds() -> None:
    values = {"event": "JobEnded", "state": "done", "round": 3}
    assert record_from_json(values).round == 3
    assert record_from_json({"event": "JobEnded", "state": "done"}).round is None


def test_invalid_lines_are_skipped_with_a_note() -> None:
    notes: list[str] = []
    lines = ['{"t": 1.0, "event": "RoundStarted"}', "[1]", '{"event": "RoundStarted"}', '{"t": 2']
    first, second = parse_story("\n".join(lines), notes)
    assert (first.t, second.t) == (1.0, 1.0)
    assert [note.split()[0] for note in notes] == ["The", "1"]


def test_a_summary_has_its_own_parts() -> None:
    summary = summary_from_json({"rounds": 3, "members": {"start": 4, "min": 2, "end": None}})
    assert summary.members == MemberCounts(start=4, min=2, end=None)
    assert (summary.rounds, summary.objective) == (3, None)
    assert summary_from_json({"members": [1], "rounds": None}).members is None
