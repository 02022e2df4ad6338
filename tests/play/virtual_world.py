"""Plays a fault plan in the simulator, restarts of the driver included."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from elasticml.control.driver_settings import OVERTIME, OVERTIME_S_MIN
from elasticml.data.source import Source
from elasticml.errors import ConfigError, error_from_dict
from elasticml.protocol.job_record import JobRecord
from elasticml.runtime.checkpoints.checkpoint_store import read_checkpoint
from elasticml.sim.preemption_trace import options_from_section
from elasticml.sim.simulation import Simulation
from elasticml.sim.virtual_worker import Worker
from elasticml.specification.simulator import Asked, WorldOptions
from elasticml.story.summary import summary_from_json
from elasticml.training.checkpoint import Checkpoint, record_to_resume
from tests.play.network import Disturbance, DisturbedNetwork
from tests.play.plan import VIRTUAL, Fault, Plan, Played, hits_in_phases
from tests.play.problems import source_of


class DriverKilledError(Exception):
    """The plan has killed the driver."""


#: Rounds without faults after which the model must be near the optimum.
_QUIET_ROUNDS: Final = 10


@dataclass(kw_only=True, eq=False)
class PlayedPlan(Played):
    """The end of a plan's job in virtual time."""

    #: Members times seconds that they lived, over all attempts.
    member_seconds: float = 0.0


def play_plan(plan: Plan) -> PlayedPlan:
    """Run a plan's job to its end.

    Raises
    ------
    ElasticmlError, AssertionError
        When the job is stuck or an invariant of the machines is violated.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _play(plan, Path(folder))


def _play(plan: Plan, folder: Path) -> PlayedPlan:
    if strange := [f.kind for f in plan.faults if f.kind not in VIRTUAL]:
        raise ConfigError(
            f"fault {strange[0]!r} in virtual time, wanted one of {', '.join(VIRTUAL)}; play the "
            'plan on processes, with world {"on": "local", "members": 4}'
        )
    options = options_from_section(plan.world)
    phases = [
        entry
        for lost in plan.in_phases
        for entry in (lost, {"round": lost["round"] + 2, "return": len(lost["lose"])})
    ]
    record = replace(plan, job={**plan.job, "faults": phases}).record
    source = None if options.costs is not None else source_of(record.algorithm, plan.data)
    hits: list[Fault] = []
    member_seconds, since, shift_s = 0.0, 0.0, 0.0
    checkpoint: Checkpoint | None = None
    while True:
        attempt = _Attempt(plan, record, source, options, checkpoint, folder, since, shift_s, hits)
        is_over = attempt.run()
        attempt.simulation.close()
        member_seconds += attempt.member_seconds
        if is_over:
            break
        # The job's clock goes back to the checkpoint; the plan's does not.
        since = attempt.killed_at
        checkpoint = read_checkpoint(str(folder), []) or checkpoint
        if checkpoint is None:
            shift_s = attempt.restart_s - since
            continue
        assert source is not None
        shift_s = checkpoint.seconds + attempt.restart_s - since
        record = record_to_resume(record, checkpoint, source)
    return _ended(plan, attempt, member_seconds)


def _ended(plan: Plan, attempt: _Attempt, member_seconds: float) -> PlayedPlan:
    result = attempt.simulation.result()
    by_phase = hits_in_phases(result.story)
    last_fault_s = max([attempt.last_fault_s, *(fault.at for fault in by_phase)])
    quiet = [row for row in result.rows if (row.get("seconds") or 0.0) > last_fault_s]
    absent = attempt.world.driver.machine.state.ledger.absent_rows()
    has_settled = len(quiet) >= _QUIET_ROUNDS
    # A step of the trainer under way may end.
    limit_s = plan.record.stop.seconds or math.inf
    end_s = summary_from_json(result.summary).seconds or 0.0
    step_s = max(OVERTIME_S_MIN, OVERTIME * limit_s) + 2.0 * float(plan.world["tick_s"])
    ended = {
        worker.address
        for worker in attempt.world.workers.by_address.values()
        if not worker.endpoint.is_alive or worker.is_closing
    }
    return PlayedPlan(
        plan=plan,
        state=result.state,
        error=None if result.error is None else error_from_dict(result.error),
        story=result.story,
        history=result.rows,
        arrays=result.arrays,
        snapshots=result.snapshots,
        summary=result.summary,
        hits=attempt.hits + by_phase,
        hit_pids={int(address.removeprefix("sim://")) for address in attempt.touched | ended},
        quiet_rounds=len(quiet),
        # Groups wait for members that own nothing: with the last newcomers, there are enough.
        is_whole=has_settled and attempt.last_grant_s > last_fault_s,
        has_settled=has_settled and not absent,
        absent=absent,
        late_s=end_s - limit_s - step_s,
        member_seconds=member_seconds,
    )


class _Attempt:
    """One driver's life."""

    def __init__(
        self,
        plan: Plan,
        record: JobRecord,
        source: Source | None,
        options: WorldOptions,
        checkpoint: Checkpoint | None,
        folder: Path,
        since: float,
        shift_s: float,
        hits: list[Fault],
    ) -> None:
        faults = [f for f in plan.faults if f.at > since or (since == 0.0 and f.at == 0.0)]
        marks = [
            Asked(at=f.at + shift_s, reclaim=f.who, grace=f.grace, away=f.seconds)
            for f in faults
            if f.kind == "mark"
        ]
        options = replace(
            options, slow=dict(options.slow), trace=(*options.trace, *marks), quiet_s_max=1e12
        )
        # With more members the check after every event is too slow; it runs at each membership
        # change and round boundary anyway.
        is_small = options.costs is None
        self.simulation = Simulation(
            record.json,
            source,
            options=options,
            check_every_event=is_small,
            resumed=checkpoint,
            # Only for a driver that comes back.
            checkpoints=folder if any(f.kind == "driver" for f in plan.faults) else None,
        )
        self.world = self.simulation.world
        self.environment = self.world.environment
        self.network = DisturbedNetwork(self.environment.network, random.Random(plan.seed))
        self.environment.network = self.network
        self.clock = self.environment.loop
        self.hits = hits
        self.touched: set[str] = set()
        self.member_seconds = 0.0
        self.last_fault_s = self.last_grant_s = self.clock.now_s
        #: Seconds of the plan at which the driver was killed, and until it comes back.
        self.killed_at = self.restart_s = 0.0
        self._shift_s = shift_s
        for fault in faults:
            if fault.kind != "phase":
                self.clock.at(fault.at + shift_s, self._perform, fault)

    def run(self) -> bool:
        """Run until the job ends, or until the driver is killed: then return False."""
        membership = self.world.driver.machine.state.membership
        seen_s = self.clock.now_s
        try:
            for _ in self.simulation.run():
                self.member_seconds += len(membership.members) * (self.clock.now_s - seen_s)
                seen_s = self.clock.now_s
        except DriverKilledError:
            return False
        return True

    # --- faults ---------------------------------------------------------------------------------

    def _perform(self, fault: Fault) -> None:
        if self.world.driver.has_ended:
            return
        if fault.kind != "grant":
            end_s = self.clock.now_s + 4.0 * fault.seconds + fault.grace
            self.last_fault_s = max(self.last_fault_s, end_s)
        if fault.kind == "driver":
            self.hits.append(fault)
            self.killed_at, self.restart_s = fault.at, fault.seconds
            raise DriverKilledError
        if fault.kind == "grant":
            self.hits.append(fault)
            self.last_grant_s = self.clock.now_s
            for _ in fault.who:
                self.clock.after(self.environment.options.start_s, self.world.workers.start)
            return
        here = [w for w in self.world.workers.serving() if w.slot in fault.who]
        if fault.kind == "one_way" and len(here) < 2:
            return
        self.hits += [fault] * len(here)
        self.touched |= {worker.address for worker in here}
        if fault.kind in _DISTURBANCES:
            made = _DISTURBANCES[fault.kind](fault)
            ends = [frozenset({w.endpoint}) for w in here]
            if fault.kind == "one_way":
                by_slot = {w.slot: frozenset({w.endpoint}) for w in here}
                made["towards"], silent = (by_slot[slot] for slot in fault.who)
                ends = [silent]
            if fault.kind in ("split", "lag", "loss"):
                ends = [frozenset().union(*ends)] if ends else []
            for endpoints in ends:
                until_s = self.clock.now_s + fault.seconds
                self.network.disturb(Disturbance(endpoints=endpoints, until_s=until_s, **made))
            return
        for worker in here:
            if fault.kind != "mark":  # the world's own resource manager performs it
                self._hit(worker, fault)

    def _hit(self, worker: Worker, fault: Fault) -> None:
        """End, pause or slow one worker."""
        match fault.kind:
            case "pause":
                self.network.pause(worker.endpoint)
                self.clock.after(fault.seconds, self.network.resume, worker.endpoint)
                return
            case "slow":
                slow = self.environment.options.slow
                assert worker.slot is not None
                slow[worker.slot] = fault.amount
                self.clock.after(fault.seconds, slow.__setitem__, worker.slot, 1.0)
                return
            case "vanish":
                until_s = self.clock.now_s + 4.0 * fault.seconds
                end = frozenset({worker.endpoint})
                self.network.disturb(Disturbance(endpoints=end, until_s=until_s, cuts=True))
                worker.kill()
            case "notice" | "terminate":
                worker.notice(fault.grace, "noticed" if fault.kind == "notice" else "terminated")
            case "broken_notice":
                worker.notice(fault.grace, "noticed")
                self.clock.after(fault.amount * fault.grace, worker.kill)
            case "kill":
                worker.kill()
        self.clock.after(fault.grace + fault.seconds, self.world.workers.start)


_DISTURBANCES: Mapping[str, Callable[[Fault], dict[str, Any]]] = {
    "cut": lambda fault: {"cuts": True},
    "split": lambda fault: {"cuts": True},
    "one_way": lambda fault: {"cuts": True},
    "lag": lambda fault: {"lag_s": fault.amount},
    "loss": lambda fault: {"loss": fault.amount},
    "throttle": lambda fault: {"slowdown": fault.amount},
}
