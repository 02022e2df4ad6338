"""CoCoA on real processes: kills, reshuffling and scaling leave a certificate of every example."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em

pytestmark = pytest.mark.cluster

GAP = 1e-6
MEMBERS, ROWS = 4, 1200
_rng = np.random.default_rng(3)
_X = _rng.normal(size=(ROWS, 12)) / np.sqrt(12)
DATA = em.from_arrays(_X, np.sign(_X @ _rng.normal(size=12) + 0.1 * _rng.normal(size=ROWS)))
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


def job(name: str, groups: int | str = "auto", **changes: Any) -> em.Job:
    settings = {"stop": em.Stop(gap=GAP, rounds=400), "chunk_size": 2048, "holders": 2, **changes}
    # One pass a round, so that the job has not ended when its faults are due.
    passes = {"groups": groups, "local_epochs": 1.0}
    algorithm = em.CoCoA(
        loss="squared_hinge", l2=1e-2, **passes, intercept=False, tolerance=0.0, scale="none"
    )
    return em.Job(algorithm, DATA, name=name, **settings)


def endless(name: str, **changes: Any) -> em.Job:
    """Make a job whose gap stays above zero during the test: noise, hardly any penalty."""
    settings = {"stop": em.Stop(rounds=100_000), "chunk_size": 2048, "holders": 2, **changes}
    return em.Job(
        em.CoCoA(loss="hinge", l2=1e-9, intercept=False, tolerance=0.0, scale="none"),
        NOISE,
        name=name,
        **settings,
    )


def owned(story: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the examples in the last sum, and the absent ones."""
    last = [record for record in story if record["event"] == "ExchangeEnded"][-1]
    return last["examples"], last["absent_examples"]


def of(story: list[dict[str, Any]], *events: str) -> list[dict[str, Any]]:
    return [record for record in story if record["event"] in events]


def finish(handle: em.Handle) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    result = handle.result()
    return result.history[-1], list(handle)


@pytest.mark.parametrize(
    ("n", "phase"), [(1, "compute"), (1, "move"), (2, "broadcast"), (2, "reduce")]
)
def test_survivors_of_a_kill_reach_the_certified_optimum(
    client: Client, n: int, phase: str
) -> None:
    faults = [{"round": 6, "lose": n, "how": "kill", "phase": phase}]
    last, story = finish(job(f"kill-{n}-{phase}", faults=faults).start(client))
    assert (last["gap"] <= GAP, owned(story)) == (True, (ROWS, 0))
    assert len(of(story, "MemberLost")) == n


@pytest.mark.parametrize("phase", ["compute", "reduce"])
def test_members_of_two_groups_reach_the_certified_optimum_after_a_kill(
    client: Client, phase: str
) -> None:
    faults = [{"round": 4, "lose": 2, "how": "kill", "phase": phase}, {"round": 8, "return": 1}]
    started = job(f"groups-{phase}", groups=2, threads=2, faults=faults).start(client)
    rounds = started.result().history
    last, story = finish(started)
    assert (last["gap"] <= GAP, owned(story)) == (True, (ROWS, 0))
    assert rounds[0]["groups"] == 2 * MEMBERS
    assert len(of(story, "MemberLost")) == 2
    assert {record["nodes"] for record in of(story, "MemberJoined")} <= {1, 2}


def test_a_job_without_a_stop_rule_ends_when_it_is_done(client: Client) -> None:
    result = em.Job(em.CoCoA(loss="squared_hinge", l2=1e-2, scale="none"), DATA, name="done").run(
        client
    )
    assert result.summary["converged"]
    assert result.summary["gap"] <= 1e-4 * result.summary["objective"]
    assert "0.0001 of the objective" in of(result.story, "JobEnded")[-1]["reason"]
    assert result.model.intercept_[0] != 0.0


def test_half_of_the_members_are_killed_in_two_rounds_and_replaced(client: Client) -> None:
    faults = [
        {"round": 4, "lose": 2, "how": "kill", "phase": "compute"},
        {"round": 7, "return": 2},
        {"round": 9, "lose": 2, "how": "kill", "phase": "apply"},
        {"round": 12, "return": 2},
    ]
    last, story = finish(job("half", faults=faults).start(client))
    assert (last["gap"] <= GAP, last["members"], owned(story)) == (True, MEMBERS, (ROWS, 0))


def test_reshuffling_in_every_round_moves_states_and_no_bodies(client: Client) -> None:
    handle = endless("redeal").start(client)
    story, moves = [], []
    for record in handle:
        story.append(record)
        if record["event"] == "ChunksMoved" and record["round"] > 1:
            moves.append(record)
            if len({move["round"] for move in moves}) == 5:
                handle.cancel()
    # A state is two doubles an example and a number.
    states = sum(16 * move["examples"] + 8 * move["chunks"] for move in moves)
    assert (sum(move["bytes"] for move in moves), owned(story)) == (states, (ROWS, 0))


def test_a_cluster_scaled_during_a_job_gives_and_takes_members(
    cluster: em.LocalCluster, client: Client
) -> None:
    handle = endless("scale").start(client)
    story, scaling = [], []

    def scale(n: int) -> None:
        # In a thread: a scale-in returns when the members are empty, which takes rounds.
        scaling.append(threading.Thread(target=cluster.scale, args=(n,)))
        scaling[-1].start()

    for record in handle:
        story.append(record)
        members = record["members"] if record["event"] == "RoundEnded" else None
        match members, len(scaling):
            case (4, 0):
                scale(2)
            case (2, 1):
                scale(4)
            case (4, 2):
                handle.cancel()
    for thread in scaling:
        thread.join()
    assert (of(story, "ChunksAbsent"), owned(story)) == ([], (ROWS, 0))
    assert len(scaling) == 2


def test_a_policy_retires_members_and_their_workers_end(
    cluster: em.LocalCluster, client: Client
) -> None:
    stop, policies = em.Stop(gap=GAP, rounds=400), [{"name": "tests.scaling_policies:Shrink"}]
    last, story = finish(job("retire", stop=stop, policies=policies).start(client))
    there = [w.name for w in cluster.workers() if w.state == "running"]
    assert (last["gap"] <= GAP, last["members"], owned(story)) == (True, MEMBERS - 1, (ROWS, 0))
    assert (len(there), of(story, "ChunksAbsent")) == (MEMBERS - 1, [])


def test_a_policy_gets_members_up_to_the_clusters_maximum(
    cluster: em.LocalCluster, client: Client
) -> None:
    handle = endless("grow", policies=[{"name": "tests.scaling_policies:Grow"}]).start(client)
    story, members, refused = [], 0, []
    for record in handle:
        story.append(record)
        if record["event"] == "RoundEnded":
            members = max(members, record["members"])
        elif record["event"] == "MembersRefused":
            refused.append(record["count"])
        if members == MEMBERS + 1 and refused:
            handle.cancel()
    assert (members, refused, owned(story)) == (MEMBERS + 1, [2], (ROWS, 0))
