"""Many plans: what was injected, what was violated, and which faults suffice for it."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from tests.play.plan import Plan
from tests.play.rules import OUTCOMES, violations
from tests.play.virtual_plans import draw_plan
from tests.play.virtual_world import play_plan

T = TypeVar("T")
YEAR_S: Final = 365.25 * 86400.0
#: A plan in virtual time takes a few seconds; one that takes this long has not ended.
PLAN_S_MAX: Final = 600.0
#: Longest time for which a failing plan is made smaller.
MINIMISE_S: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One plan's run."""

    plan: Plan
    #: The rules that do not hold, each with what was found.
    violations: Sequence[tuple[str, str]] = ()
    #: Kinds of the faults that hit the running job, in order; in virtual time once a member.
    hits: Sequence[str] = ()
    #: The job's error, if it failed.
    error: str | None = None
    rounds: int = 0
    #: Rows of the history that were compared with the true objective.
    rows: int = 0
    #: Longest time without a new round.
    stall_s: float = 0.0
    #: Members times virtual seconds.
    member_seconds: float = 0.0
    #: Of processor time in virtual time, else of the clock.
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The world, the seed, and the job in a few words."""
        return f"{self.plan.world.get('on', 'seed')} {self.plan.seed}: {self.plan.name}"

    @property
    def outcome(self) -> str:
        """What became of the job: recovered, error (as documented), or the worst violation."""
        if self.violations:
            return OUTCOMES.get(self.violations[0][0], "wrong")
        return "error" if self.error else "recovered"


@dataclass(kw_only=True)
class Totals:
    """All plans of a campaign."""

    plans: int = 0
    rounds: int = 0
    rows: int = 0
    stall_s_max: float = 0.0
    member_seconds: float = 0.0
    #: Of the clock.
    seconds: float = 0.0
    #: By kind and outcome; a plan's outcome is that of the last fault that hit it.
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Each as ``plan: rule: what was found``.
    wrong: list[str] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        """Count a plan."""
        self.plans += 1
        self.rounds += verdict.rounds
        self.rows += verdict.rows
        self.stall_s_max = max(self.stall_s_max, verdict.stall_s)
        self.member_seconds += verdict.member_seconds
        self.faults.update((kind, "recovered") for kind in verdict.hits[:-1])
        self.faults.update((kind, verdict.outcome) for kind in verdict.hits[-1:])
        self.wrong += [f"{verdict.name}: {rule}: {text}" for rule, text in verdict.violations]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        faults = [[kind, outcome, n] for (kind, outcome), n in sorted(self.faults.items())]
        return {**asdict(self), "faults": faults}

    def table(self) -> list[str]:
        """Return the figures: a line of each kind of fault, and a last one of all."""
        columns = ("recovered", "error", "wrong", "endless", "leak", "raw error")
        rows = [["fault", "hit", *columns]]
        kinds = sorted({kind for kind, _ in self.faults})
        for name, some in [*((kind, [kind]) for kind in kinds), ("all", kinds)]:
            counts = [sum(self.faults[kind, column] for kind in some) for column in columns]
            rows.append([name, *map(str, (sum(counts), *counts))])
        lines = ["".join(f"{r[0]:18}" + "".join(f"{cell:>12}" for cell in r[1:])) for r in rows]
        return [
            *lines,
            f"{self.plans} plans, {self.rounds:,} rounds, {self.rows:,} rows checked; longest wait "
            f"for a round {self.stall_s_max:.0f} s; {self.member_seconds / YEAR_S:.3f} "
            f"member-years; {len(self.wrong)} violations; {self.seconds:.0f} s",
        ]


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
    """Play a plan in virtual time, and return what it violated; an exception violates a rule."""
    begin_s = time.process_time()
    try:
        with _limited(seconds_max):
            played = play_plan(plan)
            found = violations(played)
    except (Exception, PlanTimeoutError) as error:  # whatever it is, the plan has found it
        wrong = [(type(error).__name__, str(error))]
        return Verdict(plan=plan, violations=wrong, seconds=time.process_time() - begin_s)
    return Verdict(
        plan=plan,
        violations=found,
        hits=[fault.kind for fault in played.hits],
        rounds=len(played.history),
        member_seconds=played.member_seconds,
        seconds=time.process_time() - begin_s,
    )


def judge_seed(seed: int) -> Verdict:
    """Draw and play a plan."""
    return judge(draw_plan(seed))


def judge_seeds(seeds: Iterable[int], processes: int) -> Iterator[Verdict]:
    """Play the plans of seeds in virtual time, on some cores; yield each as it ends."""
    if processes == 1:
        yield from map(judge_seed, seeds)
        return
    # Fresh interpreters: a fork would copy this process's threads' locks.
    context, left = multiprocessing.get_context("spawn"), iter(seeds)
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        waiting: set[Future[Verdict]] = set()
        while True:
            more = itertools.islice(left, 2 * processes - len(waiting))
            waiting |= {pool.submit(judge_seed, seed) for seed in more}
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def minimal_plan(plan: Plan, seconds_max: float = MINIMISE_S) -> Plan:
    """Return a plan of virtual time with the fewest faults that violate the same rule."""

    def rule_of(some: Plan) -> str | None:
        found = judge(some).violations
        return found[0][0] if found else None

    rule = rule_of(plan)

    def fails(faults: list[Any]) -> bool:
        return rule_of(plan.with_faults(faults)) == rule

    return plan.with_faults(minimal(plan.faults, fails, seconds_max))


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
