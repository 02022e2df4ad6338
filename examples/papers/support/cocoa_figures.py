"""The plots of the studies: gap or accuracy against rounds and against projected time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from elasticml.report.style import (
    COLOURS,
    MUTED,
    new_figure,
    png_bytes,
    styled,
    svg_markup,
    write_whole,
)
from examples.papers.support.virtual_study import Curve

_SERIES = ("muted", "sky", "green", "orange", "purple", "blue", "red", "ink")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.6, 1.3), (5, 1.2, 1.4, 1.2))
#: Marks of the elastic-CoCoA paper's Figure 3: from 16 to 4 members, and from 4 to fewer.
_MARKS = {4: "o", 2: "D", 1: "D"}

#: Points of a line: x and gap, or test accuracy.
Line = Sequence[tuple[float, float]]


def by_rounds(curve: Curve) -> Line:
    """Return the gap after each round."""
    return [(float(p.rounds), p.gap) for p in curve.points]


def by_units(curve: Curve) -> Line:
    """Return the gap against projected time."""
    return [(p.units, p.gap) for p in curve.points]


def gap_figure(
    panels: Mapping[str, Mapping[str, Line]],
    x_label: str,
    title: str,
    *,
    marks: Mapping[str, Mapping[str, Sequence[tuple[float, float, int]]]] | None = None,
    x_log: bool = False,
    accuracy: bool = False,
) -> dict[str, bytes]:
    """Draw a panel for each data set with a line for each setting; return the PNG and SVG files.

    Parameters
    ----------
    panels : mapping
        Data set -> setting -> line.
    x_label : str
        The x axis, and whether it is measured or projected.
    title : str
        Also the stem of the files' names, in lower case.
    marks : mapping, optional
        Data set -> setting -> (x, gap, members after the scale-in).
    x_log : bool
        Logarithmic x axis.
    accuracy : bool
        The lines are test accuracies, not gaps.
    """

    def draw() -> dict[str, bytes]:
        columns = min(3, len(panels))
        n_rows = -(-len(panels) // columns)
        figure = new_figure(max(7.5, 3.9 * columns + 0.4), 2.9 * n_rows + 0.8)
        axes = figure.subplots(n_rows, columns, squeeze=False).ravel()
        for ax in axes[len(panels) :]:
            ax.set_visible(False)
        for ax, (name, lines) in zip(axes, panels.items(), strict=False):
            _panel(ax, lines, (marks or {}).get(name, {}))
            if not accuracy:
                _scale_by_powers(ax)
            ax.set_title(name)
            if x_log:
                ax.set_xscale("log")
                ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set_xlabel(x_label)
        axes[0].set_ylabel("test accuracy" if accuracy else "duality gap")
        legend = legend_below(figure, *axes[0].get_legend_handles_labels())
        figure.suptitle(title, x=0.02, ha="left", color=MUTED, fontsize=9)
        room = legend.get_window_extent().height / figure.bbox.height
        figure.tight_layout(rect=(0, max(0.07 if n_rows == 1 else 0.05, room), 1, 0.99))
        stem = re.sub(r"[^a-z0-9]+", "-", title.partition(":")[0].lower()).strip("-")
        markup = svg_markup(figure, stem, title, f"{title}; {x_label}")
        return {f"{stem}.png": png_bytes(figure), f"{stem}.svg": markup.encode()}

    files: dict[str, bytes] = styled(draw)
    return files


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> Legend:
    """Draw a legend below a figure, in as many columns as fit."""
    for columns in range(min(8, len(labels)), 0, -1):
        legend = figure.legend(handles, labels, loc="lower center", ncols=columns, frameon=False)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return legend
        legend.remove()
    return figure.legend(handles, labels, loc="lower center", frameon=False)


def _panel(
    ax: Axes, lines: Mapping[str, Line], marks: Mapping[str, Sequence[tuple[float, float, int]]]
) -> None:
    for k, (label, line) in enumerate(lines.items()):
        colour = COLOURS[_SERIES[k % len(_SERIES)]]
        x = [point[0] for point in line if point[1] > 0]
        y = [point[1] for point in line if point[1] > 0]
        ax.plot(x, y, label=label, color=colour, dashes=_DASHES[k % len(_DASHES)], lw=1.3)
        for at, gap, members in marks.get(label, ()):
            ax.plot([at], [gap], _MARKS.get(members, "s"), color=colour, ms=5, mec="black", mew=0.5)


def _scale_by_powers(ax: Axes) -> None:
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(base=10, numticks=12))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def scale_marks(curve: Curve, *, rounds: bool = False) -> list[tuple[float, float, int]]:
    """List where a run was scaled: x, gap at that moment, members after it."""
    gaps = {p.rounds: p.gap for p in curve.points}
    return [(float(s.rounds) if rounds else s.units, gaps[s.rounds], s.after) for s in curve.scaled]


def write_files(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write plots and tables."""
    return [write_whole(folder / name, content) for name, content in files.items()]
