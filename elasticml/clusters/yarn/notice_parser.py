"""Parse the YARN agent's documents into typed notices: marks, exits, node changes. Pure.

The agent in skein's application master (``yarn/agent``) publishes what the ResourceManager says as
four JSON documents. A ``NoticeParser`` reads each version of them and returns what is new in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from elasticml.clusters.yarn.hadoop_conf import GraceSettings
from elasticml.errors import RemoteProtocolError, one_line
from elasticml.protocol.notices import ContainerEnded, ContainerMarked, NodeChanged, Reason

#: Prefix of the keys under which the agent publishes.
PREFIX: Final = "elasticml.agent."
HELLO: Final = PREFIX + "hello"
MARKS: Final = PREFIX + "marks"
EXITS: Final = PREFIX + "exits"
NODES: Final = PREFIX + "nodes"

#: The document format that this parser understands.
_FORMAT: Final = 1

#: YARN's exit statuses (``ContainerExitStatus``); for -100 the text says more than the status.
_REASON_OF_STATUS: Final[Mapping[int, Reason]] = {
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


#: What the agent's documents say.
AgentNotice = AgentSeen | ContainerMarked | ContainerEnded | NodeChanged


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


def exit_reason(status: int, message: str) -> Reason:
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


def _grace_s(node: Mapping[str, Any]) -> float:
    # A node whose decommissioning was withdrawn still carries its old timeout.
    if node["state"] != "DECOMMISSIONING" or node["timeout_s"] is None:
        return 0.0
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
        self._ended: set[str] = set()
        #: Sequence number of the last item, or of the last document, read under a key.
        self._seq = {MARKS: 0, EXITS: 0, NODES: 0}

    def read(self, key: str, value: bytes, now_s: float) -> list[AgentNotice]:
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
                f"the agent's document {key} cannot be read ({type(error).__name__}: "
                f"{one_line(error)}), wanted format {_FORMAT}; rebuild the agent from this "
                "version: make agent"
            ) from error

    def follow(self) -> None:
        """Assume from now on that documents are read as soon as they are written."""
        self._is_following = True

    def _read_hello(self, document: Mapping[str, Any]) -> list[AgentNotice]:
        heartbeat_ms = int(document["heartbeat_ms"])
        if self._is_agent_seen:
            return []
        self._is_agent_seen, self._heartbeat_s = True, heartbeat_ms / 1000
        return [AgentSeen(heartbeat_ms=heartbeat_ms)]

    def _read_marks(self, document: Mapping[str, Any], now_s: float) -> list[AgentNotice]:
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
        news: list[AgentNotice] = []
        for container, last_s, count, strict in marks:
            if container in self._ended or count <= self._count.get(container, 0):
                continue
            self._count[container] = count
            age_s = max(0.0, written_s - last_s) + delay_s
            if age_s >= self._times.mark_life_s:
                continue
            news.append(
                ContainerMarked(
                    container=container,
                    # The mark may have waited up to one heartbeat before it was reported.
                    grace_s=max(0.0, self._times.max_wait_s - self._heartbeat_s - age_s),
                    life_s=self._times.mark_life_s - age_s,
                    negotiable=not strict,
                    count=count,
                )
            )
        return news

    def _read_exits(self, document: Mapping[str, Any]) -> list[AgentNotice]:
        items = self._new_items(EXITS, document)
        exits = [
            (str(item["id"]), int(item["status"]), str(item["message"])) for item in items.values()
        ]
        self._seq[EXITS] = max(items, default=self._seq[EXITS])
        news: list[AgentNotice] = []
        for container, status, message in exits:
            # The ResourceManager reports it again after a restart.
            if container in self._ended:
                continue
            self._ended.add(container)
            self._count.pop(container, None)
            reason = exit_reason(status, message)
            news.append(
                ContainerEnded(container=container, status=status, reason=reason, message=message)
            )
        return news

    def _read_nodes(self, document: Mapping[str, Any]) -> list[AgentNotice]:
        items = self._new_items(NODES, document)
        news: list[AgentNotice] = [
            NodeChanged(
                node=str(item["node"]),
                state=str(item["state"]).lower(),
                grace_s=_grace_s(item),
            )
            for item in items.values()
        ]
        self._seq[NODES] = max(items, default=self._seq[NODES])
        return news

    def _new_items(self, key: str, document: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
        """Return the items of a document that are new, by sequence number, in order."""
        items = {int(item["seq"]): item for item in document["items"]}
        return {seq: items[seq] for seq in sorted(items) if seq > self._seq[key]}
