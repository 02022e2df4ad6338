"""Data larger than the members' memory, on real processes: the same result, and no remains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from distributed import LocalCluster as StockLocalCluster

import elasticml as em
from elasticml.data.readers.chunk_folder import convert
from elasticml.data.source import Source
from elasticml.errors import ConfigError
from examples.papers.support.shaped_rows import synthetic

#: About 30 MiB of chunks; a worker of 32 MiB has memory for 19 MiB of bodies.
ROWS = 50_000
SMALL = "32 MiB"
#: Memory for 24 MiB of bodies: more than half, whichever member reads most of them, but not all.
LESS_THAN_ALL = "40 MiB"


@dataclass(slots=True)
class Ran:
    """A job's result and story."""

    result: em.Result
    records: list[dict[str, Any]]

    def members_out_of_core(self) -> set[str]:
        """Members that went out of core."""
        return {r["member"] for r in self.records if r["event"] == "WentOutOfCore"}


def run(algorithm: Any, data: Source, memory: str, members: int, **settings: Any) -> Ran:
    """Run a job."""
    with em.LocalCluster(members, memory_limit=memory) as cluster, Client(cluster) as client:
        handle = em.Job(algorithm, data, evaluate=False, **settings).start(client)
        records = list(handle.events())
        return Ran(handle.result(), records)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["generated", "converted"])
def test_batch_gradients_are_the_same_from_disk(tmp_path: Path, kind: str) -> None:
    data: Source = synthetic("rcv1", ROWS, seed=1, dtype="float32")
    if kind == "converted":
        data = convert(data, tmp_path / "made")
    results = []
    for memory in ("auto", SMALL):
        ran = run(
            em.BatchGradient(l2=1e-3, intercept=False, tolerance=0.0, scale="none"),
            data,
            memory,
            1,
            stop=em.Stop(rounds=4),
        )
        assert len(ran.members_out_of_core()) == (memory == SMALL)
        results.append((ran.result.summary["objective"], ran.result.model.coef_.tobytes()))
    assert results[0] == results[1]


def test_a_worker_that_is_ended_for_memory_twice_fails_the_job_with_what_it_needs() -> None:
    data = synthetic("rcv1", 2000, seed=1, dtype="float32")
    solver = em.CoCoA(loss="hinge", l2=1e-8, intercept=False, tolerance=0.0, scale="none")
    job = em.Job(solver, data, evaluate=False, stop=em.Stop(rounds=1_000_000))
    with (
        StockLocalCluster(
            1, processes=False, memory_limit="1GiB", dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        handle = job.start(client)
        next(record for record in handle.events() if record["event"] == "RoundEnded")
        (worker,) = cluster.workers.values()
        event = {"worker": worker.address, "pid": 1, "rss": 2**30}
        cluster.scheduler.log_event("worker-restart-memory", event)
        assert not handle.status().is_over
        cluster.scheduler.log_event("worker-restart-memory", event)
        says = r"a second time .*: it took 1\.0 GiB of 1\.0 GiB, .* needs 1\.3 GiB"
        with pytest.raises(ConfigError, match=says):
            handle.result()


@pytest.mark.slow
def test_a_member_that_takes_over_too_much_streams_it() -> None:
    data = synthetic("rcv1", ROWS, seed=1, dtype="float32")
    ran = run(
        em.CoCoA(loss="hinge", l2=1e-2, intercept=False, tolerance=0.0, scale="none"),
        data,
        LESS_THAN_ALL,
        2,
        stop=em.Stop(rounds=60, gap=1e-4),
        faults=[{"round": 2, "lose": 1}],
        absent="reload",
    )
    lost = {record["member"] for record in ran.records if record["event"] == "MemberLost"}
    assert len(lost) == 1
    assert ran.members_out_of_core() - lost
    assert ran.result.summary["gap"] <= 1e-4
    assert not ran.result.summary["gap_is_bound"]
    ended = [record for record in ran.records if record["event"] == "RoundEnded"]
    assert ended[-1]["absent_examples"] == 0
