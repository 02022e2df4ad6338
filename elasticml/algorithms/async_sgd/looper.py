"""One member's loop, mini-batch by mini-batch: what a thread does for real, a clock virtually.

A turn is: draw a mini-batch and step, merge what lies in the mailbox, say what is to be sent, and
choose the size of the next mini-batch. Who calls it decides when each part happens.

Source: Algorithm 2 of the asynchronous SGD paper. Deviations: the step is taken before the mailbox
is looked at, as our study measured it; several pieces of mail are merged one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays, Loop, Mail, Queue
from elasticml.algorithms.async_sgd.sampler import Sampler
from elasticml.data.chunk import Chunk

#: What a member counts from one report to the next, in the order of the report's array.
COUNTS: Final = (
    "examples",
    "batches",
    "posted",
    "skipped",
    "sent",
    "undelivered",
    "received",
    "overwritten",
    "merged",
    "refused",
    "stalled_s",
)


class Looper:
    """A member's state, its place in its data, and what it has counted since its last report.

    Not for two threads at a time.

    Parameters
    ----------
    loop : Loop
    seed : int
        The job's.
    slot : int
        The member's: its messages are drawn from it.
    """

    def __init__(self, loop: Loop, *, seed: int, slot: int) -> None:
        self.problem = loop.problem
        #: None until there is somewhere to begin.
        self.state: Arrays | None = None
        #: Passes over its examples after which it stops; None: until it is told to.
        self.passes = loop.passes
        #: Examples of the next mini-batch.
        self.batch: float = loop.batch
        #: Examples visited in this life.
        self.examples = 0
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0)
        self._controller = loop.controller()
        self._chance = np.random.default_rng([0xA5D, seed, slot])
        self._sampler = Sampler((), seed=seed, window=loop.window)
        #: Examples until it must be looked whether the passes are made.
        self._left = 0.0

    @property
    def rows(self) -> int:
        """Examples that it visits."""
        return self._sampler.rows

    def own(self, chunks: Sequence[Chunk]) -> None:
        """Visit these chunks from the next mini-batch on."""
        self._sampler.change(chunks)
        self._left = 0.0

    def begin(self, arrays: Mapping[str, NDArray[np.float64]]) -> None:
        """Begin with a state, or go on with another one.

        Raises
        ------
        ConfigError
            When it is no place to start from.
        """
        self.state = self.problem.begin(arrays)

    def limit(self, passes: float) -> None:
        """Stop after so many passes; sooner, or later, than was said before."""
        self.passes = passes
        self._left = 0.0

    def is_due(self) -> bool:
        """Whether there is something to do: a state, examples, and passes that are not made."""
        if self.state is None or not self._sampler.rows:
            return False
        if self.passes is None:
            return True
        if self._left <= 0.0:
            left = (self.passes - self._sampler.passes) * self._sampler.rows
            # Positions are whole numbers; a mean of them need not be: what is left but for rounding
            # would take one more.
            whole = float(round(left))
            self._left = max(0.0, whole if abs(left - whole) < 1e-6 else left)
        return self._left > 0.0

    def has_ended(self) -> bool:
        """Whether it has begun, and has made all passes over what it has."""
        return self.state is not None and self._sampler.rows > 0 and not self.is_due()

    def step(self) -> int:
        """Draw a mini-batch and step; returns its examples."""
        assert self.state is not None
        size = self.batch if self.passes is None else min(self.batch, math.ceil(self._left))
        batch = self._sampler.next(size)
        n = batch.size
        if n:
            self.problem.step(self.state, batch)
        self._left -= n
        self.examples += n
        self.counts["examples"] += n
        self.counts["batches"] += 1
        return n

    def merge(self, mails: Iterable[Mail]) -> None:
        """Merge what lay in the mailbox."""
        assert self.state is not None
        for mail in mails:
            merged = self.problem.merge(self.state, mail)
            self.counts["merged" if merged else "refused"] += 1

    def message(self) -> Mail:
        """Copy what shall be sent."""
        assert self.state is not None
        self.counts["posted"] += 1
        return self.problem.message(self.state, self._chance)

    def adapt(self, fill: float, seconds: float) -> None:
        """Choose the size of the next mini-batch.

        Parameters
        ----------
        fill : float
            Share of the outgoing queue's places that held unsent messages before the last one.
        seconds : float
            Of this member's life.
        """
        if math.isfinite(self.batch):
            queue = Queue(fill=fill, examples=self.examples, seconds=seconds)
            wanted = self._controller.next(int(self.batch), queue)
            # A mini-batch never holds an example twice: beyond that a controller would only have
            # to come down again. Only growth ends there: a size that is fixed would never come back
            # once a member had had few examples.
            self.batch = min(wanted, max(int(self.batch), self.rows))

    def copy(self) -> Arrays | None:
        """Copy the state."""
        return None if self.state is None else {k: v.copy() for k, v in self.state.items()}

    def take_counts(self) -> NDArray[np.float64]:
        """Return what was counted since the last time, in the order of ``COUNTS``."""
        counted = np.array([self.counts[name] for name in COUNTS], np.float64)
        self.counts = dict.fromkeys(COUNTS, 0)
        return counted
