"""Policies on a local cluster that grows and shrinks; other clusters: ``test_stock_demand.py``."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em

pytestmark = pytest.mark.cluster

MEMBERS, ROWS = 4, 1200
_rng = np.random.default_rng(3)
NOISE = em.from_arrays(_rng.normal(size=(ROWS, 12)), np.sign(_rng.normal(size=ROWS)))


@pytest.fixture(scope="module")
def cluster() -> Generator[em.LocalCluster]:
    with em.LocalCluster(MEMBERS, workers_max=MEMBERS + 1) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: em.LocalCluster) -> Generator[Client]:
    cluster.scale(MEMBERS)
    with Client(cluster, set_as_default=False) as client:
        yield client


def start(client: Client, *policies: str) -> em.Handle:
    """Start a job whose gap stays above zero during the test: noise, hardly any penalty."""
    return em.Job(
        em.CoCoA(loss="hinge", l2=1e-9, intercept=False, tolerance=0.0, scale="none"),
        NOISE,
        stop=em.Stop(rounds=100_000),
        chunk_size=2048,
        holders=2,
        policies=[{"name": f"tests.scaling_policies:{name}"} for name in policies],
    ).start(client)


def check_whole(story: list[dict[str, Any]]) -> None:
    """Check that members left in order, and that the last sum is over all examples."""
    assert not [record for record in story if record["event"] == "ChunksAbsent"]
    last = [record for record in story if record["event"] == "ExchangeEnded"][-1]
    assert (last["examples"], last["absent_examples"]) == (ROWS, 0)


def test_a_policy_retires_members_and_their_workers_end(
    cluster: em.LocalCluster, client: Client
) -> None:
    handle, story = start(client, "Shrink"), []
    for record in handle:
        story.append(record)
        if record["event"] == "RoundEnded" and record["members"] == MEMBERS - 1:
            handle.cancel()
    check_whole(story)
    assert len([w for w in cluster.workers() if w.state == "running"]) == MEMBERS - 1


def test_a_policy_gets_members_up_to_the_clusters_maximum(client: Client) -> None:
    handle = start(client, "Grow")
    story, members, refused = [], 0, []
    for record in handle:
        story.append(record)
        if record["event"] == "RoundEnded":
            members = max(members, record["members"])
        elif record["event"] == "MembersRefused":
            refused.append(record["count"])
        if members == MEMBERS + 1 and refused:
            handle.cancel()
    check_whole(story)
    assert (members, refused) == (MEMBERS + 1, [2])
