"""The frozen digests cover the intended scenarios.

The comparison of simulated stories itself happens while ``tests/sim`` runs: see
``tests/frozen_behaviour.py``.
"""

from __future__ import annotations

from typing import Any

import pytest

from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import Simulation
from tests import frozen_behaviour
from tests.sim.small_jobs import points, record

HINGE = {"name": "cocoa", "loss": "hinge", "l2": 1e-2}
FAULTS = [
    {"round": 2, "lose": 2, "how": "kill", "phase": "compute"},
    {"round": 4, "return": 2},
    {"round": 6, "lose": 1, "how": "notice", "grace": 1.0},
]
#: Name, changes of the record, and the world.
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gradient": ({"faults": FAULTS, "stop": {"rounds": 8}}, {}),
    "cocoa": (
        {
            "algorithm": HINGE,
            "absent": "reload",
            "holders": 2,
            "policies": [{"name": "shuffle"}],
            "faults": FAULTS,
            "stop": {"rounds": 8},
        },
        {"jitter": 0.5, "slow": {2: 3.0}},
    ),
}


def simulation(name: str) -> Simulation:
    changes, world = RUNS[name]
    return Simulation(record(**changes), points(), options=options_from_section(world))


@pytest.mark.parametrize("name", RUNS)
def test_a_simulated_run_has_a_frozen_digest(name: str) -> None:
    made = simulation(name)
    frozen_behaviour.watch_simulations()
    key = frozen_behaviour.scenario_of(made.world)
    for _ in made.run():
        pass
    assert made.result().error is None
    assert key in frozen_behaviour.stories.compared or frozen_behaviour.is_writing()


def test_the_frozen_scenarios_are_those_of_the_suites() -> None:
    assert len(frozen_behaviour.stories.known["scenarios"]) > 100


@pytest.mark.parametrize("is_same", [True, False])
def test_digests_that_need_torch_are_kept_where_it_is_missing(is_same: bool) -> None:
    network = {"control": "c", "values": "v", "title": "local_sgd absent reload faults []"}
    linear = {"control": "c", "values": "v", "title": "cocoa absent reload faults []"}
    made = {"new": {**linear, "control": "n"}}
    processor = frozen_behaviour.processor() if is_same else "another"
    former = {"processor": processor, "scenarios": {"net": network, "old": linear}}
    kept, notes = frozen_behaviour.renewed(former, made, made, has_torch=False)
    values = {"values": "v"} if is_same else {}  # bits of another processor are not comparable
    assert kept == {**made, "net": {"control": "c", "title": network["title"], **values}}
    assert notes[2:] == [
        "1 kept as they were: there is no PyTorch here to make them",
        "1 deleted that no test makes now: old",
    ]
    kept, notes = frozen_behaviour.renewed(former, made, made, has_torch=True)
    assert kept == made
    assert notes[2:] == ["2 deleted that no test makes now: net, old"]
