"""Rounds at the driver: history rows, stop rules, planned faults, and idle rounds.

:class:`History` keeps what policies may know of finished rounds.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

from elasticml.control.job_state import JobState, names
from elasticml.control.policy import Progress
from elasticml.control.stagnation import ROUNDS_WITHOUT_PROGRESS, Stagnation
from elasticml.ids import ExchangeId, MemberId
from elasticml.protocol.commands import AddRow, Command, Inject
from elasticml.protocol.events import FaultPerformed
from elasticml.specification.sections import Fault
from elasticml.story import records as story
from elasticml.story.history import NEXT, HistoryRow

#: Number of rounds for which a member's compute times are kept.
ROUNDS_KEPT = 8


class _Prefix(Sequence[Progress]):
    """The present rounds of an append-only list; rounds appended later are not seen."""

    def __init__(self, rounds: list[Progress]) -> None:
        self._rounds = rounds
        self._n = len(rounds)

    def __len__(self) -> int:
        """Count the rounds."""
        return self._n

    @overload
    def __getitem__(self, k: int) -> Progress: ...

    @overload
    def __getitem__(self, k: slice) -> Sequence[Progress]: ...

    def __getitem__(self, k: int | slice) -> Progress | Sequence[Progress]:
        """Return one round, or a slice."""
        if isinstance(k, slice):
            return [self._rounds[i] for i in range(*k.indices(self._n))]
        return self._rounds[range(self._n)[k]]


class History:
    """Finished rounds, and each member's compute seconds in the last ones."""

    def __init__(self, state: JobState) -> None:
        self.state = state
        self._progress: list[Progress] = []
        #: Compute seconds of the running round, by exchange: a sum that is sent again counts once.
        self._now: dict[ExchangeId, dict[MemberId, float]] = {}
        #: Seconds of the living members, and examples owned, in the last rounds. Kept by round and
        #: not by member: most members compute in every round, and few are asked about.
        self._kept: deque[tuple[dict[MemberId, float], Mapping[MemberId, int]]] = deque(
            maxlen=ROUNDS_KEPT
        )
        #: (seconds, examples owned) of members that did not compute in each of these rounds.
        self._apart: dict[MemberId, deque[tuple[float, int]]] = {}
        #: The examples owned, and the ledger's number of changes then.
        self._rows: tuple[int, Mapping[MemberId, int]] = (-1, {})

    @property
    def progress(self) -> Sequence[Progress]:
        """Finished rounds, oldest first."""
        return _Prefix(self._progress)

    def restore(self, progress: Iterable[Progress]) -> None:
        """Start from rounds that another driver finished, oldest first."""
        self._progress[:] = progress

    def computed(self, exchange: ExchangeId, seconds: Mapping[MemberId, float]) -> None:
        """Add the compute seconds that members sent with their partials of an exchange."""
        self._now.setdefault(exchange, {}).update(seconds)

    def ended(self, row: HistoryRow, now_s: float) -> None:
        """Add a finished round that was not idle."""
        self._keep_times()
        self._progress.append(
            Progress(
                round=self.state.round,
                seconds=now_s,
                members=self.state.membership.n_working,
                objective=row.objective if row.next_objective is None else row.next_objective,
                gap=row.next_gap,
                gap_is_bound=row.next_gap_is_bound,
            )
        )

    def _keep_times(self) -> None:
        """Keep the running round's compute seconds, without a step for each member."""
        sums, *others = [*self._now.values()] or [{}]
        for seconds in others:
            for member, value in seconds.items():
                sums[member] = sums.get(member, 0.0) + value
        self._now.clear()
        members, ledger = self.state.membership.members, self.state.ledger
        for member in set(sums).difference(members):
            del sums[member]
        if not sums:
            return
        if self._rows[0] != ledger.changes:
            self._rows = (ledger.changes, ledger.rows_by_member())
        rows = self._rows[1]
        skipped = set(self._kept[-1][0]).difference(sums) if self._kept else set()
        if 0 in rows.values():
            skipped |= {member for member in sums if not rows.get(member)}
        for member in skipped - self._apart.keys():
            self._apart[member] = deque(self._shared(member), maxlen=ROUNDS_KEPT)
        self._kept.append((sums, rows))
        for member, times in list(self._apart.items()):
            if member in sums and rows.get(member):
                times.append((sums[member], rows[member]))
                if len(self._shared(member)) == ROUNDS_KEPT:
                    del self._apart[member]

    def _shared(self, member: MemberId) -> list[tuple[float, int]]:
        """Return what the last rounds contain of a member, newest last."""
        return [
            (sums[member], rows[member])
            for sums, rows in self._kept
            if member in sums and rows.get(member)
        ]

    def _times(self, member: MemberId) -> Iterable[tuple[float, int]]:
        """Return the (seconds, examples owned) of a member's last rounds, newest last."""
        apart = self._apart.get(member)
        return self._shared(member) if apart is None else apart

    def lost(self, member: MemberId) -> None:
        """Forget a lost member's times."""
        self._apart.pop(member, None)
        for sums, _ in self._kept:
            sums.pop(member, None)

    def seconds(self, member: MemberId) -> tuple[float, ...]:
        """Return the compute seconds of a member's last rounds, newest last."""
        return tuple([value for value, _ in self._times(member)])

    def seconds_per_row(self, member: MemberId) -> tuple[float, ...]:
        """Return them divided by the examples that it owned at the end of each round."""
        return tuple([value / rows for value, rows in self._times(member)])


ROUNDS_TIMED = 20
#: Shortest idle round, however fast real ones are.
PACE_S_MIN = 5e-3
#: Shortest idle round without planned faults: the awaited members arrive when the cluster has
#: capacity, and ``stop.rounds`` must not be used up by then.
UNPLANNED_PACE_S = 10.0


class Rounds:
    """Counts rounds, decides when to stop, and performs planned faults."""

    def __init__(self, state: JobState, history: History | None = None) -> None:
        self.state = state
        self.history = history or History(state)
        self.planned: list[Fault] = list(state.settings.faults)
        #: A fault is being performed; the round is held until FaultPerformed.
        self.injecting = False
        #: Newcomers that a planned return still waits for; None: no return is running.
        self.expected: int | None = None
        self.prepared = False
        #: Index within the round of the next or running exchange, from 0.
        self.exchange = 0
        self.round_started_s = 0.0
        self._durations: deque[float] = deque(maxlen=ROUNDS_TIMED)
        self.last_row = HistoryRow({})
        #: A round has ended in this process, so that there is a model.
        self.has_model = False
        #: The job was resumed, and no round has ended since: its model is the checkpoint's.
        self.has_former_model = False
        self.stagnation = Stagnation()

    # --- history ------------------------------------------------------------------------------

    def finish(self, row: HistoryRow, now_s: float, idle: bool = False) -> list[Command]:
        """Write a round's row and start the next round."""
        state = self.state
        if not idle and not state.ledger.groups and not state.ledger.open:
            self._durations.append(now_s - self.round_started_s)
        self.round_started_s = now_s
        shown = {name: value for name, value in row.columns.items() if name not in NEXT}
        if row.gap is None and self.last_row.next_gap is not None:
            # Computed at the end of the previous round, for this round's model.
            shown["gap"] = self.last_row.next_gap
            shown["gap_is_bound"] = self.last_row.next_gap_is_bound
        self.last_row = row
        if idle:
            shown = self.waiting_row()
        else:
            self.has_model, self.has_former_model = True, False
            self.history.ended(row, now_s)
        self.stagnation.after(row, is_whole=not idle and not state.ledger.absent_rows())
        whole = self.row(shown)
        commands: list[Command] = [
            AddRow(cause=state.cause, row=whole, idle=idle),
            state.record(story.RoundEnded, idle=idle, extra=whole.without_round()),
        ]
        state.round += 1
        self.exchange = 0
        return commands

    def waiting_row(self) -> dict[str, Any]:
        """Return the columns of an idle round, for the model with which the last round ended."""
        row = self.last_row
        objective, gap = row.next_objective, row.next_gap
        is_bound = gap is not None and row.next_gap_is_bound
        if gap is None and objective is not None and objective == row.objective:
            gap, is_bound = row.gap, row.gap_is_bound
        return {
            "objective": objective,
            "objective_kind": None if objective is None else "exact",
            "gap": gap,
            "gap_is_bound": is_bound,
            "step": None,
            "stand_ins": row.stand_ins,
        }

    def row(self, columns: Mapping[str, Any]) -> HistoryRow:
        """Return a row with the columns that the driver provides."""
        return HistoryRow(
            {
                **columns,
                "round": self.state.round,
                "members": self.state.membership.n_working,
                "absent_examples": self.state.ledger.absent_rows(),
            }
        )

    def snapshot(self) -> dict[str, Any]:
        """Return what the next round needs of the past ones, as plain values."""
        return {"last_row": dict(self.last_row.columns), "durations": list(self._durations)}

    def restore(self, machine: Mapping[str, Any]) -> None:
        """Continue from what :meth:`snapshot` of another driver returned."""
        self.last_row = HistoryRow(dict(machine["last_row"]))
        self._durations.extend(machine["durations"])
        self.has_former_model = True

    def pace_s(self) -> float:
        """Return the duration of idle rounds: as undisturbed ones while planned faults are due.

        A fault that an earlier round has not had waits for a phase that no idle round has.
        """
        usual = max(PACE_S_MIN, statistics.median(self._durations)) if self._durations else 1.0
        is_planned = any(fault.round >= self.state.round for fault in self.planned)
        is_planned |= self.injecting or self.expected is not None
        return usual if is_planned else max(usual, UNPLANNED_PACE_S)

    def longest_s(self, now_s: float) -> float:
        """Return how long a round takes at most, judged by the last ones and the present one."""
        return max([now_s - self.round_started_s, *self._durations])

    def stop_reason(self, now_s: float) -> str | None:
        """Return why the job should stop after the round just finished; None: it should not."""
        settings, row = self.state.settings, self.last_row
        if settings.rounds_max is not None and self.state.round >= settings.rounds_max:
            return f"{settings.rounds_max} rounds"
        if settings.seconds_max is not None and now_s >= settings.seconds_max:
            return f"{settings.seconds_max:g} seconds"
        objective, gap = row.objective, row.gap
        if (
            settings.objective_target is not None
            and objective is not None
            and row.objective_kind == "exact"
            and objective <= settings.objective_target
        ):
            return f"objective <= {settings.objective_target:g}"
        # An upper bound of the gap certifies the target as well as the gap itself.
        if row.next_gap is not None:
            gap = row.next_gap
        if settings.gap_target is not None and gap is not None and gap <= settings.gap_target:
            return f"gap <= {settings.gap_target:g}"
        if settings.ends_without_progress and self.stagnation.is_over:
            return f"no progress in {ROUNDS_WITHOUT_PROGRESS} rounds"
        return None

    # --- planned faults -----------------------------------------------------------------------

    def prepare(self) -> list[Command]:
        """Start replacements for planned returns ahead of time, while the job runs."""
        count = max((f.count for f in self.planned if f.kind == "return"), default=0)
        if self.prepared or not count:
            return []
        self.prepared = True
        return [Inject(cause="planned", kind="prepare", count=count)]

    @property
    def planned_returns(self) -> int:
        """Number of members in planned returns that are not due yet."""
        return sum(f.count for f in self.planned if f.kind == "return")

    def due_return(self) -> list[Command]:
        """Start the planned return of this round, if any."""
        if self.expected is not None or self.injecting:
            return []
        fault = self._take("return", None)
        if fault is None:
            return []
        self.expected = fault.count
        self.injecting = True
        self.prepared = False
        return [
            self.state.record(story.FaultInjected, kind="return", count=fault.count),
            Inject(cause="planned", kind="return", count=fault.count),
        ]

    def due_loss(self, *phases: str) -> list[Command]:
        """Start a planned loss of this round (or an earlier one) in one of these phases."""
        if self.injecting:
            return []
        fault = self._take("lose", phases)
        if fault is None:
            return []
        members = self._victims(fault)
        self.injecting = True
        return [
            self.state.record(
                story.FaultInjected,
                kind="lose",
                how=fault.how,
                phase=fault.phase,
                members=names(members),
            ),
            Inject(
                cause="planned",
                kind="lose",
                members=tuple(members),
                how=fault.how,
                grace_s=fault.grace,
            ),
            *self.prepare(),
        ]

    def _take(self, kind: str, phases: tuple[str, ...] | None) -> Fault | None:
        for fault in self.planned:
            if fault.round > self.state.round:
                break
            early = fault.round == self.state.round and self.exchange < fault.exchange
            if fault.kind == kind and not early and (phases is None or fault.phase in phases):
                self.planned.remove(fault)
                return fault
            if kind == "return" and fault.round == self.state.round:
                break  # a return comes after the losses listed before it in the same round
        return None

    def _victims(self, fault: Fault) -> list[MemberId]:
        # While data are loaded no member works yet.
        loads = fault.phase == "load"
        here = self.state.living() if loads else [m.id for m in self.state.membership.working()]
        if fault.slots:
            return [m for m in here if m.slot in fault.slots]
        return sorted(here)[len(here) - min(fault.count, len(here)) :]

    def performed(self, event: FaultPerformed) -> None:
        """Continue after a fault was performed; a failed return is no longer awaited."""
        if event.kind == "prepare":
            return
        self.injecting = False
        if event.kind == "return" and event.error is not None:
            self.expected = None

    def arrived(self) -> bool:
        """Count a newcomer towards the running planned return; return False if there is none."""
        if not self.expected:
            return False
        self.expected -= 1
        return True
