"""The two halves of an algorithm: a trainer that merges on the driver, a solver on each member.

A trainer is a generator. It yields an :class:`Exchange` and is sent the :class:`Outcome`; at the
end of each round it yields a :class:`RoundEnd` and is sent a :class:`Proceed`, which is true to
continue; it returns a :class:`Model`. It never sees a member, a process or a clock: only sums, and
which examples they contain.

Source: Listing 1 of the uni-task paper, recast so that the merge is a pure generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from elasticml.data.chunks.chunk import Chunk
from elasticml.data.source import DatasetStats
from elasticml.errors import JobFailedError, LocalProtocolError
from elasticml.ids import ExchangeId, GroupId
from elasticml.protocol.events import ExchangeHeader

Arrays = Mapping[str, NDArray[np.float64]]
Scalar = float | int | str | bool

#: History column: examples computed on CUDA, whose sums are not reproducible.
ON_CUDA: Final = "on_cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A trainer's request for one broadcast, compute and reduce."""

    #: What the solver computes.
    operation: str
    #: The arrays that are broadcast, float64, C-contiguous.
    model: Arrays
    #: The arrays that are reduced: name -> shape; a member's partial is their concatenation.
    returns: Mapping[str, tuple[int, ...]]
    #: Small settings sent with the model.
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    #: How partials are merged.
    reduce: Literal["sum", "max"] = "sum"
    #: Members and tree nodes keep this exchange's partials as anchors until the next kept one.
    keep: bool = False
    #: "everybody": the exchange starts only when no example is absent, and is repeated until no
    #: member is lost during it.
    require: Literal["any", "everybody"] = "any"
    #: True closes the open group of absent chunks: the chunks lost so far form one group, which may
    #: return from now on, and only as a whole.
    seal: bool = False
    #: Purpose of the exchange, in the story and for faults by phase: "compute" or "correct".
    phase: Literal["compute", "correct"] = "compute"
    #: True for a report of a free-running job: it starts once ``report_every`` has passed since the
    #: end of the last round, or every member's loop has ended.
    paced: bool = False
    #: The trainer may need much longer for this outcome than for earlier ones: the driver runs it
    #: off its event loop.
    is_long: bool = False
    #: The job's result if it ends before this exchange does, after the training.
    result: Model | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The absent examples' share of an earlier kept exchange, known without another exchange."""

    exchange: ExchangeId
    arrays: Arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of an exchange: the reduced arrays, and which examples they contain."""

    exchange: ExchangeId
    arrays: Arrays
    #: Examples in the sum; together with ``absent_examples``, the whole data set.
    examples: int
    absent_examples: int
    #: Sealed groups whose examples are not in the sum, oldest first. A group that has left this
    #: tuple is in the sum again: its stand-in must be dropped with this outcome, not earlier.
    absent: tuple[GroupId, ...] = ()
    #: The open group: chunks lost since the last seal; None if there are none.
    opened: GroupId | None = None
    #: The open group's share of the last kept exchange, if the tree or the leaving member had it.
    anchor: Anchor | None = None
    #: Number of members whose partials are in the sum.
    members: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """A trainer's checkpoint: the state to resume after a round in another process.

    All examples are present there. Nothing it refers to changes afterwards: it is written to disk
    while the trainer continues.
    """

    arrays: Arrays = field(default_factory=dict)
    #: JSON values: numbers, strings, lists and mappings.
    values: Mapping[str, Any] = field(default_factory=dict)
    #: Settings that policies have tuned since, not yet passed to the trainer.
    tuned: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptModel:
    """Says of an earlier model why a job returns it instead of its last one: the best known."""

    #: The round that began with it.
    round: int
    #: Its objective over all examples, or an upper bound of it if examples were absent.
    objective: float
    is_bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEnd:
    """The algorithm's part of one history row."""

    #: Mean loss plus penalty at the model at the start of the round.
    objective: float | None
    objective_kind: Literal["exact", "estimated", "bound"] = "exact"
    #: Certified duality gap at the same model.
    gap: float | None = None
    #: The gap is an upper bound: examples were absent when it was computed.
    gap_is_bound: bool = False
    step: float | None = None
    #: Number of stand-ins (groups of absent chunks) in this round's objective.
    stand_ins: int = 0
    #: Additional history columns.
    extra: Mapping[str, float | int | str | None] = field(default_factory=dict)
    #: The model at which ``objective`` was computed, for snapshots.
    model: Arrays = field(default_factory=dict)
    #: The model after the step, with which the next round starts; the current model if the job
    #: ends here or idles.
    next_model: Arrays = field(default_factory=dict)
    #: Objective at ``next_model`` if it is known without another exchange.
    next_objective: float | None = None
    #: Certified gap at ``next_model`` if it is known; ``stop: {gap: ...}`` tests it.
    next_gap: float | None = None
    next_gap_is_bound: bool = False
    #: Checkpoint from which another process can start the next round; None: not supported.
    resume: Resume | None = None
    #: As in an exchange: the trainer's next step may take long.
    is_long: bool = False
    #: The result if the job is cut short before the next round ends; None: ``next_model``.
    best: Model | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proceed:
    """The answer to a :class:`RoundEnd`; true if the trainer is to continue."""

    go_on: bool
    #: Settings that a policy changes from the next round on, by name; a trainer applies those it
    #: knows and ignores the rest.
    tuned: Mapping[str, Scalar] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether to continue."""
        return self.go_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The result: named arrays, and whether the algorithm's own tolerance was reached."""

    arrays: Arrays
    converged: bool
    #: Short description of why the trainer stopped.
    reason: str
    #: Objective at ``arrays`` over all examples; None if examples are absent at the end.
    objective: float | None = None
    gap: float | None = None
    gap_is_bound: bool = False
    #: Validation ended the training, because the score no longer improves.
    stopped_early: bool = False
    #: Additional columns of the last history row.
    extra: Mapping[str, float | int | str | None] = field(default_factory=dict)
    #: Where ``arrays`` come from if they are not those of the last round.
    kept: KeptModel | None = None


Trainer = Generator[Exchange | RoundEnd, Any, Model]


class Parallel(Protocol):
    """Maps a function over items, possibly in threads; results keep the order of the items."""

    n_threads: int

    @property
    def n_nodes(self) -> int:
        """Number of NUMA nodes that the threads span."""
        ...

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """Apply ``function`` to every item; the first exception is raised."""
        ...

    def in_teams(self, function: Callable[[int, Parallel], Any], n: int) -> list[Any]:
        """Call ``function(k, team)`` concurrently for ``n`` teams that share the threads.

        Every team has at least one thread; with as many nodes as teams, team k stays on node k.
        Returns when all teams have finished; the first exception is raised.
        """
        ...


#: A solver's view of one exchange: its header, with the arrays of the model.
Work = ExchangeHeader[NDArray[np.float64]]


class Solver(Protocol):
    """Computes a member's partial over the chunks it owns in this round."""

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the arrays named in ``work.returns``, over exactly these chunks.

        Caches keyed by chunk id are allowed; entries of chunks that are not in ``chunks`` must be
        dropped.
        """
        ...


@runtime_checkable
class WaitingSolver(Solver, Protocol):
    """A solver that waits for another thread: its exchanges never run on the event loop."""

    waits: bool


@runtime_checkable
class WarmingSolver(Solver, Protocol):
    """A solver whose first exchange would take longer than the others."""

    def warm_up(self, parallel: Parallel) -> None:
        """Load and create what every exchange needs, before the member takes part in a round."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """A registered algorithm: factories of its two halves."""

    name: str
    #: (settings, facts, absent) -> generator. If its rounds end with a ``resume``, an earlier one
    #: may be passed as the keyword ``resume``: it continues with the round after it.
    trainer: Callable[..., Trainer]
    #: (settings, facts) -> solver
    solver: Callable[[Mapping[str, Any], DatasetStats], Solver]
    #: (settings) -> bytes per column that the trainer keeps besides models and gradients.
    column_bytes: Callable[[Mapping[str, Any]], int] = lambda settings: 0
    #: (settings, data section) -> copies of each chunk body that members keep at most: 2 with a
    #: scaled copy.
    forms: Callable[[Mapping[str, Any], Mapping[str, Any]], int] = lambda settings, data: 1
    #: Bytes that members keep of each row besides bodies; in files if bodies are there.
    row_bytes: int = 0
    #: (settings, facts, arrays of the model, chunk) -> predictions (n,): margins of two classes,
    #: or numbers in regression; (n, classes): scores of several classes.
    predict: Callable[..., NDArray[Any]] | None = None
    #: The predictions are numbers, even if there are few distinct labels.
    is_regression: bool = False


Operation = Callable[[Work, Sequence[Chunk], Parallel], Arrays]


def operation_of(work: Work, operations: Mapping[str, Operation]) -> Operation:
    """Return the operation that ``work`` names.

    Parameters
    ----------
    operations : mapping of str to callable
        If they are a solver's bound methods, build the mapping for each call: a solver that stored
        it would form a reference cycle and keep its chunks until the next garbage collection.

    Raises
    ------
    LocalProtocolError
        When the operation is unknown.
    """
    if work.operation not in operations:
        raise LocalProtocolError(
            f"exchange {work.exchange} asks for {work.operation!r}, wanted one of "
            f"{', '.join(operations)}: the trainer has another version"
        )
    return operations[work.operation]


def check_first_objective(objective: float) -> None:
    """Refuse a problem whose objective is not finite where training starts.

    Raises
    ------
    JobFailedError
        When it is infinite or NaN.
    """
    if not math.isfinite(objective):
        raise JobFailedError(
            f"the objective of the first model is {objective}, wanted a finite number: the loss is "
            "infinite at a margin of the start (0 without an offset or a warm start), or numbers "
            "are too large; use a loss that is finite there, or scale the data",
            reason="diverged",
        )
