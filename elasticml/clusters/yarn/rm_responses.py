"""Parse the resource manager's responses into records: queues and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Answer = Mapping[str, Any]

#: Most schedulers encode "no limit" as this number.
_UNLIMITED: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Resources:
    """An amount of memory and virtual cores: a total, a free amount, a usage or a limit."""

    memory_mib: int
    vcores: int

    def minus(self, other: Resources) -> Resources:
        """Return the difference, at least zero."""
        return Resources(
            memory_mib=max(0, self.memory_mib - other.memory_mib),
            vcores=max(0, self.vcores - other.vcores),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue of the scheduler."""

    name: str
    #: Dotted path from the root: ``root.ml``.
    path: str
    is_leaf: bool
    #: RUNNING, STOPPED or DRAINING; empty if the scheduler has no queue states.
    state: str = ""
    #: Whether other queues may pre-empt its containers; None if unknown.
    is_preemptable: bool | None = None
    #: Guaranteed capacity.
    guaranteed: Resources | None = None
    #: Maximum capacity; None without a limit.
    maximum: Resources | None = None
    used: Resources
    #: Maximum size of one container.
    container_max: Resources | None = None
    #: One user holds at most this multiple of the guaranteed capacity; None without a limit.
    user_limit_factor: float | None = None
    #: Labels of the nodes that it may use; ``*`` is all.
    labels: tuple[str, ...] = ("*",)
    #: Whether child queues are created on submission.
    makes_queues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node manager."""

    #: Host and port.
    id: str
    host: str
    state: str
    web_address: str
    rack: str
    total: Resources
    free: Resources
    labels: tuple[str, ...] = ()
    #: Health report; says why a node is unhealthy.
    health: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether containers can be placed on it."""
        return self.state == "RUNNING"


def read_queues(answer: Answer) -> list[Queue]:
    """Parse the response of ``/ws/v1/cluster/scheduler``, parents before children."""
    info: Answer = answer["scheduler"]["schedulerInfo"]
    if "rootQueue" in info:
        return list(_fair_queues(info["rootQueue"]))
    if info.get("type") == "fifoScheduler":
        nothing = Resources(memory_mib=0, vcores=0)
        return [Queue(name="default", path="root.default", is_leaf=True, used=nothing)]
    return list(_capacity_queues(info, ""))


def _children(answer: Answer, key: str) -> list[Answer]:
    # Some versions return a single child as an object instead of a list.
    children = (answer.get(key) or {}).get("queue") or []
    return [children] if isinstance(children, dict) else list(children)


def _capacity_queues(answer: Answer, above: str) -> Iterator[Queue]:
    name = answer["queueName"]
    path = answer.get("queuePath") or (f"{above}.{name}" if above else name)
    children = _children(answer, "queues")
    factor = answer.get("userLimitFactor")
    disabled = answer.get("preemptionDisabled")
    eligibility = answer.get("autoCreationEligibility", "off")
    yield Queue(
        name=name,
        path=path,
        is_leaf=answer.get("queueType", "parent" if children else "leaf") == "leaf",
        state=str(answer.get("state", "")),
        is_preemptable=None if disabled is None else not disabled,
        guaranteed=_room(answer.get("minEffectiveCapacity")),
        maximum=_room(answer.get("maxEffectiveCapacity")),
        used=_room(answer.get("resourcesUsed")) or Resources(memory_mib=0, vcores=0),
        container_max=_room(answer.get("maximumAllocation")),
        user_limit_factor=None if factor is None or factor < 0 else float(factor),
        labels=tuple(answer.get("nodeLabels") or ()) if above else ("*",),
        makes_queues=eligibility != "off" or bool(answer.get("autoCreateChildQueueEnabled")),
    )
    for child in children:
        yield from _capacity_queues(child, path)


def _fair_queues(answer: Answer) -> Iterator[Queue]:
    path = answer["queueName"]
    children = _children(answer, "childQueues")
    yield Queue(
        name=path.rpartition(".")[2],
        path=path,
        is_leaf=not children and "LeafQueue" in str(answer.get("type", "LeafQueue")),
        is_preemptable=answer.get("preemptable"),
        guaranteed=_room(answer.get("steadyFairResources")),
        maximum=_room(answer.get("maxResources")),
        used=_room(answer.get("usedResources")) or Resources(memory_mib=0, vcores=0),
        container_max=_room(answer.get("maxContainerAllocation")),
        makes_queues=True,
    )
    for child in children:
        yield from _fair_queues(child)


def read_nodes(answer: Answer) -> list[Node]:
    """Parse the response of ``/ws/v1/cluster/nodes``, sorted by host and port."""
    nodes = (answer.get("nodes") or {}).get("node") or []
    return sorted(map(_node, nodes), key=lambda node: node.id)


def _node(answer: Answer) -> Node:
    free = Resources(memory_mib=answer["availMemoryMB"], vcores=answer["availableVirtualCores"])
    used = Resources(memory_mib=answer["usedMemoryMB"], vcores=answer["usedVirtualCores"])
    both = Resources(memory_mib=free.memory_mib + used.memory_mib, vcores=free.vcores + used.vcores)
    return Node(
        id=answer["id"],
        host=answer["nodeHostName"],
        state=answer["state"],
        web_address=answer.get("nodeHTTPAddress", ""),
        rack=answer.get("rack", ""),
        total=_room(answer.get("totalResource")) or both,
        free=free,
        labels=tuple(answer.get("nodeLabels") or ()),
        health=answer.get("healthReport", "") or "",
    )


def _room(answer: Answer | None) -> Resources | None:
    """Parse memory and vcores; None if absent or unlimited."""
    if not answer or answer.get("memory", 0) >= _UNLIMITED:
        return None
    return Resources(memory_mib=int(answer["memory"]), vcores=int(answer["vCores"]))


#: Kinds of YARN schedulers.
SchedulerKind = Literal["capacity", "fair", "fifo"]


def scheduler_kind(answer: Answer) -> SchedulerKind:
    """Return the kind of scheduler that sent a response of ``/ws/v1/cluster/scheduler``."""
    info: Answer = answer["scheduler"]["schedulerInfo"]
    if "rootQueue" in info:
        return "fair"
    return "fifo" if info.get("type") == "fifoScheduler" else "capacity"
