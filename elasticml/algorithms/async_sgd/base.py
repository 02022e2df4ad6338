"""The interfaces of a free-running algorithm: a problem's arithmetic, its loop, and a whole job.

A member loops without barriers: it draws a mini-batch from its own chunks, takes a step, merges the
messages in its mailbox, and queues its state for a random peer. Nothing here knows a process, a
thread or a clock; the loop itself runs in :mod:`elasticml.runtime`, and in virtual time in
:mod:`elasticml.sim`.

Source: Algorithm 2 of the asynchronous SGD paper, with the merge and sending rules of our study.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Exchange, Operation, Outcome
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk

Arrays = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """A message: a peer's state, or some rows of it."""

    #: Named arrays; with ``rows``, only those rows of each.
    arrays: Mapping[str, NDArray[np.float64]]
    #: int64, the rows of the state that were sent; None: all.
    rows: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A mini-batch: rows of a member's chunks, in the order of visits."""

    #: Pairs of a chunk and int64 rows of it.
    parts: Sequence[tuple[Chunk, NDArray[np.int64]]]

    @property
    def size(self) -> int:
        """Number of examples in the batch."""
        return sum(rows.size for _, rows in self.parts)


class Problem(Protocol):
    """The arithmetic of a free-running member; implementations hold nothing but settings."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return names and shapes of a message's arrays (float64); a state may have more arrays."""
        ...

    def begin(self, arrays: Mapping[str, NDArray[np.float64]]) -> Arrays:
        """Return a new member state from initial values, a warm start, or a peer's full message.

        Raises
        ------
        ConfigError
            When arrays are missing, have the wrong shape, or are degenerate.
        """
        ...

    def step(self, state: Arrays, batch: Batch) -> None:
        """Take one mini-batch step, in place."""
        ...

    def merge(self, state: Arrays, mail: Mail) -> bool:
        """Merge a peer's state into this one, in place; false if it was rejected (Parzen)."""
        ...

    def message(self, state: Arrays, chance: np.random.Generator) -> Mail:
        """Return a message: a copy of the state, or of random rows of it."""
        ...

    def addends(self, state: Mapping[str, NDArray[np.float64]]) -> Arrays:
        """Return a member's share of the sum from which ``pooled`` computes the mean; new."""
        ...

    def pooled(self, total: Mapping[str, NDArray[np.float64]], members: int) -> Arrays:
        """Return the mean of ``members`` states from the sum of their addends."""
        ...

    def value(self, state: Mapping[str, NDArray[np.float64]], chunks: Sequence[Chunk]) -> float:
        """Return the sum over the chunks' examples whose mean is the objective."""
        ...


class BatchController(Protocol):
    """Chooses the size of the next mini-batch; stateful, one per member."""

    def next(self, batch: int, fill: float) -> int:
        """Return the size of the next mini-batch, at least 1.

        Parameters
        ----------
        fill : float
            Unsent messages divided by the capacity of the send queue, 0 to 1 or more, measured
            before the last mini-batch's message is queued: otherwise the queue would never look
            empty.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """The configuration of a member's loop, sent by the driver before it starts."""

    problem: Problem
    #: Creates a member's controller: ``controller() -> BatchController``.
    controller: Callable[[], BatchController]
    #: Size of the first mini-batch.
    batch: int
    #: Capacity of the send queue; 1 with ``newest``: instead of blocking while the queue is full, a
    #: member sends its newest state once there is space.
    queue: int = 1
    newest: bool = True
    #: Slots of the mailbox; when all are full, a new message overwrites the oldest.
    slots: int = 1
    #: Number of random peers that each state is sent to; 0: none (SimuParallelSGD).
    sends: int = 1
    #: Passes over a member's examples after which it stops; None: until it is stopped.
    passes: float | None = None
    #: Number of chunks that a mini-batch is drawn from.
    window: int = 16


#: Exchanges of the initialization, such as one that gathers rows; returns a state's arrays.
Start = Generator[Exchange, Outcome, Mapping[str, NDArray[np.float64]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncPlan:
    """A free-running job: its loop, its initialization, and its result.

    It is identical on the driver and on every member.
    """

    loop: LoopConfig
    #: Returns the driver's generator of the initialization's exchanges.
    start: Callable[[], Start]
    #: The members' shares of these exchanges and of those of ``polish``, by the operation's name.
    operations: Mapping[str, Operation] = field(default_factory=dict)
    #: Converts a state to the user's arrays, such as ``coef`` and ``intercept``.
    result: Callable[[Arrays], Mapping[str, Any]] = dict
    #: Divisor of the objective's sum over all data; None: the number of examples.
    weight: float | None = None
    #: Exchanges by which the driver improves the mean of all states at the end.
    polish: Callable[[Arrays], Start] | None = None
    #: Minimum training visits of examples per visit for evaluating the objective in reports.
    visits_per_evaluation: float = 4.0


class Mailbox:
    """A single-producer, single-consumer mailbox; when full, the oldest message is overwritten.

    One thread puts and another takes, without locks or interrupts. A state in a slot is immutable,
    so that a reader never sees a partial one. The only race is that a message is replaced before it
    is read; this is counted.

    Source: the single-sided communication of the asynchronous SGD paper. Deviation: its slots are
    memory that peers write to while it may be read; here a slot is a reference, replaced whole.

    Parameters
    ----------
    slots : int, >= 1
    """

    def __init__(self, slots: int = 1) -> None:
        self._slots: deque[Mail] = deque(maxlen=slots)
        #: Written by the network thread only.
        self._received = 0
        #: Written by the loop's thread only.
        self._taken = 0
        self._reported = (0, 0)

    def put(self, mail: Mail) -> None:
        """Store a message; called by the network thread."""
        self._received += 1
        # Appending to a deque is atomic; a full one drops its oldest item.
        self._slots.append(mail)

    def take(self) -> list[Mail]:
        """Remove and return all messages; called by the loop's thread."""
        mails: list[Mail] = []
        while self._slots:
            mails.append(self._slots.popleft())
            self._taken += 1
        return mails

    def count(self) -> tuple[int, int]:
        """Return messages received and overwritten since the last call; called by the loop."""
        # Read first: messages that arrive from here on count the next time.
        received = self._received
        overwritten = max(self._reported[1], received - self._taken - len(self._slots))
        before, self._reported = self._reported, (received, overwritten)
        return received - before[0], overwritten - before[1]


# Partial states for messages.


def rows_to_send(
    n_rows: int, share: float, chance: np.random.Generator
) -> NDArray[np.int64] | None:
    """Draw a share of the rows, at least one, in ascending order; None for all rows."""
    n_drawn = max(1, round(share * n_rows))
    if n_drawn >= n_rows:
        return None
    return np.sort(chance.choice(n_rows, n_drawn, replace=False)).astype(np.int64)


def picked(arrays: Mapping[str, F64], rows: NDArray[np.int64] | None) -> Mail:
    """Return a message with these rows of each array, copied."""
    if rows is None:
        return Mail(arrays={name: array.copy() for name, array in arrays.items()})
    return Mail(arrays={name: array[rows] for name, array in arrays.items()}, rows=rows)
