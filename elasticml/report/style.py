"""Plot style: colour-blind safe colours, fonts, figures, and PNG and SVG output."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from elasticml.data.storage import filesystem

#: Colours of plots on white. The series colours are the colour-blind safe palette of Okabe and Ito.
#: Each value is unique: in a page the hex code is replaced by the CSS variable of the same name,
#: which has another value in dark mode.
COLOURS = {
    "ink": "#1b1f25",
    "muted": "#5c6670",
    "grid": "#dfe3e8",
    "paper": "#fefefe",
    "absence": "#f6ead9",
    "blue": "#0072b2",
    "orange": "#e69f00",
    "green": "#009e73",
    "red": "#d55e00",
    "sky": "#56b4e9",
    "purple": "#cc79a7",
    "wait": "#c9d0d8",
}
INK, MUTED, GRID, PAPER = (COLOURS[name] for name in ("ink", "muted", "grid", "paper"))
ABSENCE = COLOURS["absence"]

_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    # Set by hand, it is not measured against the labels of the ticks in each drawing.
    "axes.titley": 1.0,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.major.size": 0.0,
    "ytick.minor.size": 0.0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    # Names come from job files, where a dollar sign does not start a formula.
    "text.parse_math": False,
    "path.simplify": True,
    "path.simplify_threshold": 0.2,
    "figure.facecolor": PAPER,
}
#: Pixels per inch of the PNG files.
_DPI = 150


@dataclass(frozen=True, slots=True)
class Picture:
    """A finished figure with its title, alternative text and caption."""

    #: File name without extension.
    name: str
    figure: Figure
    title: str
    #: Alternative text.
    alt: str
    caption: str


def styled(draw: Callable[..., Any], *args: Any) -> Any:
    """Call a drawing function with the report's style; global settings do not change."""
    with matplotlib.rc_context(_STYLE):
        return draw(*args)


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure without a GUI backend."""
    figure = Figure(figsize=(width_in, height_in), dpi=_DPI)
    FigureCanvasAgg(figure)
    return figure


def png_bytes(figure: Figure) -> bytes:
    """Render a figure as PNG on a white background."""
    with matplotlib.rc_context(_STYLE):
        buffer = io.BytesIO()
        FigureCanvasAgg(figure).print_png(
            buffer, metadata={"Software": None}, pil_kwargs={"compress_level": 4}
        )
        return buffer.getvalue()


def svg_markup(figure: Figure, name: str, title: str, alt: str) -> str:
    """Render a figure as an ``<svg>`` element for a page.

    Ids are prefixed with the picture's name, so that several elements can share a page. Colours
    become CSS variables, which follow the page's light or dark scheme. Text remains text.
    """
    style = _STYLE | {"svg.hashsalt": name, "figure.facecolor": "none"}
    with matplotlib.rc_context(style):
        buffer = io.BytesIO()
        figure.patch.set_visible(False)
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
        figure.patch.set_visible(True)
    text = buffer.getvalue().decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'(?<=\sid=")', f"{name}-", text)
    text = text.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'xlink:href="#{name}-')
    for colour, code in COLOURS.items():
        text = text.replace(code, f"var(--{colour},{code})")
    text = re.sub(r"font: ([^;\"]*)'DejaVu Sans', sans-serif", r"font: \1var(--font)", text)
    text = re.sub(r' width="[\d.]+pt"', "", re.sub(r' height="[\d.]+pt"', "", text, count=1))
    label = f'role="img" aria-labelledby="{name}-title {name}-alt"'
    words = (
        f'<title id="{name}-title">{_text(title)}</title><desc id="{name}-alt">{_text(alt)}</desc>'
    )
    head, _, rest = text.partition(">")
    return f"{head} {label}>{words}{rest}"


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file atomically, by renaming a temporary one.

    Raises
    ------
    ConfigError
        When the file cannot be written.
    """
    filesystem.write_whole(str(path), content)
    return path


def log_ticks(ax: Axes) -> None:
    """Make the y axis logarithmic, with plain numbers at 1, 2 and 5 times powers of ten."""
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    subs = (1.0, 2.0, 5.0) if high / low < 3e3 else (1.0,)
    ax.yaxis.set_major_locator(LogLocator(base=10, subs=subs))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.yaxis.set_minor_locator(LogLocator(base=10, subs=()))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


class DistinctTicks(Formatter):  # type: ignore[misc]  # matplotlib has no types
    """Ticks with six digits, or as many more as tell them apart."""

    def __call__(self, value: float, pos: int | None = None) -> str:
        """Format one value."""
        return f"{value:.6g}"

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Format all ticks of an axis."""
        for n_digits in range(6, 17):
            texts = [f"{value:.{n_digits}g}" for value in values]
            if len(set(texts)) == len(set(values)):
                break
        return texts


def whole_ticks(ax: Axes, axis: str = "x") -> None:
    """Put ticks on whole numbers only."""
    (ax.xaxis if axis == "x" else ax.yaxis).set_major_locator(MaxNLocator("auto", integer=True))


def _text(words: str) -> str:
    """Escape text for use in an element."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
