"""The two halves of an algorithm: a trainer that merges on the driver, a solver on each member.

A trainer is a generator. It yields an :class:`Exchange` and is sent the :class:`Outcome`; at the
end of each round it yields a :class:`RoundEnd` and is sent a :class:`Proceed`, true to go on; it
returns a :class:`Model`. It never sees a member, a process or a clock: only sums, and which of
the examples they contain.

Source: Listing 1 of the uni-task paper, recast so that the merge is a pure generator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunk import Chunk
from elasticml.data.source import DataFacts
from elasticml.terms import ExchangeId, GroupId

Arrays = Mapping[str, NDArray[np.float64]]
Scalar = float | int | str | bool

#: What a round's row calls examples that were computed on CUDA, whose sums are not repeatable.
ON_CUDA: Final = "on_cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One broadcast, compute and reduce, as the trainer asks for it."""

    #: What the solver shall compute.
    operation: str
    #: The arrays that go down, float64, C-contiguous.
    model: Arrays
    #: The arrays that come up: name -> shape; the partial of a member is their concatenation.
    returns: Mapping[str, tuple[int, ...]]
    #: Small settings that go down with the model.
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    #: How partials are merged.
    reduce: Literal["sum", "max"] = "sum"
    #: Members and tree nodes keep this exchange's partials as anchors until the next kept one.
    keep: bool = False
    #: "everybody": the exchange starts only when no example is absent, and is repeated until
    #: nobody went missing in it.
    require: Literal["any", "everybody"] = "any"
    #: True closes the open group of absent chunks: what vanished so far stands in the queue as one
    #: group, may be brought back from now on, and comes back whole.
    seal: bool = False
    #: What the exchange is for, in the story and for faults by phase: "compute" or "correct".
    phase: Literal["compute", "correct"] = "compute"
    #: True for a report of a free-running job: it begins when ``report_every`` has passed since
    #: the last round's end, or every member's loop has ended.
    paced: bool = False
    #: What the trainer does with the outcome may take it much longer than before: the driver keeps
    #: it off its event loop.
    is_long: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The absent examples' own share of an earlier kept exchange, known without asking anybody."""

    exchange: ExchangeId
    arrays: Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came up: a sum, and which examples are in it."""

    exchange: ExchangeId
    arrays: Arrays
    #: Examples in the sum; with ``absent_examples`` they make up the whole data set.
    examples: int
    absent_examples: int
    #: Sealed groups whose examples are not in the sum, oldest first. A group that has left this
    #: tuple is in the sum again: its stand-in must go at this very moment, and not before.
    absent: tuple[GroupId, ...] = ()
    #: The open group: chunks that vanished since the last seal; None when nothing did.
    opened: GroupId | None = None
    #: The open group's share of the last kept exchange, where the tree or a parting member had it.
    anchor: Anchor | None = None
    #: How many members' partials are in the sum.
    members: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """What a trainer needs to go on after a round in another process, with all examples present.

    Nothing that it refers to is changed afterwards: it is written down while the trainer goes on.
    """

    arrays: Arrays = field(default_factory=dict)
    #: Numbers, words, and lists and mappings of them, as JSON has them.
    values: Mapping[str, Any] = field(default_factory=dict)
    #: What policies have tuned since, of which the trainer has not been told.
    tuned: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnd:
    """One row of the history, as far as the algorithm knows it."""

    #: Mean loss plus penalty at the model with which the round began.
    objective: float | None
    objective_kind: Literal["exact", "estimated", "bound"] = "exact"
    #: Certified duality gap at the same model.
    gap: float | None = None
    #: The gap is an upper bound: examples were absent when it was taken.
    gap_is_bound: bool = False
    step: float | None = None
    #: Number of stand-ins (groups of absent chunks) in this round's objective.
    stand_ins: int = 0
    #: Further columns of the history.
    extra: Mapping[str, float | int | str | None] = field(default_factory=dict)
    #: The model at which ``objective`` was taken, for snapshots.
    model: Arrays = field(default_factory=dict)
    #: The model after the step, with which the next round begins; where the job ends here, or
    #: idles, this is what it has.
    next_model: Arrays = field(default_factory=dict)
    #: Objective at ``next_model`` where it is known without another exchange.
    next_objective: float | None = None
    #: Certified gap at ``next_model`` where it is known; what ``stop: {gap: ...}`` looks at.
    next_gap: float | None = None
    next_gap_is_bound: bool = False
    #: With what the next round can be begun elsewhere; None: this trainer keeps no checkpoints.
    resume: Resume | None = None
    #: As an exchange's: what the trainer does next may take it long.
    is_long: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed:
    """The answer to a :class:`RoundEnd`; true when the trainer shall go on."""

    go_on: bool
    #: Settings that a policy wants changed from the next round on, by name; a trainer takes those
    #: that it knows and leaves the rest.
    tuned: Mapping[str, Scalar] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether to go on."""
        return self.go_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The result: named arrays, and whether the algorithm's own tolerance was reached."""

    arrays: Arrays
    converged: bool
    #: Why the trainer stopped, in a few words.
    reason: str
    #: Objective at ``arrays`` over all examples; None when examples are absent at the end.
    objective: float | None = None
    gap: float | None = None
    gap_is_bound: bool = False
    #: Further columns of the history's last row.
    extra: Mapping[str, float | int | str | None] = field(default_factory=dict)


Trainer = Generator[Exchange | RoundEnd, Any, Model]


class Parallel(Protocol):
    """Runs a function over items, possibly in threads; results come back in the items' order."""

    n_threads: int

    @property
    def n_nodes(self) -> int:
        """NUMA nodes that the threads span."""
        ...

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item; the first exception is raised."""
        ...

    def in_teams(self, function: Callable[[int, Parallel], Any], n: int) -> list[Any]:
        """Call ``function(k, team)`` for ``n`` teams at the same time, which share the threads.

        A team has a thread at least; team k stays on node k, where there are as many nodes. Ends
        when all teams have; the first exception is raised.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One exchange as a solver sees it."""

    exchange: ExchangeId
    operation: str
    model: Arrays
    parameters: Mapping[str, Scalar]
    returns: Mapping[str, tuple[int, ...]]
    #: Members that take part when the exchange starts: the papers' K.
    members: int = 1


class Solver(Protocol):
    """Computes a member's partial over the chunks that it owns in this round."""

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the arrays named in ``work.returns``, over exactly these chunks.

        Caches keyed by chunk id are allowed; entries of chunks that are no longer given must be
        dropped.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A registered algorithm: how to make its two halves from validated settings."""

    name: str
    #: (settings, facts, absent) -> generator. One whose rounds end with a ``resume`` is given that
    #: of a former one as the keyword ``resume``, and goes on with the round after it.
    trainer: Callable[..., Trainer]
    #: (settings, facts) -> solver
    solver: Callable[[Mapping[str, Any], DataFacts], Solver]
    #: (settings) -> bytes per column that the trainer keeps beside models and gradients.
    column_bytes: Callable[[Mapping[str, Any]], int] = lambda settings: 0
    #: (settings) -> forms of each chunk body that members keep: 2 with a scaled copy.
    forms: Callable[[Mapping[str, Any]], int] = lambda settings: 1
    #: Its solver looks at bodies by :func:`elasticml.data.shelf.flow` alone.
    streams: bool = False
