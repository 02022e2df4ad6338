"""A NodeManager is killed: its workers live on, and are no longer members."""

from __future__ import annotations

import os
from typing import Any

import psutil
import pytest
from distributed import Client

from elasticml.clusters.yarn.container_context import STARTUP_KEY
from tests.yarn_jobs import WAIT_S, Running, make_cluster
from yarn.mini.mini_settings import node_host

pytestmark = [pytest.mark.yarn, pytest.mark.slow]

#: Workers of 1 GiB; a node of 6 GiB that also has the master holds one less.
MEMBERS = 6


def test_workers_of_a_lost_node_are_fenced_and_replaced(skein_client: Any, mini_yarn: Any) -> None:
    with (
        make_cluster(skein_client, MEMBERS, name="lost-node", deploy_mode="local") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(MEMBERS, timeout=WAIT_S)
        master = skein_client.application_report(cluster.app_id).host
        lost = 1 if master == node_host(0) else 0
        pids = client.run(os.getpid)
        orphans = [
            psutil.Process(pids[address])
            for address, worker in client.scheduler_info(n_workers=-1)["workers"].items()
            if worker[STARTUP_KEY]["node"].startswith(f"{node_host(lost)}:")
        ]
        assert orphans != []
        job = Running(client, "lost-node")
        job.until_whole(MEMBERS)
        mini_yarn.kill_node(lost)
        job.until_recorded("MemberLost", len(orphans))
        _, alive = psutil.wait_procs(orphans, timeout=WAIT_S)
        assert alive == [], "a worker that its scheduler has removed ends"
        job.until_whole(MEMBERS - 1)
        job.stop()
    assert len(job.processes()) == MEMBERS - 1 + len(orphans)
    assert {record["reason"] for record in job.of("MemberLost")} == {"node"}
