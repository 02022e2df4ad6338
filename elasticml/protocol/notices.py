"""Notices: what a cluster says about containers and nodes, from the parser to the driver machine.

One record per fact. The parser of a resource manager's messages creates it with the container's
name; the container manager adds the address of the worker in it; the driver machine handles it as
an event. Clusters without container names post it with the address only.
"""

from __future__ import annotations

from typing import Literal

from elasticml.fast_dataclass import dataclass
from elasticml.protocol.events import Event

#: Why a container goes or has gone. A pre-empted, released or retired one is never a failure.
Reason = Literal[
    "preempted",
    "released",
    "retired",
    "node",
    "memory",
    "aborted",
    "killed",
    "exit",
    "success",
    "terminated",
    "walltime",
    "lifetime",
    "maintenance",
]

#: A mark whose source does not state its life holds for this multiple of its grace, and for at
#: least this many seconds after its grace.
LIFE_GRACES, LIFE_S_MIN = 3.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMarked(Event):
    """The resource manager asks for a container."""

    #: The resource manager's name of it; empty if it has none.
    container: str = ""
    #: Dask address of the worker in it; empty until that has registered.
    address: str = ""
    #: Seconds until its processes are stopped, at the earliest; 0: at any moment.
    grace_s: float
    #: Seconds until the mark expires unless it is repeated; None: see :func:`life_of`.
    life_s: float | None = None
    reason: Reason = "preempted"
    #: Any other container of the application will do as well.
    negotiable: bool = False
    #: The application cannot run without this container, which holds no member.
    essential: bool = False
    #: How often the container has been marked, including this time.
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLifted(Event):
    """The resource manager no longer asks for a container."""

    container: str = ""
    address: str = ""
    why: Literal["withdrawn", "void"] = "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStopping(Event):
    """The processes in a container have received SIGTERM and end within ``grace_s`` seconds."""

    address: str
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEnded(Event):
    """A container ended; may arrive before or after the member's loss is detected."""

    container: str
    address: str = ""
    reason: Reason
    #: Exit status: the resource manager's (negative), or that of the program.
    status: int | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged(Event):
    """The state of a node changed.

    ``state`` is the resource manager's in lower case: "decommissioning" (its containers end after
    the grace), "lost", "unhealthy", "decommissioned", "shutdown", "rebooted" (they have ended), or
    "running" (it stays).
    """

    #: Host and port of its node manager.
    node: str
    state: str
    #: Seconds until a decommissioning node is removed; 0: unknown.
    grace_s: float = 0.0
    #: Dask addresses of the workers on it.
    addresses: tuple[str, ...] = ()


Notice = ContainerMarked | MarkLifted | ContainerStopping | ContainerEnded | NodeChanged


def life_of(mark: ContainerMarked) -> float:
    """Return the seconds for which a mark holds: the only rule of expiry."""
    if mark.life_s is not None:
        return mark.life_s
    return max(LIFE_GRACES * mark.grace_s, mark.grace_s + LIFE_S_MIN)
