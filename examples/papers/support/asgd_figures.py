"""The plots of the asynchronous SGD study: a few panels of lines side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from elasticml.report.style import COLOURS, MUTED, new_figure, png_bytes, styled, svg_markup

_SERIES = ("blue", "orange", "green", "red", "purple", "sky", "ink", "muted")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (1.6, 1.3), (5, 1.2, 1.4, 1.2))

#: Points of a line.
Line = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Axes with a line for each setting."""

    title: str
    x: str
    y: str
    lines: Mapping[str, Line]
    #: Values of x of labelled vertical lines.
    marks: Mapping[str, float] | None = None


def picture(stem: str, title: str, panels: Sequence[Panel]) -> dict[str, bytes]:
    """Draw panels side by side, all axes logarithmic; return the PNG and SVG files."""

    def draw() -> dict[str, bytes]:
        figure = new_figure(max(5.0, 4.2 * len(panels) + 0.4), 4.4)
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, panel in zip(axes, panels, strict=True):
            _draw(ax, panel)
        figure.suptitle(title, x=0.02, ha="left", color=MUTED, fontsize=9)
        figure.tight_layout(rect=(0, 0, 1, 0.99))
        alt = f"{title}; " + "; ".join(f"{p.title}: {p.y} against {p.x}" for p in panels)
        markup = svg_markup(figure, stem, title, alt)
        return {f"{stem}.png": png_bytes(figure), f"{stem}.svg": markup.encode()}

    files: dict[str, bytes] = styled(draw)
    return files


def _draw(ax: Axes, panel: Panel) -> None:
    for k, (label, line) in enumerate(panel.lines.items()):
        # Values at or below zero, such as an excess in a better minimum, have no logarithm.
        points = [(x, y) for x, y in line if x > 0 and y > 0 and math.isfinite(y)]
        ax.plot(
            [x for x, _ in points],
            [y for _, y in points],
            label=label,
            color=COLOURS[_SERIES[k % len(_SERIES)]],
            dashes=_DASHES[k % len(_DASHES)],
            marker="o" if len(points) <= 10 else None,
            ms=3.5,
            lw=1.4,
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    for axis, (low, high) in ((ax.xaxis, ax.get_xlim()), (ax.yaxis, ax.get_ylim())):
        subs = (1.0, 2.0, 5.0) if high / low < 100 else (1.0,)
        axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    for label, at in (panel.marks or {}).items():
        ax.axvline(at, color=MUTED, lw=0.8, dashes=(2, 2))
        ax.annotate(label, (at, 0.98), xycoords=("data", "axes fraction"), color=MUTED, fontsize=7)
    ax.set_title(panel.title)
    ax.set_xlabel(panel.x)
    ax.set_ylabel(panel.y)
    ax.legend(frameon=False, fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))
