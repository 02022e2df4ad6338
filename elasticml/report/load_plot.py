"""Load balance by slot and round: examples and compute times from the story, and their plot."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from elasticml.report.lanes import slot_of
from elasticml.report.plots import shade
from elasticml.report.run_reader import RunData
from elasticml.report.series import rounds_of
from elasticml.report.style import COLOURS, MUTED, Picture, new_figure, whole_ticks
from elasticml.story.records import ChunksMoved, ExchangeEnded, RoundStarted, StoryRecord

# Loads read from a story: examples and compute time of each slot in each round.

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Examples and compute seconds, (n_slots, n_rounds); NaN where a slot took no part."""

    slots: tuple[int, ...]
    #: Ascending, without rounds that have no exchange.
    rounds: Floats
    rows: Floats
    seconds: Floats
    #: Chunks that changed owners before each round, (n_rounds,).
    moved: Floats

    @property
    def has_rows(self) -> bool:
        """Whether the story records the slots' numbers of examples."""
        return bool(np.isfinite(self.rows).any())

    @property
    def imbalance(self) -> Floats:
        """Longest compute time divided by the mean, (n_rounds,); 1 is balanced."""
        return _over_slots(np.nanmax, self.seconds) / _over_slots(np.nanmean, self.seconds)


def relative(values: Floats) -> Floats:
    """Divide by each round's mean over its participating slots."""
    means = _over_slots(np.nanmean, values)
    return values / np.where(means > 0, means, math.nan)


def make_loads(records: Sequence[StoryRecord]) -> Loads | None:
    """Read the loads; None if no exchange records compute times."""
    seconds: dict[float, dict[int, float]] = {}
    rows: dict[float, dict[int, float]] = {}
    moved: dict[float, float] = {}
    current_rows: dict[int, float] = {}
    has_begun = False
    for record, number in zip(records, rounds_of(records), strict=True):
        if math.isnan(number):
            continue
        match record:
            case RoundStarted():
                if not has_begun:
                    moved.clear()  # moves before the first round belong to loading
                has_begun = True
                current_rows = current_rows if record.rows is None else _by_slot(record.rows)
            case ExchangeEnded():
                spent = seconds.setdefault(number, {})
                for slot, took in _by_slot(record.compute_s).items():
                    spent[slot] = spent.get(slot, 0.0) + took
                rows.setdefault(number, dict(current_rows))
            case ChunksMoved():
                moved[number] = moved.get(number, 0.0) + record.chunks
    rounds = sorted(r for r, spent in seconds.items() if spent)
    slots = tuple(sorted({slot for r in rounds for slot in seconds[r]}))
    if not rounds:
        return None
    return Loads(
        slots=slots,
        rounds=np.array(rounds),
        seconds=_table(slots, [seconds[r] for r in rounds]),
        rows=_table(slots, [rows[r] for r in rounds]),
        moved=np.array([moved.get(r, 0.0) for r in rounds]),
    )


def _by_slot(values: Mapping[str, float]) -> dict[int, float]:
    pairs = ((slot_of(name), float(value)) for name, value in values.items())
    return {slot: value for slot, value in pairs if slot is not None and value > 0}


def _table(slots: Sequence[int], columns: Sequence[dict[int, float]]) -> Floats:
    return np.array([[column.get(slot, math.nan) for column in columns] for slot in slots])


def _over_slots(reduce: object, values: Floats) -> Floats:
    """Reduce each round over its slots; NaN, without a warning, for empty rounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        reduced: Floats = reduce(values, axis=0)  # type: ignore[operator]
        return reduced


# The load-balance plot: one lane per slot over rounds, shaded by examples and compute time.

#: Relative difference from the round's mean at which the colour is saturated.
_FULL = 0.5
#: Colour and opacity of the mean load: a translucent grey for light and dark pages.
_MEAN = ("#7d8894", 0.28)
_LEFT, _WIDTH = 0.065, 0.86


def loads_picture(run: RunData) -> Picture | None:
    """Draw loads and times of all members by round; None with fewer than two slots or rounds."""
    loads = make_loads(run.records)
    if loads is None or len(loads.slots) < 2 or len(loads.rounds) < 2:
        return None
    panels = [("Time computing, relative to the round's mean", relative(loads.seconds))]
    if loads.has_rows:
        panels.insert(0, ("Examples, relative to the round's mean", relative(loads.rows)))
    lanes_in = min(max(0.17 * len(loads.slots), 0.7), 3.2)
    tall = len(panels) * (lanes_in + 0.62) + 1.9
    figure = new_figure(9.6, tall)
    top = tall - 0.42
    for title, values in panels:
        top -= lanes_in
        ax = figure.add_axes((_LEFT, top / tall, _WIDTH, lanes_in / tall))
        draw_lanes(ax, loads, values, title)
        top -= 0.62
    draw_moves(figure.axes[0], loads)
    draw_scale(figure, figure.axes[0])
    last = figure.add_axes((_LEFT, 0.45 / tall, _WIDTH, 1.05 / tall))
    _draw_imbalance(last, run, loads)
    imbalance = loads.imbalance[np.isfinite(loads.imbalance)]
    alt = (
        f"Loads of {len(loads.slots)} slots over {len(loads.rounds)} rounds. The slowest member"
        f" took {imbalance[0]:.2f} times the mean in the first round, {imbalance[-1]:.2f} times in"
        f" the last, {np.median(imbalance):.2f} times in the median."
    )
    return Picture(
        "loads", figure, "Load balance of the members", alt,
        "One lane per slot: grey is the round's mean, orange more, blue less. Dots above: chunks"
        " changed owners before the round. Below: the slowest member's time divided by the mean;"
        " 1 is balanced.",
    )  # fmt: skip


def colours_of(values: Floats) -> NDArray[np.float64]:
    """Return RGBA colours (n, m, 4) of relative loads (n, m): blue < 1, grey at 1, orange > 1."""
    away = np.clip((np.nan_to_num(values, nan=1.0) - 1.0) / _FULL, -1.0, 1.0)[..., None]
    mean, more, less = (
        np.array([*to_rgb(colour), opacity])
        for colour, opacity in (_MEAN, (COLOURS["orange"], 1.0), (COLOURS["blue"], 1.0))
    )
    image = mean + np.where(away > 0, away * (more - mean), -away * (less - mean))
    image[..., 3] = np.where(np.isnan(values), 0.0, image[..., 3])
    return np.asarray(np.clip(image, 0.0, 1.0))


def draw_lanes(ax: Axes, loads: Loads, values: Floats, title: str) -> None:
    """Draw one lane per slot, shaded by relative values (n_slots, n_rounds)."""
    rounds = loads.rounds
    # Rounds without measurements, such as idle ones, are left blank.
    every = np.arange(rounds[0], rounds[-1] + 1)
    whole = np.full((len(loads.slots), len(every)), math.nan)
    whole[:, (rounds - rounds[0]).astype(int)] = values
    image = np.repeat(colours_of(whole), 6, axis=0)
    image[5::6, :, 3] = 0.0
    ax.imshow(
        image, aspect="auto", interpolation="nearest", origin="lower",
        extent=(every[0] - 0.5, every[-1] + 0.5, -0.42, len(loads.slots) - 0.42),
    )  # fmt: skip
    n = len(loads.slots)
    ax.set_ylim(n - 0.4, -0.6)
    ax.grid(visible=False)
    step = max(1, math.ceil(n / 16))
    names = [str(slot) for slot in loads.slots[::step]]
    ax.set_yticks(range(0, n, step), [f"slot {names[0]}", *names[1:]])
    whole_ticks(ax)
    ax.set_title(title, pad=10)


def draw_moves(ax: Axes, loads: Loads) -> None:
    """Draw a dot above each round before which chunks changed owners."""
    at = loads.rounds[loads.moved > 0]
    ax.plot(
        at, np.full(len(at), 1.0), transform=ax.get_xaxis_transform(), linestyle="none",
        marker="o", markersize=2.6, color=COLOURS["orange"], clip_on=False,
    )  # fmt: skip


def draw_scale(figure: Figure, beside: Axes) -> None:
    """Draw the colour scale at the right of a panel."""
    box = beside.get_position()
    ax = figure.add_axes((box.x1 + 0.012, box.y0, 0.012, box.height))
    steps = np.linspace(1 - _FULL, 1 + _FULL, 41)
    ax.imshow(
        colours_of(steps[:, None]), aspect="auto", origin="lower",
        extent=(0, 1, 1 - _FULL, 1 + _FULL),
    )  # fmt: skip
    ax.set_xticks([])
    ax.set_yticks([1 - _FULL, 1.0, 1 + _FULL], [f"≤{1 - _FULL:g}×", "1×", f"≥{1 + _FULL:g}×"])
    ax.yaxis.tick_right()
    ax.grid(visible=False)


def _draw_imbalance(ax: Axes, run: RunData, loads: Loads) -> None:
    ax.axhline(1.0, color=MUTED, linewidth=0.8)
    ax.plot(loads.rounds, loads.imbalance, color=COLOURS["blue"])
    ax.set_xlim(loads.rounds[0] - 0.5, loads.rounds[-1] + 0.5)
    high = float(np.nanmax(loads.imbalance))
    ax.set_ylim(0.97, max(1.2, 1.05 * high))
    ax.set_title("Slowest member ÷ mean")
    ax.set_xlabel("round")
    whole_ticks(ax)
    shade(ax, run, None)
