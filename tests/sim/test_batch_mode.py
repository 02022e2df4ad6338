"""``mode: batch``: Lloyd's algorithm by MapReduce, and SimuParallelSGD, as jobs on members."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.kmeans import inertia
from elasticml.algorithms.async_sgd.lloyd import lloyd
from elasticml.sim.simulation import SimResult
from examples.papers.support.clusters import synthetic_clusters
from tests.sim import small_jobs
from tests.unit.algorithms.async_sgd.test_seeding import answered

K = 6
SOURCE = synthetic_clusters(9000, columns=4, clusters=K, spread=0.1, min_distance=0.3)
CHUNKS = [c for block in SOURCE.blocks() for c in SOURCE.read(block.index, 2**14, 1)[0]]
#: Two centres in one cluster: there is work for a few passes.
BEGUN = SOURCE.centres() + 0.05 * np.random.default_rng(1).standard_normal((K, 4))


def play(
    world: dict[str, Any] | None = None, stop: dict[str, Any] | None = None, **algorithm: Any
) -> SimResult:
    settings = {"name": "async_sgd", "problem": "kmeans", "k": K, "seed": 0}
    return small_jobs.play(
        {"compute_s": 1e-6, **(world or {})},
        SOURCE,
        chunk_bytes=2**14,
        algorithm={**settings, "warm_start": {"centres": BEGUN.tolist()}, **algorithm},
        absent="reload",
        stop=stop or {"rounds": None},
        evaluate=None,
        data=SOURCE.spec(),
    )


def test_a_round_is_an_iteration_of_lloyd_over_all_rows() -> None:
    result = play(mode="batch", passes=3)
    centres, values = BEGUN, []
    for _ in range(3):
        values.append(inertia(centres, CHUNKS) / 9000)
        centres = answered(lloyd(centres, 1), CHUNKS)["centres"]
    assert [row["passes"] for row in result.rows] == [1, 2, 3, 3]
    results = [row["objective"] for row in result.rows[:-1]]
    np.testing.assert_allclose(results, values, rtol=1e-12)
    np.testing.assert_allclose(result.arrays["centres"], centres, rtol=1e-12)
    assert result.arrays["counts"].sum() == 9000
    assert result.summary["objective"] == pytest.approx(inertia(centres, CHUNKS) / 9000, rel=1e-12)
    assert (result.summary["stopped_by"], result.summary["converged"]) == ("3 passes", True)


def test_it_ends_when_no_centre_moves() -> None:
    result = play(mode="batch")
    again = answered(lloyd(result.arrays["centres"], 1), CHUNKS)["centres"]
    np.testing.assert_allclose(again, result.arrays["centres"], rtol=1e-12)
    assert result.summary["stopped_by"] == "no centre moves"
    assert result.summary["converged"]


def test_losses_delay_it_and_change_nothing() -> None:
    plain = play(mode="batch", passes=6)
    trace = [{"at": 0.2 + 0.15 * k, "lose": 2, "away": 0.1} for k in range(6)]
    world = {"trace": trace, "start_s": 0.0, "compute_s": 1e-4}
    result = play(world, mode="batch", passes=6)
    assert result.summary["lost"] >= 6
    np.testing.assert_allclose(result.arrays["centres"], plain.arrays["centres"], rtol=1e-12)


def test_simu_parallel_sgd_is_a_job_without_messages() -> None:
    result = play(batch="inf", passes=1, mode="paper")
    row = result.rows[-1]
    assert (row["examples"], row["sent"], row["merged"]) == (9000, 0, 0)
    assert result.summary["stopped_by"] == "1 passes"
    best = inertia(SOURCE.centres(), CHUNKS) / 9000
    assert result.summary["objective"] <= 1.05 * best


def test_a_target_stops_a_job_and_a_warm_start_continues() -> None:
    first = play(report_every=0.02, passes=3.0)
    reached = first.summary["objective"]
    begin = {name: first.arrays[name].tolist() for name in ("centres", "counts")}
    again = play(report_every=0.02, stop={"objective": 1.05 * reached}, warm_start=begin)
    assert again.summary["converged"]
    assert again.rows[0]["objective"] <= 1.05 * reached
    assert again.summary["rounds"] == 1
