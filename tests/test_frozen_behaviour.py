"""The stories of a few simulated jobs are those whose digests are frozen."""

from __future__ import annotations

import json

import pytest

from tests.frozen_behaviour import RUNS, STORIES, digests, processor

FROZEN = json.loads(STORIES.read_text())


@pytest.mark.parametrize("name", RUNS)
def test_a_story_is_the_frozen_one(name: str) -> None:
    found, frozen = digests(name), FROZEN["scenarios"][name]
    if FROZEN["processor"] != processor():
        frozen = {k: v for k, v in frozen.items() if k == "control"}
    assert {k: found[k] for k in frozen} == frozen, (
        "frozen behaviour has changed; if the change is meant, run python -m tests.frozen_behaviour"
    )


def test_each_frozen_story_is_compared() -> None:
    assert FROZEN["scenarios"].keys() == RUNS.keys()
