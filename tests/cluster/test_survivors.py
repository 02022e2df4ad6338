"""Real processes, real SIGKILL: survivors keep process, data and work; sums stay right."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

import elasticml as em
from elasticml.data.synthetic.splice_sites import synthetic_splice
from tests.process_faults import run_with_random_kills

pytestmark = pytest.mark.cluster

DATA = synthetic_splice(rows=1500, length=30, seed=5)


@pytest.fixture(scope="module")
def cluster() -> Generator[em.LocalCluster]:
    with em.LocalCluster(6) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: em.LocalCluster) -> Generator[Client]:
    with Client(cluster, set_as_default=False) as client:
        yield client


def job(name: str, rounds: int, data: Any = DATA, **changes: object) -> em.Job:
    settings: dict = {
        "stop": em.Stop(rounds=rounds),
        "collective": em.Collective(topology="tree", fan_out=2),
        "absent": "taylor",
        "chunk_size": 2048,
        **changes,
    }
    return em.Job(
        em.BatchGradient(l2=1e-3, optimizer="gd", intercept=False, tolerance=0.0, scale="none"),
        data,
        name=name,
        **settings,
    )


def story(handle: em.Handle, *events: str) -> list[dict]:
    return [record for record in handle if record["event"] in events]


def test_a_killed_inner_node_costs_no_other_member_a_recomputation(client: Client) -> None:
    # Slot 0 is an inner node of the tree of six: the parent of slots 2 and 3.
    faults = [{"round": 3, "lose": [0], "phase": "compute"}, {"round": 6, "return": 1}]
    handle = job("inner", 10, faults=faults).start(client)

    ended = story(handle, "ExchangeEnded")
    done = story(handle, "JobEnded")[0]["computations"]

    for member in ("1.1", "2.1", "3.1", "4.1", "5.1"):
        slot = int(member[0])
        in_sum = sum(int(e["contributors"], 16) >> slot & 1 for e in ended)
        assert done[member] == in_sum == len(ended)
    corrections = [record["corrections"] for record in story(handle, "RoundEnded")]
    assert sum(corrections) == 0, "the tree kept the anchor"


def test_survivors_keep_process_and_data_while_half_the_workers_die_and_return(
    client: Client,
) -> None:
    faults = [{"round": 4, "lose": 3, "how": "kill"}, {"round": 8, "return": 3}]
    handle = job("half", 14, faults=faults).start(client)

    joined = {r["member"]: r["pid"] for r in story(handle, "MemberJoined")}
    lost = {r["member"] for r in story(handle, "MemberLost")}
    returned = story(handle, "GroupReturned")

    assert lost == {"3.1", "4.1", "5.1"}
    assert len(joined) == 9
    assert len(set(joined.values())) == 9, "returned members are new processes"
    assert sum(r["examples"] for r in returned) == sum(
        r["examples"] for r in story(handle, "ChunksAbsent")
    )
    last = story(handle, "ExchangeEnded")[-1]
    assert (last["examples"], last["absent_examples"]) == (1500, 0)


def test_a_notice_with_enough_time_moves_the_chunks_and_loses_nothing(client: Client) -> None:
    faults = [{"round": 3, "lose": 2, "how": "notice", "grace": 8.0}, {"round": 60, "return": 2}]
    handle = job("notice", 80, faults=faults).start(client)

    assert story(handle, "ChunksAbsent") == []
    moved = story(handle, "ChunksMoved")
    assert {r["source"] for r in moved if r["round"] > 0} >= {"4.1", "5.1"}
    assert all(e["absent_examples"] == 0 for e in story(handle, "ExchangeEnded"))


def test_the_loss_of_a_newcomer_makes_no_survivor_read_again(
    cluster: em.LocalCluster, client: Client, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    # Of such scales that gradient descent cannot be done before the newcomer is lost.
    columns = {f"x{k}": 10.0 ** (k / 2) * rng.standard_normal(6000) for k in range(5)}
    table = pa.table({**columns, "y": np.sign(columns["x0"] + rng.standard_normal(6000))})
    pq.write_table(table, tmp_path / "points.parquet", row_group_size=500)
    data = em.read_parquet(str(tmp_path / "points.parquet"), "y")
    endless = em.Stop(seconds=300.0)
    # Without a cache: what the lost member had parsed is not on this disk for the survivors.
    handle = job("newcomer", 1, data=data, stop=endless, absent="auto", cache=False).start(client)

    addresses: dict[str, str] = {}
    lost: list[str] = []
    parsed: list[int] = []
    try:
        for record in (r for batch in handle.batches() for r in batch):
            event = record["event"]
            if event == "MemberJoined":
                addresses[record["member"]] = record["address"]
            elif event == "DataDealt":
                cluster.lose([addresses["0.1"]], "kill")
            elif event == "MemberActive" and record["member"] == "0.2":
                cluster.lose([addresses["0.2"]], "kill")
            elif event == "MemberLost":
                lost.append(record["member"])
                parsed.append(0)
            elif event == "ChunksLoaded" and parsed and record.get("source") is None:
                parsed[-1] += record["parsed_bytes"]
            elif event == "GroupReturned":
                cluster.bring_back(1)
                if len(parsed) == 2:
                    break
    finally:
        handle.cancel()

    # The anchors that survivors send for the lost one are shorter than the running partials.
    assert lost == ["0.1", "0.2"]
    assert parsed[0] > 0
    assert parsed[1] == 0


def test_a_stopped_worker_holds_up_neither_start_nor_end_and_joins_when_it_answers() -> None:
    with em.LocalCluster(3) as cluster, Client(cluster, set_as_default=False) as client:
        stopped = cluster.workers()[1].pid or 0
        os.kill(stopped, signal.SIGSTOP)
        try:
            handle = job("first", 3).start(client)  # the plugin is loaded with it
            assert handle.result().summary["rounds"] == 3
            assert stopped not in {r["pid"] for r in story(handle, "MemberJoined")}
            handle = job("second", 1, stop=em.Stop(seconds=300.0)).start(client)
            joined, round_at = {}, 0
            for record in (r for batch in handle.batches() for r in batch):
                if record["event"] == "MemberJoined":
                    joined[record["pid"]] = round_at
                    if record["pid"] == stopped:
                        break
                elif record["event"] == "RoundEnded" and not round_at:
                    round_at = 1
                    os.kill(stopped, signal.SIGCONT)
            handle.cancel()
        finally:
            os.kill(stopped, signal.SIGCONT)
    assert len(joined) == 3
    assert joined[stopped] == 1, "the others had begun"


@pytest.mark.parametrize(
    "absent",
    [
        "auto",
        pytest.param("taylor", marks=pytest.mark.slow),
        pytest.param("stall", marks=pytest.mark.slow),
        pytest.param("reload", marks=pytest.mark.slow),
    ],
)
def test_a_run_under_random_kills_ends_with_every_example_counted_once(
    cluster: em.LocalCluster, client: Client, absent: str
) -> None:
    outcome = run_with_random_kills(
        cluster, client, DATA, seed=7, members=6, rounds=250, absent=absent, topology="tree"
    )

    checked = [r for r in outcome.result.history if r["objective_kind"] == "exact"]
    checked = [r for r in checked if r.get("objective_full") is not None]
    assert outcome.kills > 0
    assert len(checked) > 3
    for row in checked:
        np.testing.assert_allclose(row["objective"], row["objective_full"], rtol=1e-9)
