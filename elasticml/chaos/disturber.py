"""Random faults of real worker processes: signals, notices, and a worker that does not answer."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, get_args

from distributed import Client

from elasticml.chaos.temporary_faults import TemporaryFault, Undo
from elasticml.clusters.local.cluster import LocalWorker
from elasticml.errors import ElasticmlError
from elasticml.jobs.announce import announce
from elasticml.runtime.fault_injection import How


class Processes(Protocol):
    """The worker processes of a cluster."""

    def workers(self) -> list[LocalWorker]:
        """List the workers that have not ended."""
        ...

    def lose(self, workers: Sequence[str], how: How = "kill", grace_s: float = 5.0) -> None:
        """End workers, by address."""
        ...

    def bring_back(self, n: int) -> None:
        """Start ``n`` workers; return when they have registered."""
        ...

    def scale(self, n: int) -> None:
        """Start or end workers until there are ``n``."""
        ...


def end_workers(
    cluster: Processes, client: Client, addresses: Sequence[str], how: How, grace_s: float
) -> None:
    """End workers of this machine by signals; after a notice they get SIGTERM at once."""
    victims = [w for w in cluster.workers() if w.address in addresses]
    if how == "notice":
        announce(client, [str(w.address) for w in victims], grace_s=grace_s)
    for worker in victims:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL if how == "kill" else signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class FaultOptions:
    """Faults of workers: kinds, frequency, and their end."""

    #: One of these is drawn for each fault: ``kill``, ``terminate`` or ``notice`` for some workers;
    #: ``half`` or ``all`` (SIGKILL); ``stop`` (SIGSTOP, with or without SIGCONT); ``scale``;
    #: ``deaf``: a thread holds the interpreter's lock, so that the process lives and is silent.
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


#: Shortest and longest time of a fault that ends by itself.
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
        self,
        cluster: Processes,
        members: int,
        seed: int,
        chances: FaultOptions,
        client: Client | None = None,
        temporary: Mapping[str, TemporaryFault] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.members = members
        self.chances = chances
        #: Needed for ``deaf``.
        self.client = client
        #: Further faults, drawn as often as one of the kinds.
        self.temporary = dict(temporary or {})
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
        self._undo: list[Undo] = []
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
        kind = rng.choice((*self.chances.kinds, *self.temporary))
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
        elif kind == "deaf":
            assert self.client is not None
            hold = (hold_interpreter_lock, rng.uniform(*_WHILE_S))
            self._held = self.client.submit(*hold, workers=[rng.choice(addresses)], pure=False)
        elif kind in self.temporary:
            self._later(self.temporary[kind](rng, workers))
        else:
            pid = rng.choice([w.pid for w in workers if w.pid is not None])
            os.kill(pid, signal.SIGSTOP)
            self._later(functools.partial(thaw, pid), chance=0.7)
        self.counts[kind] += 1

    def _later(self, undo: Undo, chance: float = 1.0) -> None:
        """End a fault after a while, or only with all faults."""
        self._undo.append(undo)
        if self.rng.random() < chance:
            self._timers.append(threading.Timer(self.rng.uniform(*_WHILE_S), undo))
            self._timers[-1].start()

    def stop(self) -> None:
        """End the faults, and those that have begun."""
        self.over.set()
        self.join()
        for timer in self._timers:
            timer.cancel()
            timer.join()
        for undo in self._undo:
            undo()


def hold_interpreter_lock(seconds: float) -> None:
    """Keep all other threads of this process from running Python."""
    ctypes.PyDLL(None).usleep(int(1e6 * seconds))


def thaw(pid: int) -> None:
    """Continue a stopped process if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


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
