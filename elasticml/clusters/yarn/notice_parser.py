"""Parse the YARN agent's documents into typed notices: marks, exits, node changes. Pure.

The agent in skein's application master (``yarn/agent``) publishes what the ResourceManager says as
four JSON documents. A ``NoticeParser`` reads each version of them and returns what is new in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from elasticml.clusters.yarn.hadoop_conf import GraceSettings
from elasticml.errors import RemoteProtocolError

#: Prefix of the keys under which the agent publishes.
PREFIX: Final = "elasticml.agent."
HELLO: Final = PREFIX + "hello"
MARKS: Final = PREFIX + "marks"
EXITS: Final = PREFIX + "exits"
NODES: Final = PREFIX + "nodes"

#: The document format that this parser understands.
_FORMAT: Final = 1

#: Why a container ended. ``preempted``, ``released`` and ``node`` are not failures of its program.
ExitReason = Literal[
    "preempted", "released", "node", "memory", "aborted", "killed", "exit", "success"
]

#: YARN's exit statuses (``ContainerExitStatus``); for -100 the text says more than the status.
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
    """The agent is running, so notices will arrive."""

    #: Milliseconds between two heartbeats to the ResourceManager.
    heartbeat_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerMarked:
    """The ResourceManager will pre-empt a container, unless as much is released elsewhere."""

    #: YARN's container id.
    container: str
    #: Seconds until the earliest possible SIGTERM; 0 if it may come at any moment.
    deadline_s: float
    #: Whether no other container can be released in its place.
    strict: bool
    #: How often it has been marked, including this time.
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLapsed:
    """A mark has expired: the container would be marked again before it is pre-empted."""

    container: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerExited:
    """A container has ended."""

    container: str
    #: Exit status from the ResourceManager: negative, or that of the container's program.
    status: int
    reason: ExitReason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanged:
    """A node of the cluster has changed state."""

    #: Host and port of its NodeManager.
    node: str
    #: YARN's node state: RUNNING, UNHEALTHY, DECOMMISSIONING, DECOMMISSIONED, LOST, SHUTDOWN, ...
    state: str
    #: Seconds until a DECOMMISSIONING node is removed; None if unknown or in any other state.
    timeout_s: float | None
    health: str


Notice = AgentSeen | ContainerMarked | MarkLapsed | ContainerExited | NodeChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionTimes:
    """Timing of a cluster's pre-emption; the defaults are YARN's."""

    #: Least seconds from a mark to SIGTERM.
    max_wait_s: float = 15.0
    #: Seconds between two pre-emption rounds of the ResourceManager.
    interval_s: float = 3.0
    #: Seconds from SIGTERM to SIGKILL.
    sigkill_delay_s: float = 0.25

    @property
    def mark_life_s(self) -> float:
        """Seconds for which a mark is valid: within them a kill needs no second mark."""
        return 2 * self.max_wait_s + self.interval_s


def preemption_times(grace: GraceSettings) -> PreemptionTimes:
    """Extract the pre-emption timing from a cluster's configuration."""
    return PreemptionTimes(
        max_wait_s=grace.max_wait_s,
        interval_s=grace.interval_s,
        sigkill_delay_s=grace.sigkill_delay_s,
    )


def exit_reason(status: int, message: str) -> ExitReason:
    """Return why a container ended.

    Parameters
    ----------
    status : int
        The ResourceManager's exit status.
    message : str
        Its diagnostics. Status -100 alone is ambiguous: it means that the application released the
        container, or that its node was lost.
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
    # A node whose decommissioning was withdrawn still carries its old timeout.
    if node["state"] != "DECOMMISSIONING" or node["timeout_s"] is None:
        return None
    return float(node["timeout_s"])


class NoticeParser:
    """Read the agent's documents and return what is new in each.

    Every document repeats the earlier ones of its key, so reading one twice, or only the last, is
    harmless. Time is an argument: seconds since the epoch, from a clock that does not jump.

    Parameters
    ----------
    times : PreemptionTimes
    """

    def __init__(self, times: PreemptionTimes) -> None:
        self._times = times
        self._is_agent_seen = False
        #: Whether documents are read as soon as they are written.
        self._is_following = False
        #: The agent's default until its hello document is read.
        self._heartbeat_s = 1.0
        #: Marks seen so far, of containers that have not ended.
        self._count: dict[str, int] = {}
        #: When each live mark expires.
        self._expires_at_s: dict[str, float] = {}
        self._ended: set[str] = set()
        #: Sequence number of the last item, or of the last document, read under a key.
        self._seq = {MARKS: 0, EXITS: 0, NODES: 0}

    def read(self, key: str, value: bytes, now_s: float) -> list[Notice]:
        """Return what is new in a document; an empty list if the key is not one of the agent's.

        Raises
        ------
        RemoteProtocolError
            When the document has another format. The parser's state is unchanged.
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
                f"wanted format {_FORMAT}; rebuild the agent from this version: make agent",
                key=key,
            ) from error

    def follow(self) -> None:
        """Assume from now on that documents are read as soon as they are written."""
        self._is_following = True

    def lapse(self, now_s: float) -> list[Notice]:
        """Return the marks that have expired, the oldest first."""
        expired = [mark for mark, at_s in self._expires_at_s.items() if at_s <= now_s]
        expired.sort(key=lambda mark: (self._expires_at_s[mark], mark))
        for container in expired:
            del self._expires_at_s[container]
        return [MarkLapsed(container=container) for container in expired]

    def next_lapse_s(self) -> float | None:
        """Return when the next mark expires; None if there is none."""
        return min(self._expires_at_s.values(), default=None)

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
        # The age of a document compares the clocks of two machines, which may disagree.
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
            self._expires_at_s[container] = now_s + self._times.mark_life_s - age_s
            # The mark may have waited up to one heartbeat before it was reported.
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
            # The ResourceManager reports it again after a restart.
            if container in self._ended:
                continue
            self._ended.add(container)
            self._count.pop(container, None)
            self._expires_at_s.pop(container, None)
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
        """Return the items of a document that are new, by sequence number, in order."""
        items = {int(item["seq"]): item for item in document["items"]}
        return {seq: items[seq] for seq in sorted(items) if seq > self._seq[key]}
