"""The asynchronous SGD paper's Figures 1 and 3: the methods' convergence, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from support.asgd_figures import Line, Panel
from support.asgd_study import BATCH, LINKS, OURS, PAPER, SGD, Budget, Figure, number, timed
from support.asgd_virtual import (
    MANY,
    SMALL,
    Data,
    Lloyds,
    Run,
    Shape,
    free_run,
    loop_of,
    median_curve,
    middle,
    silent_run,
)
from support.elastic_comparison import markdown

from examples.papers.support.nic_model import INFINIBAND, Link

#: Percent of inertia above that at the true centres.
EXCESSES = (10.0, 3.0, 1.0, 0.3)
#: Evaluations of a run: each a seventh later than the one before.
LOOKS = 54


# --- Figure 1 ----------------------------------------------------------------------------------


def figure_1(budget: Budget) -> Figure:
    """Convergence on many members, and the gain from more of them; K = 100, D = 10, InfiniBand."""
    counts = [16, 32] if budget.quick else [64, 256, 1024]
    rows = budget.few(1_024_000, 12_800)
    runs: dict[int, dict[str, list[Run]]] = {n: {} for n in counts}
    for seed in budget.each("figure 1"):
        data = Data(MANY, rows, seed)
        lloyds = Lloyds(data)
        lloyds.iterate(6)
        for n in counts:
            for name, run in _methods(data, lloyds, budget, n, 4 * rows // n, INFINIBAND).items():
                runs[n].setdefault(name, []).append(run)
    last = counts[-1]
    lines = {
        _answer(name, mean): median_curve(runs[last][name], "mean_error" if mean else "error")
        for name, mean in _answers()
    }
    scaling = {
        _answer(name, mean): [(float(n), _to(runs[n][name], 1.0, mean)) for n in counts]
        for name, mean in _answers()
    }
    table = [[str(n), *row] for n in counts for row in _reached(runs[n], EXCESSES)]
    head = ["members", "answer", *(f"{x:g} %" for x in EXCESSES)]
    return Figure(
        title=f"Figure 1: {MANY.name}, InfiniBand, {rows:,} examples, median of {budget.done}",
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


def _to(runs: Sequence[Run], excess: float, mean: bool) -> float:
    """Return the median of the seconds to an excess."""
    return middle(runs, lambda run: run.to(excess, mean=mean))


def _reached(runs: Mapping[str, Sequence[Run]], excesses: Sequence[float]) -> list[list[str]]:
    """Format the milliseconds to each excess, one result per row."""
    return [
        [_answer(name, mean), *(number(1e3 * _to(runs[name], x, mean)) for x in excesses)]
        for name, mean in _answers()
    ]


def _answers() -> list[tuple[str, bool]]:
    return [(PAPER, False), (PAPER, True), (OURS, False), (OURS, True), (SGD, True), (BATCH, True)]


def _answer(name: str, mean: bool) -> str:
    if name in (SGD, BATCH):
        return name
    return f"{name}, {'mean of all' if mean else 'member 1'}"


def _methods(
    data: Data, lloyds: Lloyds, budget: Budget, n: int, samples: int, link: Link
) -> dict[str, Run]:
    """Run all four methods on one data set; the paper's rule sends its share of a state."""
    looks = budget.few(LOOKS, 8)
    paper = {"mode": "paper", "batch": 500, "share": data.shape.share}
    ours = {"batch": None}
    silent = {"mode": "paper", "batch": "inf"}
    shape = data.shape

    def free(settings: Mapping[str, Any]) -> Run:
        loop, taken = loop_of(shape, **settings), budget.taken(shape, **settings)
        return free_run(data, loop, taken, link, n_members=n, samples=samples, looks=looks)

    plain, taken = loop_of(shape, **silent), budget.taken(shape, **paper)
    return {
        PAPER: free(paper),
        OURS: free(ours),
        SGD: silent_run(data, plain, taken, link, n_members=n, samples=samples, looks=looks),
        BATCH: lloyds.on(taken, link, n_members=n, rows=data.rows),
    }


def _curves(runs: Mapping[str, Sequence[Run]], what: str) -> dict[str, Line]:
    return {name: median_curve(some, what) for name, some in runs.items()}


def methods(budget: Budget, shape: Shape) -> Figure:
    """Compare the methods at the same error, on both networks."""
    counts = [16] if budget.quick else [16, 64]
    rows = budget.few(320_000 if shape is SMALL else 128_000, 6400)
    excesses = EXCESSES if shape is SMALL else (20.0, 10.0, 5.0, 3.0)
    runs: dict[tuple[str, int], dict[str, list[Run]]] = {}
    for seed in budget.each(f"methods, {shape.name}"):
        data = Data(shape, rows, seed)
        lloyds = Lloyds(data)
        lloyds.iterate(8)
        for n in counts:
            for link in LINKS:
                result = _methods(data, lloyds, budget, n, 4 * rows // n, LINKS[link])
                for name, run in result.items():
                    runs.setdefault((link, n), {}).setdefault(name, []).append(run)
    table = [
        [link, str(n), *row] for (link, n), some in runs.items() for row in _reached(some, excesses)
    ]
    head = ["network", "members", "answer", *(f"{x:g} %" for x in excesses)]
    return Figure(
        title=f"To the same error: {shape.name}, {rows:,} examples, median of {budget.done}",
        panels=(),
        tables=(("Milliseconds (virtual) to an excess", markdown(head, table)),),
    )


# --- Figure 3 ----------------------------------------------------------------------------------


def figure_3(budget: Budget) -> Figure:
    """Compare much communication with little: its cost and its gain; K = 100, D = 10."""
    sizes = [10, 30, 100, 300, 1000, 3000, 10_000, 100_000]
    sizes = sizes[2:6] if budget.quick else sizes
    samples = budget.few(200_000, 4000)
    cost: dict[str, Line] = {}
    for name, link in LINKS.items():
        alone = timed(budget, MANY, link, 64, samples, batch=max(sizes), sends=0).seconds
        results = [timed(budget, MANY, link, 64, samples, batch=b).seconds for b in sizes]
        cost[name] = [(1 / b, s / alone) for b, s in zip(sizes, results, strict=True)]
    rows, n = budget.few(1_600_000, 16_000), 16
    few = budget.few(100_000, 1000)
    runs: dict[str, list[Run]] = {}
    for seed in budget.each("figure 3"):
        data = Data(MANY, rows, seed)
        lloyds = Lloyds(data)
        lloyds.iterate(4)
        for name, run in _methods(data, lloyds, budget, n, 2 * rows // n, INFINIBAND).items():
            runs.setdefault({PAPER: "b = 500", OURS: OURS}.get(name, name), []).append(run)
        rare = {"mode": "paper", "batch": few}
        run = free_run(
            data,
            loop_of(MANY, **rare),
            budget.taken(MANY, **rare),
            INFINIBAND,
            n_members=n,
            samples=2 * rows // n,
            looks=budget.few(LOOKS, 8),
        )
        runs.setdefault(f"b = {few}", []).append(run)
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
        title=f"Figure 3: {MANY.name}, median of {budget.done}",
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
