"""What the ResourceManager tells an application, read from the agent's documents: pure, typed.

The agent in skein's application master (``yarn/agent``) writes what it hears as four JSON
documents. A ``NoticeBook`` is shown them as they come and says what is new in them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from elasticml.clusters.on_yarn.hadoop_conf import GraceSettings
from elasticml.errors import RemoteProtocolError

#: Beginning of the keys under which the agent publishes.
PREFIX: Final = "elasticml.agent."
HELLO: Final = PREFIX + "hello"
MARKS: Final = PREFIX + "marks"
EXITS: Final = PREFIX + "exits"
NODES: Final = PREFIX + "nodes"

#: The form of the documents that is understood here.
_FORMAT: Final = 1

#: Why a container ended. Pre-empted, released and node are nobody's fault.
ExitReason = Literal[
    "preempted", "released", "node", "memory", "aborted", "killed", "exit", "success"
]

#: YARN's exit statuses (``ContainerExitStatus``); -100 says less than its text.
_REASON_OF_STATUS: Final[Mapping[int, ExitReason]] = {
    0: "success",
    -101: "node",  # its disks failed
    -102: "preempted",
    -103: "memory",  # virtual
    -104: "memory",  # physical
    -105: "killed",  # by the application master
    -106: "killed",  # by the ResourceManager
    -107: "killed",  # after its application ended
    -108: "preempted",  # an opportunistic one, by its node, for a guaranteed one
    -109: "killed",  # for the size of its logs
    -1000: "aborted",  # no status at all
}
_ABORTED: Final = -100
_SIGNALS: Final = range(128 + 1, 128 + 65)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSeen:
    """The agent is there: notices will come."""

    #: Milliseconds between two looks at the ResourceManager.
    heartbeat_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMarked:
    """The ResourceManager will take a container, unless it is given as much by another one."""

    #: YARN's id.
    container: str
    #: Seconds from now until SIGTERM, at the earliest; 0 when it may come at any moment.
    deadline_s: float
    #: Whether exactly this container is wanted.
    strict: bool
    #: How often it has been marked, this time included.
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLapsed:
    """A marked container lives on, and would be marked anew before it is taken."""

    container: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerExited:
    """A container ended."""

    container: str
    #: The ResourceManager's: negative, or what its program ended with.
    status: int
    reason: ExitReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged:
    """A node of the cluster is in another state."""

    #: Host and port of its NodeManager.
    node: str
    #: YARN's word: RUNNING, UNHEALTHY, DECOMMISSIONING, DECOMMISSIONED, LOST, SHUTDOWN, ...
    state: str
    #: Seconds until a node that is DECOMMISSIONING goes, where that is known; else None.
    timeout_s: float | None
    health: str


Notice = AgentSeen | ContainerMarked | MarkLapsed | ContainerExited | NodeChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionTimes:
    """How a cluster takes containers back; the defaults are YARN's."""

    #: Seconds from a mark to SIGTERM, at the least.
    max_wait_s: float = 15.0
    #: Seconds between two looks of the ResourceManager at its queues.
    interval_s: float = 3.0
    #: Seconds from SIGTERM to SIGKILL.
    sigkill_delay_s: float = 0.25

    @property
    def mark_life_s(self) -> float:
        """Seconds for which a mark holds: that long a kill needs no second one."""
        return 2 * self.max_wait_s + self.interval_s


def preemption_times(grace: GraceSettings) -> PreemptionTimes:
    """Take the times out of a cluster's configuration."""
    return PreemptionTimes(
        max_wait_s=grace.max_wait_s,
        interval_s=grace.interval_s,
        sigkill_delay_s=grace.sigkill_delay_s,
    )


def exit_reason(status: int, message: str) -> ExitReason:
    """Say why a container ended.

    Parameters
    ----------
    status : int
        The ResourceManager's exit status.
    message : str
        Its text: the status -100 stands for a container that the application gave back as well as
        for one whose node went.
    """
    if status == _ABORTED:
        text = message.lower()
        if "released by application" in text:
            return "released"
        return "node" if "lost" in text and "node" in text else "aborted"
    if status in _SIGNALS:
        return "killed"
    return _REASON_OF_STATUS.get(status, "exit")


def _leaves_in_s(node: Mapping[str, Any]) -> float | None:
    # A node that may stay after all still has the time that it was given.
    if node["state"] != "DECOMMISSIONING" or node["timeout_s"] is None:
        return None
    return float(node["timeout_s"])


class NoticeBook:
    """Reads the agent's documents and says what is new in each.

    Every document repeats what earlier ones of its key said, so it may be shown some twice, or only
    the last. Time is passed in: seconds since the epoch, by a clock that does not jump.

    Parameters
    ----------
    times : PreemptionTimes
    """

    def __init__(self, times: PreemptionTimes) -> None:
        self._times = times
        self._is_agent_seen = False
        #: Whether what is read has just been written.
        self._is_following = False
        #: Until it has said so, the agent's usual one.
        self._heartbeat_s = 1.0
        #: Marks seen so far, of containers that are not known to have ended.
        self._count: dict[str, int] = {}
        #: When each live mark lapses.
        self._lapses_at_s: dict[str, float] = {}
        self._ended: set[str] = set()
        #: Number of the last item, or of the last document, read under a key.
        self._seq = {MARKS: 0, EXITS: 0, NODES: 0}

    def read(self, key: str, value: bytes, now_s: float) -> list[Notice]:
        """Say what is new in a document; nothing where the key is not one of the agent's.

        Raises
        ------
        RemoteProtocolError
            When the document is not of the form that is known here. The book is as before.
        """
        if key not in (HELLO, *self._seq):
            return []
        try:
            document = json.loads(value)
            if document["v"] != _FORMAT:
                raise ValueError(f"format {document['v']!r}")
            if key == HELLO:
                return self._read_hello(document)
            if key == MARKS:
                return self._read_marks(document, now_s)
            if key == EXITS:
                return self._read_exits(document)
            return self._read_nodes(document)
        except (ValueError, TypeError, KeyError) as error:
            raise RemoteProtocolError(
                f"the agent's document {key} cannot be read ({type(error).__name__}: {error}), "
                f"wanted format {_FORMAT}; build it anew from this version: make agent",
                key=key,
            ) from error

    def follow(self) -> None:
        """Take it from now on that a document is read as soon as it is written."""
        self._is_following = True

    def lapse(self, now_s: float) -> list[Notice]:
        """Say which marks no longer hold, the oldest first."""
        lapsed = [mark for mark, at_s in self._lapses_at_s.items() if at_s <= now_s]
        lapsed.sort(key=lambda mark: (self._lapses_at_s[mark], mark))
        for container in lapsed:
            del self._lapses_at_s[container]
        return [MarkLapsed(container=container) for container in lapsed]

    def next_lapse_s(self) -> float | None:
        """When the next mark lapses; None where there is none."""
        return min(self._lapses_at_s.values(), default=None)

    def _read_hello(self, document: Mapping[str, Any]) -> list[Notice]:
        heartbeat_ms = int(document["heartbeat_ms"])
        if self._is_agent_seen:
            return []
        self._is_agent_seen, self._heartbeat_s = True, heartbeat_ms / 1000
        return [AgentSeen(heartbeat_ms=heartbeat_ms)]

    def _read_marks(self, document: Mapping[str, Any], now_s: float) -> list[Notice]:
        seq, written_s = int(document["seq"]), int(document["t"]) / 1000
        if seq <= self._seq[MARKS]:
            return []
        # How old a document is, only the clocks of two machines tell, and they may disagree.
        delay_s = 0.0 if self._is_following else max(0.0, now_s - written_s)
        marks = [
            (str(mark["id"]), int(mark["last"]) / 1000, int(mark["count"]), bool(mark["strict"]))
            for mark in document["marks"]
        ]
        self._seq[MARKS] = seq
        news: list[Notice] = []
        for container, last_s, count, strict in marks:
            if container in self._ended or count <= self._count.get(container, 0):
                continue
            self._count[container] = count
            age_s = max(0.0, written_s - last_s) + delay_s
            if age_s >= self._times.mark_life_s:
                continue
            self._lapses_at_s[container] = now_s + self._times.mark_life_s - age_s
            # The mark waited for a heartbeat before it was heard of.
            deadline_s = max(0.0, self._times.max_wait_s - self._heartbeat_s - age_s)
            news.append(
                ContainerMarked(
                    container=container, deadline_s=deadline_s, strict=strict, count=count
                )
            )
        return news

    def _read_exits(self, document: Mapping[str, Any]) -> list[Notice]:
        items = self._new_items(EXITS, document)
        exits = [
            (str(item["id"]), int(item["status"]), str(item["message"])) for item in items.values()
        ]
        self._seq[EXITS] = max(items, default=self._seq[EXITS])
        news: list[Notice] = []
        for container, status, message in exits:
            # The ResourceManager tells it again after it was started anew.
            if container in self._ended:
                continue
            self._ended.add(container)
            self._count.pop(container, None)
            self._lapses_at_s.pop(container, None)
            reason = exit_reason(status, message)
            news.append(
                ContainerExited(container=container, status=status, reason=reason, message=message)
            )
        return news

    def _read_nodes(self, document: Mapping[str, Any]) -> list[Notice]:
        items = self._new_items(NODES, document)
        news: list[Notice] = [
            NodeChanged(
                node=str(item["node"]),
                state=str(item["state"]),
                timeout_s=_leaves_in_s(item),
                health=str(item["health"]),
            )
            for item in items.values()
        ]
        self._seq[NODES] = max(items, default=self._seq[NODES])
        return news

    def _new_items(self, key: str, document: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
        """Items of a document that were not in an earlier one, by their numbers, in order."""
        items = {int(item["seq"]): item for item in document["items"]}
        return {seq: items[seq] for seq in sorted(items) if seq > self._seq[key]}
