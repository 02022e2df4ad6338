"""Story records: their JSON, and stories of other versions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticml.story.reader import parse_story
from elasticml.story.records import (
    ExchangeEnded,
    UnknownRecord,
    record_from_json,
    records_from_json,
)
from tests.sim.small_jobs import play


def test_the_records_of_a_run_have_the_same_json_when_they_are_read_again() -> None:
    faults = [{"round": 2, "lose": 2, "how": "kill", "phase": "compute"}, {"round": 4, "return": 2}]
    story = json.loads(json.dumps(list(play(faults=faults, stop={"rounds": 8}).story), default=str))
    records = records_from_json(story)
    assert [json.dumps(record.to_json()) for record in records] == [json.dumps(r) for r in story]
    assert not any(isinstance(record, UnknownRecord) for record in records)


@pytest.mark.parametrize(
    "value", [None, "many", [1], {"a": 1}, True, float("nan"), float("inf"), 1e400]
)
def test_damaged_values_count_as_missing(value: Any) -> None:
    record = record_from_json(
        {"event": "ExchangeEnded", "exchange": value, "start_t": value, "anchor_parts": [value]}
    )
    assert isinstance(record, ExchangeEnded)
    assert (record.exchange, record.start_t, record.anchor_parts) == (0, None, ())


def test_unknown_fields_and_events_are_kept() -> None:
    newer = {"t": 1.0, "event": "MemberSpare", "cause": "", "member": "0.1", "mood": "good"}
    assert record_from_json(newer).to_json() == newer
    strange = {"t": 1.0, "event": "MemberSang", "cause": "", "song": ["la", "la"]}
    record = record_from_json(strange)
    assert isinstance(record, UnknownRecord)
    assert (record.event, record.to_json()) == ("MemberSang", strange)


def test_invalid_lines_are_skipped_with_a_note() -> None:
    notes: list[str] = []
    lines = ['{"t": 1.0, "event": "RoundStarted"}', "[1]", '{"event": "RoundStarted"}', '{"t": 2']
    first, second = parse_story("\n".join(lines), notes)
    assert (first.t, second.t) == (1.0, 1.0)
    assert [note.split()[0] for note in notes] == ["The", "1"]
