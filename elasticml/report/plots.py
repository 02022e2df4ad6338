"""Plots of one run: objective, certified gap, test metric, and members over time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from elasticml.report.run_reader import History, RunData
from elasticml.report.series import (
    Clock,
    Mark,
    absence_windows,
    clock,
    full_objective,
    headline_metric,
    members_over_time,
    membership_marks,
    metric_name,
    metric_series,
    validation_column,
    wants_log,
)
from elasticml.report.style import (
    ABSENCE,
    COLOURS,
    INK,
    MUTED,
    PAPER,
    DistinctTicks,
    Picture,
    log_ticks,
    new_figure,
    whole_ticks,
)
from elasticml.story.records import DataLoaded

Floats = NDArray[np.float64]

#: Colour, symbol and word of each kind of mark.
_MARKS = {
    "lost": (COLOURS["red"], "▼", "lost"),
    "back": (COLOURS["green"], "▲", "back"),
    "retired": (COLOURS["purple"], "▽", "given back"),
}


#: Size of a panel in inches: two are side by side on a wide page, one below the other on a phone.
PANEL_IN = (4.4, 3.0)
#: The axes of a panel; the last value is written at their right, seconds above them.
_PANEL_BOX = (0.16, 0.15, 0.655, 0.66)
#: Fewest rows of a curve that has a zoom.
_ZOOM_ROWS_MIN = 6
#: A zoom begins where the curve stays within this share of its range around the last value.
_ZOOM_SHARE = 0.1
#: A zoom leaves out at least the first and shows at least the second share of the rounds.
_ZOOM_ROUNDS = (0.1, 0.25)


def objective_picture(run: RunData) -> Picture | None:
    """Draw the whole curve of the objective by round; None if none was recorded."""
    history = run.history
    if not (history.has("objective") or history.has("objective_full")):
        return None
    figure, ax = _panel()
    values = _draw_objective(ax, run)
    is_log = wants_log(values)
    if is_log:
        log_ticks(ax)
    _finish_panel(ax, run, f"Objective, the whole curve{', log axis' if is_log else ''}")
    kinds = " (dashed where it is an estimate)" if "estimated" in history.kinds else ""
    return Picture(
        "objective", figure, "Objective", _objective_alt(run),
        f"Mean loss plus penalty{kinds}. Shaded: examples absent. Points: over all examples,"
        " evaluated after the run." if history.has("objective_full")
        else f"Mean loss plus penalty{kinds}. Shaded: examples absent.",
    )  # fmt: skip


def objective_zoom(run: RunData) -> Picture | None:
    """Draw the end of the objective's curve on a scale of its own; None for a short curve."""
    rounds, values = full_objective(run.history)
    own = run.history.column("objective")
    valid = np.isfinite(own)
    if valid.sum() > len(values):
        rounds, values = run.history.column("round")[valid], own[valid]
    if len(values) < _ZOOM_ROWS_MIN or rounds[-1] <= rounds[0]:
        return None
    start = _zoom_start(rounds, values)
    figure, ax = _panel()
    _draw_objective(ax, run, start)
    title = f"Zoom: from round {start:.0f} on"
    _finish_panel(ax, run, title)
    late = values[rounds >= start]
    return Picture(
        "objective-zoom", figure, f"Objective from round {start:.0f} on",
        f"The end of the objective's curve: {late[0]:.6g} at round {start:.0f},"
        f" {late[-1]:.6g} at round {rounds[-1]:.0f}.",
        "The end of the same curve, on a scale of its own.",
    )  # fmt: skip


def _zoom_start(rounds: Floats, values: Floats) -> float:
    """Return the round from which on the curve stays near its end, within bounds."""
    far = np.abs(values - values[-1]) > _ZOOM_SHARE * np.ptp(values)
    settled = rounds[min(int(np.flatnonzero(far)[-1]) + 1, len(rounds) - 1)] if far.any() else 0.0
    first, least = (share * (rounds[-1] - rounds[0]) for share in _ZOOM_ROUNDS)
    start = min(max(float(settled), rounds[0] + first), rounds[-1] - least)
    return float(rounds[np.searchsorted(rounds, start, side="right") - 1])


def _panel() -> tuple[Figure, Axes]:
    figure = new_figure(*PANEL_IN)
    ax = figure.add_axes(_PANEL_BOX)
    ax.yaxis.set_major_formatter(DistinctTicks())
    return figure, ax


def _finish_panel(ax: Axes, run: RunData, title: str, *, by_time: bool = False) -> None:
    """Set title and x axis of a panel, by round with seconds above it, or by time."""
    ax.margins(x=0.01)
    ax.set_xlabel("seconds since the job started" if by_time else "round")
    if by_time:
        ax.xaxis.set_major_locator(MaxNLocator(6))
    else:
        whole_ticks(ax)
    times = clock(run)
    shade(ax, run, times if by_time else None)
    is_timed = not by_time and _seconds_axis(ax, times)
    ax.set_title(title, pad=20 if is_timed else 8)


def _seconds_axis(ax: Axes, times: Clock) -> bool:
    """Write seconds along the top edge of an axis of rounds; false if the times are unknown."""
    low, high = ax.get_xlim()
    inside = (times.rounds >= low) & (times.rounds <= high)
    rounds, seconds = times.rounds[inside], times.seconds[inside]
    if len(rounds) < 2 or seconds[-1] <= seconds[0]:
        return False
    taken, letter = -math.inf, _letter(ax)
    for at_s in MaxNLocator(4).tick_values(float(seconds[0]), float(seconds[-1])):
        x = float(np.interp(at_s, seconds, rounds))
        half = 0.5 * letter * len(f"{at_s:g} s ")
        if not seconds[0] <= at_s <= seconds[-1] or x - half < taken:
            continue
        taken = x + half
        ax.annotate(
            f"{at_s:g} s", (x, 1), xycoords=("data", "axes fraction"), xytext=(0, 4),
            textcoords="offset points", ha="center", va="bottom", color=MUTED, fontsize=8,
        )  # fmt: skip
        ax.plot(
            [x, x], [1, 1.02], transform=ax.get_xaxis_transform(), color=MUTED, linewidth=0.8,
            clip_on=False,
        )  # fmt: skip
    ax.set_xlim(low, high)
    return True


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
    figure, ax = _panel()
    ax.plot(x, y, color=COLOURS["blue"], marker="o", markersize=3.2 if len(x) < 80 else 0)
    ax.margins(y=0.14)  # room for the names of the marks
    ax.annotate(
        f"{y[-1]:.4f}", (x[-1], y[-1]), xytext=(7, 0), textcoords="offset points", va="center",
        color=COLOURS["blue"], fontweight="bold", annotation_clip=False,
    )  # fmt: skip
    _finish_panel(ax, run, f"Test {short} by round")
    best = int(np.argmax(y))
    alt = (
        f"Test {words} against the round: {y[0]:.4f} at round {x[0]:.0f}, best {y[best]:.4f} at"
        f" round {x[best]:.0f}, {y[-1]:.4f} at the end."
    )
    caption = f"Test set: {words}, scored by the members."
    return Picture("test", figure, f"Test {short}", alt, caption)


def validation_picture(run: RunData) -> Picture | None:
    """Draw the validation score by round; None if the job was not validated."""
    column = validation_column(run.history)
    if column is None:
        return None
    words = metric_name(column)
    x, y = metric_series(run, column)
    figure, ax = _panel()
    ax.plot(x, y, color=COLOURS["green"], marker="o", markersize=3.2 if len(x) < 80 else 0)
    best = int(np.argmax(y))
    ax.plot(x[best], y[best], "o", color=COLOURS["green"], markersize=7, fillstyle="none")
    ax.margins(y=0.14)  # room for the names of the marks
    ax.annotate(
        f"{y[best]:.4f}", (x[best], y[best]), xytext=(7, 4), textcoords="offset points",
        color=COLOURS["green"], fontweight="bold", annotation_clip=False,
    )  # fmt: skip
    _finish_panel(ax, run, f"{words.capitalize()} by round")
    alt = (
        f"{words} against the round, greater is better: {y[0]:.4f} at round {x[0]:.0f}, best "
        f"{y[best]:.4f} at round {x[best]:.0f}."
    )
    caption = (
        "Validation rows, scored by the members while the job trained; the ring is the model that "
        "the job returned. Rounds without all validation rows have no score."
    )
    return Picture("validation", figure, words.capitalize(), alt, caption)


def members_picture(run: RunData) -> Picture | None:
    """Draw the participating members by time, and the share of absent examples."""
    seconds, counts = members_over_time(run)
    if not len(seconds):
        return None
    absent = run.history.column("absent_examples")
    total = _total_examples(run)
    two = bool((absent > 0).any()) and total > 0
    figure = new_figure(*PANEL_IN)
    grid = figure.add_gridspec(
        2 if two else 1, 1, height_ratios=[2.2, 1] if two else [1], hspace=0.62,
        left=0.125, right=0.955, top=0.9, bottom=0.15,
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
    last.xaxis.set_major_locator(MaxNLocator(6))
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


def _letter(ax: Axes) -> float:
    """Return the width of a letter of small labels in data units, for axes of any width."""
    low, high = ax.get_xlim()
    width_in = ax.get_window_extent().width / ax.figure.dpi
    return float(0.069 / width_in * (high - low))


def mark_members(ax: Axes, marks: Sequence[Mark], place: Callable[[Mark], float]) -> None:
    """Mark losses and returns along the top edge; labels that would overlap are omitted."""
    low, high = ax.get_xlim()
    letter = _letter(ax)
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


def _draw_objective(ax: Axes, run: RunData, start: float = -math.inf) -> Floats:
    """Draw the driver's objective, dashed where not exact, and the evaluator's points.

    Parameters
    ----------
    start : float
        The first round that is drawn.

    Returns
    -------
    ndarray, the finite values drawn
    """
    history = run.history
    x = history.column("round")
    own, full = history.column("objective"), history.column("objective_full")
    valid = np.isfinite(x) & (x >= start)
    for (at, values), line in zip(split_exact(history, x), ("-", (0, (2, 1.2))), strict=True):
        shown = np.isnan(at) | (at >= start)
        ax.plot(
            at[shown], values[shown], color=COLOURS["blue"], linestyle=line,
            marker="o" if line == "-" and history.n_rows == 1 else "",
        )  # fmt: skip
    seen = np.isfinite(full) & valid
    if seen.any():
        ax.plot(
            x[seen], full[seen], linestyle="none", marker="o", markersize=3.4,
            markerfacecolor=PAPER, markeredgecolor=INK, markeredgewidth=0.9, zorder=4,
        )  # fmt: skip
    last = full if seen.any() and np.isfinite(full[-1]) else own
    ends = np.flatnonzero(np.isfinite(last) & valid)
    if len(ends):
        i = ends[-1]
        ax.annotate(
            f"{last[i]:.5g}", (x[i], last[i]), xytext=(6, 0), textcoords="offset points",
            color=COLOURS["blue"], fontweight="bold", va="center", annotation_clip=False,
        )  # fmt: skip
    drawn: Floats = np.concatenate([own[valid], full[valid]])
    finite: Floats = drawn[np.isfinite(drawn)]
    return finite


def _objective_alt(run: RunData) -> str:
    """Describe the objective's curve in one or two sentences."""
    rounds, own = run.history.column("round"), run.history.column("objective")
    valid = np.isfinite(own)
    if not valid.any():
        return "Objective over all examples, at the rounds in which it was evaluated."
    x, y = rounds[valid], own[valid]
    words = (
        f"Objective against the round: {y[0]:.4g} at round {x[0]:.0f},"
        f" {y[-1]:.4g} at round {x[-1]:.0f}."
    )
    for window in absence_windows(run.history)[:3]:
        words += (
            f" Examples were absent from round {window.start_round:.0f} to {window.end_round:.0f}."
        )
    return words


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


#: With more certificates than this no markers are drawn.
_MARKERS_MAX = 80


def gap_picture(run: RunData, *, by_time: bool = False) -> Picture | None:
    """Draw the gap on a logarithmic axis, by round or by time; None if none was certified."""
    history = run.history
    gap = history.column("gap")
    valid = np.isfinite(gap) & (gap > 0)
    rounds = history.column("round")
    times = clock(run)
    x = np.array([times.at(r) for r in rounds]) if by_time else rounds
    if not valid.any() or not np.isfinite(x[valid]).any():
        return None
    bound = history.gap_bounds & valid
    target = math.nan if run.job is None or run.job.stop.gap is None else run.job.stop.gap
    figure, ax = _panel()
    _draw_gap(ax, x, gap, valid, bound)
    log_ticks(ax)
    if np.isfinite(target):
        _draw_target(ax, target)
    last = np.flatnonzero(valid)[-1]
    sign = "≤" if bound[last] else ""
    ax.annotate(
        f"{sign}{gap[last]:.2g}", (x[last], gap[last]), xytext=(6, 0),
        textcoords="offset points", color=COLOURS["purple"], fontweight="bold",
        va="center", annotation_clip=False,
    )  # fmt: skip
    _finish_panel(ax, run, f"Gap by {'time' if by_time else 'round'}", by_time=by_time)
    return Picture(
        "gap-time" if by_time else "gap", figure, "Certified gap",
        _gap_alt(rounds, gap, valid, bound), _gap_caption(bound),
    )  # fmt: skip


def gap_time_picture(run: RunData) -> Picture | None:
    """Draw the gap by time, with a caption of its own."""
    picture = gap_picture(run, by_time=True)
    return None if picture is None else replace(picture, caption="The same values over time.")


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
        f"Certified duality gap against the round, logarithmic: {gap[at[0]]:.3g} at round"
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
