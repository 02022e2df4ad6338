"""A plan is data: a small job, the world that it runs in, the faults, and the rules that must hold.

It plays in virtual time (:mod:`tests.play.virtual_world`) or on processes
(:mod:`tests.play.processes`). A seed gives the same plan each time. A plan that breaks a rule is
kept as JSON, which does not depend on the seed's draws in later versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, get_args

from elasticml.algorithms.base import Arrays
from elasticml.errors import ConfigError
from elasticml.protocol.job_record import JobRecord, job_record
from elasticml.story.records import FaultInjected, records_of

#: What a fault does; see :class:`Fault`.
Kind = Literal[
    # Everywhere, the network's on processes in namespaces only, phases on em.LocalCluster's only:
    "phase",
    "kill",
    "terminate",
    "notice",
    "pause",
    "cut",
    "split",
    "one_way",
    "lag",
    "loss",
    "throttle",
    "driver",
    # In virtual time:
    "broken_notice",
    "vanish",
    "grant",
    "mark",
    "slow",
    # On processes:
    "deaf",
    "clock",
    "full_disk",
    "memory",
    "descriptors",
    "damage",
    "raise",
    "preemption",
    "node",
    "resource_manager",
]
#: Those that play in virtual time.
VIRTUAL: Final = get_args(Kind)[: get_args(Kind).index("deaf")]
#: Faults after which the driver may lose healthy members, since it cannot tell a slow or silent
#: member from a dead one.
SILENT: Final = frozenset(
    {"pause", "vanish", "cut", "split", "one_way", "lag", "loss", "throttle", "slow"}
)
#: As ``stuck_factor``: no member is lost because it has many more examples than others.
STUCK_FACTOR_MAX: Final = 1000.0
VERSION: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    ``kill`` (SIGKILL), ``terminate`` (SIGTERM), ``notice`` (kept), ``broken_notice`` (the end comes
    after a share ``amount`` of the grace) and ``vanish`` (no connection is closed) end members; new
    ones come after ``seconds``. ``driver`` kills the driver and all members; after ``seconds`` the
    job resumes from its last checkpoint. ``grant`` adds members. ``phase`` kills members within
    a round: when its ``broadcast`` begins, when all ``compute``, when the first partial is there
    (``reduce``), in a correction (``correct``), before chunks ``move``, or while data ``load``.
    ``mark`` and ``preemption`` are another queue's demand.

    All others end after ``seconds``. ``pause`` is SIGSTOP and SIGCONT. ``cut`` separates each of
    the members from all others, ``split`` separates them from the others together, ``one_way``
    loses what the second member sends to the first. ``lag`` delays messages of the members by
    ``amount`` seconds at most, ``loss`` loses a share ``amount`` of them, ``throttle`` divides
    their uplink's rate by ``amount`` (on processes it is the rate in bytes per second), ``slow``
    multiplies their compute time by it. In a ``deaf`` member a thread holds the interpreter's lock.
    ``clock`` moves a wall clock by ``amount`` seconds. ``full_disk`` fills the disk of all
    processes; under ``memory`` and ``descriptors`` a member gets no more of them. ``node`` and
    ``resource_manager`` kill daemons of YARN.

    ``damage`` changes a byte of the data's files at a share ``amount`` of their length. ``raise``
    lets the job's own code raise ``error``, once: in one member's solver or, in the phase
    ``trainer``, in the trainer.
    """

    kind: Kind
    #: Seconds since the start, or on processes since the first round; of ``phase``, the round.
    #: Negative: before the job starts.
    at: float
    #: Slots of the members, counted among those that are present; of ``grant``, as many members as
    #: entries.
    who: tuple[int, ...] = ()
    #: How long it lasts, or until replacements come.
    seconds: float = 0.0
    #: Seconds from a notice or mark to its end.
    grace: float = 0.0
    amount: float = 0.0
    phase: str = ""
    #: Name of a builtin exception.
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A job, its world, its faults, and what must hold.

    Parameters
    ----------
    seed : int
        From which the plan was drawn.
    job : mapping
        The sections of a job record; version, job and name have defaults. Its section ``data``
        describes the rows, see :func:`tests.play.problems.source_of`.
    world : mapping
        In virtual time the section ``simulate``; on processes see
        :func:`tests.play.worlds.world_of`.
    faults : tuple of Fault
    rules : mapping
        By name, see :mod:`tests.play.rules`; the values are the rules' parameters.
    """

    seed: int
    job: Mapping[str, Any]
    world: Mapping[str, Any]
    faults: tuple[Fault, ...] = field(default=(), repr=False)
    rules: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The job in a few words."""
        algorithm = self.job["algorithm"]
        words = [algorithm["name"], *(algorithm.get(k) for k in ("optimizer", "loss", "problem"))]
        kind = "costs" if "costs" in self.world else " ".join(str(w) for w in words if w)
        n_members = self.world.get("members") or self.job["members"]["start"]
        return f"{kind}, absent: {self.job['absent']}, {n_members} members"

    @property
    def data(self) -> Mapping[str, Any]:
        """What describes the rows."""
        data: Mapping[str, Any] = self.job["data"]
        return data

    @property
    def in_phases(self) -> list[dict[str, Any]]:
        """What the job record says of the faults in phases."""
        return [
            {"round": int(fault.at), "lose": list(fault.who), "phase": fault.phase, "how": "kill"}
            for fault in self.faults
            if fault.kind == "phase"
        ]

    @property
    def record(self) -> JobRecord:
        """The job record, in virtual time."""
        sections = {k: v for k, v in self.job.items() if k != "data"}
        return job_record({"version": 1, "job": "play", "name": "play", **sections})

    def with_faults(self, faults: Sequence[Fault]) -> Plan:
        """Return the plan with other faults."""
        return replace(self, faults=tuple(faults))

    def to_json(self) -> str:
        """Return the plan as JSON."""
        entries = [
            {k: v for k, v in asdict(fault).items() if v not in (0.0, "", ())}
            | {"kind": fault.kind, "at": fault.at}
            for fault in self.faults
        ]
        return json.dumps({"version": VERSION, **asdict(self), "faults": entries}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from :meth:`to_json`.

        Raises
        ------
        ConfigError
            When the text is no plan.
        """
        try:
            values = json.loads(text)
            version = values.pop("version")
            faults = [
                Fault(**{**entry, "who": tuple(entry.get("who", ()))})
                for entry in values.pop("faults")
            ]
            plan = cls(**values, faults=tuple(faults))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"--plan: the file is no plan ({error!r}); give one that python -m tests.play wrote"
            ) from None
        if version != VERSION:
            raise ConfigError(f"--plan: got version {version}, wanted {VERSION}; draw a new plan")
        return plan


@dataclass(kw_only=True, eq=False)
class Played:
    """The end of a plan's job, and what was done to it."""

    plan: Plan
    #: done, failed or endless.
    state: str = "endless"
    #: What ended the job, perhaps before it was resumed.
    error: BaseException | None = None
    story: Sequence[Mapping[str, Any]] = ()
    history: Sequence[Mapping[str, Any]] = ()
    #: The final model, and those at the beginning of rounds, if they are known.
    arrays: Arrays = field(default_factory=dict)
    snapshots: Mapping[int, Arrays] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    #: Faults that hit the job while it ran; in virtual time once for each member.
    hits: list[Fault] = field(default_factory=list)
    #: Processes at which a fault was aimed, or that ended.
    hit_pids: set[int] = field(default_factory=set)
    #: Rounds after the last fault was over; on processes, after all workers were back.
    quiet_rounds: int = 0
    #: Whether there was time for all examples to return, and for the model to become good.
    is_whole: bool = False
    has_settled: bool = False
    #: Examples absent at the end.
    absent: int = 0
    #: Seconds from the time at which the job must have ended to its end.
    late_s: float = 0.0
    #: What the job left on the cluster.
    left: list[str] = field(default_factory=list)


def hits_in_phases(story: Sequence[Mapping[str, Any]]) -> list[Fault]:
    """Return a fault for each member that was killed in a phase, at its time in the story."""
    losses = (record for record in records_of(FaultInjected, story) if record.kind == "lose")
    return [Fault(kind="phase", at=lost.t) for lost in losses for _ in lost.members or ()]
