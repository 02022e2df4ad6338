"""Decide which worker containers to request and release, from what YARN and skein report. Pure.

skein replaces each container that fails, at once and without limit, and counts a pre-empted
container as failed. On top of that the allocator decides

* to delay a replacement if its predecessors were pre-empted soon after they started, so that a full
  queue is not asked every second;
* to request a new container for one that was released in place of a container marked by YARN;
* to repeat a request that skein has lost: skein numbers its requests by a map that YARN sorts in
  reverse, so a request made while others wait may take the number of one of them, which then waits
  forever;
* to end an application whose worker containers all fail by their own fault;
* how many containers a job may request and release, within its limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elasticml.clusters.yarn.exit_reasons import last_line
from elasticml.protocol.marks import MarkStore

if TYPE_CHECKING:
    from elasticml.clusters.yarn.yarn_client import ContainerState, ServiceContainer

#: States of containers that run or have been requested.
ACTIVE: tuple[ContainerState, ...] = ("waiting", "requested", "running")

#: A container that is pre-empted within this many seconds of its start was not worth its start.
YOUNG_S = 60.0

#: Longest delay of a replacement, seconds.
BACKOFF_S_MAX = 60.0

#: Seconds before a replacement is requested for a container that was released for a marked one:
#: YARN first has to hand the released one to the application that it is for.
REPLACE_S = 1.0

#: A container that is still active this many seconds after its release is released again: skein's
#: calls fail occasionally. Draining its worker comes first and takes at most half as long.
INSIST_S = 60.0

#: A request counts as lost this many seconds after it was made, if a younger one has overtaken it.
LOST_S = 3.0

#: The application ends after this many worker containers in a row have failed in the same way
#: before they registered.
FAILURES_MAX = 3

#: Exit reasons that count as the container's own fault.
OWN_FAULTS = ("exit", "memory", "killed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Release a container, or withdraw the request for it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Request one more container; report its name through ``added``."""

    #: Number of consecutive predecessors that were pre-empted young.
    streak: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndApplication:
    """End the application as failed."""

    message: str


Action = Kill | Add | EndApplication


@dataclass(slots=True)
class _Record:
    instance: int
    #: State reported by skein.
    state: ContainerState
    #: When it was released, or its request withdrawn. skein is told only after the worker has been
    #: drained, and reports the container as active until then.
    released_s: float | None = None
    #: Number of consecutive predecessors that were pre-empted young.
    streak: int = 0
    #: Whether its predecessor is known: then it is no other container's replacement.
    is_claimed: bool = False
    has_registered: bool = False
    requested_s: float | None = None
    started_s: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it is active and has not been released."""
        return self.state in ACTIVE and self.released_s is None


@dataclass(frozen=True, slots=True)
class _AwaitedReplacement:
    """A pre-empted container whose replacement by skein has not been seen yet."""

    instance: int
    streak: int


@dataclass(slots=True)
class _Failures:
    """Consecutive failures of the same kind before registration."""

    kind: tuple[str, int | None] = ("", None)
    count: int = 0


@dataclass(slots=True, kw_only=True)
class ContainerAllocator:
    """Decide which worker containers to request and release.

    Parameters
    ----------
    minimum, maximum : int
        Limits for the containers that a job may keep and request; None is no limit.
    """

    minimum: int = 0
    maximum: int | None = None
    _records: dict[str, _Record] = field(default_factory=dict, init=False)
    _awaited: list[_AwaitedReplacement] = field(default_factory=list, init=False)
    #: Delayed requests: when each is due, and its streak.
    _delayed: list[tuple[float, int]] = field(default_factory=list, init=False)
    #: Instances that failed after their release, which skein replaces all the same.
    _unwanted: list[int] = field(default_factory=list, init=False)
    _failures: _Failures = field(default_factory=_Failures, init=False)
    #: Containers that were granted although skein had no request for them.
    _unplaced: int = field(default=0, init=False)

    @property
    def count(self) -> int:
        """Number of containers that run, are requested, or are delayed."""
        active = sum(record.is_kept for record in self._records.values())
        return active + len(self._delayed) + len(self._awaited)

    def see(self, containers: Iterable[ServiceContainer], now_s: float) -> list[Action]:
        """Update the records from the service's containers, in all states; return what is due."""
        actions: list[Action] = []
        for seen in containers:
            record = self._records.get(seen.name)
            if record is None:
                record = self._records[seen.name] = _Record(seen.instance, seen.state)
            if seen.state == "requested" and record.requested_s is None:
                record.requested_s = now_s
            if seen.state == "running" and record.started_s is None:
                record.started_s = now_s
            if record.released_s is not None:
                actions += self._check_released(seen, record, now_s)
            record.state = seen.state
        actions += [*self._withdraw(now_s), *self._claim(now_s), *self._repeat_lost(now_s)]
        actions += self._request_due(now_s)
        missing = self.minimum - self.count - sum(isinstance(action, Add) for action in actions)
        return actions + [Add() for _ in range(missing)]

    def added(self, name: str, instance: int, streak: int) -> None:
        """Record the container that was requested by an ``Add``."""
        self._records[name] = _Record(instance, "requested", streak=streak, is_claimed=True)

    def registered(self, name: str) -> None:
        """Record that a container's worker has registered, which proves that workers can start."""
        self._failures = _Failures()
        if name in self._records:
            self._records[name].has_registered = True

    def unplaced(self) -> None:
        """Record a container that was granted and released at once because no request matched it.

        If a request is still waiting, the container was meant for it.
        """
        self._unplaced += 1

    def ended(
        self, name: str, reason: str, status: int | None, message: str, now_s: float
    ) -> list[Action]:
        """Record how a container ended.

        Parameters
        ----------
        reason : str
            As in ``ContainerEnded``: "preempted", "released", "node", "memory", "exit", …
        status : int or None
            Exit status.
        message : str
            YARN's diagnostics, for the application's final message.
        """
        record = self._records.get(name)
        if record is None:
            return []
        was_killed = record.released_s is not None or record.state == "killed"
        if record.is_kept:
            record.state = "failed"
        if reason == "preempted" and not was_killed:
            lived_s = now_s - (now_s if record.started_s is None else record.started_s)
            streak = record.streak + 1 if lived_s < YOUNG_S else 1
            self._awaited.append(_AwaitedReplacement(record.instance, streak))
            return self._claim(now_s)
        if reason in OWN_FAULTS and not record.has_registered and not was_killed:
            return self._failed((reason, status), message)
        return []

    def request(self, count: int) -> list[Action]:
        """Request up to ``count`` more containers, within the maximum."""
        room = count if self.maximum is None else self.maximum - self.count
        return [Add() for _ in range(max(0, min(count, room)))]

    def release(
        self, containers: Mapping[str, str], marks: MarkStore, now_s: float
    ) -> list[Action]:
        """Release containers; one that is released for a marked one is requested again later.

        Parameters
        ----------
        containers : mapping
            YARN's container ids by skein's names.
        marks : MarkStore
            The marks, each of which one released container answers.
        """
        actions: list[Action] = []
        for name, container in containers.items():
            record = self._records.get(name)
            if record is None or not record.is_kept:
                continue
            if marks.answer(container, now_s):
                self._delayed.append((now_s + REPLACE_S, 0))
            elif self.count <= self.minimum:
                continue
            record.released_s = now_s
            actions.append(Kill(name=name))
        return actions

    def _check_released(
        self, seen: ServiceContainer, record: _Record, now_s: float
    ) -> list[Action]:
        """Check on a released container; release it again if it is still active."""
        assert record.released_s is not None
        if seen.state == "failed" and record.state in ACTIVE:
            self._unwanted.append(record.instance)  # YARN took it before skein was told
        if seen.state not in ACTIVE or now_s - record.released_s < INSIST_S:
            return []
        record.released_s = now_s
        return [Kill(name=seen.name)]

    def _withdraw(self, now_s: float) -> list[Action]:
        """Withdraw skein's replacements of containers that had been released."""
        withdrawn = []
        left = []
        for instance in self._unwanted:
            name = self._replacement(instance)
            if name is None:
                left.append(instance)
                continue
            self._records[name].released_s = now_s
            withdrawn.append(name)
        self._unwanted = left
        return [Kill(name=name) for name in withdrawn]

    def _request_due(self, now_s: float) -> list[Action]:
        """Make the delayed requests that are due, within the maximum.

        Released containers that still run count towards the maximum.
        """
        room = len(self._delayed)
        if self.maximum is not None:
            records = self._records.values()
            room = self.maximum - len(self._awaited)
            room -= sum(record.is_kept or record.state == "running" for record in records)
        actions: list[Action] = []
        left = []
        for due_s, streak in self._delayed:
            if due_s <= now_s and len(actions) < room:
                actions.append(Add(streak=streak))
            else:
                left.append((due_s, streak))
        self._delayed = left
        return actions

    def _claim(self, now_s: float) -> list[Action]:
        """Match replacements to pre-empted containers; delay those that come too often."""
        actions: list[Action] = []
        left: list[_AwaitedReplacement] = []
        for awaited in self._awaited:
            name = self._replacement(awaited.instance)
            if name is None:
                left.append(awaited)
                continue
            record = self._records[name]
            record.is_claimed, record.streak = True, awaited.streak
            wait_s = backoff_s(awaited.streak)
            if wait_s > 0 and record.state == "requested":
                record.released_s = now_s
                self._delayed.append((now_s + wait_s, awaited.streak))
                actions.append(Kill(name=name))
        self._awaited = left
        return actions

    def _repeat_lost(self, now_s: float) -> list[Action]:
        """Withdraw lost requests and make them again."""
        waiting = sorted(
            (record.instance, name, record)
            for name, record in self._records.items()
            if record.is_kept and record.state == "requested" and record.requested_s is not None
        )
        started = [r for r in self._records.values() if r.started_s is not None]
        lost = []
        for instance, name, record in waiting:
            since_s = record.requested_s or now_s
            is_overtaken = any(
                other.instance > instance and (other.started_s or 0.0) > since_s
                for other in started
            )
            if now_s - since_s >= LOST_S and (is_overtaken or self._unplaced > 0):
                self._unplaced -= not is_overtaken
                lost.append((name, record))
        if not waiting:
            self._unplaced = 0
        for _, record in lost:
            record.released_s = now_s
            self._delayed.append((now_s, record.streak))
        return [Kill(name=name) for name, _ in lost]

    def _replacement(self, instance: int) -> str | None:
        """Return the youngest unclaimed container that may replace ``instance``."""
        free = [
            (record.state == "requested", record.instance, name)
            for name, record in self._records.items()
            if record.is_kept
            and record.state != "waiting"
            and record.instance > instance
            and not (record.is_claimed or record.has_registered)
        ]
        return max(free)[2] if free else None

    def _failed(self, kind: tuple[str, int | None], message: str) -> list[Action]:
        if self._failures.kind != kind:
            self._failures = _Failures(kind)
        self._failures.count += 1
        if self._failures.count != FAILURES_MAX:
            return []
        reason, status = kind
        how = reason if status is None else f"{reason}, status {status}"
        return [
            EndApplication(
                message=f"{FAILURES_MAX} worker containers in a row ended before they registered "
                f"({how}): {last_line(message)}; fix that and submit again"
            )
        ]


def backoff_s(streak: int) -> float:
    """Return the delay of a replacement in seconds: 0 twice, then 1, 2, 4 … up to the maximum.

    >>> [backoff_s(streak) for streak in (0, 1, 2, 3, 4, 20)]
    [0.0, 0.0, 1.0, 2.0, 4.0, 60.0]
    """
    return 0.0 if streak < 2 else float(min(BACKOFF_S_MAX, 2 ** min(streak - 2, 10)))
