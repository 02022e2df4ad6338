"""The asynchronous SGD paper's Figures 4, 5 and 6: networks and mini-batches, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.asgd_figures import Line, Panel
from support.asgd_study import LINKS, Budget, Figure, number, timed
from support.asgd_virtual import LARGE, SMALL, Data, Run, Shape, free_run, loop_of, middle
from support.elastic_comparison import markdown

from examples.papers.support.nic_model import (
    GIGABIT,
    INFINIBAND,
    TEN_GIGABIT,
    Link,
    critical_batch,
)


def sweep(budget: Budget, shape: Shape, sizes: Sequence[int], samples: int, rows: int) -> Sweep:
    """Run every b on both networks, and the adaptive controllers on Gigabit Ethernet."""
    results = Sweep(shape=shape, samples=samples, n_members=budget.few(32, 16))
    ways: list[tuple[str, Link, str, dict[str, Any]]] = []
    for name, link in LINKS.items():
        for b in sizes:
            settings = {"mode": "paper", "share": shape.share, "batch": b}
            ways.append((name, link, f"{b:,}", settings))
    for name, settings in CHOOSERS.items():
        ways.append(("Gigabit Ethernet", GIGABIT, name, {**settings, "share": shape.share}))
    for seed in budget.each(f"figures 4 to 6, {shape.name}"):
        data = Data(shape, rows, seed)
        for name, link, way, settings in ways:
            loop, taken = loop_of(shape, **settings), budget.taken(shape, **settings)
            run = free_run(data, loop, taken, link, n_members=results.n_members, samples=samples)
            results.runs.setdefault((name, way), []).append(run)
    paper = budget.taken(shape, mode="paper", share=shape.share)
    results.critical = {name: critical_batch(paper.costs(link)) for name, link in LINKS.items()}
    results.sizes = list(sizes)
    return results


#: Controllers that choose when to send.
CHOOSERS: dict[str, dict[str, Any]] = {
    "adaptiveB (paper)": {"mode": "paper", "batch": "adaptive"},
    "log-PI": {"mode": "paper", "batch": "auto"},
    "newest state, default": {},
}


@dataclass(kw_only=True)
class Sweep:
    """Runs by network and b."""

    shape: Shape
    samples: int
    n_members: int
    sizes: list[int] = field(default_factory=list)
    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    critical: dict[str, float] = field(default_factory=dict)

    def line(self, link: str, what: Any) -> Line:
        """Return medians against 1/b."""
        return [(1 / b, middle(self.runs[link, f"{b:,}"], what)) for b in self.sizes]

    def marks(self) -> dict[str, float]:
        """Return where a network is just saturated, if any of these b saturates it."""
        return {
            f"1/b_crit, {name}": 1 / b
            for name, b in self.critical.items()
            if min(self.sizes) <= b <= max(self.sizes)
        }

    def figure(self, title: str) -> Figure:
        """Draw run time and error against b."""
        head = ["network", "b", "ms", "error", "excess %", "of the mean", "merged", "good"]
        table = [
            [
                link,
                way,
                number(1e3 * middle(some, lambda r: r.seconds)),
                number(middle(some, lambda r: r.looks[-1].error)),
                number(middle(some, lambda r: r.looks[-1].excess)),
                number(middle(some, lambda r: r.looks[-1].mean_excess)),
                number(middle(some, lambda r: r.merged)),
                number(middle(some, lambda r: r.good)),
                f"{100 * middle(some, lambda r: r.stalled):.0f} %",
                f"{middle(some, lambda r: r.link_use):.2f}",
            ]
            for (link, way), some in self.runs.items()
        ]
        words = ", ".join(
            f"{name} {b:,.0f}" if b >= 1 else f"{name} none" for name, b in self.critical.items()
        )
        names = ("run time in seconds (virtual)", "mean distance to the true centres")
        whats = (lambda r: r.seconds, lambda r: r.looks[-1].error)
        return Figure(
            title=title,
            panels=tuple(
                Panel(
                    title=self.shape.name,
                    x="1/b",
                    y=y,
                    lines={link: self.line(link, what) for link in LINKS},
                    marks=self.marks(),
                )
                for y, what in zip(names, whats, strict=True)
            ),
            tables=(
                (
                    f"{self.n_members} members, {self.samples:,} samples each; b_crit: {words}",
                    markdown([*head, "stalled", "use of the card"], table),
                ),
            ),
        )


def figure_4(budget: Budget) -> Figure:
    """Run time and error against b; small messages."""
    sizes = [100, 1000] if budget.quick else [10, 30, 100, 300, 1000, 3000, 10_000]
    samples = budget.few(20_000, 2000)
    result = sweep(budget, SMALL, sizes, samples, budget.few(320_000, 16_000))
    return result.figure(f"Figure 4: {SMALL.name}, median of {budget.done}")


def figures_5_and_6(budget: Budget) -> dict[str, Figure]:
    """Run time, error and good messages against b; large messages; fixed against adaptive b."""
    sizes = [100, 1000] if budget.quick else [30, 100, 300, 1000, 2000, 3000, 5000, 10_000]
    samples = budget.few(20_000, 2000)
    result = sweep(budget, LARGE, sizes, samples, budget.few(320_000, 16_000))
    good = Panel(
        title=LARGE.name,
        x="1/b",
        y="good messages a member",
        lines={link: result.line(link, lambda r: r.good) for link in LINKS},
        marks=result.marks(),
    )
    scaling, scaling_table = _scaling(budget)
    return {
        "5": result.figure(f"Figure 5: {LARGE.name}, median of {budget.done}"),
        "6": Figure(
            title=f"Figure 6: {LARGE.name}",
            panels=(good, scaling),
            tables=(
                ("Milliseconds (virtual) on Gigabit Ethernet", scaling_table),
                ("Networks, without arithmetic, 16 members of one card", bandwidths(budget)),
            ),
        ),
    }


#: Ways of Figure 6, right.
FIXED: dict[str, dict[str, Any]] = {f"b = {b}": {"batch": b} for b in (500, 5000)}


def _scaling(budget: Budget) -> tuple[Panel, str]:
    counts = [16, 32] if budget.quick else [16, 64, 256]
    total = budget.few(64_000_000, 160_000)
    lines: dict[str, Line] = {}
    for name, value in {**FIXED, **CHOOSERS}.items():
        lines[name] = [
            (
                float(n),
                timed(budget, LARGE, GIGABIT, n, total // n, **_shared(value)).seconds,
            )
            for n in counts
        ]
    table = [[name, *(number(1e3 * y) for _, y in line)] for name, line in lines.items()]
    panel = Panel(
        title="Gigabit Ethernet", x="members", y="run time in seconds (virtual)", lines=lines
    )
    return panel, markdown(["b", *(f"{n} members" for n in counts)], table)


def _shared(given: Mapping[str, Any]) -> dict[str, Any]:
    """Add the paper's messages, and its rule unless the settings name the default's."""
    return {
        **given,
        "mode": given.get("mode", "paper" if given else "default"),
        "share": LARGE.share,
    }


def bandwidths(budget: Budget) -> str:
    """Return the bandwidth that each controller uses on each network once it has settled."""
    links = {
        "Gigabit / 10": (GIGABIT.scaled(0.1), 10.0),
        "Gigabit Ethernet": (GIGABIT, 5.0),
        "10 Gigabit": (TEN_GIGABIT, 2.0),
        "InfiniBand": (INFINIBAND, 1.0),
    }
    rows = []
    for link_name, (link, seconds) in links.items():
        ideal = None
        for name, value in {"none": {"batch": 5000, "sends": 0}, **FIXED, **CHOOSERS}.items():
            spent = seconds * (0.01 if budget.quick else 1.0)
            run = timed(budget, LARGE, link, 16, math.inf, seconds=spent, **_shared(value))
            rate = run.samples / run.seconds
            ideal = rate if ideal is None else ideal
            paper = budget.taken(LARGE, mode="paper", share=LARGE.share)
            critical = critical_batch(paper.costs(link))
            of_critical = f"{run.batch / critical:.2f}" if critical >= 1 else "no b is critical"
            rows.append(
                [
                    link_name,
                    name,
                    f"{rate / ideal:.2f}",
                    f"{run.batch:,.0f}",
                    of_critical,
                    f"{100 * run.stalled:.0f} %",
                    f"{run.link_use:.2f}",
                ]
            )
    head = ["network", "b", "samples a second / without messages", "mean b", "b / b_crit"]
    return markdown([*head, "stalled", "use of the card"], rows)
