"""What the resource manager's answers mean: queues, nodes and applications as records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Answer = Mapping[str, Any]

#: Most schedulers say "no limit" by a number like this.
_ENDLESS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Room:
    """Memory and processors: what there is, is free, is taken, or is allowed."""

    memory_mib: int
    vcores: int

    def minus(self, other: Room) -> Room:
        """Return what is left; never below nothing."""
        return Room(
            memory_mib=max(0, self.memory_mib - other.memory_mib),
            vcores=max(0, self.vcores - other.vcores),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue of the scheduler."""

    name: str
    #: From the root, with dots: ``root.ml``.
    path: str
    is_leaf: bool
    #: RUNNING, STOPPED or DRAINING; empty where the scheduler knows no states.
    state: str = ""
    #: Whether other queues may take its containers back; None where it is not said.
    is_preemptable: bool | None = None
    #: What it gets in any case.
    guaranteed: Room | None = None
    #: What it may hold at most, together; None without a limit.
    maximum: Room | None = None
    used: Room
    #: What one container may have at most.
    container_max: Room | None = None
    #: A user holds at most so many times what is guaranteed; None without a limit.
    user_limit_factor: float | None = None
    #: Labels whose nodes it may use; ``*`` is all.
    labels: tuple[str, ...] = ("*",)
    #: Whether queues below it are made when somebody names them.
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
    total: Room
    free: Room
    labels: tuple[str, ...] = ()
    #: Why it is not healthy.
    health: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether containers can be placed on it."""
        return self.state == "RUNNING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application, running or ended."""

    id: str
    name: str
    user: str
    queue: str
    state: str
    final_status: str
    diagnostics: str
    started_s: float
    #: 0 while it runs.
    finished_s: float
    containers: int
    memory_mib: int
    vcores: int
    tags: tuple[str, ...]
    tracking_url: str


def read_queues(answer: Answer) -> list[Queue]:
    """Read the answer of ``/ws/v1/cluster/scheduler``, parents before children."""
    info: Answer = answer["scheduler"]["schedulerInfo"]
    if "rootQueue" in info:
        return list(_fair_queues(info["rootQueue"]))
    if info.get("type") == "fifoScheduler":
        nothing = Room(memory_mib=0, vcores=0)
        return [Queue(name="default", path="root.default", is_leaf=True, used=nothing)]
    return list(_capacity_queues(info, ""))


def _children(answer: Answer, key: str) -> list[Answer]:
    # Where there is one child, some versions give it bare instead of in a list.
    found = (answer.get(key) or {}).get("queue") or []
    return [found] if isinstance(found, dict) else list(found)


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
        used=_room(answer.get("resourcesUsed")) or Room(memory_mib=0, vcores=0),
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
        used=_room(answer.get("usedResources")) or Room(memory_mib=0, vcores=0),
        container_max=_room(answer.get("maxContainerAllocation")),
        makes_queues=True,
    )
    for child in children:
        yield from _fair_queues(child)


def read_nodes(answer: Answer) -> list[Node]:
    """Read the answer of ``/ws/v1/cluster/nodes``, sorted by host and port."""
    found = (answer.get("nodes") or {}).get("node") or []
    return sorted(map(_node, found), key=lambda node: node.id)


def _node(answer: Answer) -> Node:
    free = Room(memory_mib=answer["availMemoryMB"], vcores=answer["availableVirtualCores"])
    used = Room(memory_mib=answer["usedMemoryMB"], vcores=answer["usedVirtualCores"])
    both = Room(memory_mib=free.memory_mib + used.memory_mib, vcores=free.vcores + used.vcores)
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


def read_applications(answer: Answer) -> list[Application]:
    """Read the answer of ``/ws/v1/cluster/apps``, the latest first."""
    found = (answer.get("apps") or {}).get("app") or []
    return sorted(map(read_application, found), key=lambda app: -app.started_s)


def read_application(answer: Answer) -> Application:
    """Read one application."""
    return Application(
        id=answer["id"],
        name=answer.get("name", ""),
        user=answer.get("user", ""),
        queue=answer.get("queue", ""),
        state=answer.get("state", ""),
        final_status=answer.get("finalStatus", ""),
        diagnostics=" ".join(str(answer.get("diagnostics", "")).split()),
        started_s=answer.get("startedTime", 0) / 1000,
        finished_s=answer.get("finishedTime", 0) / 1000,
        containers=max(0, answer.get("runningContainers", 0)),
        memory_mib=max(0, answer.get("allocatedMB", 0)),
        vcores=max(0, answer.get("allocatedVCores", 0)),
        tags=tuple(tag for tag in str(answer.get("applicationTags", "")).split(",") if tag),
        tracking_url=answer.get("trackingUrl", ""),
    )


def _room(answer: Answer | None) -> Room | None:
    """Read memory and processors; None where there are none, or without limit."""
    if not answer or answer.get("memory", 0) >= _ENDLESS:
        return None
    return Room(memory_mib=int(answer["memory"]), vcores=int(answer["vCores"]))


#: How a scheduler is named in what ``/ws/v1/cluster/scheduler`` says.
SchedulerKind = Literal["capacity", "fair", "fifo"]


def scheduler_kind(answer: Answer) -> SchedulerKind:
    """Tell which scheduler answered."""
    info: Answer = answer["scheduler"]["schedulerInfo"]
    if "rootQueue" in info:
        return "fair"
    return "fifo" if info.get("type") == "fifoScheduler" else "capacity"
