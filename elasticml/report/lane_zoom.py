"""The swim-lanes as data that the page's script draws at any zoom."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np

from elasticml.report.lane_plot import KIND_COLOURS, KIND_WORDS, close_ups
from elasticml.report.lanes import KINDS, Lanes, make_lanes, occupancy
from elasticml.report.markup import esc
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


def lanes_zoom(run: RunData, plot: str) -> str:
    """Return lanes to zoom with their script, and the plot for browsers without scripts.

    Parameters
    ----------
    plot : str
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
    jumps = "".join(
        f'<button type="button" data-from="{start}" data-to="{end}">{esc(title)}</button>'
        for title, start, end in (close_ups(run, lanes, times) if len(times.rounds) else ())
    )
    key = "".join(
        f'<span><i style="background:var(--{names[KIND_COLOURS[kind]]})"></i>{KIND_WORDS[kind]}'
        "</span>"
        for kind in KINDS
        if any(v.kind == kind for lane in lanes.intervals.values() for v in lane)
    )
    buttons = "".join(
        f'<button type="button" data-key="{key}" title="{words}" aria-label="{words}">{sign}'
        "</button>"
        for key, sign, words in _BUTTONS
    )
    script = files("elasticml.report").joinpath("lanes.js").read_text(encoding="utf-8")
    label = "Swim-lanes: drag to move, use the buttons, pinch, or Ctrl and the wheel to zoom"
    return (
        f'<div id="lanes-zoom" hidden><div class="buttons">{buttons}{jumps}</div>'
        f'<canvas tabindex="0" role="img" aria-label="{label}"></canvas><p class="key">{key}</p>'
        f'<p class="small"><output>{label}. Point at a lane to see what its member did.</output>'
        f'</p></div><details id="lanes-plot" open><summary>As a plot</summary>{plot}</details>'
        f'<script type="application/json" id="lanes-data">{_json(data)}</script>'
        f"<script>{script}</script>"
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
