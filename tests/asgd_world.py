"""Free-running members in virtual time: costs of samples and messages, real arithmetic on request.

A small world for studies of sending rules and merges: members compute at a fixed cost a sample,
sixteen share a network card whose egress is served first come, first served, and a mailbox has one
place, which the next message overwrites. Ingress is not modelled.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from elasticml.algorithms.async_sgd.base import Queue
from elasticml.algorithms.async_sgd.sampler import Sampler


@dataclass(frozen=True)
class Link:
    """Egress of one network card."""

    bytes_per_second: float
    latency_s: float
    members: int = 16

    def scaled(self, share):
        return replace(self, bytes_per_second=self.bytes_per_second * share)


GIGABIT = Link(118e6, 100e-6)
TEN_GIGABIT = Link(1.18e9, 100e-6)
INFINIBAND = Link(6e9, 2e-6)
#: Seconds a sample at 4 GFlop/s: D = K = 10, and D = K = 100.
SMALL_S, LARGE_S = 0.15e-6, 5.1e-6


@dataclass(frozen=True)
class Costs:
    link: Link
    seconds_per_sample: float
    message_bytes: int
    post_s: float = 2e-6


def state_bytes(clusters, columns, share=1.0):
    """A message in single precision with its header."""
    return int(4 * clusters * columns * share) + 64


def critical_batch(costs):
    """``g S / (B c)``: where messages are sent as fast as the card sends them."""
    link = costs.link
    return link.members * costs.message_bytes / (link.bytes_per_second * costs.seconds_per_sample)


@dataclass
class Member:
    chunks: list[Any] = field(default_factory=list)
    sampler: Sampler | None = None
    state: Any = None
    controller: Any = None
    batch: int = 0
    processed: int = 0
    #: Ends of transmission of what is posted, in order.
    unsent: deque = field(default_factory=deque)
    #: (arrival, posted, mail), in order of arrival.
    coming: list = field(default_factory=list)
    chance: Any = None


@dataclass
class World:
    """``run`` until every member has processed ``samples``, or ``seconds`` have passed."""

    costs: Costs
    n_members: int
    controller: Callable[[], Any]
    batch: int
    places: int = 16
    newest: bool = False
    sends: int = 1
    problem: Any = None
    seed: int = 0
    #: Chance that a member is lost in 100 ms; it comes back at once, with its examples.
    churn: float = 0.0
    newcomer: str = "peer"
    start: Any = None
    window: int = 16

    now: float = 0.0
    link_busy_s: float = 0.0
    stalled_s: float = 0.0
    queue_max: int = 0
    posted: int = 0
    merged: int = 0
    accepted: int = 0
    overwritten: int = 0
    skipped: int = 0
    losses: int = 0
    ages: list = field(default_factory=list)
    #: (time, size) of every mini-batch of every member.
    sizes: list = field(default_factory=list)

    def prepare(self, chunks_of_members=None):
        self.members = [Member() for _ in range(self.n_members)]
        self.free_at = [0.0] * (-(-self.n_members // self.costs.link.members))
        for i, member in enumerate(self.members):
            member.controller, member.batch = self.controller(), self.batch
            member.chance = np.random.default_rng([7, self.seed, i])
            if self.problem is not None:
                member.chunks = chunks_of_members[i]
                member.sampler = Sampler(member.chunks, seed=self.seed, window=self.window)
                member.state = self.problem.begin(self.start)
        return self

    def run(self, *, samples=float("inf"), seconds=float("inf"), passes=None):
        faults = np.random.default_rng([8, self.seed])
        next_fault = 0.1 if self.churn else float("inf")
        # The order of members that start together must not matter: they start apart.
        events = [(i * 1e-9, i) for i in range(self.n_members)]
        pending = {}
        heapq.heapify(events)
        while events:
            now, i = heapq.heappop(events)
            if now > seconds:
                continue
            while now >= next_fault:
                for k in np.flatnonzero(faults.random(self.n_members) < self.churn):
                    self._lose(int(k))
                next_fault += 0.1
            self.now = max(self.now, now)
            member = self.members[i]
            if i in pending:
                now = self._end_of_batch(i, now, pending.pop(i))
                self.now = max(self.now, now)
            ended = member.processed >= samples
            if member.sampler is not None and passes is not None:
                ended = ended or member.sampler.passes >= passes
            if ended:
                continue
            drawn = None if member.sampler is None else member.sampler.next(member.batch)
            size = int(min(member.batch, samples - member.processed))
            size = size if drawn is None else drawn.size
            pending[i] = (size, drawn)
            heapq.heappush(events, (now + size * self.costs.seconds_per_sample, i))
        return self

    def _end_of_batch(self, i, now, done):
        size, drawn = done
        member = self.members[i]
        member.processed += size
        self.sizes.append((now, size))
        if drawn is not None:
            self.problem.step(member.state, drawn)
        self._read_mail(member, now)
        while member.unsent and member.unsent[0] <= now:
            member.unsent.popleft()
        fill = len(member.unsent) / self.places
        for _ in range(self.sends if self.n_members > 1 else 0):
            now = self._post(i, now)
        self.queue_max = max(self.queue_max, len(member.unsent))
        queue = Queue(fill=fill, examples=member.processed, seconds=now)
        member.batch = member.controller.next(member.batch, queue)
        return now

    def _read_mail(self, member, now):
        arrived = []
        while member.coming and member.coming[0][0] <= now:
            arrived.append(heapq.heappop(member.coming))
        if not arrived:
            return
        self.overwritten += len(arrived) - 1
        _, _, posted, mail = arrived[-1]
        self.ages.append(now - posted)
        self.merged += 1
        if mail is not None:
            self.accepted += self.problem.merge(member.state, mail)

    def _post(self, i, now):
        member = self.members[i]
        if len(member.unsent) >= self.places:
            if self.newest:
                self.skipped += 1
                return now
            free = member.unsent.popleft()
            self.stalled_s += max(0.0, free - now)
            now = max(now, free)
        to = int(member.chance.integers(self.n_members - 1))
        to += to >= i
        mail = None
        if self.problem is not None:
            mail = self.problem.message(member.state, member.chance)
        card, link = i // self.costs.link.members, self.costs.link
        service = self.costs.message_bytes / link.bytes_per_second
        begin = max(now, self.free_at[card])
        self.free_at[card] = end = begin + service
        self.link_busy_s += service
        member.unsent.append(end)
        self.posted += 1
        heapq.heappush(self.members[to].coming, (end + link.latency_s, self.posted, now, mail))
        return now + self.costs.post_s

    def _lose(self, i):
        self.losses += 1
        member = self.members[i]
        member.coming.clear()
        if self.newcomer == "peer":
            peer = self.members[
                (i + 1 + int(member.chance.integers(self.n_members - 1))) % self.n_members
            ]
            given = self.problem.message(peer.state, member.chance).arrays
        else:
            given = self.start
        member.state = self.problem.begin(given)

    @property
    def link_use(self):
        return self.link_busy_s / (len(self.free_at) * max(self.now, *self.free_at))

    def sizes_after(self, seconds):
        return np.array([size for at, size in self.sizes if at >= seconds])

    @property
    def states(self):
        return [member.state for member in self.members]


def replay(costs, controller, *, batch, places, seconds, newest=False, n_members=16):
    """Run controllers on one card's members, without arithmetic."""
    world = World(
        costs=costs,
        n_members=n_members,
        controller=controller,
        batch=batch,
        places=places,
        newest=newest,
    )
    return world.prepare().run(seconds=seconds)
