"""The uni-task paper's figures: uni-tasks against micro-tasks, in projected time.

    python examples/papers/chicle.py --quick                    small sets, a minute
    python examples/papers/chicle.py --data higgs covtype       CoCoA, some minutes a set
    python examples/papers/chicle.py --data fashion             local SGD, hours of one core
    python examples/papers/chicle.py --data fashion --rows 6000 --epochs 10 --figures 4a 5

The data set determines the algorithm. CoCoA (higgs, covtype, ijcnn1, a9a, reuters, kdd, tiny):

* Figure 1b: rounds to a gap against the number of tasks K = 16, 24, 32, 64.
* Figures 4 and 9: members join (2 to 16) or leave (16 to 2), two every 20 seconds. Uni-tasks: the
  simulator runs the job with arrivals and notices; chunks move to newcomers and from leavers.
  Micro-tasks: K partitions run in waves on the present members.
* Figures 5 and 10: 8 fast members and 8 that take 1.5 times as long. Uni-tasks: the rebalancing
  policy moves chunks by the members' own reports. Micro-tasks: assigned optimally.
* Figures 6 and 11: load balancing on 16 members of which 4 run at 1.2 instead of 2.6 GHz.
* Figure 8 needs the package snapml; without it the comparison is omitted.

Local SGD (fashion, cifar10, squares; needs PyTorch), the paper's CNN, L = 8, H = 16:

* Figures 4, 5, 9, 10 and 11 likewise, as test accuracy; members join and leave every two epochs.
* Figure 1a: mini-batch SGD with several batch sizes.
* Figure 7: mini-batch SGD, and local SGD on one member, against PyTorch alone.
* fixed: 1, 2, 4 and 8 members, and 8 to 2 to 8.

The computation of a round is real, with the same kernels for all (convergence per round is
measured). Time is projected as in the paper: a round of 16 members is one unit, which for CoCoA is
one second of the schedule. CoCoA's gap is a certificate. The tables have medians over seeds, with
the least and the largest value in brackets; plots show the first seed. Writes ``tables.md``,
``figures.json`` and plots; runs are kept below ``runs`` and not computed again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT))

from support.balance_figures import Busy, balance_pictures, balance_table, busy_of  # noqa: E402
from support.cocoa_data import SETS, load  # noqa: E402
from support.cocoa_figures import Line, gap_figure, write_files  # noqa: E402
from support.elastic_comparison import markdown  # noqa: E402
from support.local_sgd_options import NETWORK_SETS, add_local_sgd_options, run_local_sgd  # noqa: E402
from support.snapml_store import Store  # noqa: E402
from support.speedups import gap_words, spread  # noqa: E402

from elasticml.data.readers.arrays import ArraySource  # noqa: E402
from elasticml.report.style import write_whole  # noqa: E402
from elasticml.specification.algorithms import has_torch  # noqa: E402
from elasticml.specification.simulator import Granted, Taken  # noqa: E402
from examples.papers.support.round_projection import (  # noqa: E402
    REFERENCE_MEMBERS,
    elapsed,
    micro_task_units,
    micro_task_units_mixed,
    stepwise,
    uni_task_units,
    uni_task_units_mixed,
)
from examples.papers.support.virtual_study import Curve, Plan, study  # noqa: E402

#: Logical tasks of the emulation.
TASKS = (16, 24, 32, 64)
GAPS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
#: 8 fast members and 8 slow ones; 4 of 16 at 1.2 instead of 2.6 GHz.
MIXED = [1.0] * 8 + [1.5] * 8
THROTTLED = [2.6 / 1.2] * 4 + [1.0] * 12
UNI = "uni-tasks"
#: Experiment -> its members.
WORDS = {
    "scale-in": "16 to 2 members",
    "scale-out": "2 to 16 members",
    "mixed": "8 fast and 8 slow members",
}
ALGORITHM: dict[str, Any] = {"name": "cocoa", "loss": "hinge", "l2": 0.01, "mode": "paper"}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of every run."""

    rounds: int
    wall_s: float
    tasks: Sequence[int] = TASKS
    seed: int = 0
    #: Seconds between two changes of the members.
    every_s: float = 20.0

    def plan(self, members: int) -> Plan:
        """Plan a run of the papers' algorithm on this many members, or logical tasks."""
        return Plan(
            algorithm=ALGORITHM,
            members=members,
            chunks=512,
            rounds_max=self.rounds,
            wall_s_max=self.wall_s,
            seed=self.seed,
            scale_units=0.0,
            gap=min(GAPS) / 10,
        )


def scaling_plan(budget: Budget, start: int, end: int) -> Plan:
    """Plan uni-tasks while members join or leave; the schedule's seconds become units."""
    trace: list[Taken | Granted] = []
    for (t, now), (_, before) in zip(
        schedule(budget, start, end)[1:], schedule(budget, start, end), strict=False
    ):
        at = t / REFERENCE_MEMBERS
        if now > before:
            trace.append(Granted(at=at, grant=now - before))
        else:
            # Moves take no time here; the grace period only has to reach the end of a round.
            trace.append(Taken(at=at, lose=before - now, how="notice", grace=2.0))
    return replace(budget.plan(start), trace=tuple(trace))


def schedule(budget: Budget, start: int, end: int) -> list[tuple[float, int]]:
    """Return the number of members over time, as (from second, members)."""
    return stepwise(start, end, every=budget.every_s)


def projected(curve: Curve, ends_s: Sequence[float]) -> Line:
    """Return a run's gaps against the seconds at which its rounds end."""
    return [(t, p.gap) for t, p in zip(ends_s, curve.points, strict=False)]


def uni_line(curve: Curve) -> Line:
    """Return gap against seconds of a simulated run: its virtual time is the projection."""
    return [(REFERENCE_MEMBERS * p.units, p.gap) for p in curve.points]


def rounds_line(curve: Curve) -> Line:
    """Return gap against rounds; every round is an epoch."""
    return [(float(p.rounds), p.gap) for p in curve.points]


@dataclass(frozen=True, kw_only=True)
class Lines:
    """One experiment on one data set: setting -> line."""

    rounds: dict[str, Line]
    seconds: dict[str, Line]


def micro(curves: Mapping[int, Curve], units: Mapping[int, Any], budget: Budget) -> Lines:
    """Project the micro-tasks' runs; ``units``: K -> (schedule, members -> units)."""
    result = Lines(rounds={}, seconds={})
    for tasks in budget.tasks:
        some, lengths = units[tasks]
        ends_s = elapsed(len(curves[tasks].points), some, lengths, 1.0)
        result.rounds[f"micro-tasks ({tasks})"] = rounds_line(curves[tasks])
        result.seconds[f"micro-tasks ({tasks})"] = projected(curves[tasks], ends_s)
    return result


def scaling(
    source: ArraySource, curves: Mapping[int, Curve], budget: Budget, start: int, end: int
) -> Lines:
    """Compare uni-tasks with micro-tasks while members join or leave."""
    when = schedule(budget, start, end)
    counts = {members for _, members in when}
    units = {k: (when, {n: micro_task_units(k, n) for n in counts}) for k in budget.tasks}
    result = micro(curves, units, budget)
    curve = study(scaling_plan(budget, start, end), source)
    result.rounds[UNI], result.seconds[UNI] = rounds_line(curve), uni_line(curve)
    return result


def mixed(source: ArraySource, curves: Mapping[int, Curve], budget: Budget) -> tuple[Lines, float]:
    """Compare them on 8 fast and 8 slow members; also the round time that uni-tasks reach."""
    units = {k: ([(0.0, 16)], {16: micro_task_units_mixed(k, MIXED)}) for k in budget.tasks}
    result = micro(curves, units, budget)
    curve = study(balanced_plan(budget, MIXED, balances=True), source)
    result.rounds[UNI], result.seconds[UNI] = rounds_line(curve), uni_line(curve)
    return result, REFERENCE_MEMBERS * last_round(curve)


def balanced_plan(budget: Budget, factors: Sequence[float], *, balances: bool) -> Plan:
    """Plan 16 unequal members, with or without the rebalancing policy."""
    slow = {slot: factor for slot, factor in enumerate(factors) if factor != 1.0}
    policies = ({"name": "rebalance"},) if balances else ()
    return replace(budget.plan(len(factors)), slow=slow, policies=policies)


def last_round(curve: Curve) -> float:
    """Length of a run's last round, in units of an epoch on one member."""
    return curve.points[-1].units - curve.points[-2].units


# --- tables --------------------------------------------------------------------------------------


def first_at(line: Line, gap: float) -> float | None:
    """Return when a line reaches a gap; None if it does not."""
    return next((x for x, value in line if value <= gap), None)


def lines_table(seeds: Sequence[Mapping[str, Mapping[str, Line]]]) -> str:
    """Format the rounds or seconds to each gap, by data set and setting, over all seeds."""
    rows = []
    for name, settings in seeds[0].items():
        for setting in settings:
            lines = [some[name][setting] for some in seeds]
            cells = [spread([first_at(line, gap) for line in lines]) for gap in GAPS]
            rows.append([name, setting, *cells])
    return markdown(["data", "setting", *map(gap_words, GAPS)], rows)


def units_table(seeds: Sequence[Mapping[str, SetResult]], budget: Budget) -> str:
    """Format the round times on 8 fast and 8 slow members: projected, and reached by the policy."""
    cells = [f"{micro_task_units_mixed(k, MIXED):.3f}" for k in budget.tasks]
    head = ["data", *(f"micro-tasks ({k})" for k in budget.tasks), f"{UNI}, ideal", f"{UNI}, run"]
    ideal = f"{uni_task_units_mixed(MIXED):.3f}"
    rows = [
        [name, *cells, ideal, spread([some[name].reached for some in seeds])] for name in seeds[0]
    ]
    return markdown(head, rows)


def waves_table(budget: Budget) -> str:
    """Format the round times by the number of members."""
    counts = [members for _, members in stepwise(16, 2)]
    rows = [
        [f"micro-tasks ({k})", *(f"{micro_task_units(k, n):.3f}" for n in counts)]
        for k in budget.tasks
    ]
    rows.append([UNI, *(f"{uni_task_units(n):.3f}" for n in counts)])
    return markdown(["N", *map(str, counts)], rows)


def snap_ml_words() -> str:
    """Return whether the comparison with Snap ML can run here, in words."""
    if importlib.util.find_spec("snapml") is None:
        return "Figure 8 (Snap ML): left out, the package snapml is not installed here.\n"
    return "Figure 8 (Snap ML): see `python -m tests.bench cocoa_speed`, which measures both.\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run it; return the exit status."""
    arguments = read_arguments(argv)
    budget = Budget(
        rounds=arguments.rounds,
        wall_s=arguments.wall,
        seed=arguments.seed,
        every_s=arguments.every,
    )
    if arguments.quick:
        budget = replace(budget, rounds=60, tasks=(16, 24), every_s=2.0)
    out: Path = arguments.out
    text, content, files = "", {}, {}
    of_cocoa = [name for name in arguments.data if name in SETS]
    if of_cocoa:
        budgets = [replace(budget, seed=budget.seed + k) for k in range(arguments.seeds)]
        results = run_all(of_cocoa, budgets, out, arguments.jobs)
        text, files = tell(results, budget), pictures(results[0])
        content = {
            "lines": {
                what: {
                    name: asdict(result.experiments[what]) for name, result in results[0].items()
                }
                for what in WORDS
            },
            "units": {name: result.reached for name, result in results[0].items()},
        }
    of_networks = [name for name in arguments.data if name in NETWORK_SETS]
    if of_networks:
        more, content["local_sgd"], drawn = run_local_sgd(arguments, of_networks)
        text, files = "\n".join(part for part in (text, more) if part), files | drawn
    print(text)
    write_files(out, {"tables.md": text.encode(), **files})
    write_whole(out / "figures.json", json.dumps(content).encode())
    return 0


def read_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ``data`` are the sets to run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names, small = ["higgs", "covtype", "ijcnn1", "a9a", "reuters"], ["tiny", "squares"]
    parser.add_argument(
        "--data", nargs="+", choices=[*SETS, *NETWORK_SETS], metavar="SET",
        help=f"data sets (default: {' '.join(names)}; with --quick: {' '.join(small)})",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--seeds", type=int, default=3, help="runs of which medians are taken")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run side by side")
    parser.add_argument("--out", type=Path, default=Path("runs/chicle"))
    parser.add_argument(
        "--quick", action="store_true", help="small sets, one seed, few tasks and rounds"
    )
    cocoa = parser.add_argument_group("CoCoA")
    cocoa.add_argument("--rounds", type=int, default=600)
    cocoa.add_argument(
        "--wall", type=float, default=math.inf, help="real seconds a run may take (no limit)"
    )
    cocoa.add_argument("--every", type=float, default=20.0, help="seconds between two changes")
    add_local_sgd_options(parser.add_argument_group("local SGD"))
    arguments = parser.parse_args(argv)
    if arguments.seeds < 1:
        parser.error(f"--seeds: got {arguments.seeds}, wanted at least 1")
    arguments.data = arguments.data or (small if arguments.quick else names)
    if arguments.quick:
        arguments.seeds = 1
    if not has_torch() and set(arguments.data) & {*NETWORK_SETS}:
        print("local SGD is left out: make torch", file=sys.stderr)
        arguments.data = [name for name in arguments.data if name in SETS]
        if not arguments.data:
            parser.error("no data set is left to run")
    return arguments


@dataclass(frozen=True, kw_only=True)
class SetResult:
    """All experiments on one data set, with one seed."""

    #: Experiment -> its lines.
    experiments: dict[str, Lines]
    #: Units of a round of uni-tasks on 8 fast and 8 slow members.
    reached: float
    #: Without and with the rebalancing policy.
    busy: list[Busy]

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> SetResult:
        """Return a result from JSON values."""
        return cls(
            experiments={what: Lines(**lines) for what, lines in kept["experiments"].items()},
            reached=kept["reached"],
            busy=[
                Busy(rounds=tuple({int(k): s for k, s in r.items()} for r in some["rounds"]))
                for some in kept["busy"]
            ],
        )


def run_set(name: str, budget: Budget) -> dict[str, Any]:
    """Run every experiment on one data set; return a :class:`SetResult` as JSON values."""
    source = load(name)
    curves = {k: study(budget.plan(k), source) for k in budget.tasks}
    unequal, reached = mixed(source, curves, budget)
    experiments = {
        "scale-in": scaling(source, curves, budget, 16, 2),
        "scale-out": scaling(source, curves, budget, 2, 16),
        "mixed": unequal,
    }
    some = replace(budget, rounds=10)
    plans = [balanced_plan(some, THROTTLED, balances=balances) for balances in (False, True)]
    busy = [busy_of(study(plan, source)) for plan in plans]
    return asdict(SetResult(experiments=experiments, reached=reached, busy=busy))


def stored(task: tuple[str, Budget, Path]) -> SetResult:
    """Return a data set's result with one seed: kept, or computed now."""
    name, budget, folder = task
    settings = {"algorithm": ALGORITHM, **asdict(budget)}
    run_name = f"cocoa {name}, seed {budget.seed}"
    return SetResult.read(
        Store(folder=folder).run(run_name, settings, lambda: run_set(name, budget))
    )


def run_all(
    names: Sequence[str], budgets: Sequence[Budget], folder: Path, jobs: int
) -> list[dict[str, SetResult]]:
    """Run all data sets with every seed; return data set -> result for each of them."""
    tasks = [(name, budget, folder) for budget in budgets for name in names]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        results = iter(list(pool.map(stored, tasks)))
    return [{name: next(results) for name in names} for _ in budgets]


def pictures(results: Mapping[str, SetResult]) -> dict[str, bytes]:
    """Draw all figures."""
    files = balance_pictures({name: result.busy for name, result in results.items()})
    titles = {"scale-in": ("4a", "9a"), "scale-out": ("4b", "9b"), "mixed": ("5", "10")}
    for what, (by_time, by_round) in titles.items():
        seconds = {name: result.experiments[what].seconds for name, result in results.items()}
        rounds = {name: result.experiments[what].rounds for name, result in results.items()}
        title = f"Figure {by_time} {what}: gap by projected time (rounds measured)"
        files |= gap_figure(seconds, "seconds, projected", title)
        files |= gap_figure(rounds, "round", f"Figure {by_round} {what}: gap by round (measured)")
    return files


def rounds_by_setting(result: SetResult) -> dict[str, Line]:
    """Return every setting's rounds once: those of micro-tasks do not depend on the members."""
    lines = dict(result.experiments["scale-in"].rounds)
    lines.pop(UNI)
    return lines | {
        f"{UNI}, {WORDS[what]}": experiment.rounds[UNI]
        for what, experiment in result.experiments.items()
    }


def tell(seeds: Sequence[Mapping[str, SetResult]], budget: Budget) -> str:
    """Format all tables."""
    figures = {"scale-in": "4 and 9", "scale-out": "4 and 9", "mixed": "5 and 10"}
    parts = [
        "Figure 1b, and Figures 9 and 10: rounds to a gap (measured):\n",
        lines_table([{n: rounds_by_setting(r) for n, r in some.items()} for some in seeds]),
        "Units of a round by the number of members (the paper's formulas):\n",
        waves_table(budget),
    ]
    for what, title in WORDS.items():
        parts.append(f"Figures {figures[what]}, {title}: seconds to a gap (projected):\n")
        parts.append(
            lines_table(
                [{n: r.experiments[what].seconds for n, r in some.items()} for some in seeds]
            )
        )
    parts.append("Units of a round on 8 fast and 8 slow members:\n")
    parts.append(units_table(seeds, budget))
    words_11 = "4 of 16 members at 1.2 instead of 2.6 GHz: slowest over mean time by round"
    busy = {name: result.busy for name, result in seeds[0].items()}
    parts += [f"Figures 6 and 11, {words_11}, first seed:\n", balance_table(busy), snap_ml_words()]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
