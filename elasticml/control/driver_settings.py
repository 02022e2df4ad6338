"""The driver machine's settings: plain values, fixed before the job starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from elasticml.specification.algorithms import DEALT_ANEW, resolve_absent, resolve_placement

FaultPhase = Literal["load", "broadcast", "compute", "reduce", "correct", "move", "apply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One entry of a job's ``faults``."""

    round: int
    kind: Literal["lose", "return"]
    count: int = 0
    #: Slots to lose; empty: the ``count`` members with the highest ids.
    slots: tuple[int, ...] = ()
    how: str = "kill"
    phase: FaultPhase = "broadcast"
    #: For a loss within an exchange: index of the exchange in its round, from 0.
    exchange: int = 0
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    """The driver's part of a job record."""

    start_members: int = 1
    #: With fewer working members the job waits.
    members_min: int = 1
    #: Policies request no more members than this; None: unlimited.
    members_max: int | None = None
    #: Static partitions of the examples, several per member, as in the papers' layouts.
    partitions: int | None = None
    #: Initial placement: contiguous ranges of the file, or random parts drawn from the seed.
    placement: Literal["contiguous", "random"] = "contiguous"
    #: Seed of all random choices.
    seed: int = 0
    #: Members that hold each chunk's body: with 2, a copy survives a loss. None: 2 if all bodies
    #: fit twice into the members' memory, else 1.
    holders: int | None = 1
    n_blocks: int = 1
    needs_survey: bool = False
    absent: str = "taylor"
    topology: str = "auto"
    fan_out: int = 2
    #: Fetch the lost members' last partial from the tree instead of a correction exchange.
    cached_anchors: bool = True
    rounds_max: int | None = None
    seconds_max: float | None = None
    objective_target: float | None = None
    gap_target: float | None = None
    #: Seconds between reports in asynchronous mode; None: synchronous rounds.
    report_every_s: float | None = None
    faults: tuple[PlannedFault, ...] = ()
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


def settings_from_record(
    record: Mapping[str, Any], n_blocks: int, needs_survey: bool
) -> DriverSettings:
    """Read the driver's settings from a job record."""
    stop = record.get("stop") or {}
    collective = record.get("collective") or {}
    algorithm = record.get("algorithm") or {}
    return DriverSettings(
        start_members=(record.get("members") or {}).get("start", 1),
        members_min=(record.get("members") or {}).get("min") or 1,
        members_max=(record.get("members") or {}).get("max"),
        partitions=record.get("partitions"),
        placement=resolve_placement(record.get("placement"), str(algorithm.get("name"))),
        seed=int(record.get("seed") or 0),
        holders=_holders(record.get("holders"), str(algorithm.get("name"))),
        n_blocks=n_blocks,
        needs_survey=needs_survey,
        absent=resolve_absent(record.get("absent", "taylor"), str(algorithm.get("name"))),
        topology=collective.get("topology", "auto"),
        fan_out=collective.get("fan_out", 2),
        cached_anchors=algorithm.get("anchor", "cached") == "cached",
        rounds_max=stop.get("rounds"),
        seconds_max=stop.get("seconds"),
        objective_target=stop.get("objective"),
        gap_target=stop.get("gap"),
        report_every_s=_report_every_s(algorithm),
        faults=_faults(record.get("faults") or ()),
        deadline_s_min=float(collective.get("deadline", 10.0)),
        stuck_factor=float(collective.get("stuck_factor", 5.0)),
    )


def _report_every_s(algorithm: Mapping[str, Any]) -> float | None:
    if algorithm.get("name") == "async_sgd" and algorithm.get("mode") == "batch":
        return None
    interval_s = algorithm.get(
        "report_every", 1.0 if algorithm.get("name") == "async_sgd" else None
    )
    return None if interval_s is None else float(interval_s)


def _holders(choice: Any, algorithm: str) -> int | None:
    if isinstance(choice, int):
        return choice
    return None if algorithm in DEALT_ANEW else 1


def _faults(entries: Sequence[Mapping[str, Any]]) -> tuple[PlannedFault, ...]:
    faults = []
    for entry in entries:
        if entry.get("return") is not None:
            faults.append(
                PlannedFault(round=entry["round"], kind="return", count=int(entry["return"]))
            )
            continue
        lose = entry["lose"] if entry.get("lose") is not None else entry["lose_partitions"]
        slots = tuple(lose) if not isinstance(lose, int) else ()
        faults.append(
            PlannedFault(
                round=entry["round"],
                kind="lose",
                count=len(slots) or int(lose),
                slots=slots,
                how=entry.get("how") or "kill",
                phase=entry.get("phase") or "broadcast",
                exchange=int(entry.get("exchange") or 0),
                grace_s=float(entry.get("grace") or 0.0),
            )
        )
    return tuple(sorted(faults, key=lambda f: f.round))
