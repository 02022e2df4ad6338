"""Exchanges at the driver: participants, deadlines, anchors, and the outcome for the trainer."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from elasticml.control.job_state import JobState
from elasticml.control.tree_layout import Below, Parents, children
from elasticml.ids import ExchangeId, Mask, MemberId, mask_of, members_in
from elasticml.protocol.commands import (
    AnchorPart,
    AskStatus,
    Command,
    Deliver,
    Forget,
    Gathered,
    Record,
    Refuse,
    SendAnchor,
)
from elasticml.protocol.events import (
    AnchorArrived,
    ExchangeHeader,
    ExchangeRequested,
    PartialArrived,
    Shape,
    StatusReported,
)
from elasticml.story import records as story


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorTerm:
    """One kept partial of an anchor."""

    sign: int
    #: The member whose sum it is.
    of: MemberId
    #: The node that keeps it: None for the root; ``of`` itself if it is alive.
    at: MemberId | None


def subtree_of(below: Below, member: MemberId) -> Mask:
    """Return the contributors of a member's sum in a tree without losses: its subtree.

    The time is that of the subtree, not of the tree: many members may be lost at once.
    """
    subtree = [member]
    for node in subtree:  # grows
        subtree += below.get(node, ())
    return mask_of(m.slot for m in subtree)


def plan_anchor(
    parents: Parents, lost: Collection[MemberId], living: Collection[MemberId]
) -> list[AnchorTerm] | None:
    """Return the lost members' partial as a signed sum; None if a term has no living keeper.

    In a kept exchange with tree T let S(v) be the sum that v sent up. A member's own partial is
    ``g_v = S(v) - sum(S(c) for c in children(v))``, so that over the set M of lost members

        sum(g_v, v in M) = sum(S(v), v in M, parent(v) not in M)
                           - sum(S(c), c not in M, parent(c) in M)

    v keeps S(v) as the sum it last sent, and its parent keeps it as an input. In a star these are
    the root's inputs from the lost members.

    Source: the resource-elastic paper, implementation paragraph ("inner nodes keep an approximation
    for their inputs available"); the exact telescoping form is ours.

    Parameters
    ----------
    parents : mapping
        The tree of the kept exchange, during which no member was lost.
    lost : collection of MemberId
        M, a subset of the tree's members.
    living : collection of MemberId
        Members that can still be asked.
    """
    gone = set(lost)
    if not gone <= parents.keys():
        return None
    terms: list[AnchorTerm] = []
    for member in sorted(parents):
        parent = parents[member]
        if member in gone and parent not in gone:
            if parent is not None and parent not in living:
                return None
            terms.append(AnchorTerm(sign=1, of=member, at=parent))
        elif member not in gone and parent in gone:
            if member not in living:
                return None
            terms.append(AnchorTerm(sign=-1, of=member, at=member))
    return terms


#: A member that takes as many times as long to answer as the others answers late.
LATE_FACTOR = 3.0
#: Exchanges in an operation's running median of durations.
DURATIONS_KEPT = 50


@dataclass(slots=True, kw_only=True)
class RunningExchange:
    """The running exchange."""

    header: ExchangeHeader[Shape]
    request: ExchangeRequested
    started_s: float
    #: Participants at the start, and the chunk-set version of each.
    participants: dict[MemberId, int]
    absent_at_start: tuple[int, ...]
    deadline_s: float
    rows: dict[MemberId, int]
    #: The mask of all participants, and the number of their examples.
    mask: Mask
    n_rows: int
    #: A member was lost, or moved in the tree, while it ran.
    disturbed: bool = False
    asked_s: float | None = None
    #: Its deadline has passed, once or more: members were asked for their status.
    is_late: bool = False
    answers: dict[MemberId, str] = field(default_factory=dict)
    #: Jobs for which the workers of participants compute meanwhile.
    busy_with: dict[MemberId, str] = field(default_factory=dict)
    #: When each partial arrived at the root, in seconds since the start, and the compute seconds of
    #: the slowest member in it.
    arrivals: list[tuple[float, float]] = field(default_factory=list)
    gathered: Gathered | None = None
    #: Participants whose partial ``gathered`` contains; computed on first use.
    in_sum: frozenset[MemberId] | None = None
    #: Anchor terms not answered yet, and the parts that have arrived.
    anchor_terms: dict[tuple[MemberId | None, MemberId], AnchorTerm] = field(default_factory=dict)
    anchor_parts: list[AnchorPart] = field(default_factory=list)
    anchor_of: ExchangeId | None = None
    #: The tree of that exchange: the children of each node.
    anchor_below: Below = field(default_factory=dict)
    anchor_deadline_s: float = 0.0

    @property
    def id(self) -> ExchangeId:
        """Number of the exchange."""
        return self.header.exchange

    def felt(self, partial: PartialArrived, now_s: float) -> Mapping[MemberId, float]:
        """Return the compute seconds of a partial's members as the others feel them.

        A process that gets little of a processor computes a short exchange in one go, and reads and
        answers late: compared with the members that have answered, its whole answer counts.
        """
        seconds, took_s, before = partial.compute_s, now_s - self.started_s, len(self.arrivals)
        self.arrivals.append((took_s, max(seconds.values(), default=0.0)))
        if len(seconds) != 1 or before < 2 or 2 * before < len(self.participants):
            return seconds
        # They are in the order of arrival.
        usual_s = self.arrivals[before // 2][0]
        if took_s <= LATE_FACTOR * usual_s:
            return seconds
        compute_s = statistics.median(own_s for _, own_s in self.arrivals[:before])
        felt_s = compute_s * took_s / max(usual_s, 1e-9)
        if felt_s <= LATE_FACTOR * self.arrivals[-1][1]:
            return seconds
        return dict.fromkeys(seconds, felt_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptExchange:
    """A kept exchange that ended undisturbed: its nodes can be asked for anchor terms."""

    id: ExchangeId
    parents: Parents
    versions: dict[MemberId, int]


class _Participants(NamedTuple):
    """The members in the tree, the same for every exchange until tree or ledger change."""

    #: The chunk-set version and the examples of each.
    versions: dict[MemberId, int]
    rows: dict[MemberId, int]
    #: The mask of all, and the sum of their examples.
    mask: Mask
    n_rows: int


def _only(values: dict[MemberId, int], members: Parents) -> dict[MemberId, int]:
    """Restrict a dictionary to some members, 0 if it lacks one, in place."""
    for member in set(values).difference(members):
        del values[member]
    for member in set(members).difference(values):
        values[member] = 0
    return values


class ExchangeCoordinator:
    """Starts exchanges, watches their deadlines, and builds their outcomes."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        self.running: RunningExchange | None = None
        self.kept: deque[KeptExchange] = deque(maxlen=2)
        self._durations: dict[str, deque[float]] = {}
        #: Generation and ledger changes for which ``_part`` was computed.
        self._part_at: tuple[int, int] | None = None
        self._part: _Participants = _Participants({}, {}, Mask(0), 0)
        #: Handles of anchor terms that members sent; freed when the next exchange starts.
        self._fetched: list[int] = []

    def median_s(self, operation: str) -> float | None:
        """Return the running median of an operation's duration; None before the first one."""
        durations = self._durations.get(operation)
        return statistics.median(durations) if durations else None

    def start(self, request: ExchangeRequested, now_s: float) -> list[Command]:
        """Start an exchange with all working members."""
        state = self.state
        commands = state.relayout()
        if self._fetched:
            commands.append(Forget(exchange=state.last_exchange, handles=tuple(self._fetched)))
            self._fetched = []
        state.last_exchange = ExchangeId(state.last_exchange + 1)
        median = self.median_s(request.header.operation)
        factor = state.settings.stuck_factor
        wait = max(state.settings.deadline_s_min, factor * (median or 0.0))
        part = self._taking_part()
        header = replace(
            request.header,
            exchange=state.last_exchange,
            generation=state.generation,
            moved=state.moved,
            members=len(part.versions),
        )
        state.rewired.clear()
        self.running = RunningExchange(
            header=header,
            request=request,
            started_s=now_s,
            participants=part.versions,
            absent_at_start=tuple(state.ledger.groups),
            deadline_s=now_s + wait,
            rows=part.rows,
            mask=part.mask,
            n_rows=part.n_rows,
        )
        return commands + state.root.begin(header.exchange, header.keep)

    def _taking_part(self) -> _Participants:
        """Return the members in the tree, to be read only."""
        state, at = self.state, (self.state.generation, self.state.ledger.changes)
        if self._part_at != at:
            self._part_at = at
            here, former = state.parents, self._part
            rows = _only(state.ledger.rows_by_member(), here)
            gone = mask_of(m.slot for m in set(former.rows).difference(here))
            came = mask_of(m.slot for m in set(here).difference(former.rows))
            self._part = _Participants(
                versions=_only(state.ledger.versions.copy(), here),
                rows=rows,
                mask=Mask(former.mask & ~gone | came),
                n_rows=sum(rows.values()),
            )
        return self._part

    # --- bounded waiting ----------------------------------------------------------------------

    def ticked(self, now_s: float) -> tuple[list[Command], list[MemberId]]:
        """Check the deadline: first ask late members for their status, then return stuck ones.

        Returns
        -------
        commands : list of Command
        stuck : list of MemberId
            Members to fence: no answer, or still computing far beyond the median.
        """
        run, state = self.running, self.state
        if run is None or run.gathered is not None or now_s < run.deadline_s:
            return [], []
        late = self.late()
        if run.asked_s is None:
            run.asked_s, run.is_late = now_s, True
            return [AskStatus(cause="deadline", member=m, exchange=run.id) for m in late], []
        # A short deadline also means a short wait for answers.
        if now_s < run.asked_s + min(state.settings.status_s_max, state.settings.deadline_s_min):
            return [], []
        # Before its operation has a median, a member that reports computing is not stuck.
        has_median = self.median_s(run.header.operation) is not None
        stuck = []
        for member in late:
            answer = run.answers.get(member)
            if answer is None or (answer == "computing" and has_median):
                stuck.append(member)
        # Members that wait for others are not at fault: the deadline is extended.
        run.asked_s = None
        run.answers.clear()
        run.deadline_s = now_s + state.settings.deadline_s_min
        return [], stuck

    def late(self) -> list[MemberId]:
        """List living participants whose partials have not arrived."""
        run, state = self.running, self.state
        if run is None:
            return []
        covered = state.root.gather.covered if state.root.gather is not None else Mask(0)
        return [m for m in sorted(run.participants) if m in state.parents and not m.bit & covered]

    def status_reported(self, event: StatusReported) -> None:
        """Record a member's status."""
        if self.running is not None and event.exchange == self.running.id:
            self.running.answers[event.member] = event.stage
            if event.busy_with:
                self.running.busy_with[event.member] = event.busy_with

    # --- the end of an exchange -----------------------------------------------------------------

    def gathered(self, gathered: Gathered, now_s: float) -> list[Command]:
        """Close the exchange at the root; then deliver it, or fetch the anchor first."""
        run, state = self.running, self.state
        assert run is not None and run.id == gathered.exchange
        run.gathered = gathered
        state.closed_exchange = run.id
        durations = self._durations.setdefault(run.header.operation, deque(maxlen=DURATIONS_KEPT))
        if not run.disturbed:
            durations.append(now_s - run.started_s)
        missing = self.missing()
        if missing and state.settings.cached_anchors and run.request.phase != "correct":
            fetch = self._fetch_anchor(missing, now_s)
            if self._waits_for_anchor():
                return fetch
        return []

    def in_sum(self) -> frozenset[MemberId]:
        """Return the participants whose partial the gathered sum contains."""
        run = self.running
        assert run is not None and run.gathered is not None
        if run.in_sum is None:
            lacking = run.mask & ~run.gathered.contributors
            # Usually none or few are lacking; a set of a dictionary's keys does not hash them.
            run.in_sum = frozenset(run.participants)
            if lacking:
                run.in_sum -= members_in(lacking, run.participants)
        return run.in_sum

    def missing(self) -> list[MemberId]:
        """Return the lost members whose open (unsealed) chunks the gathered sum lacks."""
        in_sum = self.in_sum()
        return [m for m in sorted(self.state.ledger.open) if m not in in_sum]

    def _fetch_anchor(self, missing: list[MemberId], now_s: float) -> list[Command]:
        run, state = self.running, self.state
        assert run is not None
        kept = next((k for k in reversed(self.kept) if k.id < run.id), None)
        if kept is None:
            return []
        if any(kept.versions.get(m) != state.ledger.last_versions.get(m, -1) for m in missing):
            return []  # joined later, or its chunk set changed: its kept partial does not match
        terms = plan_anchor(kept.parents, missing, state.membership.members.keys())
        if terms is None:
            return []
        run.anchor_of, run.anchor_below = kept.id, children(kept.parents)
        run.anchor_deadline_s = now_s + state.settings.status_s_max
        commands: list[Command] = []
        for term in terms:
            if term.at is None:
                handle = state.root.kept_handle(kept.id, term.of)
                if handle is None:
                    self._drop_anchor()
                    return []
                of = subtree_of(run.anchor_below, term.of)
                run.anchor_parts.append(AnchorPart(handle=handle, sign=term.sign, of=of))
                continue
            run.anchor_terms[term.at, term.of] = term
            sender = None if term.at == term.of else term.of
            commands.append(
                SendAnchor(cause="members missing", member=term.at, exchange=kept.id, sender=sender)
            )
        return commands

    def _drop_anchor(self) -> None:
        assert self.running is not None
        self.running.anchor_of = None
        self.running.anchor_terms.clear()
        self.running.anchor_parts.clear()

    def _waits_for_anchor(self) -> bool:
        return self.running is not None and bool(self.running.anchor_terms)

    def anchor_arrived(self, event: AnchorArrived) -> list[Command]:
        """Add one anchor term; if the member lacks it there is no anchor, but a correction."""
        run = self.running
        whose = event.sender if event.sender is not None else event.member
        if run is not None and run.anchor_of == event.exchange:
            term = run.anchor_terms.get((event.member, whose))
            if term is not None and event.handle is None:
                self._drop_anchor()
                return []
            if term is not None and event.handle is not None:
                del run.anchor_terms[event.member, whose]
                of = subtree_of(run.anchor_below, term.of)
                run.anchor_parts.append(AnchorPart(handle=event.handle, sign=term.sign, of=of))
                self._fetched.append(event.handle)
                return []
        if event.handle is None:
            return []
        # The term is no longer awaited.
        return [Refuse(exchange=event.exchange, sender=event.member, handle=event.handle)]

    def disturbed(self) -> None:
        """Record that the tree has changed: its partials are no anchors."""
        if self.running is not None:
            self.running.disturbed = True

    def lost(self, member: MemberId) -> None:
        """Record a loss: the exchange is disturbed, and an anchor term may be lost with it."""
        run = self.running
        if run is None:
            return
        self.disturbed()
        if any(at == member for at, _ in run.anchor_terms):
            self._drop_anchor()

    def deliverable(self, now_s: float) -> bool:
        """Whether the outcome is complete: gathered, and no anchor term is awaited."""
        run = self.running
        if run is None or run.gathered is None:
            return False
        if run.anchor_terms and now_s >= run.anchor_deadline_s:
            self._drop_anchor()
        return not run.anchor_terms

    def deliver(self) -> tuple[Record, Deliver]:
        """End the exchange; return its story record and its outcome."""
        run, state = self.running, self.state
        assert run is not None and run.gathered is not None
        in_sum = self.in_sum()
        opened, _ = state.ledger.report(in_sum)
        lacking = set(run.participants).difference(in_sum)
        examples = run.n_rows - sum(run.rows[m] for m in lacking)
        if run.header.keep and not run.disturbed:
            self.kept.append(
                KeptExchange(id=run.id, parents=dict(state.parents), versions=run.participants)
            )
        self.running = None
        anchored = run.anchor_of is not None and bool(run.anchor_parts)
        deliver = Deliver(
            cause=state.cause,
            exchange=run.id,
            inputs=run.gathered.inputs,
            order=run.gathered.order,
            contributors=run.gathered.contributors,
            examples=examples,
            absent_examples=state.ledger.total_rows - examples,
            absent=tuple(g for g in state.ledger.groups if g in run.absent_at_start),
            opened=opened,
            anchor_exchange=run.anchor_of if anchored else None,
            anchor=tuple(run.anchor_parts) if anchored else (),
        )
        record = state.record(
            story.ExchangeEnded,
            exchange=run.id,
            operation=run.header.operation,
            phase=run.request.phase,
            start_t=run.started_s,
            contributors=hex(deliver.contributors),
            missing=hex(run.mask & ~deliver.contributors),
            order=deliver.order,
            examples=examples,
            absent_examples=deliver.absent_examples,
            opened=opened,
            anchor=deliver.anchor_exchange,
            absent=deliver.absent,
            anchor_parts=tuple((part.sign, hex(part.of)) for part in deliver.anchor),
        )
        return record, deliver
