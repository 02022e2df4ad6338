"""A simulated run with any faults is replayed from its story bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticml.data.readers.arrays import from_arrays
from elasticml.errors import ConfigError, DataError, JobFailedError
from elasticml.replaying.replay_engine import Replay
from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import SimResult, simulate
from elasticml.story.records import RoundEnded
from tests.replay_runs import as_written, bits, replay_of, replayed
from tests.sim.small_jobs import play, points, record

GD = {"name": "batch_gradient", "l2": 1e-2}
HINGE = {"name": "cocoa", "loss": "hinge", "l2": 1e-2}
GROUPS = {"name": "cocoa", "loss": "hinge", "l2": 1e-2, "groups": 3, "local_epochs": 2}
LOGISTIC = {"name": "cocoa", "loss": "logistic", "l2": 1e-2}
LASSO = {"name": "primal_cocoa", "l1": 0.05}
UNGATHERED = {**LASSO, "gather": False}
CLASSES = {"name": "primal_cocoa", "loss": "logistic", "l1": 0.02}
RULES = {
    "batch_gradient": ("taylor", "ignore", "reload", "stall"),
    "cocoa": ("reload", "freeze"),
    "primal_cocoa": ("reload", "freeze"),
}
ROUNDS = 14


def wide(algorithm: dict[str, Any]) -> Any:
    """Make forty columns, for chunks of two."""
    rng = np.random.default_rng(9)
    X = rng.standard_normal((40, 40))
    y = X[:, :4].sum(axis=1) + 0.1 * rng.normal(size=40)
    return from_arrays(X, np.sign(y) if algorithm is CLASSES else y, by="columns")


def assert_replays(result: SimResult, source: Any = None) -> Replay:
    replay = replayed(result.story, source or points())
    assert bits(replay.result_arrays()) == bits(result.arrays)
    return replay


@st.composite
def schedules(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a job, and a world in which members are killed, leave, return, and are slow."""
    kinds = [GD, HINGE, GROUPS, LOGISTIC, LASSO, UNGATHERED, CLASSES]
    algorithm = draw(st.sampled_from(kinds))
    how = draw(st.sampled_from(["kill", "notice", "terminate"]))
    world = {
        "seed": draw(st.integers(0, 2**16)),
        "jitter": draw(st.sampled_from([0.0, 0.5])),
        "slow": draw(st.sampled_from([{}, {2: 3.0}])),
        "preemption": {
            "rate": draw(st.sampled_from([20.0, 150.0])),
            "away": [0.002, 0.02],
            "how": how,
            "grace": 0.01,
        },
    }
    changes = {
        "algorithm": algorithm,
        "absent": draw(st.sampled_from(RULES[str(algorithm["name"])])),
        "holders": draw(st.sampled_from([1, 2])),
        "policies": draw(st.sampled_from([[], [{"name": "rebalance"}], [{"name": "shuffle"}]])),
        "collective": {"topology": draw(st.sampled_from(["star", "tree"])), "fan_out": 2},
        "stop": {"rounds": ROUNDS},
    }
    return world, changes


@settings(max_examples=18)
@given(schedule=schedules())
def test_random_faults_replay_bit_for_bit(schedule: tuple[dict[str, Any], dict[str, Any]]) -> None:
    world, changes = schedule
    algorithm = changes["algorithm"]
    source = wide(algorithm) if algorithm["name"] == "primal_cocoa" else points()
    result = simulate(record(**changes), source, options=options_from_section(world))
    assert_replays(result, source)


@pytest.mark.parametrize("algorithm", [LASSO, UNGATHERED, CLASSES])
def test_kills_of_members_that_own_columns_replay(algorithm: dict[str, Any]) -> None:
    faults = [
        {"round": 1, "lose": 2, "how": "kill", "phase": "compute"},
        {"round": 2, "return": 2},
    ]
    source = wide(algorithm)
    value = record(algorithm=algorithm, absent="reload", faults=faults, stop={"gap": 1e-8})
    result = simulate(value, source)
    lost = sum(r["event"] == "MemberLost" for r in result.story)
    assert (lost, result.summary["converged"]) == (2, True)
    assert_replays(result, source)


@pytest.mark.parametrize("topology", ["star", "tree"])
@pytest.mark.parametrize("absent", ["taylor", "reload"])
def test_a_kill_a_notice_and_a_return_replay(topology: str, absent: str) -> None:
    faults = [
        {"round": 4, "lose": 2, "how": "kill", "phase": "compute"},
        {"round": 8, "return": 2},
        {"round": 12, "lose": 1, "how": "notice", "grace": 1.0},
    ]
    collective = {"topology": topology, "fan_out": 2}
    result = play(faults=faults, absent=absent, collective=collective, stop={"rounds": 18})
    replay = assert_replays(result)
    request = sum(r["event"] == "ExchangeEnded" for r in result.story)
    assert (replay.round, replay.exchanges) == (18, request)


def test_a_round_s_model_is_its_snapshot() -> None:
    result = play(stop={"rounds": 9})
    records = as_written(result.story)
    replay = replay_of(records, points())
    models = {r.round: bits(replay.model_of(r)) for r in replay.run() if isinstance(r, RoundEnded)}
    assert models == {n: bits(result.snapshots[n]) for n in range(9)}


def changed(result: SimResult, event: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the story with the third record of a kind changed."""
    story = as_written(result.story)
    results = [r for r in story if r["event"] == event]
    results[2 if len(results) > 2 else 0].update(fields)
    return story


def test_another_order_of_additions_is_detected_at_the_next_exchange() -> None:
    result = play(collective={"topology": "star"}, stop={"rounds": 6})
    third = [r for r in result.story if r["event"] == "ExchangeEnded"][2]
    swapped = "(" + "+".join(reversed(third["order"].strip("()").split("+"))) + ")"
    after = third["exchange"] + 1
    with pytest.raises(JobFailedError, match=rf"first at round \d+, exchange {after} "):
        replayed(changed(result, "ExchangeEnded", order=swapped), points())


def test_other_data_are_refused() -> None:
    result = play(stop={"rounds": 3})
    rng = np.random.default_rng(8)
    other = from_arrays(rng.standard_normal((240, 5)), np.sign(rng.standard_normal(240)))
    with pytest.raises(DataError, match=r"block 0 of the data has digest .* put the old files"):
        replayed(result.story, other)


def test_other_versions_and_processors_are_refused() -> None:
    result = play(stop={"rounds": 3})
    versions = {**result.story[0]["versions"], "numpy": "1.0"}
    with pytest.raises(ConfigError, match=r"numpy is .* here, the run had 1\.0.*install numpy 1"):
        replayed(changed(result, "JobStarted", versions=versions), points())
    with pytest.raises(ConfigError, match=r"that of member .* was z80-0"):
        replayed(changed(result, "MemberJoined", cpu="z80-0"), points())


def test_a_nondeterministic_job_is_refused() -> None:
    result = play(stop={"rounds": 2}, deterministic=False)
    with pytest.raises(ConfigError, match="deterministic: false"):
        replayed(result.story, points())


def test_members_fenced_while_they_computed_return_with_their_steps() -> None:
    returns = 0
    for seed in range(8):
        world = {"seed": seed, "jitter": 2.5, "slow": {2: 8.0, 4: 4.0}, "compute_s": 2e-3}
        changes = {
            "algorithm": HINGE,
            "absent": "reload",
            "holders": 1 + seed % 2,
            "collective": {"topology": "star", "deadline": 0.02},
            "stop": {"rounds": ROUNDS, "seconds": 30},
        }
        result = simulate(record(**changes), points(), options=options_from_section(world))
        joined = [r for r in result.story if r["event"] == "MemberJoined"]
        returns += sum(bool(r.get("computed")) for r in joined)
        assert_replays(result)
    assert returns > 0
