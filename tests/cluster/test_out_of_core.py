"""Data larger than the members' memory, on real processes: the same result, and nothing left."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

import elasticml as em
from elasticml.data.convert import convert
from elasticml.data.shapes import synthetic
from elasticml.data.source import Source

#: Some 30 MiB of chunks; a worker of 32 MiB has memory for 19 MiB of bodies.
ROWS = 50_000
SMALL = "32 MiB"


def run(
    algorithm: Any, data: Source, tmp_path: Path, memory: str, members: int, **settings: Any
) -> tuple[em.Result, list[dict[str, Any]]]:
    """Run a job, and look while it runs whether anything named has been spilled."""
    with em.LocalCluster(members, memory_limit=memory) as cluster, Client(cluster) as client:
        handle = em.Job(algorithm, data, evaluate=False, **settings).start(client)
        records = list(handle.events())
        result = handle.result()
        folders = client.run(lambda dask_worker: dask_worker.local_directory).values()
        left = [name for folder in folders for _, _, names in os.walk(folder) for name in names]
    assert [name for name in left if "spill" in name] == []
    return result, records


def went(records: list[dict[str, Any]]) -> set[str]:
    return {record["member"] for record in records if record["event"] == "WentOutOfCore"}


@pytest.mark.parametrize("kind", ["generated", "converted"])
def test_batch_gradients_are_the_same_from_the_disk(tmp_path: Path, kind: str) -> None:
    data: Source = synthetic("rcv1", ROWS, seed=1, dtype="float32")
    if kind == "converted":
        data = convert(data, tmp_path / "made")
    found = []
    for memory in ("auto", SMALL):
        result, records = run(
            em.BatchGradient(l2=1e-3), data, tmp_path, memory, 1, stop=em.Stop(rounds=4)
        )
        assert len(went(records)) == (memory == SMALL)
        found.append(result.summary["objective"] or records[-1])
        model = result.model.coef_
        found.append(model.tobytes())
    assert found[1] == found[3]


def test_a_member_that_takes_over_what_does_not_fit_streams_it(tmp_path: Path) -> None:
    data = synthetic("rcv1", ROWS, seed=1, dtype="float32")
    result, records = run(
        em.CoCoA(loss="hinge", l2=1e-2),
        data,
        tmp_path,
        SMALL,
        2,
        stop=em.Stop(rounds=60, gap=1e-4),
        faults=[{"round": 2, "lose": 1}],
        absent="reload",
    )
    assert len(went(records)) == 1
    assert result.summary["lost"] == 1
    assert result.summary["gap"] <= 1e-4
    assert not result.summary["gap_is_bound"]
    ended = [record for record in records if record["event"] == "RoundEnded"]
    assert ended[-1]["absent_examples"] == 0
