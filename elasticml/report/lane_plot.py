"""The swim-lane plot: an overview of the whole run, and close-ups around losses and returns."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.ticker import MaxNLocator

from elasticml.report.lanes import KINDS, Kind, Lanes, make_lanes, occupancy
from elasticml.report.run_reader import RunData
from elasticml.report.series import Clock, clock, membership_marks
from elasticml.report.style import COLOURS, MUTED, Picture, new_figure

#: Colour of each kind; "gone" is drawn as a thin line, the others as blocks.
KIND_COLOURS: dict[Kind, str] = {
    "compute": COLOURS["blue"],
    "wait": COLOURS["wait"],
    "load": COLOURS["sky"],
    "move": COLOURS["orange"],
    "gone": COLOURS["red"],
}
#: Colour and opacity in the overview, an image that cannot follow the page's colour scheme: a
#: translucent grey for light and dark pages.
_SHARE_COLOURS: dict[Kind, tuple[str, float]] = {"wait": ("#7d8894", 0.42)}
#: What a member does, in words.
KIND_WORDS: dict[Kind, str] = {
    "compute": "computing",
    "wait": "waiting",
    "load": "loading",
    "move": "moving chunks",
    "gone": "gone",
}
#: Rounds shown before and after the event of a close-up.
_CLOSE_ROUNDS = (2, 4)
#: Runs of at most this many rounds are drawn as blocks, without an overview.
_SHORT_ROUNDS = 12
#: Time bins of the overview.
_BINS = 360
_LEFT, _WIDTH = 0.065, 0.915


def lanes_picture(run: RunData) -> Picture | None:
    """Draw the activity of every member; None if the story names no member."""
    lanes = make_lanes(run.records)
    if not lanes.slots or lanes.end_s <= lanes.start_s:
        return None
    times = clock(run)
    long = len(times.rounds) > _SHORT_ROUNDS
    close = close_ups(run, lanes, times) if long else []
    height = min(0.19 * len(lanes.slots), 5.0) + 0.25
    tall = height * (2 if close else 1) + 1.30 + (1.0 if close else 0)
    figure = new_figure(9.6, tall)
    top = figure.add_axes((_LEFT, 1 - (0.80 + height) / tall, _WIDTH, height / tall))
    if long:
        _draw_shares(top, lanes)
    else:
        _draw_blocks(top, lanes, lanes.start_s, lanes.end_s)
    _frame(top, lanes, lanes.start_s, lanes.end_s, "The whole run")
    _round_axis(top, times, named=True)
    _draw_key(top, [kind for kind in KIND_COLOURS if _any(lanes, kind)])
    for i, (title, start, end) in enumerate(close):
        width = _WIDTH if len(close) == 1 else 0.425
        ax = figure.add_axes((_LEFT + 0.49 * i, 0.50 / tall, width, height / tall))
        _draw_blocks(ax, lanes, start, end)
        _frame(ax, lanes, start, end, title)
        ax.tick_params(labelleft=i == 0)
        _round_axis(ax, times, named=i == 0)
    busy = occupancy(lanes, np.array([lanes.start_s, lanes.end_s]))[:, 0, :].mean(axis=0)
    shares = ", ".join(
        f"{_percent(busy[KINDS.index(kind)])} {words}"
        for kind, words in KIND_WORDS.items()
        if _any(lanes, kind)
    )
    return Picture(
        "lanes",
        figure,
        "What every member did",
        f"One lane for each of {len(lanes.slots)} slots over {lanes.end_s:.3g} s: {shares}.",
        f"One lane per slot; × a loss, ▾ the notice before it{_marks_legend(lanes)}."
        f" Of all members' time: {shares}."
        + (" In the overview a deeper blue means a larger share of computing." if long else ""),
    )


def _marks_legend(lanes: Lanes) -> str:
    """Explain the symbol of containers marked for preemption, if there is one."""
    return (
        ", ◆ its container asked for back" if any(m.kind == "marked" for m in lanes.marks) else ""
    )


def _percent(share: float) -> str:
    """Format a positive share."""
    return "under 1 %" if share < 0.005 else f"{100 * share:.0f} %"


def _any(lanes: Lanes, kind: Kind) -> bool:
    """Whether any lane has an interval of this kind."""
    return any(v.kind == kind for lane in lanes.intervals.values() for v in lane)


def close_ups(run: RunData, lanes: Lanes, times: Clock) -> list[tuple[str, float, float]]:
    """Choose the close-ups: the first loss and the first return, or else the middle of the run.

    Returns
    -------
    list of (title, start, end), in seconds
    """
    marks = membership_marks(run.records)
    chosen: list[tuple[str, float]] = []
    for kind, words in (("lost", "loss"), ("back", "return")):
        first = next((mark for mark in marks if mark.kind == kind), None)
        if first is not None:
            chosen.append((f"Around the {words} in round {first.round:.0f}", first.round))
    if not chosen:
        middle = float(times.rounds[len(times.rounds) // 2])
        chosen.append((f"Rounds {middle - 3:.0f} to {middle + 5:.0f}", middle))
    before, after = _CLOSE_ROUNDS
    close_ups = []
    for title, number in chosen:
        start = max(times.at(number - before), lanes.start_s)
        end = min(times.at(number + after), lanes.end_s)
        if math.isfinite(start) and end > start:
            close_ups.append((title, start, end))
    return close_ups


def _draw_shares(ax: Axes, lanes: Lanes) -> None:
    """Draw the overview: each bin has the mixed colour of the member's activities in it."""
    edges = np.linspace(lanes.start_s, lanes.end_s, _BINS + 1)
    colours = np.array([to_rgba(_SHARE_COLOURS.get(kind, KIND_COLOURS[kind])) for kind in KINDS])
    colours[KINDS.index("gone"), 3] = 0.0
    # (slots, bins, kinds) * (kinds,) @ (kinds, 3): colours are weighted by opacity.
    weights = occupancy(lanes, edges) * colours[:, 3]
    opacity = weights.sum(axis=2, keepdims=True)
    rgb = weights @ colours[:, :3] / np.maximum(opacity, 1e-12)
    image = np.concatenate([rgb, opacity], axis=2)
    # Every lane takes six rows of the image; the last one is the gap to the next lane.
    rows = np.repeat(image, 6, axis=0)
    rows[5::6, :, 3] = 0.0
    ax.imshow(
        np.clip(rows, 0.0, 1.0), aspect="auto", interpolation="nearest", origin="lower",
        extent=(lanes.start_s, lanes.end_s, -0.42, len(lanes.slots) - 0.42),
    )  # fmt: skip
    _draw_gone(ax, lanes, lanes.start_s, lanes.end_s)


def _draw_blocks(ax: Axes, lanes: Lanes, start: float, end: float) -> None:
    """Draw every interval between two times as a block."""
    blocks: dict[Kind, list[list[tuple[float, float]]]] = {kind: [] for kind in KIND_COLOURS}
    for i, slot in enumerate(lanes.slots):
        for v in lanes.intervals[slot]:
            low, high = max(v.start_s, start), min(v.end_s, end)
            if high > low:
                corners = [(low, i - 0.4), (low, i + 0.4), (high, i + 0.4), (high, i - 0.4)]
                blocks[v.kind].append(corners)
    for kind, shapes in blocks.items():
        if kind != "gone" and shapes:
            ax.add_collection(
                PolyCollection(shapes, facecolors=KIND_COLOURS[kind], edgecolors="none")
            )
    _draw_gone(ax, lanes, start, end)


def _draw_gone(ax: Axes, lanes: Lanes, start: float, end: float) -> None:
    """Draw a thin line while a slot has no member, and symbols for losses, notices and marks."""
    for i, slot in enumerate(lanes.slots):
        for v in lanes.intervals[slot]:
            if v.kind == "gone" and v.end_s > start and v.start_s < end:
                ax.plot(
                    [max(v.start_s, start), min(v.end_s, end)], [i, i],
                    color=KIND_COLOURS["gone"], linewidth=1.0, solid_capstyle="butt",
                )  # fmt: skip
    places = {slot: i for i, slot in enumerate(lanes.slots)}
    for kind, shape, colour in (
        ("marked", "D", COLOURS["orange"]),
        ("noticed", "v", COLOURS["ink"]),
        ("lost", "x", COLOURS["red"]),
    ):
        at = [
            (mark.at_s, places[mark.slot])
            for mark in lanes.marks
            if mark.kind == kind and start <= mark.at_s <= end and mark.slot in places
        ]
        if at and len(lanes.slots) <= 64:
            ax.plot(
                [x for x, _ in at], [y for _, y in at], linestyle="none", marker=shape,
                markersize=4.5, markeredgewidth=1.4 if shape == "x" else 0, color=colour, zorder=5,
            )  # fmt: skip


def _frame(ax: Axes, lanes: Lanes, start: float, end: float, title: str) -> None:
    """Set bounds, ticks and title of a panel of lanes; slot 0 is at the top."""
    n = len(lanes.slots)
    ax.set_xlim(start, end)
    ax.set_ylim(n - 0.4, -0.6)
    ax.grid(visible=False)
    step = max(1, math.ceil(n / 24))
    names = [str(slot) for slot in lanes.slots[::step]]
    ax.set_yticks(range(0, n, step), [f"slot {names[0]}", *names[1:]])
    ax.xaxis.set_major_locator(MaxNLocator(7))
    ax.set_xlabel("seconds since the job started")
    ax.set_title(title, pad=22)


def _round_axis(ax: Axes, times: Clock, *, named: bool) -> None:
    """Write round numbers along the top edge, at the start of each round."""
    low, high = ax.get_xlim()
    inside = times.rounds[(times.seconds >= low) & (times.seconds <= high)]
    if not len(inside):
        return
    locator = MaxNLocator(7, integer=True)
    numbers = [
        r for r in locator.tick_values(float(inside[0]), float(inside[-1]))
        if inside[0] <= r <= inside[-1]
    ]  # fmt: skip
    if named:
        ax.annotate(
            "round", (0, 1), xycoords="axes fraction", xytext=(-14, 4), textcoords="offset points",
            ha="right", color=MUTED, fontsize=8,
        )  # fmt: skip
    taken = -math.inf
    # Room for a number of three digits, relative to the width of the axes.
    room = 0.036 / ax.get_position().width
    for number in numbers:
        x = times.at(number)
        if (x - taken) / (high - low) < room:
            continue
        taken = x
        ax.annotate(
            f"{number:.0f}", (x, 1),
            xycoords=("data", "axes fraction"), xytext=(0, 4), textcoords="offset points",
            ha="center", va="bottom", color=MUTED, fontsize=8,
        )  # fmt: skip
        ax.plot(
            [x, x], [1, 1.02], transform=ax.get_xaxis_transform(), color=MUTED, linewidth=0.8,
            clip_on=False,
        )  # fmt: skip


def _draw_key(ax: Axes, kinds: list[Kind]) -> None:
    """Draw the colour legend at the upper right."""
    x = 1.0
    for kind in reversed(kinds):
        words = KIND_WORDS[kind]
        x -= 0.0098 * len(words) + 0.042
        ax.annotate(
            "━" if kind == "gone" else "■", (x, 1), xycoords="axes fraction", xytext=(0, 24),
            textcoords="offset points", color=KIND_COLOURS[kind], fontsize=12, va="center",
        )  # fmt: skip
        ax.annotate(
            words, (x, 1), xycoords="axes fraction", xytext=(15, 24), textcoords="offset points",
            color=MUTED, fontsize=9, va="center",
        )  # fmt: skip
