"""The plot of the certified duality gap."""

from __future__ import annotations

import itertools

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from elasticml.report.plots import Floats, by_round_and_time
from elasticml.report.run import RunData, finite
from elasticml.report.series import clock
from elasticml.report.style import COLOURS, MUTED, PAPER, Picture, log_ticks, new_figure

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
    target = finite((run.spec.get("stop") or {}).get("gap"))
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
