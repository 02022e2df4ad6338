"""A job as HTML for notebooks: state, key figures, curves, members, last events; all escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from elasticml.report.live import COLUMNS, STATE_WORDS, Card, LiveJob, Slot, State
from elasticml.report.markup import esc, figure, number, style_sheet
from elasticml.report.plots import (
    gap_picture,
    members_picture,
    metric_picture,
    objective_picture,
    objective_zoom,
    validation_picture,
)
from elasticml.report.run_reader import RunData, history_of_rows
from elasticml.report.series import headline_metric, metric_name, metric_series
from elasticml.report.style import styled
from elasticml.report.timeline import seconds_text
from elasticml.story.records import UnknownRecord

#: Events shown, newest first.
_EVENTS = 8
_COLOURS: dict[State, str] = {
    "active": "blue",
    "loading": "sky",
    "leaving": "orange",
    "lost": "red",
    "retired": "wait",
}


def panel_html(
    live: LiveJob, now_s: float, evaluated: Sequence[Mapping[str, Any]] | None = None
) -> str:
    """Return the panel of a job.

    Parameters
    ----------
    live : LiveJob
    now_s : float
        Seconds since the job started.
    evaluated : sequence of mapping, optional
        The rows of the history with the columns of the evaluator; by default without these.
    """
    status = live.status
    run = run_data(live, now_s, evaluated)
    css = files("elasticml.report").joinpath("panel.css").read_text(encoding="utf-8")
    state = f'<span class="small">{esc(status.state)}</span>'
    trouble = ' class="warn"' if status.state == "failed" else ' class="small"'
    note = f"<div{trouble}>{esc(live.note())}</div>" if live.note() else ""
    cards = "".join(
        f"<span><span class='small' style='margin:0'>{esc(c.label)}</span> "
        f"<b>{esc(c.shown(now_s))}</b></span>"
        for c in (*live.cards(), *_metric_cards(live, run))
    )
    return (
        f'<div class="elasticml"><style>{style_sheet(".elasticml")}{css}</style>\n'
        f"<div><b>{esc(status.name or live.job)}</b> {state}</div>"
        f'<div class="small">{esc(live.lead())}</div>{note}'
        f'<div class="cards">{cards}</div>{_members(live, now_s)}{_pictures(run)}'
        f"{_events(live)}</div>"
    )


def run_data(
    live: LiveJob, now_s: float, evaluated: Sequence[Mapping[str, Any]] | None = None
) -> RunData:
    """Return the figures in the form that the report draws."""
    metric = live.metric_label.lower().replace(" ", "_") if live.metric else "metric"
    names = {"absent": "absent_examples", "metric": metric, "gap_is_bound": "gap_is_bound"}
    rows = [] if evaluated is None else list(evaluated)
    for point in live.points if evaluated is None else ():
        values = {names.get(name, name): v for name, v in zip(COLUMNS, point, strict=True)}
        values["objective_kind"] = "exact" if values.pop("is_exact") else "estimated"
        values["gap_is_bound"] = bool(values["gap_is_bound"])
        rows.append(values)
    return RunData(
        path=Path(),
        name=live.status.name or live.job,
        # A curve of members ends with the last record.
        records=(*live.kept, UnknownRecord(t=now_s)),
        history=history_of_rows(rows),
        job=live.record,
    )


def _metric_cards(live: LiveJob, run: RunData) -> list[Card]:
    """Return the test metric of the evaluator, which the story does not have."""
    metric = headline_metric(run.history)
    if metric is None or (live.metric and live.metric_label.startswith("test ")):
        return []
    _, values = metric_series(run, metric[0])
    return [Card(label=f"test {metric_name(metric[0])}", value=number(float(values[-1]), 4))]


def _pictures(run: RunData) -> str:
    if run.history.n_rows < 2:
        return ""
    quality = [gap_picture] if run.history.has("gap") else [objective_picture, objective_zoom]
    drawn = (*quality, validation_picture, metric_picture, members_picture)
    pictures = [styled(draw, run) for draw in drawn]
    return "".join(figure(picture) for picture in pictures if picture is not None)


def _members(live: LiveJob, now_s: float) -> str:
    slots = sorted(live.slots.values(), key=lambda slot: slot.slot)
    dots = "".join(
        f'<i style="background:var(--{_COLOURS[slot.state]})"'
        f' title="{esc(_title(slot, now_s))}"></i>'
        for slot in slots
    )
    words = ", ".join(f"{n} {STATE_WORDS[state]}" for state, n in live.counts().items() if n)
    return f'<div class="dots">{dots} <span class="small">{esc(words)}</span></div>'


def _title(slot: Slot, now_s: float) -> str:
    left = "" if slot.deadline_s is None else f", {seconds_text(max(0.0, slot.deadline_s - now_s))}"
    why = f" ({slot.reason})" if slot.reason else ""
    return f"slot {slot.slot} on {slot.host}: {STATE_WORDS[slot.state]}{why}{left}"


def _events(live: LiveJob) -> str:
    lines = "".join(
        f"<div><span class='small'>{event.at_s:,.2f} s</span> {esc(event.text)}</div>"
        for event in reversed(live.events[-_EVENTS:])
    )
    return f'<div class="small">{lines}</div>' if lines else ""
