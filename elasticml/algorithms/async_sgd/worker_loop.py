"""One member's loop over mini-batches, driven by a thread or by the simulator's clock.

An iteration: draw a mini-batch and take a step, merge the messages in the mailbox, return the
message to send, and choose the size of the next mini-batch. The caller decides when each part runs.

Source: Algorithm 2 of the asynchronous SGD paper. Deviations: the step precedes the mailbox, as
measured in our study; several messages are merged one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays, LoopConfig, Mail
from elasticml.algorithms.async_sgd.sampler import Sampler
from elasticml.data.chunks.chunk import Chunk
from elasticml.ids import is_trained

#: Names of a member's counters between reports, in the order of the report's array.
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


class WorkerLoop:
    """A member's state, its position in its data, and its counters since the last report.

    Not thread-safe.

    Parameters
    ----------
    loop : Loop
    seed : int
        The job's seed.
    slot : int
        The member's slot, which seeds the choice of rows in messages.
    """

    def __init__(self, loop: LoopConfig, *, seed: int, slot: int) -> None:
        self.problem = loop.problem
        #: None until there are initial values.
        self.state: Arrays | None = None
        #: Passes over its examples after which it stops; None: until it is stopped.
        self.passes = loop.passes
        #: Size of the next mini-batch.
        self.batch: float = loop.batch
        #: Examples visited since the member started.
        self.examples = 0
        self.counts: dict[str, float] = dict.fromkeys(COUNTS, 0)
        self._controller = loop.controller()
        self.slot = slot
        self._rng = np.random.default_rng([0xA5D, seed, slot])
        self._sampler = Sampler((), seed=seed, window=loop.window)
        #: Examples left until the passes have to be checked again.
        self._left = 0.0

    @property
    def rows(self) -> int:
        """Number of examples in the member's chunks."""
        return self._sampler.rows

    def own(self, chunks: Sequence[Chunk]) -> None:
        """Sample from those of these chunks that hold training rows, from the next batch on."""
        self._sampler.change([chunk for chunk in chunks if is_trained(chunk.id)])
        self._left = 0.0

    def begin(self, arrays: Mapping[str, NDArray[np.float64]]) -> None:
        """Set or replace the state.

        Raises
        ------
        ConfigError
            When the arrays are not a valid start.
        """
        self.state = self.problem.begin(arrays)

    def limit(self, passes: float) -> None:
        """Set the number of passes after which the member stops."""
        self.passes = passes
        self._left = 0.0

    def is_due(self) -> bool:
        """Whether an iteration is possible: there are a state, examples, and passes left."""
        if self.state is None or not self._sampler.rows:
            return False
        if self.passes is None:
            return True
        if self._left <= 0.0:
            left = (self.passes - self._sampler.passes) * self._sampler.rows
            # Positions are integers, their mean need not be: a rounding error must not cause one
            # more iteration.
            whole = float(round(left))
            self._left = max(0.0, whole if abs(left - whole) < 1e-6 else left)
        return self._left > 0.0

    def has_ended(self) -> bool:
        """Whether the member has started and completed all passes over its examples."""
        return self.state is not None and self._sampler.rows > 0 and not self.is_due()

    def step(self) -> int:
        """Draw a mini-batch and take a step; return its size."""
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
        """Merge messages from the mailbox."""
        assert self.state is not None
        for mail in mails:
            merged = self.problem.merge(self.state, mail)
            self.counts["merged" if merged else "refused"] += 1

    def message(self) -> Mail:
        """Return the message to send, a copy."""
        assert self.state is not None
        self.counts["posted"] += 1
        return self.problem.message(self.state, self._rng)

    def adapt(self, fill: float) -> None:
        """Choose the size of the next mini-batch; see :class:`async_sgd.base.BatchController`."""
        if math.isfinite(self.batch):
            size = self._controller.next(int(self.batch), fill)
            # A mini-batch never holds an example twice, so growth beyond the number of examples is
            # useless. Only growth is limited: otherwise a fixed size would stay small for good once
            # a member had few examples.
            self.batch = min(size, max(int(self.batch), self.rows))

    def copy(self) -> Arrays | None:
        """Copy the state."""
        return None if self.state is None else {k: v.copy() for k, v in self.state.items()}

    def take_counts(self) -> NDArray[np.float64]:
        """Return the counters in the order of ``COUNTS``, and reset them."""
        counts = np.array([self.counts[name] for name in COUNTS], np.float64)
        self.counts = dict.fromkeys(COUNTS, 0)
        return counts
