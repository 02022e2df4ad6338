"""A trainer and its solvers in one thread, with members that vanish, return and exchange chunks.

Keeps the promises of ``algorithms/base.py`` that the driver keeps in a real job: outcomes with
exact complements; groups that open, are sealed as last reported, and return whole at the beginning
of a round; anchors from the last undisturbed kept exchange; and "everybody". A returning member has
a solver without caches, and chunks without state; a member that is given a chunk gets its state.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from elasticml.algorithms.base import (
    Anchor,
    Exchange,
    Model,
    Outcome,
    Parallel,
    Proceed,
    Resume,
    RoundEnd,
)
from elasticml.algorithms.parallel import Serial
from elasticml.data.chunks.chunk import Chunk, csr_chunk, dense_chunk
from elasticml.data.dataset_stats import DatasetStats, merge_summaries, summarise
from elasticml.evaluation.scoring import make_solver, make_trainer
from elasticml.ids import ChunkId, ExchangeId, GroupId
from elasticml.protocol.events import ExchangeHeader
from tests.chunk_states import send_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Vanish:
    """Members that vanish in a round, during the ``nth`` exchange of an operation in it."""

    round: int
    members: tuple[int, ...]
    #: An operation, or "correct" for a gradient exchange of that phase.
    during: str = "gradient"
    nth: int = 0
    #: They vanish after their partial was counted.
    counted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """All sealed groups return at the beginning of a round; ``oldest``: only that one."""

    round: int
    oldest: bool = False
    #: Return before the ``nth`` exchange of this operation instead (which no real driver does).
    during: str | None = None
    nth: int = 0
    #: These members take over the chunks, in turn; none: the members that vanished with them.
    onto: tuple[int, ...] = ()
    #: Their chunks have their former state, as from a second holder.
    with_state: bool = False


@dataclass(slots=True, kw_only=True)
class ExchangeRecord:
    """One exchange and its outcome."""

    round: int
    exchange: Exchange
    outcome: Outcome
    contributors: tuple[int, ...]

    @property
    def phase(self) -> str:
        return "correct" if self.exchange.phase == "correct" else self.exchange.operation


@dataclass(slots=True, kw_only=True)
class Run:
    rows: list[RoundEnd]
    model: Model
    exchanges: list[ExchangeRecord]

    def w(self, round: int) -> np.ndarray:
        """Model at the beginning of a round; the final one after the last."""
        arrays = self.rows[round].model if round < len(self.rows) else self.model.arrays
        return np.append(arrays["coef"][0], arrays["intercept"])

    def phases(self, round: int) -> list[str]:
        return [a.phase for a in self.exchanges if a.round == round]

    def seals(self, round: int) -> list[str]:
        return [a.phase for a in self.exchanges if a.round == round and a.exchange.seal]


@dataclass(slots=True, kw_only=True)
class _Kept:
    """A member's partial of a kept exchange, and the examples in it."""

    solver: Any
    chunks: tuple[ChunkId, ...]
    arrays: Mapping[str, np.ndarray]


@dataclass(slots=True, kw_only=True)
class World:
    settings: Mapping[str, Any]
    parts: Sequence[Sequence[Chunk]]
    absent: str = "taylor"
    algorithm: str = "batch_gradient"
    schedule: Sequence[Vanish | Return] = ()
    has_anchors: bool = True
    facts: DatasetStats | None = None
    #: A checkpoint to start from.
    resume: Resume | None = None
    #: How models are scored on the rows that are held out.
    validate: Mapping[str, Any] | None = None
    #: Survivors take over at once what an exchange over everybody waits for.
    reloads: bool = False
    #: Called at the beginning of every round, to move chunks.
    between: Callable[[World], None] | None = None
    #: Called after every exchange, with its outcome.
    watch: Callable[[World, ExchangeRecord], None] | None = None
    #: Settings that a policy changes at the end of a round, by round.
    tuned: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    parallel: Parallel = field(default_factory=Serial)
    round: int = 0
    #: The chunks of each member: objects of this world, which alone writes their state.
    chunks: dict[int, list[Chunk]] = field(default_factory=dict)
    solvers: dict[int, Any] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    groups: dict[GroupId, frozenset[int]] = field(default_factory=dict)
    exchanges: list[ExchangeRecord] = field(default_factory=list)
    rows: list[RoundEnd] = field(default_factory=list)
    _reported: tuple[GroupId, frozenset[int]] | None = None
    _next_group: int = 1
    _exchange: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    _kept: deque[tuple[ExchangeId, dict[int, _Kept]]] = field(
        default_factory=lambda: deque(maxlen=2)
    )
    _pending: list[Vanish | Return] = field(default_factory=list)

    def run(self, rounds: int) -> Run:
        """Train until ``rounds`` rounds are over or the trainer stops."""
        self.facts = self.facts or facts_of([c for part in self.parts for c in part])
        self._pending = list(self.schedule)
        self.chunks = {m: [_fresh(c) for c in part] for m, part in enumerate(self.parts)}
        self.solvers = {m: self._new_solver() for m in range(len(self.parts))}
        trainer = make_trainer(self._section(), self.facts, self.absent, self.resume, self.validate)
        answer: Any = None
        self._start_round()
        while True:
            try:
                item = trainer.send(answer)
            except StopIteration as end:
                return Run(rows=self.rows, model=end.value, exchanges=self.exchanges)
            if isinstance(item, Exchange):
                answer = self._perform(item, rounds)
                if answer is None:  # stalled until the end
                    trainer.close()
                    last = self.rows[-1]
                    model = Model(arrays=last.model, converged=False, reason="stalled")
                    return Run(rows=self.rows, model=model, exchanges=self.exchanges)
            else:
                self.rows.append(item)
                self.round += 1
                self._start_round()
                tuned = self.tuned.get(self.round - 1, {})
                answer = Proceed(go_on=self.round < rounds, tuned=tuned)

    def _new_solver(self) -> Any:
        assert self.facts is not None
        return make_solver(self._section(), self.facts, self.validate)

    def _section(self) -> dict[str, Any]:
        return {**self.settings, "name": self.algorithm}

    # --- absences -----------------------------------------------------------------------------

    def _absent(self) -> set[int]:
        return self.open | {m for group in self.groups.values() for m in group}

    def _start_round(self) -> None:
        self._counts = {}
        for entry in [e for e in self._pending if isinstance(e, Return) and e.during is None]:
            if entry.round == self.round:
                self._pending.remove(entry)
                self._readmit(entry)
        if self.between is not None:
            self.between(self)

    def _readmit(self, entry: Return) -> None:
        for group in list(self.groups)[: 1 if entry.oldest else None]:
            for member in sorted(self.groups.pop(group)):
                self.solvers[member] = self._new_solver()
                if not entry.with_state:
                    self.chunks[member] = [_fresh(chunk) for chunk in self.chunks[member]]
                for i, chunk in enumerate(list(self.chunks[member]) if entry.onto else ()):
                    self.move(chunk.id, member, entry.onto[i % len(entry.onto)])

    def _revive(self) -> None:
        """Let newcomers read everything again when no member is left, as the driver does."""
        self._reported = None
        self.groups[GroupId(0)] = frozenset(self.open)
        self.open = set()
        self._readmit(Return(round=self.round))

    # --- chunks on the move -------------------------------------------------------------------

    def present(self) -> list[int]:
        """Members that take part: those that own chunks and are not absent."""
        return [m for m in sorted(self.solvers) if self.chunks[m] and m not in self._absent()]

    def move(self, id: ChunkId, giver: int, taker: int) -> None:
        """Move a chunk to another member, with its state."""
        (value,) = [chunk for chunk in self.chunks[giver] if chunk.id == id]
        taken = _fresh(value)
        send_state(value, taken)
        self.chunks[giver] = [chunk for chunk in self.chunks[giver] if chunk is not value]
        self.chunks[taker] = sorted([*self.chunks[taker], taken], key=lambda chunk: chunk.id)

    def move_all(self, owners: Mapping[ChunkId, int]) -> None:
        """Move the given chunks to their new owners."""
        for member in self.present():
            for chunk in list(self.chunks[member]):
                if owners.get(chunk.id, member) != member:
                    self.move(chunk.id, member, owners[chunk.id])

    def _seal(self) -> None:
        if self._reported is not None:
            group, members = self._reported
            self._reported = None
            self.groups[group] = members
            self.open -= members

    def _report(self, missing: frozenset[int]) -> GroupId | None:
        if not missing:
            return None
        if self._reported is None or self._reported[1] != missing:
            self._reported = (GroupId(self._next_group), missing)
            self._next_group += 1
        return self._reported[0]

    # --- exchanges ----------------------------------------------------------------------------

    def _perform(self, exchange: Exchange, rounds: int) -> Outcome | None:
        if exchange.seal:
            self._seal()
        while True:
            if exchange.require == "everybody" and self._absent():
                self._report(frozenset(self.open))
                self._seal()
                if self.reloads:
                    self._readmit(Return(round=self.round, onto=tuple(self.present())))
                elif not self._idle(rounds):
                    return None
                continue
            outcome = self._once(exchange)
            if exchange.require == "any" or not self._absent():
                return outcome

    def _idle(self, rounds: int) -> bool:
        """Let rounds pass idle; before the first row there is none to repeat."""
        if not self.rows:
            self._readmit(Return(round=0))
            return True
        if self.round + 1 >= rounds:
            return False
        self.rows.append(self.rows[-1])
        self.round += 1
        self._start_round()
        return True

    def _due(self, phase: str) -> list[Vanish]:
        nth = self._counts.get(phase, 0)
        self._counts[phase] = nth + 1
        for entry in [e for e in self._pending if isinstance(e, Return) and e.during == phase]:
            if (entry.round, entry.nth) == (self.round, nth):
                self._pending.remove(entry)
                self._readmit(entry)
        due = [
            entry
            for entry in self._pending
            if isinstance(entry, Vanish)
            and (entry.round, entry.during, entry.nth) == (self.round, phase, nth)
        ]
        for entry in due:
            self._pending.remove(entry)
        return due

    def _is_awaited(self, phase: str) -> bool:
        """Whether a member returns in a repeated exchange of this round."""
        return any(
            isinstance(entry, Return)
            and (entry.round, entry.during) == (self.round, phase)
            and entry.nth >= self._counts[phase]
            for entry in self._pending
        )

    def _once(self, exchange: Exchange) -> Outcome:
        phase = "correct" if exchange.phase == "correct" else exchange.operation
        due = self._due(phase)
        if not self.present() and not self._is_awaited(phase):
            self._revive()
        self._exchange += 1
        id = ExchangeId(self._exchange)
        present = self.present()
        lost = {m for entry in due for m in entry.members if not entry.counted} & set(present)
        contributors = [m for m in present if m not in lost]
        work = ExchangeHeader(
            exchange=id,
            operation=exchange.operation,
            model={k: v.copy() for k, v in exchange.model.items()},
            parameters=exchange.parameters,
            returns=exchange.returns,
            members=len(present),
        )
        partials = {}
        for member in present:  # the lost compute, too: only their partial is not counted
            partial = self.solvers[member].compute(work, self.chunks[member], self.parallel)
            assert {k: np.shape(v) for k, v in partial.items()} == dict(exchange.returns)
            partials[member] = partial
        merge = np.maximum if exchange.reduce == "max" else np.add
        first = -np.inf if contributors and exchange.reduce == "max" else 0.0
        total = {k: np.full(shape, first) for k, shape in exchange.returns.items()}
        for member in contributors:
            total = {k: merge(total[k], partials[member][k]) for k in total}
        self.open |= lost
        missing = frozenset(self.open)
        opened = self._report(missing)
        anchor = self._anchor(missing, id) if phase != "correct" else None
        if exchange.keep and not lost:
            self._kept.append((id, {m: self._keep(m, partials[m]) for m in contributors}))
        # An absent member cannot vanish again.
        self.open |= {m for e in due for m in e.members if e.counted} & set(present)
        rows = {m: sum(chunk.info().rows for chunk in part) for m, part in self.chunks.items()}
        examples = sum(rows[m] for m in contributors)
        outcome = Outcome(
            exchange=id,
            arrays=total,
            examples=examples,
            absent_examples=sum(rows.values()) - examples,
            absent=tuple(self.groups),
            opened=opened,
            anchor=anchor,
            members=len(contributors),
        )
        self.exchanges.append(
            ExchangeRecord(
                round=self.round,
                exchange=exchange,
                outcome=outcome,
                contributors=tuple(contributors),
            )
        )
        if self.watch is not None:
            self.watch(self, self.exchanges[-1])
        return outcome

    def _keep(self, member: int, arrays: Mapping[str, np.ndarray]) -> _Kept:
        chunks = tuple(chunk.id for chunk in self.chunks[member])
        return _Kept(solver=self.solvers[member], chunks=chunks, arrays=arrays)

    def _anchor(self, missing: frozenset[int], id: ExchangeId) -> Anchor | None:
        if not self.has_anchors or not missing or not self._kept:
            return None
        kept_id, kept = self._kept[-1]
        for member in missing:
            ids = tuple(chunk.id for chunk in self.chunks[member])
            known = kept.get(member)
            if known is None or known.solver is not self.solvers[member] or known.chunks != ids:
                return None
        arrays: dict[str, np.ndarray] = {}
        for member in sorted(missing):
            for name, value in kept[member].arrays.items():
                arrays[name] = arrays.get(name, 0.0) + value
        return Anchor(exchange=kept_id, arrays=arrays)


def _fresh(chunk: Chunk) -> Chunk:
    """Return the chunk without state, as after rereading."""
    return Chunk(chunk.id, chunk.body)


# --- data -------------------------------------------------------------------------------------


def facts_of(chunks: Sequence[Chunk]) -> DatasetStats:
    """Return the statistics of these chunks."""
    columns = max(chunk.layout.n_columns for chunk in chunks)
    layout = chunks[0].layout
    assert layout.n_columns == columns
    facts = merge_summaries([summarise(0, chunks, layout)])
    return replace(facts, n_blocks=1 + max(chunk.id.block for chunk in chunks))


def split_rows(
    X: Any,
    y: np.ndarray,
    n_parts: int,
    *,
    weights: np.ndarray | None = None,
    chunk_rows: int = 500,
) -> list[list[Chunk]]:
    """Cut rows into ``n_parts`` consecutive parts of chunks; X dense or scipy.sparse CSR."""
    bounds = np.linspace(0, len(y), n_parts + 1).astype(int)
    binary = sp.issparse(X) and bool(np.all(X.data == 1.0))
    parts = []
    for part, (low, high) in enumerate(itertools.pairwise(bounds)):
        chunks = []
        for ordinal, start in enumerate(range(low, high, chunk_rows)):
            rows = slice(start, min(start + chunk_rows, high))
            id = ChunkId("0" * 16, part, ordinal)
            s = None if weights is None else weights[rows]
            if not sp.issparse(X):
                chunks.append(dense_chunk(id, y[rows], X[rows], s))
                continue
            some = X[rows]
            stored = (some.indptr, some.indices, None if binary else some.data)
            chunks.append(csr_chunk(id, y[rows], *stored, X.shape[1], s))
        parts.append(chunks)
    return parts
