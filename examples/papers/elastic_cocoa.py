"""Figures 1 and 3 and Tables 1-3 of the elastic-CoCoA paper, in projected time.

    python examples/papers/elastic_cocoa.py [--data rcv1 reuters ijcnn1 ...] [--quick]

A linear SVM (hinge loss, lambda 0.01) by CoCoA with 1, 2, 4, 8 and 16 members, and with members
that are released: 16, then 4, then 1 (or 2). Twice: by the paper's own rule (fixed partitions,
gamma = 1, sigma' = K, scale-in at the knee), and by ours (line search, chunks with two holders
reshuffled in every round, the number of members that maximises progress per container-second).

Every run is computed by the same machines, policies and solvers as a cluster job, with all
members in one process: rounds and gaps are measured. Time is projected: 1 unit is a pass of one
member over all examples; a round takes as long as its member with the most examples and c, a
scale-in 0.05. Container-units are units times members. Certificates are free. Medians over seeds;
``>x``: not reached within the limit. Writes ``tables.md``, ``figures.json`` and plots.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT))

from support.cocoa_data import SETS, load  # noqa: E402
from support.cocoa_figures import by_rounds, by_units, gap_figure, scale_marks, write_files  # noqa: E402
from support.elastic_comparison import markdown  # noqa: E402
from support.scale_in_overhead import overhead_table  # noqa: E402
from support.speedups import Cost, cost_of, gap_words, geometric_mean, speed_up  # noqa: E402

from elasticml.data.readers.arrays import ArraySource  # noqa: E402
from elasticml.report.style import write_whole  # noqa: E402
from examples.papers.support.virtual_study import Curve, Plan, study  # noqa: E402

#: Static numbers of members; P = lcm of them and of all scale-in sizes.
MEMBERS = (1, 2, 4, 8, 16)
PARTITIONS = 16
GAPS = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
PENALTY = 0.01
PAPER: dict[str, Any] = {"name": "cocoa", "loss": "hinge", "l2": PENALTY, "mode": "paper"}
OURS: dict[str, Any] = {"name": "cocoa", "loss": "hinge", "l2": PENALTY}
#: The paper's elastic settings: name, remaining members, static settings to compare with.
ELASTIC = {"16-4-1": (1, (1, 2, 4, 8, 16)), "16-4-2": (2, (2, 4, 8, 16))}


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits of every run."""

    units: float
    wall_s: float
    seeds: int
    members: Sequence[int] = MEMBERS
    overhead: float = 0.0
    placement: str = "random"
    slope: str = "log"


def plans(budget: Budget) -> dict[str, dict[str, Plan]]:
    """Return the runs: rule -> setting -> plan."""
    most = max(budget.members)
    base = Plan(
        algorithm=PAPER,
        members=most,
        partitions=PARTITIONS,
        placement=budget.placement,
        overhead=budget.overhead,
        units_max=budget.units,
        wall_s_max=budget.wall_s,
        rounds_max=1_000_000,
        gap=min(GAPS),
    )
    ours = replace(base, algorithm=OURS, partitions=None, chunks=256, holders=2)
    results: dict[str, dict[str, Plan]] = {"paper": {}, "ours": {}}
    for k in budget.members:
        results["paper"][f"K={k}"] = replace(base, members=k)
        results["ours"][f"K={k}"] = replace(ours, members=k, holders=min(2, k))
    for name, (least, _) in ELASTIC.items():
        to = [k for k in (4, least) if least <= k < most]
        knee = {"name": "knee", "to": to, "gap": budget.slope, "layout": "partitions"}
        results["paper"][name] = replace(base, policies=(knee,))
        worth = {"name": "gap_per_container_second", "minimum": least}
        results["ours"][name] = replace(ours, policies=(worth,))
    return results


@cache
def source_of(name: str) -> ArraySource:
    """Read a data set once per process."""
    return load(name)


def run(task: tuple[str, Plan]) -> Curve:
    """Run one plan and return its curve."""
    name, plan = task
    return replace(study(plan, source_of(name)), rows=())


def run_all(names: Sequence[str], budget: Budget, jobs: int) -> Iterator[tuple[str, Runs]]:
    """Run everything; yield each data set's runs as they finish."""
    rules = plans(budget)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for name in names:
            tasks = [
                (rule, setting, replace(plan, seed=seed))
                for rule, settings in rules.items()
                for setting, plan in settings.items()
                for seed in range(budget.seeds)
            ]
            results: Runs = {rule: {} for rule in rules}
            curves = pool.map(run, [(name, plan) for _, _, plan in tasks])
            for (rule, setting, _), curve in zip(tasks, curves, strict=True):
                results[rule].setdefault(setting, []).append(curve)
            yield name, results


#: Rule -> setting -> a curve per seed.
Runs = dict[str, dict[str, list[Curve]]]


# --- tables --------------------------------------------------------------------------------------


def table_1(names: Sequence[str]) -> str:
    """Describe the data as the paper's Table 1 does."""
    rows = []
    for name in names:
        source = source_of(name)
        some = source.rows
        assert some is not None
        n, d = len(some.labels), some.n_columns
        stored = _stored(source)
        size = sum(block.nbytes for block in source.blocks()) / 2**20
        rows.append([name, f"{n:,}", f"{d:,}", f"{size:.1f} MiB", f"{100 * stored / n / d:.3g} %"])
    head = ["data", "examples", "features", "size in memory", "density"]
    return "Table 1: data sets.\n\n" + markdown(head, rows)


def _stored(source: ArraySource) -> int:
    some = source.rows
    assert some is not None
    if some.dense is not None:
        return int(some.dense.size)
    assert some.indices is not None
    return len(some.indices)


def rounds_table(runs: Mapping[str, Runs], rule: str, members: Sequence[int]) -> str:
    """Format the rounds (epochs) to each gap by K: the figures of Figure 1."""
    rows = []
    for name, result in runs.items():
        for k in members:
            curves = result[rule][f"K={k}"]
            cells = [str(cost_of(curves, gap, "rounds")) for gap in GAPS]
            rows.append([name, str(k), *cells])
    return markdown(["data", "K", *map(gap_words, GAPS)], rows)


def speed_table(
    runs: Mapping[str, Runs], rule: str, elastic: str, rivals: Sequence[int], unit: str
) -> str:
    """Format Table 2: the best static setting's cost over the elastic one's."""
    rows, columns = [], {gap: [] for gap in GAPS}
    for name, result in runs.items():
        cells = []
        for gap in GAPS:
            static = {k: cost_of(result[rule][f"K={k}"], gap, unit) for k in rivals}
            text = speed_up(cost_of(result[rule][elastic], gap, unit), static)
            cells.append(text)
            columns[gap].append(text)
        rows.append([name, *cells])
    rows.append(["geometric mean", *(geometric_mean(columns[gap]) for gap in GAPS)])
    return markdown(["data", *map(gap_words, GAPS)], rows)


def cost_table(runs: Mapping[str, Runs], unit: str, members: Sequence[int]) -> str:
    """Format the cost of every setting of both rules to reach 1e-5 and 1e-6."""
    rows = []
    for name, result in runs.items():
        for rule, settings in result.items():
            for gap in (1e-5, 1e-6):
                cells = [str(cost_of(curves, gap, unit)) for curves in settings.values()]
                rows.append([name, rule, gap_words(gap), *cells])
    return markdown(["data", "rule", "gap", *(f"K={k}" for k in members), *ELASTIC], rows)


def tables(runs: Mapping[str, Runs], budget: Budget) -> str:
    """Format all tables."""
    rule_words = {"paper": "the paper's rule", "ours": "our rule"}
    unit_words = {"units": "projected time", "member_units": "container-units"}
    parts = [table_1(list(runs))]
    for rule, words in rule_words.items():
        parts.append(f"Rounds to a gap by K, {words} (measured):\n")
        parts.append(rounds_table(runs, rule, budget.members))
    for rule, words in rule_words.items():
        for elastic, (_, rivals) in ELASTIC.items():
            some = [k for k in rivals if k in budget.members]
            for unit, what in unit_words.items():
                parts.append(
                    f"Table 2, {elastic}, {words}, {what}: best of K = "
                    f"{', '.join(map(str, some))} over elastic, best K in brackets:\n"
                )
                parts.append(speed_table(runs, rule, elastic, some, unit))
    for unit, what in unit_words.items():
        parts += [f"{what.capitalize()} to a gap:\n", cost_table(runs, unit, budget.members)]
    parts.append("When members were given back (round: before to after), first seed:\n")
    parts.append(_events(runs))
    return "\n".join(parts)


def _events(runs: Mapping[str, Runs]) -> str:
    rows = []
    for name, result in runs.items():
        for rule in result:
            cells = [
                ", ".join(f"{s.rounds}: {s.before} to {s.after}" for s in result[rule][e][0].scaled)
                for e in ELASTIC
            ]
            rows.append([name, rule, *(cell or "never" for cell in cells)])
    return markdown(["data", "rule", *ELASTIC], rows)


# --- pictures ------------------------------------------------------------------------------------


def pictures(runs: Mapping[str, Runs], members: Sequence[int]) -> dict[str, bytes]:
    """Draw Figures 1 and 3 for both rules."""
    files: dict[str, bytes] = {}
    for rule in ("paper", "ours"):
        static = {
            n: {s: c for s, c in f[rule].items() if s not in ELASTIC} for n, f in runs.items()
        }
        lines = {n: {s: by_rounds(c[0]) for s, c in result.items()} for n, result in static.items()}
        title = f"Figure 1 {rule}: gap by round (measured)"
        files |= gap_figure(lines, "round", title, x_log=True)
        panels = {n: {s: by_units(c[0]) for s, c in f[rule].items()} for n, f in runs.items()}
        marks = {n: {e: scale_marks(f[rule][e][0]) for e in ELASTIC} for n, f in runs.items()}
        title = f"Figure 3 {rule}: gap by projected time (rounds measured)"
        files |= gap_figure(panels, "units, projected", title, marks=marks, x_log=True)
    return files


def figures_of(runs: Mapping[str, Runs]) -> dict[str, Any]:
    """Return every cost behind the tables, as JSON values."""

    def entry(cost: Cost) -> dict[str, Any]:
        return {"value": cost.value, "reached": cost.is_reached}

    return {
        name: {
            rule: {
                setting: {
                    "wall_s": median(c.wall_s for c in curves),
                    "gap_at_end": median(c.end.gap for c in curves),
                    **{
                        unit: {gap_words(g): entry(cost_of(curves, g, unit)) for g in GAPS}
                        for unit in ("rounds", "units", "member_units")
                    },
                }
                for setting, curves in settings.items()
            }
            for rule, settings in result.items()
        }
        for name, result in runs.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run it; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [name for name in SETS if name != "tiny"]
    parser.add_argument("--data", nargs="+", default=names, choices=[*SETS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=60.0, help="units a run may take")
    parser.add_argument("--wall", type=float, default=60.0, help="real seconds a run may take")
    parser.add_argument("--overhead", type=float, default=0.0, help="c: units of every round")
    parser.add_argument("--placement", default="random", choices=["random", "contiguous"])
    parser.add_argument("--slope", default="log", choices=["log", "linear"])
    parser.add_argument("--overheads", action="store_true", help="Table 3, on real processes")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run side by side")
    parser.add_argument("--out", type=Path, default=Path("runs/elastic-cocoa"))
    parser.add_argument("--quick", action="store_true", help="tiny data, K = 1, 4, 16, one seed")
    arguments = parser.parse_args(argv)
    budget = Budget(
        units=arguments.limit,
        wall_s=arguments.wall,
        seeds=arguments.seeds,
        overhead=arguments.overhead,
        placement=arguments.placement,
        slope=arguments.slope,
    )
    if arguments.quick:
        arguments.data = ["tiny"]
        budget = replace(budget, units=10.0, seeds=1, members=(1, 4, 16))
    out: Path = arguments.out
    began_s = time.perf_counter()
    runs: dict[str, Runs] = {}
    for name, result in run_all(arguments.data, budget, arguments.jobs):
        runs[name] = result
        print(f"{name}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr, flush=True)
        write_whole(out / "figures.json", json.dumps(figures_of(runs), indent=1).encode())
    text = tables(runs, budget)
    if arguments.overheads:
        text += "\n" + overhead_table(arguments.data, source_of)
    print(text)
    write_files(out, {"tables.md": text.encode(), **pictures(runs, budget.members)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
