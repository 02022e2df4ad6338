"""Random kills of real worker processes, for tests and for the longer study in tests/bench."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
from distributed import Client

import elasticml as em
from elasticml.errors import ElasticmlError
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
        em.BatchGradient(loss="logistic", l2=1e-3, optimizer="gd"),
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
    """Run a job while a thread kills random workers and starts new ones, with the seed's chances.

    After so many ``episodes`` of killing, or ``kill_s`` seconds, workers only come back, so that
    everybody is there again before the end.

    Raises
    ------
    TimeoutError
        When the job has not ended after ``limit_s``.
    """
    rng = np.random.default_rng(seed)
    handle = job.start(client)
    began_s = time.monotonic()
    over = threading.Event()
    counts = {"kills": 0, "returns": 0, "episodes": 0}

    def disturb() -> None:
        while not over.wait(float(rng.uniform(0.01, 0.25))):
            there = [w.address for w in cluster.workers() if w.address is not None]
            is_early = time.monotonic() - began_s < kill_s
            may_kill = counts["episodes"] < episodes and len(there) > 2 and is_early
            if may_kill and rng.random() < 0.6:
                n = int(rng.integers(1, max(2, len(there) // 2)))
                chosen = [str(a) for a in rng.choice(there, size=n, replace=False)]
                try:
                    cluster.lose(chosen, "kill", 0.0)
                except ElasticmlError:  # one of them is about to go by itself
                    continue
                counts["kills"] += n
                counts["episodes"] += 1
            missing = members - len(cluster.workers())
            if missing > 0 and rng.random() < 0.7:
                cluster.bring_back(missing)
                counts["returns"] += missing

    disturber = threading.Thread(target=disturb, daemon=True)
    disturber.start()
    try:
        while handle.status().state in ("loading", "running"):
            if time.monotonic() - began_s > limit_s:
                raise TimeoutError(f"seed {seed}: not done after {limit_s} s: {handle.status()}")
            over.wait(0.05)
    finally:
        over.set()
        disturber.join()
        missing = members - len(cluster.workers())
        if missing > 0:
            cluster.bring_back(missing)
    return Outcome(seed=seed, result=handle.result(), **counts)
