"""Local SGD and the real control machine in a virtual world: notices, kills, newcomers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elasticml.data.readers import arrays
from elasticml.data.readers.arrays import ArraySource, from_arrays
from elasticml.sim.simulation import SimResult, Simulation
from elasticml.specification.simulator import Granted, Taken, WorldOptions
from tests.sim.small_jobs import record

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROWS, EPOCHS = 240, 4
SETTINGS: dict[str, Any] = {
    "name": "local_sgd",
    "model": "tests.networks:linear",
    "batch": 2,
    "local_steps": 4,
    "learning_rate": 0.05,
    "epochs": EPOCHS,
}


@pytest.fixture(scope="module")
def points() -> ArraySource:
    """Three noisy classes."""
    rng = np.random.default_rng(7)
    y = rng.integers(0, 3, ROWS).astype(float)
    return from_arrays(
        rng.standard_normal((ROWS, 5)) + 2.0 * rng.standard_normal((3, 5))[y.astype(int)], y
    )


def play(
    source: ArraySource,
    trace: tuple[Any, ...] = (),
    slow: dict[int, float] | None = None,
    **changes: Any,
) -> SimResult:
    result = play_to_end(source, trace, {"slow": slow or {}}, **changes)
    assert result.error is None
    return result


def play_to_end(
    source: ArraySource, trace: tuple[Any, ...], world: dict[str, Any], **changes: Any
) -> SimResult:
    """Play a job to its end, which may be an error."""
    defaults = {"absent": "reload", "stop": {}, "members": {"start": 4, "min": 1}}
    made = record(**{"algorithm": SETTINGS, "evaluate": None, **defaults, **changes})
    kind = {"tick_s": 0.05, **world}
    options = WorldOptions(seed=1, start_s=0.1, compute_s={"other": 1e-3}, trace=trace, **kind)
    simulation = Simulation(made, source, options=options, check_every_event=True)
    for _ in simulation.run():
        pass
    return simulation.result()


def samples(result: SimResult) -> int:
    return sum(row["samples"] for row in result.rows[:-1])


def members(result: SimResult) -> list[int]:
    return [row["members"] for row in result.rows[:-1]]


def test_an_undisturbed_job_takes_every_sample_in_the_planned_rounds(points):
    result = play(points)
    a_round = 4 * 2 * 4
    assert samples(result) == EPOCHS * ROWS
    assert len(result.rows) - 1 == EPOCHS * -(-ROWS // a_round)
    assert result.summary["stopped_by"] == f"{EPOCHS} epochs"


@pytest.mark.parametrize("how", ["kill", "notice"])
@pytest.mark.parametrize("absent", ["reload", "stall", "ignore"])
def test_leaving_and_joining_members_cost_no_sample(points, how, absent):
    trace = (
        Taken(at=0.35, lose=2, how=how, grace=0.2, away=0.3),
        Taken(at=0.9, lose=(0,), how=how, grace=0.2, away=0.2),
        Granted(at=1.2, grant=2),
    )
    result = play(points, trace, absent=absent)
    lost = [r for r in result.story if r["event"] == "MemberLost"]
    assert min(members(result)) < 4 or lost or how == "notice"
    skipped = result.rows[-2]["skipped"]
    assert samples(result) + skipped == EPOCHS * ROWS
    assert skipped == 0 or (absent, how) == ("ignore", "kill")


def test_a_job_that_only_epochs_would_end_does_not_wait_for_ever_for_memory(points, monkeypatch):
    """Three of four are killed for good, and the last one's memory does not hold their chunks."""
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 1500)
    trace = (Taken(at=0.35, lose=3, how="kill", grace=0.0, away=1e9),)
    world = {"limit_bytes": 16_000, "tick_s": 0.5}
    result = play_to_end(points, trace, world, placement="contiguous")
    assert result.error is not None
    assert "absent for 600 s and fit into no member's memory" in result.error["message"]
    assert result.story[-1]["t"] < 700.0
    # With any other end condition the job waits.
    ended = play_to_end(points, trace, world, placement="contiguous", stop={"seconds": 800})
    assert (ended.error, ended.story[-1]["reason"]) == (None, "800 seconds")


def test_a_job_whose_members_are_all_absent_for_long_continues_with_those_who_return(points):
    trace = (Taken(at=0.35, lose=4, how="kill", grace=0.0, away=900.0),)
    result = play_to_end(points, trace, {"tick_s": 0.5})
    assert result.error is None
    assert result.summary["stopped_by"] == f"{EPOCHS} epochs"
    assert result.story[-1]["t"] > 900.0


def test_more_members_take_more_samples_a_round_at_a_higher_rate(points):
    result = play(points, (Granted(at=0.3, grant=4),))
    first, largest = result.rows[0], max(result.rows[:-1], key=lambda row: row["members"])
    assert (first["members"], first["samples"], first["step"]) == (4, 32, 0.05 * 2.0)
    assert largest["members"] == 8
    assert largest["step"] == pytest.approx(0.05 * 8**0.5)
    assert samples(result) == EPOCHS * ROWS


def test_rebalancing_gives_a_slow_member_fewer_samples(points):
    kind = {
        "algorithm": {**SETTINGS, "epochs": 12},
        "policies": [{"name": "rebalance", "tolerance": 0.0, "share": 1.0}],
        "chunk_bytes": 512,
    }
    result = play(points, slow={3: 3.0}, **kind)
    times = [
        list(r["compute_s"].values())
        for r in result.story
        if r["event"] == "ExchangeEnded" and r["operation"] == "train"
    ]
    assert max(times[0]) >= 2.8 * min(times[0])
    assert max(times[-1]) <= 1.5 * min(times[-1])
    assert samples(result) == 12 * ROWS
