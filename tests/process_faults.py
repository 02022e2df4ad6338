"""Jobs on real worker processes under random kills, for tests and ``tests/bench/kills.py``."""

from __future__ import annotations

from dataclasses import dataclass

from distributed import Client

import elasticml as em
from elasticml.chaos.disturber import Disturber, FaultOptions, is_over_in_time
from elasticml.jobs.result import Result


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run under random kills."""

    seed: int
    kills: int
    returns: int
    #: Times that workers were killed, one or several at once.
    episodes: int
    result: Result


def run_with_random_kills(
    cluster: em.LocalCluster,
    client: Client,
    data: object,
    *,
    seed: int,
    members: int,
    rounds: int,
    absent: str,
    topology: str,
    transport: str = "auto",
) -> Outcome:
    """Train logistic regression under random kills; see ``disturbed``."""
    job = em.Job(
        em.BatchGradient(
            loss="logistic", l2=1e-3, optimizer="gd", intercept=False, tolerance=0.0, scale="none"
        ),
        data,
        name=f"kills-{seed}",
        absent=absent,
        stop=em.Stop(rounds=rounds),
        collective=em.Collective(topology=topology, transport=transport, fan_out=2, deadline=3.0),
        seed=seed,
        chunk_size=2048,
        evaluate=em.Evaluate(every=20),
    )
    return disturbed(cluster, client, job, seed=seed, members=members)


def disturbed(
    cluster: em.LocalCluster,
    client: Client,
    job: em.Job,
    *,
    seed: int,
    members: int,
    episodes: int = 4,
    kill_s: float = float("inf"),
    limit_s: float = 120.0,
) -> Outcome:
    """Run a job while a thread kills random workers and starts new ones, by the seed's draws.

    After ``episodes`` kills, or ``kill_s`` seconds, workers only return, so that all are present
    before the end.

    Raises
    ------
    TimeoutError
        When the job has not ended after ``limit_s``.
    """
    handle = job.start(client)
    chances = FaultOptions(episodes=episodes, seconds=kill_s)
    disturber = Disturber(cluster, members, seed, chances)
    try:
        if not is_over_in_time(handle, disturber, limit_s):
            raise TimeoutError(f"seed {seed}: not done after {limit_s} s: {handle.status()}")
    finally:
        missing = members - len(cluster.workers())
        if missing > 0:
            cluster.bring_back(missing)
    return Outcome(
        seed=seed,
        kills=disturber.killed,
        returns=disturber.returns,
        episodes=disturber.episodes,
        result=handle.result(),
    )
