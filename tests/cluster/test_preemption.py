"""Pre-emption notices that a cluster posts reach jobs on real processes, and SIGTERM their
story.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em
from elasticml.protocol.notices import ContainerEnded, ContainerMarked, MarkLifted, Notice
from elasticml.runtime.preemption_board import board_of

pytestmark = pytest.mark.cluster

MEMBERS, ROWS = 3, 600
_rng = np.random.default_rng(3)
# Noise, hardly any penalty: the gap does not reach zero during the test.
DATA = em.from_arrays(_rng.normal(size=(ROWS, 12)), np.sign(_rng.normal(size=ROWS)))


@pytest.fixture(scope="module")
def cluster() -> Generator[em.LocalCluster]:
    with em.LocalCluster(MEMBERS, grace_s=60.0) as cluster:
        yield cluster


def post(client: Client, notice: Notice) -> None:
    def post_here(dask_scheduler: Any = None) -> None:
        board_of(dask_scheduler.extensions).post(notice)

    client.run_on_scheduler(post_here)


def test_a_pre_empted_container_is_emptied_and_its_end_is_reported(
    cluster: em.LocalCluster,
) -> None:
    with Client(cluster, set_as_default=False) as client:
        job = em.Job(
            em.CoCoA(loss="hinge", l2=1e-9, intercept=False, tolerance=0.0, scale="none"),
            DATA,
            holders=2,
            stop=em.Stop(rounds=100_000),
        )
        handle = job.start(client)
        address = sorted(client.nthreads())[0]
        story: list[dict[str, Any]] = []
        ends: list[threading.Thread] = []
        for record in handle:
            story.append(record)
            match record["event"]:
                case "RoundEnded" if record["round"] == 3:
                    post(client, ContainerMarked(address=address, grace_s=20.0, negotiable=False))
                case "MemberLost" if not ends:
                    # Its process is asked to end after it was released.
                    names = [w.name for w in cluster.workers() if w.pid == record["pid"]]
                    ends.append(
                        threading.Thread(target=cluster.lose, args=(names, "terminate", 60.0))
                    )
                    ends[0].start()
                case "ContainerStopping":
                    ended = ContainerEnded(
                        address=address, container="container_1", reason="preempted", status=-102
                    )
                    post(client, ended)
                    post(client, MarkLifted(address=address))
                case "ContainerEnded":
                    handle.cancel()
        ends[0].join()
        records = {r["event"]: r for r in story}
        who = records["Reclaimed"]["marked"]
        assert (records["MemberLost"]["member"], records["MemberLost"]["chunks"]) == (who, 0)
        assert records["MemberLost"]["reason"] == "preempted"
        assert (records["ContainerStopping"]["member"], records["ContainerEnded"]["member"]) == (
            who,
            who,
        )
        assert "ChunksAbsent" not in records
        taken = handle.result().summary["preemptions"]
        assert (taken["lost"], taken["rounds_lost"]) == (1, 0)
        assert taken["seconds"]["notice_to_sigterm"] is not None
