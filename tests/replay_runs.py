"""Replay of a story, compared with the original result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from elasticml.replaying.replay_engine import Replay
from elasticml.story.records import records_from_json


def as_written(story: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Write a story to its file and read it back."""
    return [json.loads(json.dumps(record, default=str)) for record in story]


def replayed(story: Sequence[Mapping[str, Any]], source: Any) -> Replay:
    """Replay a run; raise if bits differ."""
    replay = replay_of(as_written(story), source)
    for _ in replay.run():
        pass
    return replay


def replay_of(story: Sequence[Mapping[str, Any]], source: Any) -> Replay:
    """Make the replay of a story that was read from its file."""
    return Replay(records_from_json(story), source, story[0]["spec"]["algorithm"])


def bits(arrays: Mapping[str, Any]) -> dict[str, bytes]:
    """Return all bytes of a model."""
    return {name: array.tobytes() for name, array in arrays.items()}
