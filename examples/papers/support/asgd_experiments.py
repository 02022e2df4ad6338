"""The asynchronous SGD paper's Figures 1, 3, 4, 5 and 6 in virtual time: runs, tables, panels."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.asgd_figures import Line, Panel
from support.asgd_virtual import (
    LARGE,
    MANY,
    SMALL,
    Data,
    Lloyds,
    Run,
    Shape,
    Taken,
    free_run,
    loop_of,
    measure,
    median_curve,
    middle,
    silent_run,
)
from support.elastic_comparison import markdown

from elasticml.sim.cards import GIGABIT, INFINIBAND, TEN_GIGABIT, Link, critical_batch

LINKS: dict[str, Link] = {"Gigabit Ethernet": GIGABIT, "InfiniBand": INFINIBAND}
PAPER, OURS = "ASGD, the paper's rule", "ASGD, default"
SGD, BATCH = "SimuParallelSGD", "BATCH"
#: Percent of inertia above that at the true centres.
EXCESSES = (10.0, 3.0, 1.0, 0.3)


@dataclass(kw_only=True)
class Budget:
    """How large experiments are; ``quick`` makes them toys."""

    seeds: int
    quick: bool = False
    measured: dict[str, Taken] = field(default_factory=dict)

    def few(self, n: int, quick: int) -> int:
        """Choose a size."""
        return quick if self.quick else n

    def taken(self, shape: Shape, **settings: Any) -> Taken:
        """Measure, once, what a loop's turns take on this machine."""
        rule = "paper" if settings.get("mode") == "paper" else "default"
        name = f"{shape.name}, {rule}"
        if settings.get("share", 1.0) != 1.0:
            name += ", an eighth of the state"
        if name not in self.measured:
            loop = loop_of(shape, **{**settings, "batch": 500})
            self.measured[name] = measure(shape, loop, repeats=self.few(15, 2))
        return self.measured[name]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What an experiment has come to."""

    title: str
    panels: tuple[Panel, ...]
    #: Heading and table.
    tables: tuple[tuple[str, str], ...]


class Progress:
    """Says on stderr how far an experiment is."""

    def __init__(self, name: str, steps: int) -> None:
        self._name, self._steps, self._done = name, steps, 0
        self._began_s = time.perf_counter()

    def step(self) -> None:
        """One more is done."""
        self._done += 1
        spent_s = time.perf_counter() - self._began_s
        left_s = spent_s / self._done * (self._steps - self._done)
        print(
            f"{self._name}: {self._done} of {self._steps}, {spent_s:.0f} s, {left_s:.0f} s to go",
            file=sys.stderr,
            flush=True,
        )


def number(value: float) -> str:
    """Write three digits; "–" for what was not reached."""
    return f"{value:.3g}" if math.isfinite(value) else "–"


# --- Figure 1 ----------------------------------------------------------------------------------


def figure_1(budget: Budget) -> Figure:
    """Convergence on many members, and what more of them bring; K = 100, D = 10, InfiniBand."""
    counts = [16, 32] if budget.quick else [64, 256, 1024]
    rows = budget.few(1_024_000, 12_800)
    runs: dict[int, dict[str, list[Run]]] = {n: {} for n in counts}
    progress = Progress("figure 1", budget.seeds)
    for seed in range(budget.seeds):
        data = Data(MANY, rows, seed)
        lloyds = Lloyds(data)
        lloyds.iterate(6)
        for n in counts:
            for name, run in _methods(data, lloyds, budget, n, 4 * rows // n).items():
                runs[n].setdefault(name, []).append(run)
        progress.step()
    last = counts[-1]
    lines = {
        _answer(name, mean): median_curve(runs[last][name], "mean_error" if mean else "error")
        for name, mean in _answers()
    }
    reached = {
        (name, n, mean, x): middle(some, lambda run, x=x, mean=mean: run.to(x, mean=mean))
        for n, found in runs.items()
        for name, some in found.items()
        for mean in (False, True)
        for x in EXCESSES
    }
    scaling = {
        _answer(name, mean): [(float(n), reached[name, n, mean, 1.0]) for n in counts]
        for name, mean in _answers()
    }
    table = [
        [str(n), _answer(name, mean), *(number(1e3 * reached[name, n, mean, x]) for x in EXCESSES)]
        for n in counts
        for name, mean in _answers()
    ]
    head = ["members", "answer", *(f"{x:g} %" for x in EXCESSES)]
    return Figure(
        title=f"Figure 1: {MANY.name}, InfiniBand, {rows:,} examples, median of {budget.seeds}",
        panels=(
            Panel(
                title=f"{last} members",
                x="seconds (virtual)",
                y="mean distance to the true centres",
                lines=lines,
            ),
            Panel(
                title="to 1 % above the true centres' inertia",
                x="members",
                y="seconds (virtual)",
                lines=scaling,
            ),
        ),
        tables=(("Milliseconds (virtual) to an excess", markdown(head, table)),),
    )


def _answers() -> list[tuple[str, bool]]:
    return [(PAPER, False), (PAPER, True), (OURS, False), (OURS, True), (SGD, True), (BATCH, True)]


def _answer(name: str, mean: bool) -> str:
    if name in (SGD, BATCH):
        return name
    return f"{name}, {'mean of all' if mean else 'member 1'}"


def _methods(data: Data, lloyds: Lloyds, budget: Budget, n: int, samples: int) -> dict[str, Run]:
    """Run all four on one data set."""
    looks = budget.few(30, 8)
    paper, ours = {"mode": "paper", "batch": 500}, {"batch": None}
    silent = {"mode": "paper", "batch": "inf"}
    link, shape = INFINIBAND, data.shape

    def free(settings: Mapping[str, Any]) -> Run:
        loop, taken = loop_of(shape, **settings), budget.taken(shape, **settings)
        return free_run(data, loop, taken, link, n_members=n, samples=samples, looks=looks)

    plain, taken = loop_of(shape, **silent), budget.taken(shape, **paper)
    rows = sum(chunk.n_rows for (chunk,) in data.dealt(n))
    return {
        PAPER: free(paper),
        OURS: free(ours),
        SGD: silent_run(data, plain, taken, link, n_members=n, samples=samples, looks=looks),
        BATCH: lloyds.on(taken, link, n_members=n, rows=rows),
    }


def _curves(runs: Mapping[str, Sequence[Run]], what: str) -> dict[str, Line]:
    return {name: median_curve(some, what) for name, some in runs.items()}


# --- Figure 3 ----------------------------------------------------------------------------------


def figure_3(budget: Budget) -> Figure:
    """Compare much communication with little: what it costs and brings; K = 100, D = 10."""
    sizes = [10, 30, 100, 300, 1000, 3000, 10_000, 100_000]
    sizes = sizes[2:6] if budget.quick else sizes
    samples = budget.few(200_000, 4000)
    cost: dict[str, Line] = {}
    for name, link in LINKS.items():
        alone = _timed(budget, MANY, link, 64, samples, batch=max(sizes), sends=0).seconds
        found = [_timed(budget, MANY, link, 64, samples, batch=b).seconds for b in sizes]
        cost[name] = [(1 / b, s / alone) for b, s in zip(sizes, found, strict=True)]
    rows, n = budget.few(1_600_000, 16_000), 16
    few = budget.few(100_000, 1000)
    runs: dict[str, list[Run]] = {}
    progress = Progress("figure 3", budget.seeds)
    for seed in range(budget.seeds):
        data = Data(MANY, rows, seed)
        lloyds = Lloyds(data)
        lloyds.iterate(4)
        for name, run in _methods(data, lloyds, budget, n, 2 * rows // n).items():
            runs.setdefault({PAPER: "b = 500", OURS: OURS}.get(name, name), []).append(run)
        rare = {"mode": "paper", "batch": few}
        run = free_run(
            data,
            loop_of(MANY, **rare),
            budget.taken(MANY, **rare),
            INFINIBAND,
            n_members=n,
            samples=2 * rows // n,
            looks=budget.few(30, 8),
        )
        runs.setdefault(f"b = {few}", []).append(run)
        progress.step()
    table = [
        [
            name,
            number(1e3 * middle(some, lambda r: r.seconds)),
            *(number(middle(some, lambda r, w=what: getattr(r.looks[-1], w))) for what in _ENDS),
            number(1e3 * middle(some, lambda r: r.to(1.0))),
            number(1e3 * middle(some, lambda r: r.to(1.0, mean=True))),
        ]
        for name, some in runs.items()
    ]
    head = ["method", "ms in all", *_ENDS.values(), "ms to 1 %, member 1", "ms to 1 %, mean"]
    costs = [
        [f"{b:,}", *(number(line[i][1]) for line in cost.values())] for i, b in enumerate(sizes)
    ]
    return Figure(
        title=f"Figure 3: {MANY.name}, median of {budget.seeds}",
        panels=(
            Panel(
                title="cost of messages, 64 members",
                x="1/b",
                y="run time / without messages",
                lines=cost,
            ),
            Panel(
                title=f"{n} members, InfiniBand",
                x="seconds (virtual)",
                y="mean distance to the true centres",
                lines=_curves(runs, "error"),
            ),
        ),
        tables=(
            ("Run time over that without messages", markdown(["b", *cost], costs)),
            ("At the end of two passes, and to an excess of 1 %", markdown(head, table)),
        ),
    )


_ENDS = {
    "error": "error, member 1",
    "mean_error": "error, mean",
    "excess": "excess %, member 1",
    "mean_excess": "excess %, mean",
}


def _timed(
    budget: Budget,
    shape: Shape,
    link: Link,
    n: int,
    samples: float,
    *,
    seconds: float = math.inf,
    **settings: Any,
) -> Run:
    """Run without arithmetic, by the paper's rule unless the settings say otherwise."""
    given = {"mode": "paper", **settings}
    loop, taken = loop_of(shape, **given), budget.taken(shape, **given)
    return free_run(None, loop, taken, link, n_members=n, samples=samples, seconds=seconds)


# --- Figures 4, 5 and 6 --------------------------------------------------------------------------


def sweep(budget: Budget, shape: Shape, sizes: Sequence[int], samples: int, rows: int) -> Sweep:
    """Run every b on both networks, and the ways that choose it on Gigabit Ethernet."""
    found = Sweep(shape=shape, samples=samples, n_members=budget.few(32, 16))
    ways: list[tuple[str, Link, str, dict[str, Any]]] = []
    for name, link in LINKS.items():
        for b in sizes:
            given = {"mode": "paper", "share": shape.share, "batch": b}
            ways.append((name, link, f"{b:,}", given))
    for name, given in CHOOSERS.items():
        ways.append(("Gigabit Ethernet", GIGABIT, name, {**given, "share": shape.share}))
    progress = Progress(f"figures 4 to 6, {shape.name}", budget.seeds)
    for seed in range(budget.seeds):
        data = Data(shape, rows, seed)
        for name, link, way, given in ways:
            loop, taken = loop_of(shape, **given), budget.taken(shape, **given)
            run = free_run(data, loop, taken, link, n_members=found.n_members, samples=samples)
            found.runs.setdefault((name, way), []).append(run)
        progress.step()
    paper = budget.taken(shape, mode="paper", share=shape.share)
    found.critical = {name: critical_batch(paper.costs(link)) for name, link in LINKS.items()}
    found.sizes = list(sizes)
    return found


#: Ways that choose when to send.
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
        """Return where a network is just full, if it is so for any b of these."""
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
    found = sweep(budget, SMALL, sizes, samples, budget.few(320_000, 16_000))
    return found.figure(f"Figure 4: {SMALL.name}, median of {budget.seeds}")


def figures_5_and_6(budget: Budget) -> dict[str, Figure]:
    """Run time, error and good messages against b; large messages; fixed against adaptive b."""
    sizes = [100, 1000] if budget.quick else [30, 100, 300, 1000, 2000, 3000, 5000, 10_000]
    samples = budget.few(20_000, 2000)
    found = sweep(budget, LARGE, sizes, samples, budget.few(320_000, 16_000))
    good = Panel(
        title=LARGE.name,
        x="1/b",
        y="good messages a member",
        lines={link: found.line(link, lambda r: r.good) for link in LINKS},
        marks=found.marks(),
    )
    scaling, scaling_table = _scaling(budget)
    return {
        "5": found.figure(f"Figure 5: {LARGE.name}, median of {budget.seeds}"),
        "6": Figure(
            title=f"Figure 6: {LARGE.name}",
            panels=(good, scaling),
            tables=(
                ("Milliseconds (virtual) on Gigabit Ethernet", scaling_table),
                ("Networks, without arithmetic, 16 members of one card", _bandwidths(budget)),
            ),
        ),
    }


#: Ways of Figure 6, right.
FIXED: dict[str, dict[str, Any]] = {f"b = {b}": {"batch": b} for b in (500, 5000)}


def _scaling(budget: Budget) -> tuple[Panel, str]:
    counts = [16, 32] if budget.quick else [16, 64, 256]
    total = budget.few(64_000_000, 160_000)
    lines: dict[str, Line] = {}
    for name, given in {**FIXED, **CHOOSERS}.items():
        lines[name] = [
            (
                float(n),
                _timed(budget, LARGE, GIGABIT, n, total // n, **_shared(given)).seconds,
            )
            for n in counts
        ]
    table = [[name, *(number(1e3 * y) for _, y in line)] for name, line in lines.items()]
    panel = Panel(
        title="Gigabit Ethernet", x="members", y="run time in seconds (virtual)", lines=lines
    )
    return panel, markdown(["b", *(f"{n} members" for n in counts)], table)


def _shared(given: Mapping[str, Any]) -> dict[str, Any]:
    """Add the paper's messages, and its rule where settings do not name the default's."""
    return {
        **given,
        "mode": given.get("mode", "paper" if given else "default"),
        "share": LARGE.share,
    }


def _bandwidths(budget: Budget) -> str:
    """Say what each way makes of each network once it has settled."""
    links = {
        "Gigabit / 10": (GIGABIT.scaled(0.1), 10.0),
        "Gigabit Ethernet": (GIGABIT, 5.0),
        "10 Gigabit": (TEN_GIGABIT, 2.0),
        "InfiniBand": (INFINIBAND, 1.0),
    }
    rows = []
    for link_name, (link, seconds) in links.items():
        ideal = None
        for name, given in {"none": {"batch": 5000, "sends": 0}, **FIXED, **CHOOSERS}.items():
            spent = seconds * (0.01 if budget.quick else 1.0)
            run = _timed(budget, LARGE, link, 16, math.inf, seconds=spent, **_shared(given))
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
