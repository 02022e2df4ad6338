"""The pictures of the explanation pages, drawn while the site is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sphinx.application import Sphinx

matplotlib.use("Agg")

_BLUE, _ORANGE, _GREEN, _GREY = "#2563a8", "#c8641e", "#3c8253", "#8a8a8a"
_OWNERS = ("#2563a8", "#d6863b", "#5a9367", "#8d6bb0")


def _blank(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    return figure, axes


def _node(axes: Axes, place: tuple[float, float], text: str, *, lost: bool = False) -> None:
    style = {"facecolor": "#f2f2f2" if lost else "white", "edgecolor": _GREY if lost else "black"}
    box = {"boxstyle": "round,pad=0.35", **style, "linestyle": "--" if lost else "-"}
    color = _GREY if lost else "black"
    axes.text(*place, text, ha="center", va="center", fontsize=10, bbox=box, color=color)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str) -> None:
    style = {"arrowstyle": "-|>", "color": color, "shrinkA": 17, "shrinkB": 17, "lw": 1.5}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def tree() -> Figure:
    """Draw the tree: the model goes down, sums come up, each with the members it contains."""
    figure, axes = _blank(8, 3.6)
    places = {"driver": (4.0, 3.0), "0": (2.0, 2.0), "1": (6.0, 2.0)}
    places |= {"2": (1.0, 0.8), "3": (3.0, 0.8), "4": (5.0, 0.8), "5": (7.0, 0.8)}
    parents = {"0": "driver", "1": "driver", "2": "0", "3": "0", "4": "1", "5": "1"}
    sums = {"0": "{0, 2, 3}", "1": "{1, 5}", "2": "{2}", "3": "{3}", "5": "{5}"}
    for child, parent in parents.items():
        (x0, y0), (x1, y1) = places[parent], places[child]
        if child != "4":
            _arrow(axes, (x0 - 0.09, y0), (x1 - 0.09, y1), _BLUE)
            _arrow(axes, (x1 + 0.09, y1), (x0 + 0.09, y0), _ORANGE)
            middle = ((x0 + x1) / 2 + 0.25, (y0 + y1) / 2 - 0.12)
            axes.text(*middle, f"sum of {sums[child]}", fontsize=8, color=_ORANGE)
        else:
            axes.plot([x0, x1], [y0 - 0.15, y1 + 0.15], ls=":", color=_GREY)
    for name, place in places.items():
        text = name if name == "driver" else f"member {name}"
        _node(axes, place, f"{text}\nlost" if name == "4" else text, lost=name == "4")
    axes.text(0.1, 2.9, "model", color=_BLUE, fontsize=10)
    axes.text(0.1, 2.6, "partial sums, with their members", color=_ORANGE, fontsize=10)
    axes.text(4.6, 3.05, "has the sum of {0, 1, 2, 3, 5}; 4 is absent", fontsize=9)
    axes.set_xlim(0, 8)
    axes.set_ylim(0.4, 3.4)
    return figure


def stand_ins() -> Figure:
    """Draw what replaces the loss of absent examples: value and slope, with curvature."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes = figure.add_subplot()
    w = np.linspace(-1.2, 3.2, 200)
    rng = np.random.default_rng(1)
    slopes, at = rng.normal(-1.0, 1.0, 40), 0.0
    loss = np.log1p(np.exp(w[:, None] * slopes)).mean(axis=1)
    share = 1 / (1 + np.exp(-at * slopes))
    value, slope = np.log(2), (share * slopes).mean()
    curvature = (share * (1 - share) * slopes**2).mean()
    step = w - at
    axes.plot(w, loss, color="black", lw=2, label="loss of the absent examples (unknown)")
    axes.plot(w, value + slope * step, color=_ORANGE, ls="--", label="taylor: value and slope")
    quadratic = value + slope * step + curvature * step**2 / 2
    axes.plot(
        w, quadratic, color=_BLUE, label="auto: and curvature, of the present examples or a sketch"
    )
    axes.plot([at], [value], "o", color="black", ms=6)
    axes.annotate(
        "last seen here",
        (at, value),
        xytext=(-1.15, 0.35),
        arrowprops={"arrowstyle": "-"},
        fontsize=9,
    )
    axes.set_ylim(0, 1.5)
    axes.set_xlabel("model w, one coefficient", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, frameon=False, loc="upper center")
    return figure


def redealing() -> Figure:
    """Draw the owners of chunks: in a loss, a return, and when chunks are dealt at random."""
    figure, axes = _blank(8, 3.0)
    rng = np.random.default_rng(4)
    start = [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    lost = [owner if owner != 2 else (0, 1, 3, 0)[i % 4] for i, owner in enumerate(start)]
    back = list(start)
    back[8], back[11] = 0, 3
    rows = [
        ("round 10", start),
        ("11: member 2 is lost; the others take over its chunks", lost),
        ("20: a worker returns and gets its share", back),
        ("21: the policy redeal assigns all chunks at random", list(rng.permutation(start))),
    ]
    for i, (text, owners) in enumerate(rows):
        y = -i * 1.5
        axes.text(0, y + 0.75, text, fontsize=9)
        for j, owner in enumerate(owners):
            axes.add_patch(matplotlib.patches.Rectangle((j, y), 0.9, 0.55, color=_OWNERS[owner]))
    for k, color in enumerate(_OWNERS):
        axes.add_patch(matplotlib.patches.Rectangle((17, -0.2 - k), 0.5, 0.5, color=color))
        axes.text(17.8, 0.0 - k, f"member {k}", fontsize=9, va="center")
    axes.set_xlim(-0.2, 20.5)
    axes.set_ylim(-4.7, 1.2)
    return figure


def certificates() -> Figure:
    """Draw a run of CoCoA on small data: objective, lower bound, and the gap between them."""
    import elasticml as em

    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 8))
    y = np.where(X @ rng.normal(size=8) + rng.normal(size=400) > 0, 1.0, -1.0)
    algorithm = em.CoCoA(loss="hinge", l2=1e-2, gap_every=1)
    run = em.testing.run_here(algorithm, em.from_arrays(X, y), rounds=14, members=4)
    primal = [row["primal"] for row in run.history]
    dual = [row["dual"] for row in run.history]
    figure = Figure(figsize=(8, 3.0), layout="constrained")
    axes = figure.add_subplot()
    rounds = range(len(primal))
    axes.fill_between(
        rounds, dual, primal, color=_BLUE, alpha=0.15, label="gap: the most that is left"
    )
    axes.plot(rounds, primal, color=_BLUE, marker="o", ms=4, label="P(w): objective of this model")
    axes.plot(rounds, dual, color=_GREEN, marker="o", ms=4, label="D: no model is below this")
    axes.set_ylim(min(dual[1:]) - 0.05, max(primal[1:]) + 0.1)
    axes.set_xlabel("round", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, frameon=False)
    return figure


PICTURES: tuple[Callable[[], Figure], ...] = (tree, stand_ins, redealing, certificates)


def draw(app: Sphinx) -> None:
    """Draw each picture, unless it is newer than this file."""
    folder = Path(app.srcdir) / "generated" / "diagrams"
    folder.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        path = folder / f"{picture.__name__}.svg"
        if not path.exists() or path.stat().st_mtime < Path(__file__).stat().st_mtime:
            picture().savefig(path)


def setup(app: Sphinx) -> dict[str, bool]:
    """Draw the pictures before the sources are read."""
    app.connect("builder-inited", draw)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
