"""CoCoA, its policies and the real control machine in a virtual world."""

from __future__ import annotations

import itertools
from statistics import mean
from typing import Any

import numpy as np
import pytest

from elasticml.data.readers.arrays import ArraySource, from_arrays
from elasticml.sim.simulation import Simulation
from elasticml.specification.simulator import Granted, Taken
from examples.papers.support.virtual_study import Plan, record_of, world_of

ROWS, COLUMNS = 1600, 12
HINGE: dict[str, Any] = {"name": "cocoa", "loss": "hinge", "l2": 0.01}


@pytest.fixture(scope="module")
def points() -> ArraySource:
    """Two noisy classes."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((ROWS, COLUMNS)) / np.sqrt(COLUMNS)
    return from_arrays(X, np.sign(X @ rng.standard_normal(COLUMNS) + 0.1 * rng.normal(size=ROWS)))


def played(plan: Plan, source: ArraySource) -> Simulation:
    """Run a plan with all invariants checked after every event; return its world, too."""
    simulation = Simulation(
        {**record_of(plan, source), "evaluate": False},
        source,
        options=world_of(plan, source),
        check_every_event=True,
    )
    for _ in simulation.run():
        pass
    assert simulation.result().error is None
    return simulation


def told(simulation: Simulation, event: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the records of a kind with these fields."""
    return [
        r
        for r in simulation.result().story
        if r["event"] == event and all(r.get(k) == v for k, v in fields.items())
    ]


def owned(simulation: Simulation) -> dict[str, int]:
    """Return the examples by member, from the ledger; every chunk has exactly one owner."""
    ledger = simulation.world.driver.machine.state.ledger
    assert sum(len(chunks) for chunks in ledger.owned.values()) == len(ledger.info)
    return {str(m): ledger.rows_of(m) for m in ledger.owned if ledger.owned[m]}


def drift(simulation: Simulation) -> float:
    """Relative distance of the model of the last certificate from A alpha of the owners' chunks."""
    world = simulation.world
    total = np.zeros(COLUMNS)
    for worker in world.workers.by_address.values():
        if worker.endpoint.is_alive and worker.has_member:
            for chunk in worker.computed_on:
                signs = np.where(chunk.labels > 0, 1.0, -1.0)
                total += (chunk.state["alpha"] * signs) @ chunk.values
    assert world.session.training is not None
    request = world.session.training.exchange
    assert request is not None
    assert request.operation == "certify"
    v = request.model["sent"]
    return float(np.linalg.norm(total / (HINGE["l2"] * ROWS) - v) / np.linalg.norm(v))


# --- fewer and more members --------------------------------------------------------------------


def test_two_to_sixteen_and_back_to_two_members(points):
    step = 0.2
    grants = tuple(Granted(at=step * k, grant=2) for k in range(1, 8))
    notices = tuple(Taken(at=step * (8 + k), lose=2, how="notice", grace=5.0) for k in range(1, 8))
    plan = Plan(
        algorithm=HINGE,
        members=2,
        holders=2,
        trace=grants + notices,
        chunks=64,
        rounds_max=45,
        gap=1e-12,
    )
    simulation = played(plan, points)
    result = simulation.result()
    counts = [int(row["members"]) for row in result.rows[:-1]]
    assert (counts[0], max(counts), counts[-1]) == (2, 16, 2)
    assert told(simulation, "ChunksAbsent") == []
    assert sum(owned(simulation).values()) == ROWS
    duals = [row["dual"] for row in result.rows if row.get("dual") is not None]
    assert all(after >= before - 1e-12 for before, after in itertools.pairwise(duals))
    gaps = [row["gap"] for row in result.rows if row.get("gap") is not None]
    assert min(gaps) >= 0
    assert drift(simulation) <= 1e-12


# --- two holders -------------------------------------------------------------------------------


def test_with_two_holders_every_body_is_on_two_members_and_only_states_move(points):
    plan = Plan(algorithm=HINGE, members=8, holders=2, rounds_max=12, gap=1e-12)
    simulation = played(plan, points)
    ledger = simulation.world.driver.machine.state.ledger
    assert {len(holders) for holders in ledger.holders.values()} == {2}
    workers = simulation.world.workers.by_address.values()
    bodies = sum(len(w.chunks) for w in workers)
    assert bodies == 2 * len(ledger.info)
    held = [sum(chunk.nbytes for chunk in w.chunks.values()) for w in workers]
    assert max(held) <= 1.5 * mean(held)
    late = [r for r in told(simulation, "ChunksMoved") if r["round"] >= 8]
    assert late
    # alpha and step of an example, and a serial.
    assert all(r["bytes"] <= 16 * r["examples"] + 8 * r["chunks"] for r in late)
