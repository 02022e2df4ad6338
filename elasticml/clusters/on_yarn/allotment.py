"""How many worker containers there are to be: decisions alone, on what YARN and skein tell.

skein replaces each container that fails, at once and for ever, and takes a pre-empted one for
failed. On top of that this decides

* to hold a replacement back when the containers before it were pre-empted soon after they started,
  so that a queue that has nothing to give is not asked every second;
* to ask anew for a container that was given in place of one that YARN had marked;
* to ask again for what skein has lost: it numbers its requests by a map that YARN sorts the other
  way round, so that a request made while others wait may take the number, and with it the place, of
  one of them, which then waits for ever;
* to end an application whose worker containers all fail by their own fault;
* what a job may have, and give back, within the limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from elasticml.clusters.on_yarn.exits import last_line

State = Literal["waiting", "requested", "running", "succeeded", "failed", "killed"]

#: States of containers that there are, or that are on their way.
ACTIVE: tuple[State, ...] = ("waiting", "requested", "running")

#: A container that is pre-empted so soon after its start has gained little.
YOUNG_S = 60.0

#: Seconds that a replacement is held back at most.
BACKOFF_S_MAX = 60.0

#: Seconds until a container is asked for in place of one given for a marked one: YARN first has to
#: hand that one to whom it wanted it for.
REPLACE_S = 1.0

#: Seconds after a mark's end in which a container that is given may have been meant for it: the job
#: had chosen it by then, and its word waits while others are acted on.
LATE_S = 5.0

#: A container that has been given back so long and is there still is given back once more: skein's
#: calls fail now and then. Workers are left before that, which takes half as long.
INSIST_S = 60.0

#: A request that a younger one has overtaken is lost after so long.
LOST_S = 3.0

#: So many worker containers in a row that fail alike before they register end the application.
FAILURES_MAX = 3

#: Reasons for a container's end that are its own doing.
OWN_FAULTS = ("exit", "memory", "killed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSeen:
    """One worker container as skein's application master knows it."""

    #: skein's name, ``dask.worker_3``.
    name: str
    #: The number in it; a replacement has a higher one.
    instance: int
    state: State
    #: YARN's name; empty before it is granted.
    container: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """Give a container back, or withdraw the request for it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """Ask for one more container; tell its name by ``added``."""

    #: How many containers in its place were pre-empted young, one after the other.
    streak: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndApplication:
    """End the application as failed."""

    message: str


Action = Kill | Add | EndApplication


@dataclass(slots=True)
class _Record:
    instance: int
    #: As skein tells it.
    state: State
    #: When it was given back, or the request for it withdrawn. skein hears of that only when its
    #: worker has been left, and shows it active until then.
    given_s: float | None = None
    #: Pre-emptions of young containers in its place, one after the other.
    streak: int = 0
    #: Whether it is known in whose place it is; nobody else's replacement then.
    is_claimed: bool = False
    has_registered: bool = False
    requested_s: float | None = None
    started_s: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether it is there or on its way, and is to stay."""
        return self.state in ACTIVE and self.given_s is None


@dataclass(frozen=True, slots=True)
class _Heir:
    """What a container that was pre-empted leaves to its replacement."""

    instance: int
    streak: int


@dataclass(slots=True)
class _Failures:
    """Containers that failed in a row before they registered, all alike."""

    kind: tuple[str, int | None] = ("", None)
    count: int = 0


@dataclass(slots=True, kw_only=True)
class Allotment:
    """What is asked of YARN for the workers, and why.

    Parameters
    ----------
    minimum, maximum : int
        Limits for what a job may give back and ask for; None is no limit.
    """

    minimum: int = 0
    maximum: int | None = None
    _records: dict[str, _Record] = field(default_factory=dict, init=False)
    _heirs: list[_Heir] = field(default_factory=list, init=False)
    #: Streaks of the containers that are held back, and when each is to be asked for.
    _held: list[tuple[float, int]] = field(default_factory=list, init=False)
    #: Containers that failed after they were given back, for which skein makes replacements.
    _unwanted: list[int] = field(default_factory=list, init=False)
    #: Containers that YARN wants back, or others for them, and for which none has been given.
    _marked: list[str] = field(default_factory=list, init=False)
    #: When marks ended for which none had been given, the first first.
    _late: list[float] = field(default_factory=list, init=False)
    _failures: _Failures = field(default_factory=_Failures, init=False)
    #: Containers that were granted and that skein had no request for.
    _unplaced: int = field(default=0, init=False)

    @property
    def count(self) -> int:
        """Containers that are there, asked for, or held back."""
        active = sum(record.is_kept for record in self._records.values())
        return active + len(self._held) + len(self._heirs)

    def see(self, containers: Iterable[ContainerSeen], now_s: float) -> list[Action]:
        """Take note of the containers of the service, in whatever state, and of the time."""
        actions: list[Action] = []
        for seen in containers:
            record = self._records.get(seen.name)
            if record is None:
                record = self._records[seen.name] = _Record(seen.instance, seen.state)
            if seen.state == "requested" and record.requested_s is None:
                record.requested_s = now_s
            if seen.state == "running" and record.started_s is None:
                record.started_s = now_s
            if record.given_s is not None:
                actions += self._see_given(seen, record, now_s)
            record.state = seen.state
        actions += [*self._withdraw(now_s), *self._claim(now_s), *self._ask_again(now_s)]
        actions += self._ask_for_due(now_s)
        missing = self.minimum - self.count - sum(isinstance(action, Add) for action in actions)
        return actions + [Add() for _ in range(missing)]

    def added(self, name: str, instance: int, streak: int) -> None:
        """Take note of a container that was asked for by ``Add``."""
        self._records[name] = _Record(instance, "requested", streak=streak, is_claimed=True)

    def registered(self, name: str) -> None:
        """Take note that the worker in a container has registered: workers can."""
        self._failures = _Failures()
        if name in self._records:
            self._records[name].has_registered = True

    def unplaced(self) -> None:
        """Take note of a container that was granted and given back at once: nobody waited for it.

        Where somebody does wait, it was his.
        """
        self._unplaced += 1

    def marked(self, name: str, *, strict: bool, now_s: float) -> None:
        """Take note that YARN wants a container back; where it is not strict, or another one.

        For a strict one none is given: YARN takes it, and skein asks for another.
        """
        if strict:
            self.lapsed(name, now_s)
        elif name not in self._marked:
            self._marked.append(name)

    def lapsed(self, name: str, now_s: float) -> None:
        """Take note that YARN no longer wants a container back, or has taken it."""
        if name in self._marked:
            self._marked.remove(name)
            self._late.append(now_s)

    def ended(
        self, name: str, reason: str, status: int | None, message: str, now_s: float
    ) -> list[Action]:
        """Take note of how a container ended.

        Parameters
        ----------
        reason : str
            As in ``ContainerExited``: "preempted", "released", "node", "memory", "exit", …
        status : int or None
            Exit status.
        message : str
            What YARN says of it, for the application's last line.
        """
        record = self._records.get(name)
        self.lapsed(name, now_s)
        if record is None:
            return []
        was_killed = record.given_s is not None or record.state == "killed"
        if record.is_kept:
            record.state = "failed"
        if reason == "preempted" and not was_killed:
            lived_s = now_s - (now_s if record.started_s is None else record.started_s)
            streak = record.streak + 1 if lived_s < YOUNG_S else 1
            self._heirs.append(_Heir(record.instance, streak))
            return self._claim(now_s)
        if reason in OWN_FAULTS and not record.has_registered and not was_killed:
            return self._failed((reason, status), message)
        return []

    def request(self, count: int) -> list[Action]:
        """Ask for more containers, as many as there may be."""
        room = count if self.maximum is None else self.maximum - self.count
        return [Add() for _ in range(max(0, min(count, room)))]

    def release(self, names: Sequence[str], now_s: float) -> list[Action]:
        """Give containers back; one that is given for a marked one is asked for anew later."""
        actions: list[Action] = []
        self._late = [at_s for at_s in self._late if now_s - at_s < LATE_S]
        for name in names:
            record = self._records.get(name)
            if record is None or not record.is_kept:
                continue
            if self._marked:
                self._marked.remove(name if name in self._marked else self._marked[0])
                self._held.append((now_s + REPLACE_S, 0))
            elif self._late:
                del self._late[0]
                self._held.append((now_s + REPLACE_S, 0))
            elif self.count <= self.minimum:
                continue
            record.given_s = now_s
            actions.append(Kill(name=name))
        return actions

    def _see_given(self, seen: ContainerSeen, record: _Record, now_s: float) -> list[Action]:
        """Look what has become of a container that was given back."""
        assert record.given_s is not None
        if seen.state == "failed" and record.state in ACTIVE:
            self._unwanted.append(record.instance)  # YARN took it before skein heard of it
        if seen.state not in ACTIVE or now_s - record.given_s < INSIST_S:
            return []
        record.given_s = now_s
        return [Kill(name=seen.name)]

    def _withdraw(self, now_s: float) -> list[Action]:
        """Withdraw skein's replacements of containers that had been given back."""
        found = []
        left = []
        for instance in self._unwanted:
            name = self._replacement(instance)
            if name is None:
                left.append(instance)
                continue
            self._records[name].given_s = now_s
            found.append(name)
        self._unwanted = left
        return [Kill(name=name) for name in found]

    def _ask_for_due(self, now_s: float) -> list[Action]:
        """Ask for those that have been held back long enough, as far as there is room by now.

        Of what has been given back, that which still runs takes room.
        """
        room = len(self._held)
        if self.maximum is not None:
            records = self._records.values()
            room = self.maximum - len(self._heirs)
            room -= sum(record.is_kept or record.state == "running" for record in records)
        actions: list[Action] = []
        left = []
        for due_s, streak in self._held:
            if due_s <= now_s and len(actions) < room:
                actions.append(Add(streak=streak))
            else:
                left.append((due_s, streak))
        self._held = left
        return actions

    def _claim(self, now_s: float) -> list[Action]:
        """Find the replacements of pre-empted containers; hold back those that come too often."""
        actions: list[Action] = []
        left: list[_Heir] = []
        for heir in self._heirs:
            name = self._replacement(heir.instance)
            if name is None:
                left.append(heir)
                continue
            record = self._records[name]
            record.is_claimed, record.streak = True, heir.streak
            wait_s = backoff_s(heir.streak)
            if wait_s > 0 and record.state == "requested":
                record.given_s = now_s
                self._held.append((now_s + wait_s, heir.streak))
                actions.append(Kill(name=name))
        self._heirs = left
        return actions

    def _ask_again(self, now_s: float) -> list[Action]:
        """Withdraw lost requests and make them anew."""
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
            record.given_s = now_s
            self._held.append((now_s, record.streak))
        return [Kill(name=name) for name, _ in lost]

    def _replacement(self, instance: int) -> str | None:
        """Name the youngest container that is nobody's replacement yet and may be this one's."""
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
                f"({how}): {last_line(message)}; mend that and submit again"
            )
        ]


def backoff_s(streak: int) -> float:
    """Return how long a replacement is held back: 0, then 1, 2, 4 … seconds from the second on.

    >>> [backoff_s(streak) for streak in (0, 1, 2, 3, 4, 20)]
    [0.0, 0.0, 1.0, 2.0, 4.0, 60.0]
    """
    return 0.0 if streak < 2 else float(min(BACKOFF_S_MAX, 2 ** min(streak - 2, 10)))
