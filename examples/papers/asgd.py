"""The asynchronous SGD paper's Figures 1, 3, 4, 5 and 6, and its K-Means comparison.

    python examples/papers/asgd.py [--figures 1 3 4 5 real-small ...] [--seeds 10] [--quick]

* Figure 1: error by time of ASGD, SimuParallelSGD and BATCH on 1024 members, and the gain from more
  members. Figure 3: the cost of messages, and convergence with many and with few of them.
* Figure 4 (D = 10, K = 10) and Figure 5 (D = 100, K = 100): run time and error against the
  mini-batch b, on Gigabit Ethernet and on InfiniBand. Figure 6: good messages against b, and fixed
  against adaptive b; it is computed with Figure 5.
* ``methods-small``, ``methods-large``: time to the same error of all methods, on both networks, on
  the data of Figures 4 and 5.
* ``real-small``, ``real-large``: real processes, two by default, on the data of Figures 4 and 5:
  time and error of ASGD, SimuParallelSGD and BATCH.

All except ``real-*`` are in virtual time: the arithmetic is real, with the product's own samplers,
merges and controllers; the duration of a batch is measured on this machine first, and a network
card shared by sixteen members has the rates of the paper's networks. Medians over seeds, each with
its own data, start and random choices. Writes ``tables.md``, ``figures.json`` and plots.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT))

from support.asgd_figures import picture  # noqa: E402
from support.asgd_methods import figure_1, figure_3, methods  # noqa: E402
from support.asgd_real import REAL, real_figure  # noqa: E402
from support.asgd_study import Budget, Figure, cost_rows  # noqa: E402
from support.asgd_sweeps import figure_4, figures_5_and_6  # noqa: E402
from support.asgd_virtual import LARGE, SMALL  # noqa: E402
from support.cocoa_figures import write_files  # noqa: E402
from support.elastic_comparison import markdown  # noqa: E402

#: Time to the same error, in virtual time.
METHODS = {"methods-small": SMALL, "methods-large": LARGE}
FIGURES = ("1", "3", "4", "5", *METHODS, *REAL)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and run its figures; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        epilog=__doc__.partition("\n\n")[2].partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--figures",
        nargs="+",
        default=FIGURES,
        choices=FIGURES,
        metavar="FIGURE",
        help=f"which: {', '.join(FIGURES)} (default: all)",
    )
    parser.add_argument("--seeds", type=int, default=10, help="runs of which medians are taken")
    parser.add_argument(
        "--limit", type=float, default=math.inf, help="seconds after which no further seed begins"
    )
    parser.add_argument("--members", type=int, default=2, help="real processes")
    parser.add_argument("--out", type=Path, default=Path("runs/asgd"), help="folder to write to")
    parser.add_argument("--quick", action="store_true", help="toy sizes, two seeds: some seconds")
    arguments = parser.parse_args(argv)
    if arguments.seeds < 1:
        parser.error(f"--seeds: got {arguments.seeds}, wanted at least 1")
    seeds = min(2, arguments.seeds) if arguments.quick else arguments.seeds
    budget = Budget(seeds=seeds, quick=arguments.quick, limit_s=arguments.limit)
    began_s = time.perf_counter()
    figures: dict[str, Figure] = {}
    for name in arguments.figures:
        figures |= run(name, budget, arguments.members)
        print(f"{name}: {time.perf_counter() - began_s:.0f} s in all", file=sys.stderr, flush=True)
    text = tables(figures, budget)
    print(text)
    files = {"tables.md": text.encode(), "figures.json": numbers(figures).encode()}
    for name, figure in figures.items():
        if figure.panels:
            files |= picture(f"asgd-{name}", figure.title, figure.panels)
    write_files(arguments.out, files)
    return 0


def run(name: str, budget: Budget, members: int) -> dict[str, Figure]:
    """Run one of ``FIGURES``."""
    if name == "5":
        return figures_5_and_6(budget)
    if name in REAL:
        return {name: real_figure(name, budget, members)}
    if name in METHODS:
        return {name: methods(budget, METHODS[name])}
    return {name: {"1": figure_1, "3": figure_3, "4": figure_4}[name](budget)}


def tables(figures: dict[str, Figure], budget: Budget) -> str:
    """Format all tables, and the measured costs behind virtual time."""
    parts: list[str] = []
    for figure in figures.values():
        parts.append(f"## {figure.title}\n")
        for heading, table in figure.tables:
            parts += [f"{heading}:\n", table]
    if budget.measured:
        head = ["K-Means", "sample", "mini-batch", "post", "merge", "pass, a sample", "bytes"]
        parts += [
            "## What a turn takes on this machine\n",
            "Microseconds of one core, and bytes of a message:\n",
            markdown(head, cost_rows(budget.measured)),
        ]
    return "\n".join(parts)


def numbers(figures: dict[str, Figure]) -> str:
    """Return the plotted lines as JSON values."""
    content = {
        name: [
            {"title": p.title, "x": p.x, "y": p.y, "lines": p.lines, "marks": p.marks or {}}
            for p in figure.panels
        ]
        for name, figure in figures.items()
    }
    return json.dumps(content, indent=1)


if __name__ == "__main__":
    sys.exit(main())
