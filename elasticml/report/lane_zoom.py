"""The swim-lanes as data that the page's script draws at any zoom."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
from markupsafe import Markup

from elasticml.report.lane_plot import KIND_COLOURS, KIND_WORDS, close_ups
from elasticml.report.lanes import KINDS, Lanes, make_lanes, occupancy
from elasticml.report.markup import render
from elasticml.report.run_reader import RunData
from elasticml.report.series import clock
from elasticml.report.style import COLOURS

#: Most intervals in a page; with more, time is divided into bins.
INTERVALS_MAX = 40_000
#: Sign and colour of each kind of mark, as in the plot.
_SIGNS = {"marked": ("◆", "orange"), "noticed": ("▾", "ink"), "lost": ("×", "red")}
_BUTTONS = (
    ("+", "+", "closer"), ("-", "−", "farther"), ("ArrowLeft", "◀", "earlier"),
    ("ArrowRight", "▶", "later"), ("0", "whole run", "the whole run"),
)  # fmt: skip


def lanes_zoom(run: RunData, plot: Markup) -> Markup:
    """Return lanes to zoom with their script, and the plot for browsers without scripts.

    Parameters
    ----------
    plot : Markup
        The markup of the plot of the lanes. It is folded where the script runs.
    """
    lanes = make_lanes(run.records)
    times = clock(run)
    names = {code: name for name, code in COLOURS.items()}
    rows = {slot: i for i, slot in enumerate(lanes.slots)}
    is_known = np.isfinite(times.seconds)
    data = {
        "end": lanes.end_s,
        "slots": lanes.slots,
        "kinds": [
            {"name": kind, "colour": names[KIND_COLOURS[kind]], "words": KIND_WORDS[kind]}
            for kind in KINDS
        ],
        "lanes": _lane_numbers(lanes),
        "marks": [
            [rows[mark.slot], round(mark.at_s, 4), *_SIGNS[mark.kind]]
            for mark in lanes.marks
            if mark.kind in _SIGNS and mark.slot in rows
        ],
        "rounds": times.rounds[is_known].tolist(),
        "seconds": times.seconds[is_known].round(4).tolist(),
    }
    return render(
        "lanes.html",
        buttons=_BUTTONS,
        jumps=close_ups(run, lanes, times) if len(times.rounds) else (),
        key=[
            (names[KIND_COLOURS[kind]], KIND_WORDS[kind])
            for kind in KINDS
            if any(v.kind == kind for lane in lanes.intervals.values() for v in lane)
        ],
        label="Swim-lanes: drag to move, use the buttons, pinch, or Ctrl and the wheel to zoom",
        plot=plot,
        data=_json(data),
        script=files("elasticml.report").joinpath("lanes.js").read_text(encoding="utf-8"),
    )


def _json(data: object) -> str:
    """Return JSON that cannot end the element it is in."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _lane_numbers(lanes: Lanes) -> list[list[float]]:
    """Return each lane as start, end and kind of its intervals, one after the other."""
    if sum(map(len, lanes.intervals.values())) <= INTERVALS_MAX:
        return [
            [
                number
                for v in lanes.intervals[slot]
                for number in (round(v.start_s, 4), round(v.end_s, 4), KINDS.index(v.kind))
            ]
            for slot in lanes.slots
        ]
    edges = np.linspace(lanes.start_s, lanes.end_s, max(2, INTERVALS_MAX // len(lanes.slots)) + 1)
    shares = occupancy(lanes, edges)
    numbers: list[list[float]] = []
    for own in shares:
        # own: (bins, kinds) -> the kind that takes most of each bin; -1 where there is none
        kinds = np.where(own.max(axis=1) > 0, own.argmax(axis=1), -1)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(kinds)) + 1])
        ends = np.concatenate([starts[1:], [len(kinds)]])
        numbers.append(
            [
                number
                for a, b in zip(starts, ends, strict=True)
                if kinds[a] >= 0
                for number in (round(edges[a], 4), round(edges[b], 4), int(kinds[a]))
            ]
        )
    return numbers
