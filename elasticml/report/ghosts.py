"""What a run would have come to under other rules, laid over what it has come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from elasticml.report.compare_plot import gap_comparison
from elasticml.report.markup import esc, figure, number, table_html
from elasticml.report.overlay_plot import GHOSTS, overlay_picture, time_picture
from elasticml.report.run import RunData, finite, read_run
from elasticml.report.series import full_objective, last_round
from elasticml.report.style import Picture, png_bytes, styled, write_whole
from elasticml.report.words import seconds_text

#: The rule under which nobody goes: what rounds are worth is measured by it.
NO_FAILURE = "no-failure"
#: The run's own name in pictures and tables.
OWN = "this run"

_PICTURES: tuple[
    tuple[str, Callable[..., Picture | None], str, str], ...
] = (
    ("what-if", overlay_picture, "Under other rules, by round",
     "The same job, data and losses, simulated with the real solvers under each rule."),
    ("what-if-time", time_picture, "Under other rules, by time",
     "Seconds of the simulated runs are a model's, at the pace measured in this run."),
    ("what-if-gap", gap_comparison, "Certified gap under other rules",
     "How far each objective is above the least possible one, at most."),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GhostRow:
    """What one rule comes to."""

    name: str
    #: Over all examples, after the last round; NaN where it is not known.
    objective: float
    gap: float
    rounds: float
    #: Rounds that the losses have cost: so many fewer do as well when nobody goes.
    rounds_lost: float
    seconds: float
    stand_in_rounds: float


def ghosts_section(
    run: RunData, ghosts: Mapping[str, str | Path], page: Path, notes: Sequence[str] = ()
) -> str:
    """Write the pictures, also beside the page, and the table; return the page's section.

    Parameters
    ----------
    run : RunData
    ghosts : mapping
        Rule -> directory of the simulated run.
    page : path
    notes : sequence of str
    """
    runs = [run, *(read_run(path) for path in ghosts.values())]
    own = str(run.spec.get("absent") or "")
    names = [f"{OWN} ({own})" if own else OWN, *ghosts]
    parts = []
    for name, draw, title, caption in _PICTURES:
        drawn: Picture | None = styled(draw, runs, names, GHOSTS)
        if drawn is None:
            continue
        picture = replace(drawn, name=name, title=title, caption=f"{caption} {drawn.caption}")
        write_whole(page.with_name(f"{name}.png"), png_bytes(picture.figure))
        parts.append(figure(picture))
    said = "".join(f'<p class="small">{esc(note)}.</p>' for note in notes)
    table = _table(ghost_rows(runs, names))
    return "\n".join([*parts, f"<section><h2>What each rule comes to</h2>{table}{said}</section>"])


def ghost_rows(runs: Sequence[RunData], names: Sequence[str]) -> tuple[GhostRow, ...]:
    """Return what each of the runs comes to; rounds lost where nobody goes in one of them."""
    undisturbed = next((run for run, n in zip(runs, names, strict=True) if n == NO_FAILURE), None)
    return tuple(_row(run, name, undisturbed) for run, name in zip(runs, names, strict=True))


def _row(run: RunData, name: str, undisturbed: RunData | None) -> GhostRow:
    summary = run.summary
    _, values = full_objective(run.history)
    known = finite(summary.get("objective"), float(values[-1]) if len(values) else math.nan)
    rounds = finite(summary.get("rounds"), last_round(run))
    gaps = run.history.column("gap")
    gaps = gaps[np.isfinite(gaps)]
    return GhostRow(
        name=name,
        objective=known,
        gap=finite(summary.get("gap"), float(gaps[-1]) if len(gaps) else math.nan),
        rounds=rounds,
        rounds_lost=_lost(known, rounds, undisturbed),
        seconds=finite(summary.get("seconds")),
        stand_in_rounds=finite(summary.get("stand_in_rounds")),
    )


def _lost(objective: float, rounds: float, undisturbed: RunData | None) -> float:
    """Count the rounds by which the undisturbed run is earlier at an objective.

    0 where it is not earlier; NaN where nothing is known of it.
    """
    if undisturbed is None or not math.isfinite(objective):
        return math.nan
    at, values = full_objective(undisturbed.history)
    # What is as good up to rounding counts as reached.
    reached = at[values <= objective + 1e-9 * abs(objective)]
    return max(0.0, rounds - float(reached[0])) if len(reached) else 0.0


def _table(rows: Sequence[GhostRow]) -> str:
    head = ["rule", "objective at the end", "gap", "rounds", "rounds lost", "time",
            "stand-in rounds"]  # fmt: skip
    cells = [
        [
            row.name,
            number(row.objective, 9),
            number(row.gap, 3),
            number(row.rounds),
            number(row.rounds_lost),
            seconds_text(row.seconds),
            number(row.stand_in_rounds),
        ]
        for row in rows
    ]
    below = (
        '<p class="small">Rounds lost: how many rounds earlier the run without failures has the '
        "same objective over all examples.</p>"
    )
    return table_html(head, cells) + below
