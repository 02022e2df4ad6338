"""The driver machine's settings: plain values, fixed before the job starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from elasticml.protocol.job_record import JobRecord
from elasticml.specification.algorithms import (
    DEALT_ANEW,
    AsyncSGD,
    has_tolerance,
    resolve_absent,
    resolve_placement,
)
from elasticml.specification.sections import Fault
from elasticml.specification.settings_model import default_of

#: A step that is running when ``stop.seconds`` is over may take this share of them longer, and at
#: least this many seconds.
OVERTIME, OVERTIME_S_MIN = 0.02, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """The driver's part of a job record."""

    start_members: int = 1
    #: Those are the workers at the submission: the job does not wait for replacements.
    starts_with_present: bool = False
    #: Seconds after the first arrival at which the job starts with fewer members; None: never.
    gather_s: float | None = None
    #: With fewer working members the job waits.
    members_min: int = 1
    #: Policies request no more members than this; None: unlimited.
    members_max: int | None = None
    #: Static partitions of the examples, several per member, as in the papers' layouts.
    partitions: int | None = None
    #: Initial placement: contiguous ranges of the file, random parts drawn from the seed, or with
    #: the members that read the blocks.
    placement: Literal["contiguous", "random", "readers"] = "contiguous"
    #: Seed of all random choices.
    seed: int = 0
    #: Members that hold each chunk's body: with 2, a copy survives a loss. None: 2 if all bodies
    #: fit twice into the members' memory, else 1.
    holders: int | None = 1
    n_blocks: int = 1
    needs_survey: bool = False
    absent: str = "taylor"
    #: Members report when their kernels are compiled, and get chunks of others only then.
    warms_up: bool = False
    topology: str = "auto"
    fan_out: int = 2
    #: Fetch the lost members' last partial from the tree instead of a correction exchange.
    cached_anchors: bool = True
    rounds_max: int | None = None
    seconds_max: float | None = None
    objective_target: float | None = None
    gap_target: float | None = None
    #: The job ends if its rounds make no progress: it has a tolerance or target to reach.
    ends_without_progress: bool = False
    #: Seconds between reports in asynchronous mode; None: synchronous rounds.
    report_every_s: float | None = None
    faults: tuple[Fault, ...] = ()
    #: A round's deadline: max(this, ``stuck_factor`` x the running median of its operation).
    deadline_s_min: float = 10.0
    #: A member still computing after this multiple of the median is fenced and may rejoin.
    stuck_factor: float = 5.0
    #: Time to answer a status request before a member counts as stopped.
    status_s_max: float = 2.0
    #: Longest hold of a round for moving chunks or a planned return.
    hold_s_max: float = 120.0
    #: Assumed rate of chunk moves when deciding what fits into a notice.
    move_bytes_per_s: float = 200e6
    #: Rate limit of one member's background copies, which also run during exchanges.
    copy_bytes_per_s: float = 50e6

    @property
    def latest_end_s(self) -> float | None:
        """When the job ends at the latest, whatever step is running; None: no limit."""
        if self.seconds_max is None:
            return None
        return self.seconds_max + max(OVERTIME_S_MIN, OVERTIME * self.seconds_max)


def settings_from_record(record: JobRecord, n_blocks: int, needs_survey: bool) -> DriverSettings:
    """Read the driver's settings from a job record."""
    stop, collective, members = record.stop, record.collective, record.members
    name = record.algorithm_name
    return DriverSettings(
        start_members=members.start,
        starts_with_present=record.starts_with_present,
        gather_s=record.gather_s,
        members_min=members.min,
        members_max=members.max,
        partitions=record.partitions,
        placement=resolve_placement(record.placement, name),
        seed=record.seed,
        holders=_holders(record.holders, name),
        n_blocks=n_blocks,
        needs_survey=needs_survey,
        absent=resolve_absent(record.absent or "taylor", name),
        topology=collective.topology,
        fan_out=collective.fan_out,
        cached_anchors=record.algorithm.get("anchor", "cached") == "cached",
        rounds_max=stop.rounds,
        seconds_max=stop.seconds,
        objective_target=stop.objective,
        gap_target=stop.gap,
        ends_without_progress=has_tolerance(record.algorithm) or stop.gap is not None,
        report_every_s=_report_every_s(name, record.algorithm),
        faults=tuple(sorted(record.faults, key=lambda fault: fault.round)),
        deadline_s_min=collective.deadline,
        stuck_factor=collective.stuck_factor,
    )


def _report_every_s(name: str, settings: Mapping[str, Any]) -> float | None:
    is_asynchronous = name == AsyncSGD.name
    if is_asynchronous and settings.get("mode") == "batch":
        return None
    default = default_of(AsyncSGD, "report_every") if is_asynchronous else None
    interval_s = settings.get("report_every", default)
    return None if interval_s is None else float(interval_s)


def _holders(choice: int | None, algorithm: str) -> int | None:
    if choice is not None:
        return choice
    return None if algorithm in DEALT_ANEW else 1
