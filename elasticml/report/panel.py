"""A job as HTML for notebooks: state, key figures, curves, members, last events; all escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from elasticml.report.live import COLUMNS, STATE_WORDS, Card, LiveJob, Slot, State
from elasticml.report.markup import number, render
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
from elasticml.report.style import Picture, styled
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
) -> Markup:
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
    slots = sorted(live.slots.values(), key=lambda slot: slot.slot)
    return render(
        "panel.html",
        live=live,
        status=status,
        css=Markup(css),
        cards=(*live.cards(), *_metric_cards(live, run)),
        now_s=now_s,
        dots=[(_COLOURS[slot.state], _title(slot, now_s)) for slot in slots],
        counts=", ".join(f"{n} {STATE_WORDS[state]}" for state, n in live.counts().items() if n),
        pictures=_pictures(run),
        events=live.events[: -_EVENTS - 1 : -1],
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


def _pictures(run: RunData) -> list[Picture]:
    if run.history.n_rows < 2:
        return []
    quality = [gap_picture] if run.history.has("gap") else [objective_picture, objective_zoom]
    drawn = (*quality, validation_picture, metric_picture, members_picture)
    pictures = [styled(draw, run) for draw in drawn]
    return [picture for picture in pictures if picture is not None]


def _title(slot: Slot, now_s: float) -> str:
    left = "" if slot.deadline_s is None else f", {seconds_text(max(0.0, slot.deadline_s - now_s))}"
    why = f" ({slot.reason})" if slot.reason else ""
    return f"slot {slot.slot} on {slot.host}: {STATE_WORDS[slot.state]}{why}{left}"
