"""Where the time of the rounds goes, and what to do about a run that mostly waits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from elasticml.protocol.job_record import job_record
from elasticml.report.timeline import seconds_text
from elasticml.story.records import (
    ExchangeEnded,
    JobBegun,
    RoundEnded,
    RoundStarted,
    StoryRecord,
    WaitEnded,
    Waiting,
)

#: From this share of the members' time in rounds on, a run mostly waits.
WAIT_SHARE: Final = 0.5
#: From this share of a job's duration on, waits of the whole job are worth a line.
_HELD_SHARE: Final = 0.25
#: Rounds before the first one that counts: it includes compilation and the first connections.
_FIRST_ROUNDS: Final = 1
#: Fewest rounds from which a number of members is derived.
_ROUNDS_MIN: Final = 3
#: What gives a member more work per round, by algorithm.
_MORE_WORK: Final = {
    "cocoa": "raise algorithm.local_epochs or add policies: [tune_local_work]",
    "primal_cocoa": "raise algorithm.local_epochs",
    "local_sgd": "raise algorithm.local_steps",
}


@dataclass(slots=True)
class RoundTimes:
    """Where the time of a round has gone so far, in seconds."""

    started_s: float
    computing: float = 0.0
    waiting: float = 0.0
    links: float = 0.0
    #: Most members that computed in an exchange.
    members: int = 0
    has_exchange: bool = False

    def add(self, record: ExchangeEnded) -> None:
        """Add an exchange: mean and longest computation, and the rest of its duration."""
        self.has_exchange = True
        times = record.compute_s.values()
        mean = sum(times) / len(times) if times else 0.0
        longest = max(times, default=0.0)
        start_s = record.t if record.start_t is None else record.start_t
        self.computing += mean
        self.waiting += longest - mean
        self.links += max(0.0, record.t - start_s - longest)
        self.members = max(self.members, len(times))

    def shares(self, end_s: float) -> tuple[float, float, float, float]:
        """Return the seconds of computing, waiting, links and driver; they add up to the round."""
        whole = max(0.0, end_s - self.started_s)
        spent = self.computing + self.waiting + self.links
        # Exchanges of asynchronous algorithms overlap.
        scale = whole / spent if spent > whole > 0 else 1.0
        computing, waiting, links = (
            seconds * scale for seconds in (self.computing, self.waiting, self.links)
        )
        return computing, waiting, links, max(0.0, whole - computing - waiting - links)


@dataclass(slots=True, kw_only=True)
class TimeUse:
    """Where the time of a job's rounds has gone, summed over rounds, and what held the job up."""

    algorithm: str = ""
    seconds: float = 0.0
    rounds: int = 0
    computing: float = 0.0
    #: For the slowest member of each exchange.
    waiting: float = 0.0
    #: For messages.
    links: float = 0.0
    #: For the driver, between exchanges.
    driver: float = 0.0
    #: Compute seconds of all members.
    work: float = 0.0
    #: Number of members, times the seconds of their rounds.
    member_seconds: float = 0.0
    #: Seconds for which the whole job waited, by what it waited for, outside its exchanges too.
    held_s: dict[str, float] = field(default_factory=dict)
    #: What would have helped against each.
    remedies: dict[str, str] = field(default_factory=dict)

    @property
    def in_rounds_s(self) -> float:
        """Duration of the rounds that count."""
        return self.computing + self.waiting + self.links + self.driver

    @property
    def wait_share(self) -> float:
        """Share of the rounds' time in which an average member did not compute."""
        whole = self.in_rounds_s
        return 1.0 - self.computing / whole if whole > 0 else 0.0

    @property
    def members(self) -> float:
        """Mean number of members."""
        whole = self.in_rounds_s
        return self.member_seconds / whole if whole > 0 else 0.0

    @property
    def paying_members(self) -> int:
        """Number of members beyond which even any number more cannot halve the time of a round.

        A round of ``k`` members takes about ``work / k + fixed``, in which ``fixed``, the time for
        messages and the driver, does not shrink with more members. Both are equal at the result.
        """
        fixed = self.links + self.driver
        return max(1, round(self.work / fixed)) if fixed > 0 else round(self.members)

    def add(self, times: RoundTimes, end_s: float) -> None:
        """Add a round that ended at ``end_s``."""
        if not times.computing:
            return
        self.rounds += 1
        if self.rounds <= _FIRST_ROUNDS:
            return
        computing, waiting, links, driver = times.shares(end_s)
        self.computing += computing
        self.waiting += waiting
        self.links += links
        self.driver += driver
        self.work += computing * times.members
        self.member_seconds += times.members * (computing + waiting + links + driver)

    def advice(self) -> list[str]:
        """Say what the job waited for and what to do about it; empty if it mostly computed."""
        lines = [
            f"The whole job stood still for {seconds_text(held)} of {seconds_text(self.seconds)}, "
            f"for {what}: {self.remedies.get(what, 'see the timeline')}."
            for what, held in self.held_s.items()
            if held >= _HELD_SHARE * self.seconds > 0
        ]
        is_measured = self.rounds >= _FIRST_ROUNDS + _ROUNDS_MIN and self.algorithm != "async_sgd"
        if is_measured and self.wait_share >= WAIT_SHARE:
            lines.append(self._in_rounds())
        return lines

    def _in_rounds(self) -> str:
        whole = self.in_rounds_s
        parts = (
            (self.waiting, "for the slowest member"),
            (self.links, "for messages"),
            (self.driver, "for the driver"),
        )
        text = (
            f"Members waited {100 * self.wait_share:.0f} % of the time in rounds: "
            + ", ".join(f"{100 * seconds / whole:.0f} % {what}" for seconds, what in parts)
            + ". "
        )
        fixed = self.links + self.driver
        if self.waiting > fixed:
            return text + (
                "Some members are slower or have more examples than others: add policies: "
                "[rebalance], or use equal machines."
            )
        more_work = _MORE_WORK.get(self.algorithm)
        few, members = self.paying_members, self.members
        if few > members - 0.5 or self.algorithm == "local_sgd":
            # A round of local SGD processes more examples with more members.
            return text + (
                f"To give members more work per round, {more_work}."
                if more_work
                else "The data are small for a cluster: more members would not make it faster."
            )
        longer = (self.work / few + fixed) / whole
        at_most = f"at most {longer:.2g} times as long" if longer >= 1.05 else "no longer"
        many = f"{round(members, 1 if members < 10 else None):g}"
        text += (
            f"About {few} member{' pays' if few == 1 else 's pay'} for these data, not "
            f"{many}: a round then takes {at_most}, for "
            f"{100 * longer * few / members:.0f} % of the container-seconds. Start fewer workers "
            f"(members.start, members.max: {few})"
        )
        return text + (f", or {more_work}." if more_work else ".")


def time_use(records: Iterable[StoryRecord]) -> TimeUse:
    """Return where the time of a job went, as far as its story goes."""
    use = TimeUse()
    times: RoundTimes | None = None
    open_wait: Waiting | None = None
    for record in records:
        use.seconds = max(use.seconds, record.t)
        match record:
            case JobBegun():
                use.algorithm = job_record(record.spec).algorithm_name
                times = open_wait = None
            case RoundStarted():
                times = RoundTimes(record.t)
            case ExchangeEnded() if times is not None:
                times.add(record)
            case RoundEnded() if times is not None:
                use.add(times, record.t)
                times = None
            case Waiting():
                open_wait = record
                use.remedies[record.what] = record.remedy
            case WaitEnded():
                use.held_s[record.what] = use.held_s.get(record.what, 0.0) + record.seconds
                open_wait = None
    if open_wait is not None:
        what = open_wait.what
        use.held_s[what] = use.held_s.get(what, 0.0) + max(0.0, use.seconds - open_wait.since_s)
    return use
