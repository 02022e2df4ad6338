"""Read stories: lines into records."""

from __future__ import annotations

import json
from typing import Any

from elasticml.story.json_fields import finite
from elasticml.story.records import StoryRecord, record_from_json


def parse_line(line: str) -> dict[str, Any] | None:
    """Parse a line of a story; None if it is no record, because it was cut off or damaged."""
    try:
        values = json.loads(line)
    except ValueError:
        return None
    if not isinstance(values, dict) or not isinstance(values.get("event"), str):
        return None
    return values


def parse_story(text: str, notes: list[str]) -> tuple[StoryRecord, ...]:
    """Parse the lines of a story; invalid lines are skipped, with a note.

    A record without a time gets the time of its predecessor.
    """
    records: list[StoryRecord] = []
    unreadable = 0
    last_t = 0.0
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        values = parse_line(line)
        if values is not None:
            last_t = values["t"] = finite(values.get("t"), last_t)
            records.append(record_from_json(values))
        elif number == len(lines):
            notes.append("The last line of story.jsonl is cut off and was left out.")
        else:
            unreadable += 1
    if unreadable:
        notes.append(f"{unreadable} lines of story.jsonl could not be read and were left out.")
    return tuple(records)
