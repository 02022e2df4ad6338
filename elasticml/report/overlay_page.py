"""Comparison of several runs: a plot, a table, an HTML page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from elasticml.errors import ConfigError
from elasticml.ids import format_size
from elasticml.report.markup import PlainTable, number, render
from elasticml.report.overlay_plot import (
    gap_comparison,
    overlay_picture,
    time_picture,
)
from elasticml.report.run_reader import RunData, read_run
from elasticml.report.series import (
    common_metric,
    full_objective,
    last_round,
    metric_name,
    metric_series,
    united_windows,
)
from elasticml.report.style import Picture, png_bytes, styled, svg_markup, write_whole
from elasticml.report.timeline import seconds_text

#: The rounds of the resource-elastic paper's comparison: before, during and after the absence.
PAPER_ROUNDS = (100, 150, 199, 250, 300)

#: A value may be taken from a row up to this many rounds earlier; the table then names the round.
_EARLIER_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One value of the table."""

    value: float | None
    #: Round of the row from which it was taken.
    round: int
    #: False if only the driver's estimate is known.
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayRow:
    """One run's row of the table; the cells are in the order of ``rounds``."""

    label: str
    rounds: tuple[int, ...]
    #: Mean loss plus penalty over all examples.
    objective: tuple[Cell, ...]
    #: The headline test metric, AUPRC where the runs have it.
    test: tuple[Cell, ...]
    #: Column of the history shown in ``test``; empty if no run was evaluated.
    metric: str


def choose_rounds(runs: Sequence[RunData]) -> tuple[int, ...]:
    """Choose rounds for comparing runs."""
    last = max((int(last_round(run)) for run in runs), default=0)
    if last >= PAPER_ROUNDS[-1]:
        return PAPER_ROUNDS
    chosen = {last // 4, last // 2, 3 * last // 4, last}
    for start, end in united_windows(runs)[:2]:
        chosen |= {int(start), int(end) - 1}
    return tuple(sorted(number for number in chosen if 0 <= number <= last))


def text_table(rows: Sequence[OverlayRow]) -> str:
    """Return the table as fixed-width text, objective first, then the test metric."""
    if not rows:
        return ""
    width = max(len("over all examples"), *(len(row.label) for row in rows))
    blocks = []
    for title, cells in _blocks(rows):
        lines = [[f"{r}" for r in rows[0].rounds]]
        lines += [
            [_cell_text(c, r) for c, r in zip(own, rows[0].rounds, strict=True)] for own in cells
        ]
        wide = [max(len(line[j]) for line in lines) for j in range(len(lines[0]))]
        heads = ["round", *(row.label for row in rows)]
        body = [
            f"{head:<{width}}  " + "  ".join(f"{c:>{w}}" for c, w in zip(line, wide, strict=True))
            for head, line in zip(heads, lines, strict=True)
        ]
        blocks.append("\n".join([title, *(line.rstrip() for line in body)]))
    notes = _notes(rows)
    return "\n\n".join(blocks) + ("\n\n" + "\n".join(notes) if notes else "") + "\n"


def _chosen(rows: Sequence[OverlayRow]) -> list[tuple[list[str], list[list[str]]]]:
    """Return the heads and rows of the table's blocks."""
    return [
        (
            [title, *(f"round {r}" for r in rows[0].rounds)],
            [
                [row.label, *(_cell_text(c, r) for c, r in zip(own, row.rounds, strict=True))]
                for row, own in zip(rows, cells, strict=True)
            ],
        )
        for title, cells in _blocks(rows)
    ]


def overlay_row(run: RunData, label: str, rounds: tuple[int, ...], metric: str) -> OverlayRow:
    """Return one run's row."""
    full_x, full_y = full_objective(run.history)
    test_x, test_y = metric_series(run, metric) if metric else (np.empty(0), np.empty(0))
    own_x, own_y = run.history.column("round"), run.history.column("objective")
    last = last_round(run)
    objective = []
    for r in rounds:
        cell = _cell(full_x, full_y, r, last)
        if cell.value is None or cell.round != r:
            guess = own_y[(own_x == r) & np.isfinite(own_y)]
            if len(guess):
                cell = Cell(value=float(guess[-1]), round=r, exact=False)
        objective.append(cell)
    test = tuple(_cell(test_x, test_y, r, last) for r in rounds)
    return OverlayRow(
        label=label, rounds=rounds, objective=tuple(objective), test=test, metric=metric
    )


def _cell(x: NDArray[np.float64], y: NDArray[np.float64], at: int, last: float) -> Cell:
    """Return the value at a round, or a slightly earlier one; empty beyond the run's end."""
    near = np.flatnonzero((x <= at) & (x >= at - _EARLIER_MAX))
    if not len(near) or at > last:
        return Cell(value=None, round=at)
    i = near[-1]
    return Cell(value=float(y[i]), round=int(x[i]))


def _cell_text(cell: Cell, at: int) -> str:
    """Format a cell: ~ marks an estimate, @ another round than ``at``."""
    if cell.value is None:
        return "–"
    earlier = "" if cell.round == at else f"@{cell.round}"
    return f"{'' if cell.exact else '~'}{cell.value:.5f}{earlier}"


def _blocks(rows: Sequence[OverlayRow]) -> list[tuple[str, list[tuple[Cell, ...]]]]:
    """List the table's non-empty blocks: title, and cells by run."""
    blocks = [("objective over all examples", [row.objective for row in rows])]
    if rows and rows[0].metric:
        blocks.append((f"test {metric_name(rows[0].metric)}", [row.test for row in rows]))
    return blocks if rows else []


def _notes(rows: Sequence[OverlayRow]) -> list[str]:
    """Explain the symbols that the table uses."""
    cells = [c for row in rows for c in row.objective + row.test if c.value is not None]
    pairs = [
        (c, r) for row in rows for own in (row.objective, row.test)
        for c, r in zip(own, row.rounds, strict=True) if c.value is not None
    ]  # fmt: skip
    notes = []
    if any(not cell.exact for cell in cells):
        notes.append("~ the driver's own figure, an estimate while examples are absent")
    if any(cell.round != at for cell, at in pairs):
        notes.append("@ taken from that round, the last one evaluated before")
    return notes


def draw(run_dirs: Sequence[str | Path], labels: Sequence[str] | None, out: str | Path) -> Path:
    """Plot objective and test metric of several runs by round; return the file's path.

    Parameters
    ----------
    run_dirs : paths of run directories
    labels : a name for each run; None uses the runs' own names
    out : path ending in ``.png`` or ``.svg``

    Raises
    ------
    ConfigError
        When a run directory is missing, none is given, the number of labels differs, or the file
        extension is another.
    """
    path = Path(out)
    if path.suffix not in (".png", ".svg"):
        raise ConfigError(
            f"plot {str(path)!r} must end in .png or .svg, got {path.suffix or 'no extension'!r}"
        )
    runs, names = _read(run_dirs, labels)
    picture: Picture = styled(overlay_picture, runs, names)
    if path.suffix == ".png":
        return write_whole(path, png_bytes(picture.figure))
    markup = svg_markup(picture.figure, picture.name, picture.title, picture.alt)
    return write_whole(path, markup.encode("utf-8"))


def table(
    run_dirs: Sequence[str | Path],
    labels: Sequence[str] | None = None,
    rounds: Sequence[int] | None = PAPER_ROUNDS,
) -> tuple[OverlayRow, ...]:
    """Return the objective over all examples and the test metric of several runs at some rounds.

    ``rounds=None`` selects the paper's rounds if a run has 300 rounds, otherwise the edges of the
    absence and the quarters of the longest run.
    """
    runs, names = _read(run_dirs, labels)
    at = tuple(rounds) if rounds is not None else choose_rounds(runs)
    metric = common_metric(runs)
    return tuple(overlay_row(run, name, at, metric) for run, name in zip(runs, names, strict=True))


def write_overlay(
    run_dirs: Sequence[str | Path], labels: Sequence[str] | None, out: str | Path
) -> Path:
    """Write a page that compares runs, and ``overlay.png`` beside it; return the page's path.

    Raises
    ------
    ConfigError
        When a run directory is missing, or the number of labels differs.
    """
    runs, names = _read(run_dirs, labels)
    page = Path(out)
    picture: Picture = styled(overlay_picture, runs, names)
    write_whole(page.with_name("overlay.png"), png_bytes(picture.figure))
    pictures = [picture]
    for more in (time_picture, gap_comparison):
        drawn: Picture | None = styled(more, runs, names)
        if drawn is not None:
            pictures.append(drawn)
    metric = common_metric(runs)
    at = choose_rounds(runs)
    rows = [overlay_row(run, name, at, metric) for run, name in zip(runs, names, strict=True)]
    text = render(
        "overlay.html",
        title=", ".join(names[:4]),
        names=names,
        pictures=pictures,
        chosen=_chosen(rows),
        notes=_notes(rows),
        runs=_run_table(runs, names),
        links=_links(runs, names, page),
    )
    return write_whole(page, text.encode("utf-8"))


def _run_table(runs: Sequence[RunData], labels: Sequence[str]) -> PlainTable:
    """Return the table of the runs' key figures."""
    head = ["run", "objective at the end", "rounds", "time", "lost", "returned", "moved"]
    rows = []
    for run, label in zip(runs, labels, strict=True):
        summary = run.summary
        _, full = full_objective(run.history)
        end = summary.objective
        if end is None and len(full):
            end = float(full[-1])
        rounds = last_round(run) if summary.rounds is None else summary.rounds
        moved = summary.moved_bytes
        rows.append([
            label, number(end), number(rounds),
            seconds_text(summary.seconds), number(summary.lost),
            number(summary.returned), "–" if moved is None else format_size(float(moved)),
        ])  # fmt: skip
    return PlainTable(names=head, rows=rows)


def _links(runs: Sequence[RunData], labels: Sequence[str], page: Path) -> list[tuple[str, str]]:
    """Return the addresses of the runs' own reports, relative to the page, with their names."""
    return [
        (quote(os.path.relpath(run.path / "report.html", page.parent or ".")), label)
        for run, label in zip(runs, labels, strict=True)
        if (run.path / "report.html").is_file()
    ]


def _read(
    run_dirs: Sequence[str | Path], labels: Sequence[str] | None
) -> tuple[list[RunData], list[str]]:
    """Read the runs and their names; equal names are distinguished by their directories."""
    if isinstance(run_dirs, str | Path):
        run_dirs = [run_dirs]
    if not run_dirs:
        raise ConfigError("no run to draw: got 0 run directories, wanted at least one")
    if labels is not None and len(labels) != len(run_dirs):
        raise ConfigError(
            f"got {len(labels)} labels for {len(run_dirs)} runs; give one label per run, or none"
        )
    runs = [read_run(run_dir) for run_dir in run_dirs]
    if labels is not None:
        return runs, [str(label) for label in labels]
    names = [run.name for run in runs]
    return runs, [
        name if names.count(name) == 1 else f"{name} ({run.path.resolve().name})"
        for name, run in zip(names, runs, strict=True)
    ]
