"""The driver machine's state as another process restores it, through JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticml.control.checkpoint_state import remaining_faults
from elasticml.policies.gap_per_container_second import GapPerContainerSecond
from elasticml.policies.knee import ScaleInAtKnee
from elasticml.policies.tune_local_work import TuneLocalWork
from elasticml.specification.sections import Fault
from tests.policy_world import PolicyWorld


def through_json(value):
    return json.loads(json.dumps(value))


def policies():
    return [ScaleInAtKnee(revert=True), GapPerContainerSecond(), TuneLocalWork()]


def worse_with_fewer(members: int, gap: float, tuned: dict[str, Any]) -> float:
    """Decades of a round, with a knee at a gap of 0.01."""
    return (0.5 if gap > 1e-2 else 0.1) if members == 16 else 0.01


@pytest.mark.parametrize("k", range(3), ids=[p.name for p in policies()])
def test_a_resumed_policy_continues_its_trials(k: int) -> None:
    worlds = [
        PolicyWorld([policies()[k]], dict.fromkeys(range(16), 1e-3), brings=worse_with_fewer)
        for _ in range(2)
    ]
    for rounds in (3, 4, 5, 30):
        for world in worlds:
            world.play(rounds)
        resumed = policies()[k]
        resumed.restore(through_json(worlds[1].policies[0].state()))
        worlds[1].policies = [resumed]
    assert worlds[0].suggestions == worlds[1].suggestions != []


@pytest.mark.parametrize(
    ("round", "left"),
    [
        (0, [("lose", 3), ("return", 3), ("lose", 2), ("return", 2)]),
        (10, [("lose", 3), ("return", 3), ("lose", 2), ("return", 2)]),
        # The members lost in round 10 have returned: none is to be restored in round 20.
        (11, [("lose", 2), ("return", 2)]),
        (31, []),
    ],
)
def test_faults_of_earlier_rounds_do_not_happen_again(round, left):
    planned = [
        Fault(round=10, lose=3),
        Fault(round=20, returned=3),
        Fault(round=30, lose=2),
        Fault(round=40, returned=4),
    ]
    assert [(f.kind, f.count) for f in remaining_faults(planned, round)] == left
