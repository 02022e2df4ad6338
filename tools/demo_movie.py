"""Draw the moving picture of the start page from the runs of ``make demo``.

``python tools/demo_movie.py runs/demo docs/images/demo.gif`` reads which members were there in each
round, and the objective over all examples, from the stories and histories of the runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from elasticml.report.run_reader import RunData, read_run
from elasticml.story.records import MemberJoined, MemberLost

matplotlib.use("Agg")

_BLUE, _ORANGE, _GREY, _RED = "#2563a8", "#c8641e", "#8a8a8a", "#b3261e"
_RUNS = (
    ("no-failure", "nothing happens", _GREY, ":", 2.0),
    ("stall", "wait for them", _ORANGE, "--", 1.8),
    ("taylor", "elasticml goes on", _BLUE, "-", 2.6),
)
#: The first round shown; rounds between two frames; milliseconds of a frame, and of the last one.
_FIRST, _STEP, _FRAME_MS, _LAST_MS = 50, 4, 90, 4000


def presence(run: RunData) -> list[list[tuple[float, bool]]]:
    """Return for each slot the rounds at which its member came or went."""
    slots: dict[int, list[tuple[float, bool]]] = {}
    for record in run.records:
        if isinstance(record, MemberJoined | MemberLost):
            slot = int(record.member.partition(".")[0])
            slots.setdefault(slot, []).append((record.round or 0, isinstance(record, MemberJoined)))
    return [slots[slot] for slot in sorted(slots)]


def is_there(changes: list[tuple[float, bool]], at: float) -> bool:
    """Whether a slot has a member in a round."""
    return [there for since, there in changes if since <= at][-1:] == [True]


def objective(run: RunData) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds whose models were scored over all examples, and the objectives."""
    rounds, values = run.history.column("round"), run.history.column("objective_full")
    scored = np.isfinite(values)
    return rounds[scored], values[scored]


def frame(runs: dict[str, RunData], slots: list[list[tuple[float, bool]]], at: float) -> Figure:
    """Draw one round: the members on the left, the objectives so far on the right."""
    figure = Figure(figsize=(8.4, 3.3), dpi=100, facecolor="white")
    left = figure.add_axes((0.02, 0.05, 0.32, 0.9))
    left.set_axis_off()
    left.set_xlim(0, 7)
    left.set_ylim(0, 7)
    there = [is_there(changes, at) for changes in slots]
    for slot, present in enumerate(there):
        x, y = slot % 5 * 1.35 + 0.15, 4.0 - slot // 5 * 1.45
        style = {
            "facecolor": _BLUE if present else "white",
            "edgecolor": _BLUE if present else _RED,
        }
        box = FancyBboxPatch((x, y), 0.95, 0.95, boxstyle="round,pad=0.05", lw=1.4, **style)
        box.set_linestyle("-" if present else "--")
        left.add_patch(box)
        if not present:
            left.text(x + 0.48, y + 0.45, "×", color=_RED, ha="center", va="center", fontsize=15)
    lost = len(there) - sum(there)
    left.text(0.1, 6.3, f"round {at:.0f}", fontsize=14, color="black")
    text = f"{lost} of {len(there)} workers are killed" if lost else f"{len(there)} workers"
    left.text(0.1, 5.5, text, fontsize=12, color=_RED if lost else _BLUE)

    right = figure.add_axes((0.43, 0.16, 0.55, 0.74))
    for name, label, color, line, width in _RUNS:
        rounds, values = objective(runs[name])
        shown = rounds <= at
        right.plot(rounds[shown], values[shown], line, color=color, lw=width, label=label)
    rounds, values = objective(runs["taylor"])
    away = [at_ for at_ in range(int(rounds[-1])) if not all(is_there(s, at_) for s in slots)]
    if away and at >= away[0]:
        right.axvspan(away[0], min(at, away[-1]), color="#f5e0d0", lw=0, zorder=0)
    right.set_xlim(_FIRST, rounds[-1])
    floor = min(objective(run)[1].min() for run in runs.values())
    top = values[np.searchsorted(rounds, _FIRST)]
    right.set_ylim(floor - 0.05 * (top - floor), top)
    right.set_xlabel("round")
    right.set_title("objective over all examples", fontsize=11, loc="left")
    right.legend(loc="upper right", frameon=False, fontsize=10)
    for side in ("top", "right"):
        right.spines[side].set_visible(False)
    return figure


def pixels(figure: Figure) -> Image.Image:
    """Return a figure as an image of few colours."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def main(folder: Path, target: Path) -> None:
    """Write the picture."""
    runs = {name: read_run(folder / name) for name, *_ in _RUNS}
    slots = presence(runs["taylor"])
    last = objective(runs["taylor"])[0][-1]
    at = [float(n) for n in range(_FIRST, int(last), _STEP)] + [last]
    frames = [pixels(frame(runs, slots, n)) for n in at]
    middle = frames[len(frames) // 2].quantize(128, Image.Quantize.MAXCOVERAGE)
    few = [image.quantize(palette=middle, dither=Image.Dither.NONE) for image in frames]
    # The whole picture first: where nothing moves, this frame is shown.
    few = [few[-1], *few[:-1]]
    times = [_LAST_MS] + [_FRAME_MS] * (len(few) - 1)
    few[0].save(target, save_all=True, append_images=few[1:], duration=times, loop=0, optimize=True)
    print(f"{target}: {len(few)} frames, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
