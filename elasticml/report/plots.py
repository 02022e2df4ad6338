"""Plots of one run: objective, certified gap, test metric, and members over time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from elasticml.report.run_reader import History, RunData
from elasticml.report.series import (
    Clock,
    Mark,
    absence_windows,
    clock,
    headline_metric,
    members_over_time,
    membership_marks,
    metric_name,
    wants_log,
)
from elasticml.report.style import (
    ABSENCE,
    COLOURS,
    INK,
    MUTED,
    PAPER,
    Picture,
    log_ticks,
    new_figure,
    whole_ticks,
)
from elasticml.story.records import DataLoaded

# Plots of one run: objective, test metric, and members over time.

Floats = NDArray[np.float64]

#: Colour, symbol and word of each kind of mark.
_MARKS = {
    "lost": (COLOURS["red"], "▼", "lost"),
    "back": (COLOURS["green"], "▲", "back"),
    "retired": (COLOURS["purple"], "▽", "given back"),
}


def objective_picture(run: RunData) -> Picture | None:
    """Draw the objective by round and by time; None if none was recorded."""
    history = run.history
    if not (history.has("objective") or history.has("objective_full")):
        return None
    rounds, times = history.column("round"), clock(run)
    seconds = np.array([times.at(r) for r in rounds])
    timed = bool(np.isfinite(seconds).any())
    figure = new_figure(9.6, 3.4)

    def draw(ax: Axes, x: Floats, labelled: bool) -> None:
        _draw_objective(ax, run, x, labelled=labelled)

    by_round_and_time(figure, run, "Objective", draw, rounds, seconds if timed else None)
    kinds = " (dashed where it is an estimate)" if "estimated" in history.kinds else ""
    return Picture(
        "objective", figure, "Objective", _objective_alt(run),
        f"Mean loss plus penalty{kinds}. Shaded: examples absent. Points: over all examples,"
        " evaluated after the run." if history.has("objective_full")
        else f"Mean loss plus penalty{kinds}. Shaded: examples absent.",
    )  # fmt: skip


def by_round_and_time(
    figure: Figure,
    run: RunData,
    title: str,
    draw: Callable[[Axes, Floats, bool], None],
    rounds: Floats,
    seconds: Floats | None,
) -> None:
    """Draw two panels side by side: by round and, if known, by time.

    ``draw`` receives the axes, the x values of the rows, and whether these axes carry the labels.
    """
    grid = figure.add_gridspec(
        1, 1 if seconds is None else 2, wspace=0.13, left=0.065, right=0.925, top=0.88, bottom=0.135
    )
    ax = figure.add_subplot(grid[0, 0])
    draw(ax, rounds, seconds is None)
    ax.set_title(f"{title} by round")
    ax.set_xlabel("round")
    whole_ticks(ax)
    ax.margins(x=0.01)
    shade(ax, run, None)
    if seconds is None:
        return
    beside = figure.add_subplot(grid[0, 1], sharey=ax)
    draw(beside, seconds, True)
    beside.set_title(f"{title} by time")
    beside.set_xlabel("seconds since the job started")
    beside.tick_params(labelleft=False)
    beside.margins(x=0.01)
    shade(beside, run, clock(run))


def metric_picture(run: RunData) -> Picture | None:
    """Draw the headline test metric by round; None if nothing was evaluated."""
    metric = headline_metric(run.history)
    if metric is None:
        return None
    column, words = metric
    values, rounds = run.history.column(column), run.history.column("round")
    valid = np.isfinite(values)
    x, y = rounds[valid], values[valid]
    short = metric_name(column)
    figure = new_figure(9.6, 3.3)
    ax = figure.add_axes((0.065, 0.15, 0.85, 0.70))
    ax.plot(x, y, color=COLOURS["blue"], marker="o", markersize=3.2 if len(x) < 80 else 0)
    ax.set_title(f"Test {short} by round")
    ax.set_xlabel("round")
    whole_ticks(ax)
    focus(ax, x, y)
    ax.margins(x=0.01)
    ax.annotate(
        f"{y[-1]:.4f}", (x[-1], y[-1]), xytext=(7, 0), textcoords="offset points", va="center",
        color=COLOURS["blue"], fontweight="bold", annotation_clip=False,
    )  # fmt: skip
    shade(ax, run, None)
    best = int(np.argmin(y) if column in ("test_rmse", "test_logloss") else np.argmax(y))
    alt = (
        f"Test {words} against the round: {y[0]:.4f} at round {x[0]:.0f}, best {y[best]:.4f} at"
        f" round {x[best]:.0f}, {y[-1]:.4f} at the end."
    )
    caption = f"Test set: {words}, evaluated after the run."
    return Picture("auprc", figure, f"Test {short}", alt, caption)


def members_picture(run: RunData) -> Picture | None:
    """Draw the participating members by time, and the share of absent examples."""
    seconds, counts = members_over_time(run)
    if not len(seconds):
        return None
    absent = run.history.column("absent_examples")
    total = _total_examples(run)
    two = bool((absent > 0).any()) and total > 0
    figure = new_figure(9.6, 3.6 if two else 2.4)
    grid = figure.add_gridspec(
        2 if two else 1, 1, height_ratios=[2.2, 1] if two else [1], hspace=0.62,
        left=0.065, right=0.955, top=0.89 if two else 0.84, bottom=0.13 if two else 0.2,
    )  # fmt: skip
    ax = figure.add_subplot(grid[0])
    ax.fill_between(seconds, counts, step="post", color=COLOURS["blue"], alpha=0.18, linewidth=0)
    ax.step(seconds, counts, where="post", color=COLOURS["blue"])
    ax.set_ylim(0, max(float(counts.max()), 1.0) * 1.12)
    whole_ticks(ax, "y")
    ax.set_title("Members taking part")
    times = clock(run)
    _count_labels(ax, seconds, counts)
    shade(ax, run, times)
    last = ax
    if two:
        last = figure.add_subplot(grid[1], sharex=ax)
        x = np.array([times.at(r) for r in run.history.column("round")])
        share = 100 * np.nan_to_num(absent) / total
        last.fill_between(x, share, step="post", color=COLOURS["orange"], alpha=0.35, linewidth=0)
        last.step(x, share, where="post", color=COLOURS["orange"], linewidth=1.4)
        last.set_ylim(0, max(10.0, float(share.max()) * 1.25))
        last.set_title("Examples absent, %")
        ax.tick_params(labelbottom=False)
    last.set_xlabel("seconds since the job started")
    ax.set_xlim(0.0, max(float(seconds[-1]), 1e-9))
    alt = (
        f"Members taking part against time: {counts.max():.0f} at most,"
        f" {_fewest_after_peak(counts):.0f} at least after that, {counts[-1]:.0f} at the end."
    )
    return Picture(
        "members", figure, "Members", alt,
        "A member counts from the time its chunks are in memory until it leaves.",
    )  # fmt: skip


def shade(ax: Axes, run: RunData, times: Clock | None) -> None:
    """Shade the windows of absence, and mark the rounds in which members left or joined.

    ``times`` converts rounds to the seconds of a time axis; None for an axis of rounds.
    """

    def place(number: float) -> float:
        return number if times is None else times.at(number)

    for window in absence_windows(run.history):
        start, end = place(window.start_round), place(window.end_round)
        if math.isfinite(start) and math.isfinite(end):
            ax.axvspan(start, end, facecolor=ABSENCE, edgecolor="none", zorder=0)
    marks = membership_marks(run.records)
    mark_members(ax, marks, lambda m: m.round if times is None else m.at_s)


def mark_members(ax: Axes, marks: Sequence[Mark], place: Callable[[Mark], float]) -> None:
    """Mark losses and returns along the top edge; labels that would overlap are omitted."""
    low, high = ax.get_xlim()
    # Width of a letter in data units, for axes of any width.
    letter = 0.0072 / ax.get_position().width * (high - low)
    free_from = -math.inf
    for mark in sorted(marks, key=place):
        x = place(mark)
        colour, sign, word = _MARKS[mark.kind]
        ax.axvline(x, color=colour, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        if x < free_from:
            continue
        label = f"{sign} {mark.count} {word}"
        free_from = x + letter * len(label)
        ax.annotate(
            label, (x, 1.0),
            xycoords=("data", "axes fraction"), xytext=(2, -1), textcoords="offset points",
            color=colour, fontsize=8, va="top", ha="left", zorder=5,
        )  # fmt: skip
    ax.set_xlim(low, high)


def split_exact(history: History, x: Floats) -> tuple[tuple[Floats, Floats], ...]:
    """Split the driver's objective into its exact and its other segments, as (x, y) each.

    The line between two rows belongs to the row at its left end. Segments are separated by NaN, so
    that each is drawn as one line and dashes do not restart at every row.
    """
    own = history.column("objective")
    exact = np.array([kind == "exact" for kind in history.kinds], dtype=bool)
    changes = (np.flatnonzero(np.diff(exact)) + 1).tolist()
    parts: tuple[list[Floats], list[Floats]] = ([], [])
    for start, end in zip([0, *changes], [*changes, len(exact)], strict=True):
        if end == start:
            continue
        rows = slice(start, end + 1)
        gap = np.array([[np.nan], [np.nan]])
        parts[0 if exact[start] else 1].append(np.hstack([np.stack([x[rows], own[rows]]), gap]))
    joined = (np.hstack(part) if part else np.empty((2, 0)) for part in parts)
    return tuple((both[0], both[1]) for both in joined)


def _draw_objective(ax: Axes, run: RunData, x: Floats, *, labelled: bool) -> None:
    """Draw the driver's objective, dashed where not exact, and the evaluator's points."""
    history = run.history
    own, full = history.column("objective"), history.column("objective_full")
    solid, dashed = split_exact(history, x)
    ax.plot(*solid, color=COLOURS["blue"], marker="o" if history.n_rows == 1 else "")
    ax.plot(*dashed, color=COLOURS["blue"], linestyle=(0, (2, 1.2)))
    seen = np.isfinite(full)
    if seen.any():
        ax.plot(
            x[seen], full[seen], linestyle="none", marker="o", markersize=3.4,
            markerfacecolor=PAPER, markeredgecolor=INK, markeredgewidth=0.9, zorder=4,
        )  # fmt: skip
    both = np.concatenate([own, full])
    focus(ax, np.concatenate([x, x]), both)
    last = full if seen.any() and np.isfinite(full[-1]) else own
    valid = np.flatnonzero(np.isfinite(last) & np.isfinite(x))
    if labelled and len(valid):
        i = valid[-1]
        ax.annotate(
            f"{last[i]:.5g}", (x[i], last[i]), xytext=(6, 0), textcoords="offset points",
            color=COLOURS["blue"], fontweight="bold", va="center", annotation_clip=False,
        )  # fmt: skip


def _objective_alt(run: RunData) -> str:
    """Describe the objective's curve in one or two sentences."""
    rounds, own = run.history.column("round"), run.history.column("objective")
    valid = np.isfinite(own)
    if not valid.any():
        return "Objective over all examples, at the rounds in which it was evaluated."
    x, y = rounds[valid], own[valid]
    words = (
        f"Objective against round and time: {y[0]:.4g} at round {x[0]:.0f},"
        f" {y[-1]:.4g} at round {x[-1]:.0f}."
    )
    for window in absence_windows(run.history)[:3]:
        words += (
            f" Examples were absent from round {window.start_round:.0f} to {window.end_round:.0f}."
        )
    return words


def focus(ax: Axes, x: Floats, y: Floats, after: float | None = None) -> None:
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


def _count_labels(ax: Axes, seconds: Floats, counts: Floats) -> None:
    """Label each long interval with a constant number of members."""
    whole = max(float(seconds[-1] - seconds[0]), 1e-9)
    start = 0
    for i in range(1, len(counts) + 1):
        if i < len(counts) and counts[i] == counts[start]:
            continue
        end = seconds[min(i, len(counts) - 1)]
        if (end - seconds[start]) / whole > 0.05:
            ax.annotate(
                f"{counts[start]:.0f}", ((seconds[start] + end) / 2, counts[start]),
                xytext=(0, -4), textcoords="offset points", ha="center", va="top",
                color=COLOURS["blue"], fontweight="bold",
            )  # fmt: skip
        start = i


def _fewest_after_peak(counts: Floats) -> float:
    """Return the smallest count after the largest was first reached."""
    return float(counts[int(np.argmax(counts)) :].min())


def _total_examples(run: RunData) -> float:
    """Return the number of examples of the job; 0 if unknown."""
    loaded = run.first(DataLoaded)
    return float(run.summary.examples or (loaded and loaded.rows) or 0)


# The plot of the certified duality gap.

#: With more certificates than this no markers are drawn.
_MARKERS_MAX = 80


def gap_picture(run: RunData) -> Picture | None:
    """Draw the gap on a logarithmic axis; None if none was certified."""
    history = run.history
    gap = history.column("gap")
    valid = np.isfinite(gap) & (gap > 0)
    if not valid.any():
        return None
    bound = history.gap_bounds & valid
    target = math.nan if run.job is None or run.job.stop.gap is None else run.job.stop.gap
    times = clock(run)
    rounds = history.column("round")
    seconds = np.array([times.at(r) for r in rounds])
    timed = bool(np.isfinite(seconds).any())

    def draw(ax: Axes, x: Floats, labelled: bool) -> None:
        _draw_gap(ax, x, gap, valid, bound)
        log_ticks(ax)
        if np.isfinite(target):
            _draw_target(ax, target)
        if labelled:
            last = np.flatnonzero(valid)[-1]
            sign = "≤" if bound[last] else ""
            ax.annotate(
                f"{sign}{gap[last]:.2g}", (x[last], gap[last]), xytext=(6, 0),
                textcoords="offset points", color=COLOURS["purple"], fontweight="bold",
                va="center", annotation_clip=False,
            )  # fmt: skip

    figure = new_figure(9.6, 3.4)
    by_round_and_time(figure, run, "Gap", draw, rounds, seconds if timed else None)
    alt = _gap_alt(rounds, gap, valid, bound)
    return Picture("gap", figure, "Certified gap", alt, _gap_caption(bound))


def _draw_gap(
    ax: Axes, x: Floats, gap: Floats, valid: NDArray[np.bool_], bound: NDArray[np.bool_]
) -> None:
    """Draw the certificates as one line; bounds are dashed with open markers."""
    at = np.flatnonzero(valid)
    colour = COLOURS["purple"]
    for first, second in itertools.pairwise(at):
        # The style of a segment follows the certificate at its end.
        dashes = (0, (2, 1.4)) if bound[second] else "-"
        ax.plot(x[[first, second]], gap[[first, second]], color=colour, linestyle=dashes)
    if len(at) > _MARKERS_MAX:
        return
    for which, face in ((valid & ~bound, colour), (bound, PAPER)):
        ax.plot(
            x[which], gap[which], linestyle="none", marker="o", markersize=3.6,
            markerfacecolor=face, markeredgecolor=colour, markeredgewidth=1.0, zorder=4,
        )  # fmt: skip


def _draw_target(ax: Axes, target: float) -> None:
    """Draw a line at the gap at which the job stops."""
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, target / 1.5), high)
    ax.axhline(target, color=MUTED, linewidth=1.0, linestyle=(0, (1, 1.5)))
    ax.annotate(
        f"stops at {target:g}", (0, target), xycoords=("axes fraction", "data"), xytext=(3, 3),
        textcoords="offset points", color=MUTED, fontsize=8,
    )  # fmt: skip


def _gap_alt(
    rounds: Floats, gap: Floats, valid: NDArray[np.bool_], bound: NDArray[np.bool_]
) -> str:
    at = np.flatnonzero(valid)
    text = (
        f"Certified duality gap against round and time, logarithmic: {gap[at[0]]:.3g} at round"
        f" {rounds[at[0]]:.0f}, {gap[at[-1]]:.3g} at round {rounds[at[-1]]:.0f}."
    )
    n = int(bound.sum())
    return text + (f" {n} of {len(at)} certificates are upper bounds." if n else "")


def _gap_caption(bound: NDArray[np.bool_]) -> str:
    text = (
        "An upper bound of the distance of the objective from the optimum, computed from the primal"
        " and the dual objective over all examples."
    )
    if bound.any():
        text += " Dashed, open: examples were absent, and the value is an upper bound of the gap."
    return text
