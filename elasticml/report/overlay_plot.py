"""Plots that compare several runs: objective, test metric and certified gap."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import blended_transform_factory

from elasticml.report.plots import Floats, split_exact
from elasticml.report.run_reader import RunData
from elasticml.report.series import (
    clock,
    common_metric,
    full_objective,
    metric_name,
    metric_series,
    united_windows,
    wants_log,
)
from elasticml.report.style import (
    ABSENCE,
    COLOURS,
    INK,
    MUTED,
    Picture,
    log_ticks,
    new_figure,
    whole_ticks,
)

#: Colour and dashes of the first, second, ... line; both together distinguish them.
LINES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("muted", ()),
    ("orange", (5, 1.5)),
    ("purple", (1.6, 1.3)),
    ("blue", ()),
    ("red", (5, 1.2, 1.4, 1.2)),
    ("green", (3, 1.2)),
    ("sky", ()),
)

#: Longest name that fits into the margin, in letters.
_NAME_MAX = 18


def overlay_picture(runs: Sequence[RunData], labels: Sequence[str]) -> Picture:
    """Draw the runs' objective over all examples and their test metric by round."""
    metric = common_metric(runs)
    figure_ = new_figure(12.4 if metric else 7.0, 4.3)
    panels = [(0.05, 0.315), (0.545, 0.315)] if metric else [(0.09, 0.66)]
    windows = united_windows(runs)
    after = 0.6 * windows[0][0] if windows else None
    ax = figure_.add_axes((panels[0][0], 0.125, panels[0][1], 0.77))
    draw_lines(ax, runs, labels, _objective_series, after)
    ax.set_title("Objective over all examples")
    if metric:
        ax = figure_.add_axes((panels[1][0], 0.125, panels[1][1], 0.77))
        draw_lines(ax, runs, labels, lambda run: [metric_series(run, metric)], after)
        ax.set_title(f"Test {metric_name(metric)}")
    for ax in figure_.axes:
        ax.set_xlabel("round")
        whole_ticks(ax)
        _shade(ax, windows)
    return Picture(
        "overlay", figure_, "Objective and test metric by round", _alt(runs, labels, windows),
        "Shaded: examples were absent in at least one run. Dashes only distinguish the lines.",
    )  # fmt: skip


def time_picture(runs: Sequence[RunData], labels: Sequence[str]) -> Picture | None:
    """Draw the runs' objective over all examples by time; None if no run has times."""
    clocks = [clock(run) for run in runs]
    if not any(len(own.rounds) for own in clocks):
        return None
    by_run = dict(zip((id(run) for run in runs), clocks, strict=True))

    def series(run: RunData) -> list[tuple[Floats, Floats]]:
        own = by_run[id(run)]
        return [(np.array([own.at(r) for r in x]), y) for x, y in _objective_series(run)]

    windows = united_windows(runs)
    starts = [own.at(windows[0][0]) for own in clocks] if windows else []
    finite_starts = [start for start in starts if math.isfinite(start)]
    figure_ = new_figure(11.0, 3.8)
    ax = figure_.add_axes((0.055, 0.14, 0.76, 0.75))
    draw_lines(ax, runs, labels, series, 0.6 * min(finite_starts) if finite_starts else None)
    ax.set_title("Objective over all examples by time")
    ax.set_xlabel("seconds since the job started")
    return Picture(
        "overlay-time", figure_, "Objective by time",
        "Objective over all examples against time. " + _alt(runs, labels, ()),
        "The same curves over time.",
    )  # fmt: skip


def _objective_series(run: RunData) -> list[tuple[Floats, Floats]]:
    """Return a run's curve over all examples if it was computed, else its exact and other parts."""
    if run.history.has("objective_full"):
        return [full_objective(run.history)]
    return list(split_exact(run.history, run.history.column("round")))


def draw_lines(
    ax: Axes, runs: Sequence[RunData], labels: Sequence[str],
    series: Callable[[RunData], list[tuple[Floats, Floats]]], after: float | None,
) -> None:  # fmt: skip
    """Draw one line per run, with its name at the right end."""
    ends: list[tuple[float, float, str, str]] = []
    xs: list[Floats] = []
    ys: list[Floats] = []
    for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
        colour, dashes = LINES[i % len(LINES)]
        parts = series(run)
        for j, (x, y) in enumerate(parts):
            style = (0, dashes) if dashes else "-"
            ax.plot(
                x, y, color=COLOURS[colour], linestyle=style, zorder=3 + 0.01 * i,
                linewidth=2.4 if not dashes else 2.0, alpha=1.0 if j == 0 else 0.45,
            )  # fmt: skip
            xs.append(x)
            ys.append(y)
        last = [
            (x[ok][-1], y[ok][-1])
            for x, y in parts
            if (ok := np.isfinite(x) & np.isfinite(y)).any()
        ]
        if last:
            ends.append((*max(last), label, COLOURS[colour]))
    ax.margins(x=0.01)
    if xs:
        _focus(ax, np.concatenate(xs), np.concatenate(ys), after)
    _name_lines(ax, ends)


def _focus(ax: Axes, x: Floats, y: Floats, after: float | None) -> None:
    """Fit the y axis to the late values, note what is cut off, and choose the scale.

    Late values have x >= ``after``, by default past the first tenth of the x axis.
    """
    valid = np.isfinite(x) & np.isfinite(y)
    x, y = x[valid], y[valid]
    if not len(x):
        return
    if after is None or not (x >= after).any():
        after = float(x.min() + 0.1 * (x.max() - x.min()))
    late = y[x >= after] if len(x) >= 5 else y
    low, high = float(late.min()), float(late.max())
    margin = 0.12 * (high - low) or 0.05 * abs(high) or 1.0
    first = float(y[int(np.argmin(x))])
    cut = max(low - first, first - high) > 0.6 * (high - low) > 0
    if wants_log(late if cut else y):
        log_ticks(ax)
        if cut:
            ax.set_ylim(low / 1.15, high * 1.3)
    elif cut:
        ax.set_ylim(low - margin, high + 2 * margin)
    if cut:
        side = "below" if first < low else "above"
        ax.annotate(
            f"begins at {first:.3g}, {side}", (1.0, 1.0), xycoords="axes fraction",
            xytext=(0, 7), textcoords="offset points", ha="right", color=MUTED, fontsize=8,
        )  # fmt: skip


def _name_lines(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write the lines' names and last values in the right margin, with leader lines."""
    if not ends:
        return
    place = ax.transData.transform
    bounds = ax.get_window_extent()
    gap = 25.0 * ax.figure.dpi / 72.0
    heights = [(float(place((x, y))[1]) - bounds.y0) / bounds.height for x, y, *_ in ends]
    order = sorted(range(len(ends)), key=lambda i: heights[i])
    spread_at = spread([heights[i] for i in order], min(gap / bounds.height, 1.0 / len(ends)))
    margin = blended_transform_factory(ax.transAxes, ax.transAxes)
    for i, at in zip(order, spread_at, strict=True):
        x, y, label, colour = ends[i]
        label = label if len(label) <= _NAME_MAX else label[: _NAME_MAX - 1] + "…"
        ax.annotate(
            "", xy=(x, y), xytext=(1.045, at), textcoords=margin, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 1.1, "shrinkA": 0,
                        "shrinkB": 2},
        )  # fmt: skip
        ax.text(1.055, at, label, transform=margin, color=INK, va="bottom", fontweight="bold")
        ax.text(
            1.055, at, f"{y:#.5g}".rstrip("."), transform=margin, color=MUTED, va="top", fontsize=8
        )


def spread(positions: Sequence[float], gap: float) -> list[float]:
    """Move ascending positions in [0, 1] at least ``gap`` apart by least squares.

    Positions that would collide form a block around their mean; blocks that would collide merge
    (pool adjacent violators).
    """
    # After subtracting the room of the names below, positions must only be non-decreasing.
    blocks: list[tuple[float, int]] = []
    for i, place in enumerate(positions):
        mean, size = place - i * gap, 1
        while blocks and blocks[-1][0] > mean:
            below, n = blocks.pop()
            mean, size = (mean * size + below * n) / (size + n), size + n
        blocks.append((mean, size))
    ceiling = max(1.0 - (len(positions) - 1) * gap, 0.0)
    bases = [min(max(mean, 0.0), ceiling) for mean, size in blocks for _ in range(size)]
    return [base + i * gap for i, base in enumerate(bases)]


def _shade(ax: Axes, windows: Sequence[tuple[float, float]]) -> None:
    """Shade the rounds with absent examples, and label the first window."""
    low, high = ax.get_xlim()
    for i, (start, end) in enumerate(windows):
        ax.axvspan(start, end, facecolor=ABSENCE, edgecolor="none", zorder=0)
        if i == 0 and (end - start) / (high - low) > 0.12:
            ax.annotate(
                "examples absent", ((start + end) / 2, 1.0), xycoords=("data", "axes fraction"),
                xytext=(0, -4), textcoords="offset points", ha="center", va="top", color=MUTED,
                fontsize=8,
            )  # fmt: skip
    ax.set_xlim(low, high)


def _alt(
    runs: Sequence[RunData], labels: Sequence[str], windows: Sequence[tuple[float, float]]
) -> str:
    """Return the runs' final objectives, and when examples were absent, as text."""
    finals = []
    for run, label in zip(runs, labels, strict=True):
        _, full = full_objective(run.history)
        finals.append(f"{label} {full[-1]:.5g}" if len(full) else f"{label} not known")
    absences = "".join(f" Examples absent in rounds {a:.0f} to {b:.0f}." for a, b in windows[:3])
    return f"Objective at the end: {', '.join(finals)}.{absences}"


def gap_comparison(runs: Sequence[RunData], labels: Sequence[str]) -> Picture | None:
    """Draw the runs' certified gaps by round and by time; None if no run has any."""
    if not any((run.history.column("gap") > 0).any() for run in runs):
        return None
    figure = new_figure(12.4, 4.3)
    series = (_gaps_by_round, _gaps_by_time)
    for i, axis in enumerate(("round", "time")):
        ax = figure.add_axes((0.05 + 0.495 * i, 0.125, 0.315, 0.77))
        # 0.0: fit the y axis to all gaps, from the first one on.
        draw_lines(ax, runs, labels, series[i], 0.0)
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


def _gaps_by_round(run: RunData) -> list[tuple[Floats, Floats]]:
    gap = run.history.column("gap")
    return [(run.history.column("round")[gap > 0], gap[gap > 0])]


def _gaps_by_time(run: RunData) -> list[tuple[Floats, Floats]]:
    times = clock(run)
    return [(np.array([times.at(r) for r in x]), y) for x, y in _gaps_by_round(run)]
