"""What runs of certified training differ in: their gaps, and how evenly they were loaded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elasticml.report.load_plot import draw_lanes, draw_moves, draw_scale
from elasticml.report.loads import Loads, make_loads, relative
from elasticml.report.overlay_plot import LINES, Lines, draw_lines
from elasticml.report.run import RunData
from elasticml.report.series import clock
from elasticml.report.style import Picture, log_ticks, new_figure, whole_ticks

Floats = NDArray[np.float64]

#: Policies that every job has: what they decide follows from who comes and goes.
_ALWAYS = ("whole_group", "reload", "elastic_scaling", "replicas")


def gap_comparison(
    runs: Sequence[RunData], labels: Sequence[str], lines: Lines = LINES
) -> Picture | None:
    """Draw the runs' certified gaps by round and by time; None where no run has any."""
    if not any((run.history.column("gap") > 0).any() for run in runs):
        return None
    figure = new_figure(12.4, 4.3)
    series = (_gaps_by_round, _gaps_by_time)
    for i, words in enumerate(("round", "time")):
        ax = figure.add_axes((0.05 + 0.495 * i, 0.125, 0.315, 0.77))
        draw_lines(
            ax, runs, labels, series[i], 0.0, lines
        )  # from the first gap on, nothing cut off
        log_ticks(ax)
        ax.set_title(f"Certified gap by {words}")
        ax.set_xlabel("seconds since the job started" if i else "round")
        if not i:
            whole_ticks(ax)
    last = ", ".join(
        f"{label} {_gaps_by_round(run)[0][1][-1]:.2g}"
        for run, label in zip(runs, labels, strict=True)
        if len(_gaps_by_round(run)[0][1])
    )
    return Picture(
        "gaps", figure, "Certified gap", f"Duality gaps by round and by time; at the end: {last}.",
        "How far each run's objective is above the least possible one, at most.",
    )  # fmt: skip


def loads_comparison(runs: Sequence[RunData], labels: Sequence[str]) -> Picture | None:
    """Draw the runs' loads below each other; None where nobody asked for a policy that decided.

    Source: the uni-task paper, Figure 6: task times without balancing, with it, and the workload.
    """
    decided = any(
        r["event"] == "PolicyDecided" and r.get("policy") not in _ALWAYS
        for run in runs
        for r in run.records
    )
    found = [(label, make_loads(run.records)) for run, label in zip(runs, labels, strict=True)]
    known = [(label, loads) for label, loads in found if loads and len(loads.rounds) > 1]
    if not decided or not known:
        return None
    lanes = [min(max(0.13 * len(loads.slots), 0.6), 2.4) for _, loads in known]
    tall = sum(2 * (inches + 0.62) for inches in lanes) + 0.45
    figure = new_figure(9.6, tall)
    top = tall - 0.42
    for (label, loads), inches in zip(known, lanes, strict=True):
        for words, values in (("time computing", loads.seconds), ("examples", loads.rows)):
            top -= inches
            ax = figure.add_axes((0.065, top / tall, 0.86, inches / tall))
            draw_lanes(ax, loads, relative(values), f"{label}: {words}")
            if words == "examples":
                draw_moves(ax, loads)
            top -= 0.62
    draw_scale(figure, figure.axes[0])
    figure.axes[2 * len(known) - 1].set_xlabel("round")
    return Picture(
        "loads", figure, "How evenly members were loaded", _loads_alt(known),
        "Relative to each round's mean: grey is the mean, orange more, blue less. Dots: chunks"
        " changed owners ahead of the round.",
    )  # fmt: skip


def _gaps_by_round(run: RunData) -> list[tuple[Floats, Floats]]:
    gap = run.history.column("gap")
    return [(run.history.column("round")[gap > 0], gap[gap > 0])]


def _gaps_by_time(run: RunData) -> list[tuple[Floats, Floats]]:
    times = clock(run)
    return [(np.array([times.at(r) for r in x]), y) for x, y in _gaps_by_round(run)]


def _loads_alt(known: Sequence[tuple[str, Loads]]) -> str:
    said = []
    for label, loads in known:
        settled = loads.imbalance[len(loads.rounds) // 2 :]
        said.append(f"{label} {np.nanmedian(settled):.2f}")
    return (
        "Loads by slot and round. The slowest member's time over the mean, median of the second"
        f" half of the rounds: {', '.join(said)}."
    )
