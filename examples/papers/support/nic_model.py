"""Asynchronous members on shared network cards, in virtual time: sending rules without a job.

For studies of asynchronous SGD: no driver, no loading, no reports, which take longer than a short
run does. Members compute at a fixed cost a sample; several share a network card, whose egress is
served first come, first served; a mailbox has one slot, which the next message overwrites. Ingress
is not modelled. Arithmetic, samplers and controllers are the product's own; without a problem only
times are computed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import (
    Arrays,
    Batch,
    BatchController,
    Mail,
    Problem,
)
from elasticml.algorithms.async_sgd.sampler import Sampler
from elasticml.data.chunks.chunk import Chunk

#: Seconds between two moments at which members may be lost.
FAULTS_S = 0.1


@dataclass(frozen=True, slots=True)
class Link:
    """Egress of one network card."""

    bytes_per_second: float
    latency_s: float
    #: Members that share it.
    members: int = 16

    def scaled(self, share: float) -> Link:
        """Return a card with this share of the rate."""
        return replace(self, bytes_per_second=self.bytes_per_second * share)


GIGABIT = Link(118e6, 100e-6)
TEN_GIGABIT = Link(1.18e9, 100e-6)
INFINIBAND = Link(6e9, 2e-6)
#: Seconds a sample at 4 GFlop/s, an assumption: K-Means with D = K = 10, and D = K = 100.
SMALL_S, LARGE_S = 0.15e-6, 5.1e-6


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a member's batch and of its messages."""

    link: Link
    seconds_per_sample: float
    message_bytes: int
    #: Seconds to hand over one message.
    post_s: float = 2e-6
    #: Fixed seconds of a mini-batch, independent of its samples.
    batch_s: float = 0.0
    #: Seconds to merge one message.
    merge_s: float = 0.0


def state_bytes(clusters: int, columns: int, share: float = 1.0) -> int:
    """Return the bytes of this many centres in single precision, with a header."""
    return int(4 * clusters * columns * share) + 64


def critical_batch(costs: Costs) -> float:
    """Return the b at which a card's members saturate it: ``g S = B (b c + c_0)``.

    g members on a card of B bytes per second, S bytes a message, c seconds a sample, c_0 seconds a
    mini-batch with one message sent and one merged. At or below 0 no b is too small for the card.
    """
    link = costs.link
    turn_s = link.members * costs.message_bytes / link.bytes_per_second
    fixed_s = costs.batch_s + costs.post_s + costs.merge_s
    return (turn_s - fixed_s) / costs.seconds_per_sample


@dataclass(slots=True)
class _Member:
    controller: BatchController
    batch: float
    chance: np.random.Generator
    sampler: Sampler | None = None
    state: Arrays | None = None
    processed: int = 0
    #: When it ended; infinite while it runs.
    ended_s: float = math.inf
    #: Ends of transmission of posted messages, in order.
    unsent: deque[float] = field(default_factory=deque)
    #: (arrival, number, posted, mail), in order of arrival.
    coming: list[tuple[float, int, float, Mail | None]] = field(default_factory=list)


@dataclass
class World:
    """``prepare``, then ``run`` until every member has processed its samples, or time is over."""

    costs: Costs
    n_members: int
    controller: Callable[[], BatchController]
    #: Samples of the first mini-batch.
    batch: float
    #: Of the outgoing queue.
    places: int = 16
    #: A full queue is not waited for: a later state is newer.
    newest: bool = False
    sends: int = 1
    #: None: only times are computed.
    problem: Problem | None = None
    seed: int = 0
    #: Chance that a member is lost in 100 ms; it comes back at once, with its examples.
    churn: float = 0.0
    newcomer: Literal["peer", "w0"] = "peer"
    start: Mapping[str, NDArray[np.float64]] | None = None
    window: int = 16
    #: Called with each of these moments, ascending, when all batches up to it have ended.
    looks: Sequence[float] = ()
    look: Callable[[float], None] | None = None

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
    ages: list[float] = field(default_factory=list)
    #: (time, size) of every mini-batch of every member.
    sizes: list[tuple[float, int]] = field(default_factory=list)

    def prepare(self, chunks_of_members: Sequence[Sequence[Chunk]] | None = None) -> World:
        """Make the members, which own these chunks; return the world."""
        self.members = [
            _Member(
                controller=self.controller(),
                batch=self.batch,
                chance=np.random.default_rng([7, self.seed, i]),
            )
            for i in range(self.n_members)
        ]
        self.free_at = [0.0] * (-(-self.n_members // self.costs.link.members))
        if self.problem is not None:
            assert chunks_of_members is not None
            assert self.start is not None
            for member, chunks in zip(self.members, chunks_of_members, strict=True):
                member.sampler = Sampler(chunks, seed=self.seed, window=self.window)
                member.state = self.problem.begin(self.start)
        return self

    def run(
        self,
        *,
        samples: float = math.inf,
        seconds: float = math.inf,
        passes: float | None = None,
    ) -> World:
        """Run until each member has processed this many samples, or made this many passes.

        Returns
        -------
        World
            This one; ``now`` is when the last member has ended.
        """
        faults = np.random.default_rng([8, self.seed])
        next_fault = FAULTS_S if self.churn else math.inf
        looks = deque(self.looks)
        # The order of members that start together must not matter: they start apart.
        events = [(i * 1e-9, i) for i in range(self.n_members)]
        pending: dict[int, tuple[int, Batch | None]] = {}
        heapq.heapify(events)
        while events:
            now, i = heapq.heappop(events)
            if now > seconds:
                continue
            while now >= next_fault:
                for k in np.flatnonzero(faults.random(self.n_members) < self.churn):
                    self._lose(int(k))
                next_fault += FAULTS_S
            self._look(looks, now)
            self.now = max(self.now, now)
            member = self.members[i]
            if i in pending:
                now = self._end_of_batch(i, now, *pending.pop(i))
                self.now = max(self.now, now)
            ended = member.processed >= samples
            if member.sampler is not None and passes is not None:
                ended = ended or member.sampler.passes >= passes
            if ended:
                member.ended_s = now
                continue
            drawn = None if member.sampler is None else member.sampler.next(member.batch)
            if drawn is None:
                size = int(min(member.batch, samples - member.processed))
            else:
                size = drawn.size
            pending[i] = (size, drawn)
            turn_s = size * self.costs.seconds_per_sample + self.costs.batch_s
            heapq.heappush(events, (now + turn_s, i))
        self._look(looks, math.inf)
        return self

    def _look(self, looks: deque[float], now: float) -> None:
        while looks and looks[0] < now:
            at = looks.popleft()
            if self.look is not None:
                self.look(at)

    def _end_of_batch(self, i: int, now: float, size: int, drawn: Batch | None) -> float:
        member = self.members[i]
        member.processed += size
        self.sizes.append((now, size))
        if drawn is not None:
            assert self.problem is not None
            assert member.state is not None
            self.problem.step(member.state, drawn)
        now = self._read_mail(member, now)
        while member.unsent and member.unsent[0] <= now:
            member.unsent.popleft()
        fill = len(member.unsent) / self.places
        if self.sends and self.n_members > 1:
            now = self._post(i, now)
        self.queue_max = max(self.queue_max, len(member.unsent))
        if math.isfinite(member.batch):
            member.batch = member.controller.next(int(member.batch), fill)
        return now

    def _read_mail(self, member: _Member, now: float) -> float:
        arrived = []
        while member.coming and member.coming[0][0] <= now:
            arrived.append(heapq.heappop(member.coming))
        if not arrived:
            return now
        self.overwritten += len(arrived) - 1
        _, _, posted, mail = arrived[-1]
        self.ages.append(now - posted)
        self.merged += 1
        if mail is not None:
            assert self.problem is not None
            assert member.state is not None
            self.accepted += self.problem.merge(member.state, mail)
        return now + self.costs.merge_s

    def _post(self, i: int, now: float) -> float:
        member = self.members[i]
        if len(member.unsent) >= self.places:
            if self.newest:
                self.skipped += 1
                return now
            free = member.unsent.popleft()
            self.stalled_s += max(0.0, free - now)
            now = max(now, free)
        chosen = self._recipients(i)
        mail = None
        if self.problem is not None:
            assert member.state is not None
            mail = self.problem.message(member.state, member.chance)
        card, link = i // self.costs.link.members, self.costs.link
        service = self.costs.message_bytes / link.bytes_per_second
        for to in chosen:
            self.free_at[card] = max(now, self.free_at[card]) + service
            self.link_busy_s += service
            self.posted += 1
            arrival = (self.free_at[card] + link.latency_s, self.posted, now, mail)
            heapq.heappush(self.members[to].coming, arrival)
        # One slot in the queue, for any number of recipients.
        member.unsent.append(self.free_at[card])
        return now + len(chosen) * self.costs.post_s

    def _recipients(self, i: int) -> list[int]:
        """Draw the distinct recipients of a member's next state."""
        chosen: list[int] = []
        while len(chosen) < min(self.sends, self.n_members - 1):
            to = int(self.members[i].chance.integers(self.n_members - 1))
            to += to >= i
            if to not in chosen:
                chosen.append(to)
        return chosen

    def _lose(self, i: int) -> None:
        assert self.problem is not None
        assert self.start is not None
        self.losses += 1
        member = self.members[i]
        member.coming.clear()
        value = self.start
        if self.newcomer == "peer":
            step = 1 + int(member.chance.integers(self.n_members - 1))
            peer = self.members[(i + step) % self.n_members]
            assert peer.state is not None
            value = self.problem.message(peer.state, member.chance).arrays
        member.state = self.problem.begin(value)

    @property
    def link_use(self) -> float:
        """Return the share of the cards' time in which they sent."""
        return self.link_busy_s / (len(self.free_at) * max(self.now, *self.free_at))

    def sizes_after(self, seconds: float) -> NDArray[np.int64]:
        """Return the sizes of the mini-batches that ended from then on, (n,)."""
        return np.array([size for at, size in self.sizes if at >= seconds], np.int64)

    @property
    def states(self) -> list[Arrays]:
        """Return the members' states."""
        return [member.state for member in self.members if member.state is not None]


def replay(
    costs: Costs,
    controller: Callable[[], BatchController],
    *,
    batch: int,
    places: int,
    seconds: float,
    newest: bool = False,
    n_members: int = 16,
) -> World:
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
