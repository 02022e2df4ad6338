"""Jobs on real worker processes under random kills, for tests and ``tests/bench/kills.py``."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, get_args

from distributed import Client

import elasticml as em
from elasticml.clusters.local.cluster import LocalWorker
from elasticml.errors import ElasticmlError
from elasticml.jobs.result import Result
from elasticml.runtime.fault_injection import How
from tests.play.faults import send


@dataclass(frozen=True, kw_only=True)
class FaultOptions:
    """Faults of workers: kinds, frequency, and their end."""

    #: One of these is drawn for each fault: ``kill``, ``terminate`` or ``notice`` for some workers;
    #: ``half`` or ``all`` (SIGKILL); ``stop`` (SIGSTOP, with or without SIGCONT); ``scale``.
    kinds: tuple[str, ...] = ("kill",)
    #: Shortest and longest pause between two draws.
    pause_s: tuple[float, float] = (0.01, 0.25)
    #: Probabilities of a fault, and of replacing missing workers, at each draw.
    fault: float = 0.6
    replace: float = 0.7
    #: No faults while there are only this many workers.
    spared: int = 2
    #: Whether a fault may take a full half of the workers; else less than half.
    takes_half: bool = False
    #: Afterwards workers only return.
    episodes: float = float("inf")
    seconds: float = float("inf")
    grace_s: float = 0.5

    def most_of(self, n: int) -> int:
        """Return how many of n workers one fault may take."""
        return max(1, n // 2 if self.takes_half else n // 2 - 1)


#: Shortest and longest time between SIGSTOP and SIGCONT.
_WHILE_S: Final = (0.2, 4.0)
#: Every kind of fault, for eight seconds.
EVERYTHING = FaultOptions(
    kinds=("kill", "kill", "kill", "kill", "terminate", "notice", "stop", "scale", "half", "all"),
    pause_s=(0.02, 0.5),
    fault=1.0,
    replace=0.6,
    spared=0,
    takes_half=True,
    seconds=8.0,
)


class Disturber(threading.Thread):
    """Disturbs workers with a seed's random faults, and starts new ones."""

    def __init__(
        self, cluster: em.LocalCluster, members: int, seed: int, chances: FaultOptions
    ) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.members = members
        self.chances = chances
        self.rng = random.Random(seed)
        self.over = threading.Event()
        #: Faults by kind.
        self.counts: Counter[str] = Counter()
        self.killed = 0
        self.returns = 0
        #: Examples that are absent now, as reported by the job. None: missing workers are replaced
        #: after the last fault, too. A number: only while examples are absent or no worker is left,
        #: because workers released by a policy stay away.
        self.absent: int | None = None
        self._stopped: list[int] = []
        self._timers: list[threading.Timer] = []

    @property
    def episodes(self) -> int:
        """Number of disturbances, each of one or several workers."""
        return self.counts.total()

    def run(self) -> None:
        """Disturb until it is over."""
        until_s = time.monotonic() + self.chances.seconds
        while not self.over.wait(self.rng.uniform(*self.chances.pause_s)):
            is_early = time.monotonic() < until_s and self.episodes < self.chances.episodes
            # A worker may be about to end by itself, and the scheduler may have ended.
            with contextlib.suppress(ElasticmlError, OSError):
                workers = [w for w in self.cluster.workers() if w.address is not None]
                draws_fault = is_early and len(workers) > self.chances.spared
                if draws_fault and self.rng.random() < self.chances.fault:
                    self.disturb(workers)
                missing = self.members - len(self.cluster.workers())
                replaces = is_early or self.absent != 0 or missing == self.members
                if missing > 0 and replaces and self.rng.random() < self.chances.replace:
                    self.cluster.bring_back(missing)
                    self.returns += missing

    def disturb(self, workers: list[LocalWorker]) -> None:
        """Draw one fault of workers that have registered, and inject it."""
        rng, n, addresses = self.rng, len(workers), [str(w.address) for w in workers]
        kind = rng.choice(self.chances.kinds)
        if kind in ("kill", "terminate", "notice"):
            victims = rng.sample(addresses, rng.randint(1, self.chances.most_of(n)))
            how = next(how for how in get_args(How) if how == kind)
            self.cluster.lose(victims, how, self.chances.grace_s)
            self.killed += len(victims)
        elif kind in ("half", "all"):
            victims = addresses if kind == "all" else addresses[: n // 2]
            self.cluster.lose(victims, "kill", 0.0)
            self.killed += len(victims)
        elif kind == "scale":
            self.cluster.scale(rng.randint(1, self.members + 1))
        else:
            pid = rng.choice([w.pid for w in workers if w.pid is not None])
            send(pid, signal.SIGSTOP)
            self._stopped.append(pid)
            if rng.random() < 0.7:
                again = (rng.uniform(*_WHILE_S), send, (pid, signal.SIGCONT))
                self._timers.append(threading.Timer(*again))
                self._timers[-1].start()
        self.counts[kind] += 1

    def stop(self) -> None:
        """End the faults, and those that have begun."""
        self.over.set()
        self.join()
        for timer in self._timers:
            timer.cancel()
            timer.join()
        for pid in self._stopped:
            send(pid, signal.SIGCONT)


def is_over_in_time(handle: Any, disturber: Disturber, limit_s: float) -> bool:
    """Run the disturber until the job ends; False if that takes longer than ``limit_s``."""
    begin_s = time.monotonic()
    disturber.start()
    try:
        while not (status := handle.status()).is_over:
            if disturber.absent is not None:
                disturber.absent = status.absent_examples
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
