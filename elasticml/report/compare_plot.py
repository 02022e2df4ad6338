"""Comparison plots of runs with certificates: their gaps and their load balance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elasticml.report.load_plot import draw_lanes, draw_moves, draw_scale
from elasticml.report.loads import Loads, make_loads, relative
from elasticml.report.overlay_plot import LINES, Lines, draw_lines
from elasticml.report.plots import Floats
from elasticml.report.run import RunData
from elasticml.report.series import clock
from elasticml.report.style import Picture, log_ticks, new_figure, whole_ticks

#: Default policies of every job: their decisions follow from membership changes alone.
_ALWAYS = ("whole_group", "reload", "elastic_scaling", "replicas")


def gap_comparison(
    runs: Sequence[RunData], labels: Sequence[str], lines: Lines = LINES
) -> Picture | None:
    """Draw the runs' certified gaps by round and by time; None if no run has any."""
    if not any((run.history.column("gap") > 0).any() for run in runs):
        return None
    figure = new_figure(12.4, 4.3)
    series = (_gaps_by_round, _gaps_by_time)
    for i, axis in enumerate(("round", "time")):
        ax = figure.add_axes((0.05 + 0.495 * i, 0.125, 0.315, 0.77))
        # 0.0: fit the y axis to all gaps, from the first one on.
        draw_lines(ax, runs, labels, series[i], 0.0, lines)
        log_ticks(ax)
        ax.set_title(f"Certified gap by {axis}")
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
        "An upper bound of the distance of each run's objective from the optimum.",
    )  # fmt: skip


def loads_comparison(runs: Sequence[RunData], labels: Sequence[str]) -> Picture | None:
    """Draw the runs' loads below each other; None if no optional policy has decided anything.

    Source: the uni-task paper, Figure 6: task times without balancing, with it, and the workload.
    """
    decided = any(
        r["event"] == "PolicyDecided" and r.get("policy") not in _ALWAYS
        for run in runs
        for r in run.records
    )
    loads_by_run = [
        (label, loads)
        for run, label in zip(runs, labels, strict=True)
        if (loads := make_loads(run.records)) and len(loads.rounds) > 1
    ]
    if not decided or not loads_by_run:
        return None
    lanes = [min(max(0.13 * len(loads.slots), 0.6), 2.4) for _, loads in loads_by_run]
    tall = sum(2 * (inches + 0.62) for inches in lanes) + 0.45
    figure = new_figure(9.6, tall)
    top = tall - 0.42
    for (label, loads), inches in zip(loads_by_run, lanes, strict=True):
        for quantity, values in (("time computing", loads.seconds), ("examples", loads.rows)):
            top -= inches
            ax = figure.add_axes((0.065, top / tall, 0.86, inches / tall))
            draw_lanes(ax, loads, relative(values), f"{label}: {quantity}")
            if quantity == "examples":
                draw_moves(ax, loads)
            top -= 0.62
    draw_scale(figure, figure.axes[0])
    figure.axes[2 * len(loads_by_run) - 1].set_xlabel("round")
    return Picture(
        "loads", figure, "Load balance of the members", _loads_alt(loads_by_run),
        "Relative to each round's mean: grey is the mean, orange more, blue less. Dots: chunks"
        " changed owners before the round.",
    )  # fmt: skip


def _gaps_by_round(run: RunData) -> list[tuple[Floats, Floats]]:
    gap = run.history.column("gap")
    return [(run.history.column("round")[gap > 0], gap[gap > 0])]


def _gaps_by_time(run: RunData) -> list[tuple[Floats, Floats]]:
    times = clock(run)
    return [(np.array([times.at(r) for r in x]), y) for x, y in _gaps_by_round(run)]


def _loads_alt(loads_by_run: Sequence[tuple[str, Loads]]) -> str:
    medians = []
    for label, loads in loads_by_run:
        settled = loads.imbalance[len(loads.rounds) // 2 :]
        medians.append(f"{label} {np.nanmedian(settled):.2f}")
    return (
        "Loads by slot and round. The slowest member's time over the mean, median of the second"
        f" half of the rounds: {', '.join(medians)}."
    )
