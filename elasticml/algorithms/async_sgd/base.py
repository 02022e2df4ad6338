"""The two halves of a free-running algorithm: a problem's arithmetic, and when it sends.

A member loops without barriers: it draws a mini-batch of its own chunks, steps, merges what lies in
its mailbox, and puts its state into an outgoing slot for a random peer. Nothing here knows a
process, a thread or a clock; the loop itself is in :mod:`elasticml.runtime`, and in virtual time in
:mod:`elasticml.sim`.

Source: Algorithm 2 of the asynchronous SGD paper, with our own study's merge and sending rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunk import Chunk

Arrays = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """A peer's state, or rows of it, as it lay in a mailbox slot."""

    #: Named arrays; where ``rows`` are given, only those rows of each.
    arrays: Mapping[str, NDArray[np.float64]]
    #: int64, the rows of the state that travelled; None: all of it.
    rows: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of one member's chunks, in the order in which they are visited."""

    #: Pairs of a chunk and int64 rows of it; the rows of all of them together are the mini-batch.
    parts: Sequence[tuple[Chunk, NDArray[np.int64]]]

    @property
    def size(self) -> int:
        """Examples in the batch."""
        return sum(rows.size for _, rows in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What a controller of the batch size sees after a mini-batch."""

    #: Share of the outgoing queue's places that hold unsent messages, 0 to 1, or more; before this
    #: mini-batch's own message is put into it, or a queue would never look empty.
    fill: float
    #: Examples processed by this member so far.
    examples: int
    #: Seconds of this member's life so far.
    seconds: float


class Problem(Protocol):
    """What a free-running member computes; implementations have no state but their settings."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of the arrays that messages hold (float64); a state may hold more."""
        ...

    def begin(self, arrays: Mapping[str, NDArray[np.float64]]) -> Arrays:
        """Make a member's state, new, of a start, a warm start, or a peer's whole message.

        Raises
        ------
        ConfigError
            When arrays are missing, have other shapes, or are no place to start from.
        """
        ...

    def step(self, state: Arrays, batch: Batch) -> None:
        """Take one mini-batch step, in place."""
        ...

    def merge(self, state: Arrays, mail: Mail) -> bool:
        """Merge a peer's state into this one, in place; false where it was refused (Parzen)."""
        ...

    def message(self, state: Arrays, chance: np.random.Generator) -> Mail:
        """Copy what is sent: the whole state, or random rows of it."""
        ...

    def mean(self, states: Sequence[Mapping[str, NDArray[np.float64]]]) -> Arrays:
        """Aggregate the members' states into one."""
        ...

    def addends(self, state: Mapping[str, NDArray[np.float64]]) -> Arrays:
        """Return what is added up over members to make their mean: new, shaped as a state."""
        ...

    def pooled(self, total: Mapping[str, NDArray[np.float64]], members: int) -> Arrays:
        """Make the mean of so many members of the sum of their addends; as ``mean`` does."""
        ...

    def value(self, state: Mapping[str, NDArray[np.float64]], chunks: Sequence[Chunk]) -> float:
        """Return the sum over the chunks' examples of what the objective is the mean of."""
        ...


class Controller(Protocol):
    """Decides how many examples the next mini-batch has; one per member, with a memory."""

    def next(self, batch: int, queue: Queue) -> int:
        """Return the size of the next mini-batch, at least 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """How a member loops: what the driver tells it once, before it begins."""

    problem: Problem
    #: Makes a member's controller: ``controller() -> Controller``.
    controller: Callable[[], Controller]
    #: Examples of the first mini-batch.
    batch: int
    #: Places of the outgoing queue; 1 with ``newest``: a full place is not waited for, and what is
    #: sent when it is free is the newest state.
    queue: int = 1
    newest: bool = True
    #: Slots of the mailbox; mail that comes when all are full overwrites the oldest.
    slots: int = 1
    #: Random peers that each state is sent to; 0: none (SimuParallelSGD).
    sends: int = 1
    #: Passes over a member's examples after which it stops; None: until it is told to.
    passes: float | None = None
    #: Chunks that a mini-batch is drawn from; what the member's sampler is made with.
    window: int = 16
    parameters: Mapping[str, float | int | str | bool] = field(default_factory=dict)
