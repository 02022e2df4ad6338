"""A job goes on from its checkpoints in another process: other members, read anew, same optimum."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticml.data.arrays import from_arrays
from elasticml.errors import ConfigError, DataError
from elasticml.runtime.checkpoints import read_checkpoint
from tests.memory_world import World

N_ROWS, N_COLUMNS = 400, 12
BATCH_GRADIENT = {"name": "batch_gradient", "loss": "logistic", "l2": 1e-2}
COCOA = {"name": "cocoa", "loss": "hinge", "l2": 1e-2, "seed": 0}


def rows(seed: int = 3) -> Any:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N_ROWS, N_COLUMNS))
    y = np.where(X @ rng.normal(size=N_COLUMNS) + rng.normal(size=N_ROWS) > 0, 1.0, -1.0)
    return from_arrays(X, y)


def record(place: Path, algorithm: dict[str, Any], **changes: Any) -> dict[str, Any]:
    made = {
        "version": 1,
        "job": "job",
        "name": "job",
        "chunk_bytes": 2048,
        "algorithm": algorithm,
        "absent": "auto",
        "stop": {"rounds": 30},
        "seed": 0,
        "members": {"start": 3, "min": 1},
        "checkpoint": {"path": str(place), "every_s": 0},
    }
    return {**made, **changes}


def run(
    record: dict[str, Any],
    *,
    source: Any = None,
    members: int | None = None,
    turn: Callable[[World, int], None] = lambda world, k: None,
    at_end: Callable[[World], None] = lambda world: None,
) -> World:
    """Run a job to its end."""

    async def live() -> World:
        world = World(record, source=source or rows())
        for _ in range(members or record["members"]["start"]):
            await world.add()
        await world.run(lambda k: turn(world, k))
        at_end(world)
        return world

    world = asyncio.run(live())
    assert world.shell.state == "done", world.shell.error
    return world


def cut(record: dict[str, Any], place: Path, at_round: int, source: Any = None) -> World:
    """Run a job, and copy what a kill -9 in a round would leave to ``place``."""

    def copy(world: World, k: int) -> None:
        if world.shell.driver.state.round >= at_round and not place.exists():
            shutil.copytree(record["checkpoint"]["path"], place)

    return run(record, source=source, turn=copy)


def coef(world: World) -> Any:
    training = world.shell.desk.training
    assert training is not None
    return training.last_arrays()["coef"]


def resumed(place: Path, algorithm: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return record(place, algorithm, resume=str(place), **changes)


@pytest.mark.parametrize("step", ["constant", "decay"])
def test_descent_without_a_search_goes_on_bit_for_bit(tmp_path: Path, step: str) -> None:
    algorithm = {**BATCH_GRADIENT, "step": step, "scale": "standard"}
    whole = cut(record(tmp_path / "whole", algorithm), tmp_path / "cut", at_round=12)
    again = run(resumed(tmp_path / "cut", algorithm))
    assert np.array_equal(coef(whole), coef(again))
    assert [r["objective"] for r in whole.shell.journal.rows] == [
        r["objective"] for r in again.shell.journal.rows
    ]
