"""What-if section of a run's page: the run compared with simulations under other absence rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from markupsafe import Markup

from elasticml.report.markup import number, render
from elasticml.report.overlay_plot import (
    WHAT_IF_LINES,
    gap_comparison,
    overlay_picture,
    time_picture,
)
from elasticml.report.run_reader import RunData, read_run
from elasticml.report.series import full_objective, last_round
from elasticml.report.style import Picture, png_bytes, styled, write_whole
from elasticml.report.timeline import seconds_text

#: The rule without losses, the baseline for the number of rounds lost.
NO_FAILURE = "no-failure"
#: The name of the real run in plots and tables.
OWN = "this run"

_PICTURES: tuple[
    tuple[str, Callable[..., Picture | None], str, str], ...
] = (
    ("what-if", overlay_picture, "Under other rules, by round",
     "The same job, data and losses, simulated with the real solvers under each rule."),
    ("what-if-time", time_picture, "Under other rules, by time",
     "Times of the simulated runs come from a model with the speeds measured in this run."),
    ("what-if-gap", gap_comparison, "Certified gap under other rules",
     "An upper bound of the distance of each objective from the optimum."),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRow:
    """The result under one rule."""

    name: str
    #: Over all examples, after the last round; NaN if unknown.
    objective: float
    gap: float
    rounds: float
    #: Rounds by which a run without losses reaches the same objective earlier.
    rounds_lost: float
    seconds: float
    stand_in_rounds: float


def what_if_section(
    run: RunData, simulated: Mapping[str, str | Path], page: Path, notes: Sequence[str] = ()
) -> Markup:
    """Return the section with plots and table, and write the plots beside the page.

    Parameters
    ----------
    run : RunData
    simulated : mapping
        Rule -> directory of the simulated run.
    page : path
    notes : sequence of str
        Printed below the table.
    """
    runs = [run, *(read_run(path) for path in simulated.values())]
    own = run.job.absent if run.job is not None else None
    names = [f"{OWN} ({own})" if own else OWN, *simulated]
    pictures = []
    for name, draw, title, caption in _PICTURES:
        drawn: Picture | None = styled(draw, runs, names, WHAT_IF_LINES)
        if drawn is None:
            continue
        picture = replace(drawn, name=name, title=title, caption=f"{caption} {drawn.caption}")
        write_whole(page.with_name(f"{name}.png"), png_bytes(picture.figure))
        pictures.append(picture)
    return render(
        "what_if.html",
        pictures=pictures,
        head=_HEAD,
        rows=[_cells(row) for row in what_if_rows(runs, names)],
        notes=notes,
    )


def what_if_rows(runs: Sequence[RunData], names: Sequence[str]) -> tuple[WhatIfRow, ...]:
    """Return the results of the runs; rounds lost are NaN without a run named ``NO_FAILURE``."""
    undisturbed = next((run for run, n in zip(runs, names, strict=True) if n == NO_FAILURE), None)
    return tuple(_row(run, name, undisturbed) for run, name in zip(runs, names, strict=True))


def _row(run: RunData, name: str, undisturbed: RunData | None) -> WhatIfRow:
    summary = run.summary
    _, values = full_objective(run.history)
    objective = summary.objective
    if objective is None:
        objective = float(values[-1]) if len(values) else math.nan
    rounds = last_round(run) if summary.rounds is None else float(summary.rounds)
    gaps = run.history.column("gap")
    gaps = gaps[np.isfinite(gaps)]
    return WhatIfRow(
        name=name,
        objective=objective,
        gap=(float(gaps[-1]) if len(gaps) else math.nan) if summary.gap is None else summary.gap,
        rounds=rounds,
        rounds_lost=_rounds_lost(objective, rounds, undisturbed),
        seconds=_number(summary.seconds),
        stand_in_rounds=_number(summary.stand_in_rounds),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _rounds_lost(objective: float, rounds: float, undisturbed: RunData | None) -> float:
    """Return the number of rounds by which the undisturbed run reaches an objective earlier.

    0 if it is not earlier; NaN if either is unknown.
    """
    if undisturbed is None or not math.isfinite(objective):
        return math.nan
    at, values = full_objective(undisturbed.history)
    # Tolerate rounding errors.
    reached = at[values <= objective + 1e-9 * abs(objective)]
    return max(0.0, rounds - float(reached[0])) if len(reached) else 0.0


_HEAD = ("rule", "objective at the end", "gap", "rounds", "rounds lost", "time",
         "stand-in rounds")  # fmt: skip


def _cells(row: WhatIfRow) -> list[str]:
    return [
        row.name,
        number(row.objective, 9),
        number(row.gap, 3),
        number(row.rounds),
        number(row.rounds_lost),
        seconds_text(row.seconds),
        number(row.stand_in_rounds),
    ]
