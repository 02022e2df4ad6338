"""What the driver machine must know of a job: plain numbers, fixed before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

FaultPhase = Literal["load", "broadcast", "compute", "reduce", "correct", "move", "apply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """One entry of a job's ``faults``."""

    round: int
    kind: Literal["lose", "return"]
    count: int = 0
    #: Slots that go; empty: the last ``count`` members of the tree's order.
    slots: tuple[int, ...] = ()
    how: str = "kill"
    phase: FaultPhase = "broadcast"
    #: Of a loss within an exchange: which one of its round, counted from 0.
    exchange: int = 0
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The driver's share of a job record."""

    start_members: int = 1
    #: With fewer than these the job waits.
    members_min: int = 1
    #: Policies ask for no more members than these; None: for as many as they like.
    members_max: int | None = None
    #: Static partitions of the examples, several to a member, as in the papers' layouts.
    partitions: int | None = None
    #: Where chunks are before the first round: stretches of the file, or parts drawn from the seed.
    placement: Literal["contiguous", "random"] = "contiguous"
    #: What chance depends on.
    seed: int = 0
    #: Members that shall hold each chunk's body: with 2, a loss leaves a copy to go on with. None:
    #: 2 where all bodies fit twice into the members' memory, else 1.
    holders: int | None = 1
    n_blocks: int = 1
    needs_survey: bool = False
    absent: str = "taylor"
    topology: str = "auto"
    fan_out: int = 2
    #: Ask the tree for the vanished members' last share before a correction exchange is needed.
    cached_anchors: bool = True
    rounds_max: int | None = None
    seconds_max: float | None = None
    objective_target: float | None = None
    gap_target: float | None = None
    #: Seconds from one report to the next, of a job whose members run free; None: they do not.
    report_every_s: float | None = None
    faults: tuple[PlannedFault, ...] = ()
    #: A round's deadline: max(this, ``stuck_factor`` x the running median of its operation).
    deadline_s_min: float = 10.0
    #: A member that still computes then is given up for the round; it comes back as a new one.
    stuck_factor: float = 5.0
    #: How long a member may take to say how far it is before it counts as stopped.
    status_s_max: float = 2.0
    #: How long a round may be held for chunks on the move, or for a planned return.
    hold_s_max: float = 120.0
    #: Assumed rate of chunk moves when deciding what fits a notice.
    move_bytes_per_s: float = 200e6
    #: Rate of one member's copies to further holders, which go on during exchanges.
    copy_bytes_per_s: float = 50e6


#: Algorithms whose members train on their own examples, and want every one of them.
_LOCAL: Final = ("cocoa", "primal_cocoa", "local_sgd", "async_sgd")
#: Those of them whose chunks have two holders, and are dealt anew, where there is room.
DEALT_ANEW: Final = ("cocoa", "primal_cocoa")


def settings_from_record(record: Mapping[str, Any], n_blocks: int, needs_survey: bool) -> Settings:
    """Read the driver's settings out of a job record."""
    stop = record.get("stop") or {}
    collective = record.get("collective") or {}
    algorithm = record.get("algorithm") or {}
    return Settings(
        start_members=(record.get("members") or {}).get("start", 1),
        members_min=(record.get("members") or {}).get("min") or 1,
        members_max=(record.get("members") or {}).get("max"),
        partitions=record.get("partitions"),
        placement=_placement(record.get("placement"), str(algorithm.get("name"))),
        seed=int(record.get("seed") or 0),
        holders=_holders(record.get("holders"), str(algorithm.get("name"))),
        n_blocks=n_blocks,
        needs_survey=needs_survey,
        absent=_absent(record.get("absent", "taylor"), str(algorithm.get("name"))),
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


def _placement(wanted: Any, algorithm: str) -> Literal["contiguous", "random"]:
    """Settle "auto": partitions by the file's order are the worst for what trains locally."""
    if wanted in ("contiguous", "random"):
        return wanted  # type: ignore[no-any-return]
    return "random" if algorithm in _LOCAL else "contiguous"


def _absent(wanted: str, algorithm: str) -> str:
    """Settle "auto" for these: what vanished is taken over by whoever has it, or read again."""
    return "reload" if wanted == "auto" and algorithm in _LOCAL else wanted


def _report_every_s(algorithm: Mapping[str, Any]) -> float | None:
    if algorithm.get("name") == "async_sgd" and algorithm.get("mode") == "batch":
        return None
    given = algorithm.get("report_every", 1.0 if algorithm.get("name") == "async_sgd" else None)
    return None if given is None else float(given)


def _holders(wanted: Any, algorithm: str) -> int | None:
    if isinstance(wanted, int):
        return wanted
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
