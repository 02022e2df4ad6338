"""Whole jobs that ``test_cuda.py`` runs in a separate process, on numba's GPU simulator."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

import elasticml as em
from elasticml.algorithms.cocoa import cuda_solver, device_selection
from elasticml.data.readers.arrays import from_arrays
from tests.sim.small_jobs import VirtualJob, toy_job
from tests.unit.algorithms.cocoa.cuda_simulator import alternating_threads

GAP = 1e-5
_rng = np.random.default_rng(3)
X = _rng.normal(size=(48, 4)) / 2.0
Y = np.sign(X @ _rng.normal(size=4) + 0.1 * _rng.normal(size=48))


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    # Python threads are slow: four per block show the same as a warp.
    monkeypatch.setattr(cuda_solver, "_WARP", 4)
    with alternating_threads(monkeypatch):
        yield


def record(device: str, loss: str = "hinge", **more: Any) -> dict[str, Any]:
    algorithm = {"name": "cocoa", "loss": loss, "l2": 0.5, "device": device, **more}
    return toy_job(
        algorithm=algorithm,
        absent="reload",
        chunk_bytes=512,
        members={"start": 3, "min": 1},
        stop={"rounds": 80, "gap": GAP},
    )


def ended(world: VirtualJob, kills: int = 0) -> list[dict[str, Any]]:
    """Run the world's job to its end; optionally kill a member after this many rounds.

    Returns
    -------
    list of dict
        The rounds of the story.
    """
    if kills:
        world.until(lambda: len(world.events("RoundEnded")) >= kills)
        world.world.workers.serving()[1].kill()
    world.end()
    rows, summary = world.events("RoundEnded"), world.result().summary
    assert summary["gap"] <= GAP
    assert summary["cuda_rounds"] == sum("on_cuda" in row for row in rows)
    return rows


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "logistic", "squared"])
def test_a_job_on_cuda_is_certified_and_says_where_it_was_solved(loss: str) -> None:
    rows = ended(VirtualJob(record("cuda", loss, intercept=True), from_arrays(X, Y)))
    passes = em.CoCoA(loss=loss).epochs
    assert [row["on_cuda"] for row in rows] == [48.0 * passes] * len(rows)
    assert [row["visited"] for row in rows] == [48.0 * passes] * len(rows)


def test_certificates_stay_exact_when_a_member_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_selection, "AUTO_VALUES_MIN", 1)
    world = VirtualJob(record("auto"), from_arrays(X, Y))
    rows = ended(world, kills=2)
    assert len(world.events("MemberLost")) == 1
    assert rows[-1]["on_cuda"] == 48.0


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_the_cpu_is_used_on_request_or_for_small_data(
    device: str,
) -> None:
    rows = ended(VirtualJob(record(device), from_arrays(X, Y)))
    assert all("on_cuda" not in row for row in rows)
