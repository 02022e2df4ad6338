"""A policy asks for members on a local cluster; other clusters: ``test_stock_demand.py``.

That members which a policy releases end with their workers: ``test_cocoa_example.py``.
"""

from __future__ import annotations

import pytest
from distributed import Client

import elasticml as em
from tests.stock_cluster import endless

pytestmark = pytest.mark.cluster


@pytest.mark.slow
def test_a_policy_gets_members_up_to_the_clusters_maximum() -> None:
    job = endless(holders=2, policies=[{"name": "tests.scaling_policies:Grow"}])
    story, members, refused = [], 0, []
    with (
        em.LocalCluster(4, workers_max=5) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        handle = job.start(client)
        for record in handle:
            story.append(record)
            if record["event"] == "RoundEnded":
                members = max(members, record["members"])
            elif record["event"] == "MembersRefused":
                refused.append(record["count"])
            if members == 5 and refused:
                handle.cancel()
    assert (members, refused) == (5, [2])
    assert "ChunksAbsent" not in {record["event"] for record in story}
    last = [record for record in story if record["event"] == "ExchangeEnded"][-1]
    assert (last["examples"], last["absent_examples"]) == (600, 0)
