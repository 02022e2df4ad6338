"""Many fault plans in the simulator, on all cores: what was injected, and what was violated."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from tests.play.plan import Plan
from tests.play.rules import violations
from tests.play.virtual_plans import draw_plan
from tests.play.virtual_world import play_plan

T = TypeVar("T")
YEAR_S: Final = 365.25 * 86400.0
#: A plan takes a few seconds; one that takes this long has not ended.
PLAN_S_MAX: Final = 600.0
#: Longest time for which a failing plan is made smaller.
MINIMISE_S: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One plan's run."""

    seed: int
    #: The job in a few words.
    name: str
    #: Each as ``rule: what was found``.
    violations: tuple[str, ...] = ()
    #: Faults that hit a member, by kind.
    faults: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    #: Members times virtual seconds.
    member_seconds: float = 0.0
    #: Seconds of processor time.
    cpu_s: float = 0.0


@dataclass(kw_only=True)
class Totals:
    """All plans of a campaign."""

    seed: int
    plans: int = 0
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    member_seconds: float = 0.0
    #: Seconds of processor time, and of the clock.
    cpu_s: float = 0.0
    seconds: float = 0.0
    processes: int = 1
    #: The verdicts with violations, by seed.
    wrong: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        """Count a plan."""
        self.plans += 1
        self.rounds += verdict.rounds
        self.faults.update(verdict.faults)
        self.member_seconds += verdict.member_seconds
        self.cpu_s += verdict.cpu_s
        if verdict.violations:
            self.wrong = sorted([*self.wrong, verdict], key=lambda v: v.seed)

    @property
    def member_years(self) -> float:
        """Members times virtual years."""
        return self.member_seconds / YEAR_S

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        wrong = [{"seed": v.seed, "name": v.name, "violations": v.violations} for v in self.wrong]
        figures = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**figures, "wrong": wrong, "member_years": self.member_years}


class PlanTimeoutError(BaseException):
    """A plan took too long. No handler of the played code may take it for an error of its own."""


@contextlib.contextmanager
def _limited(seconds: float) -> Generator[None]:
    """Interrupt a block of the main thread that takes longer: a world whose time stands still."""

    def expire(*_: object) -> None:
        raise PlanTimeoutError(f"the plan takes more than {seconds:g} s")

    former = signal.signal(signal.SIGALRM, expire)
    # Again every second: a finalizer that runs when the signal comes ignores the exception.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, former)


def judge(plan: Plan, seconds_max: float = PLAN_S_MAX) -> Verdict:
    """Play a plan and return what it violated; an exception is a violation, too."""
    begin_s = time.process_time()
    try:
        with _limited(seconds_max):
            played = play_plan(plan)
            found = tuple(f"{name}: {text}" for name, text in violations(played))
    except (Exception, PlanTimeoutError) as error:  # whatever it is, the plan has found it
        text = f"{type(error).__name__}: {error}"
        return Verdict(
            seed=plan.seed,
            name=plan.name,
            violations=(text,),
            cpu_s=time.process_time() - begin_s,
        )
    return Verdict(
        seed=plan.seed,
        name=plan.name,
        violations=found,
        faults=Counter(fault.kind for fault in played.hits),
        rounds=len(played.history),
        member_seconds=played.member_seconds,
        cpu_s=time.process_time() - begin_s,
    )


def judge_seed(seed: int) -> Verdict:
    """Draw and play a plan."""
    return judge(draw_plan(seed))


def run_campaign(
    seed: int,
    plans: int | None,
    minutes: float | None,
    processes: int,
    watch: Callable[[Verdict], None] = lambda verdict: None,
) -> Totals:
    """Play the plans of seeds from ``seed`` on, until their number or the time is reached."""
    totals, begin_s = Totals(seed=seed, processes=processes), time.monotonic()
    until_s = float("inf") if minutes is None else begin_s + 60.0 * minutes

    def seeds() -> Iterator[int]:
        number = 0
        while (plans is None or number < plans) and time.monotonic() < until_s:
            yield seed + number
            number += 1

    for verdict in _verdicts(seeds(), processes):
        totals.add(verdict)
        watch(verdict)
    totals.seconds = time.monotonic() - begin_s
    return totals


def _verdicts(seeds: Iterator[int], processes: int) -> Iterator[Verdict]:
    if processes == 1:
        yield from map(judge_seed, seeds)
        return
    # Fresh interpreters: a fork would copy this process's threads' locks.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        waiting: set[Future[Verdict]] = set()
        while True:
            while len(waiting) < 2 * processes and (seed := next(seeds, None)) is not None:
                waiting.add(pool.submit(judge_seed, seed))
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def minimal_plan(plan: Plan, seconds_max: float = MINIMISE_S) -> Plan:
    """Return a failing plan with the fewest faults that violate the same rule."""
    rule = rule_of(judge(plan))

    def fails(faults: list[Any]) -> bool:
        return rule_of(judge(plan.with_faults(faults))) == rule

    return plan.with_faults(minimal(plan.faults, fails, seconds_max))


def rule_of(verdict: Verdict) -> str | None:
    """Return the first rule that is violated, or the name of the exception."""
    return verdict.violations[0].partition(":")[0] if verdict.violations else None


def minimal(
    items: Sequence[T], fails: Callable[[list[T]], bool], seconds_max: float = float("inf")
) -> list[T]:
    """Return a part of the items that still fails, of which no single one can be left out.

    Source: delta debugging, Zeller and Hildebrandt (2002), Simplifying and isolating
    failure-inducing input.

    Parameters
    ----------
    items : sequence
        They fail together.
    fails : callable
        Whether some of them, in their order, fail.
    seconds_max : float
        Time after which the fewest found so far are returned.
    """
    least, parts = list(items), 2
    until_s = time.monotonic() + seconds_max
    if fails([]):
        return []
    while len(least) > 1 and time.monotonic() < until_s:
        bounds = [len(least) * k // parts for k in range(parts + 1)]
        cuts = list(itertools.pairwise(bounds))
        pieces = [least[a:b] for a, b in cuts]
        rests = [least[:a] + least[b:] for a, b in cuts]
        kept = next(
            (some for some in (*pieces, *rests) if len(some) < len(least) and fails(some)), None
        )
        if kept is not None:
            parts = 2 if len(kept) <= len(least) // parts + 1 else max(2, parts - 1)
            least = kept
        elif parts == len(least):
            break
        else:
            parts = min(len(least), 2 * parts)
    return least
