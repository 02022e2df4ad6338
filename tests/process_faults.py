"""Jobs on real worker processes under random kills."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from distributed import Client

import elasticml as em
from elasticml.errors import ElasticmlError
from elasticml.jobs.result import Result

#: Shortest and longest pause between two draws, and the probabilities of a kill and of replacing
#: missing workers at each draw.
_PAUSE_S: Final = (0.01, 0.25)
_KILL, _REPLACE = 0.6, 0.7
#: No faults while there are only this many workers.
_SPARED: Final = 2


class Disturber(threading.Thread):
    """Kills workers by a seed's draws, and starts new ones."""

    def __init__(
        self,
        cluster: em.LocalCluster,
        members: int,
        seed: int,
        *,
        episodes: int,
        kill_s: float,
    ) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.members = members
        self.rng = random.Random(seed)
        self.over = threading.Event()
        self.episodes = 0
        self.killed = 0
        self.returns = 0
        self._most_episodes = episodes
        self._kill_s = kill_s

    def run(self) -> None:
        """Disturb until it is over; after the last kill workers only return."""
        until_s = time.monotonic() + self._kill_s
        while not self.over.wait(self.rng.uniform(*_PAUSE_S)):
            is_early = time.monotonic() < until_s and self.episodes < self._most_episodes
            # A worker may be about to end by itself, and the scheduler may have ended.
            with contextlib.suppress(ElasticmlError, OSError):
                there = [str(w.address) for w in self.cluster.workers() if w.address is not None]
                if is_early and len(there) > _SPARED and self.rng.random() < _KILL:
                    most = max(1, len(there) // 2 - 1)
                    victims = self.rng.sample(there, self.rng.randint(1, most))
                    self.cluster.lose(victims, "kill", 0.0)
                    self.killed += len(victims)
                    self.episodes += 1
                missing = self.members - len(self.cluster.workers())
                if missing > 0 and self.rng.random() < _REPLACE:
                    self.cluster.bring_back(missing)
                    self.returns += missing

    def stop(self) -> None:
        """End the faults."""
        self.over.set()
        self.join()


def is_over_in_time(handle: Any, disturber: Disturber, limit_s: float) -> bool:
    """Run the disturber until the job ends; False if that takes longer than ``limit_s``."""
    begin_s = time.monotonic()
    disturber.start()
    try:
        while not handle.status().is_over:
            if time.monotonic() - begin_s > limit_s:
                return False
            disturber.over.wait(0.05)
    finally:
        disturber.stop()
    return True


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run under random kills."""

    seed: int
    kills: int
    returns: int
    #: Times that workers were killed, one or several at once.
    episodes: int
    result: Result


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
    disturber = Disturber(cluster, members, seed, episodes=episodes, kill_s=kill_s)
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
