"""Comparison of several runs: a plot, a table, an HTML page."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from elasticml.errors import ConfigError
from elasticml.ids import format_size
from elasticml.report.markup import document, esc, figure, number, table_html
from elasticml.report.overlay_plot import (
    gap_comparison,
    loads_comparison,
    overlay_picture,
    time_picture,
)
from elasticml.report.overlay_table import (
    PAPER_ROUNDS,
    OverlayRow,
    choose_rounds,
    html_table,
    overlay_row,
)
from elasticml.report.run_reader import RunData, finite, read_run
from elasticml.report.series import common_metric, full_objective, last_round
from elasticml.report.style import Picture, png_bytes, styled, svg_markup, write_whole
from elasticml.report.timeline import seconds_text


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
            f"plot {str(path)!r} must end in .png or .svg, got {path.suffix or 'no extension'!r}",
            path=str(path),
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
    sections = [figure(picture)]
    for more in (time_picture, gap_comparison, loads_comparison):
        drawn: Picture | None = styled(more, runs, names)
        if drawn is not None:
            sections.append(figure(drawn))
    metric = common_metric(runs)
    at = choose_rounds(runs)
    rows = [overlay_row(run, name, at, metric) for run, name in zip(runs, names, strict=True)]
    body = (
        f"<header><h1>{len(runs)} runs compared</h1>"
        f'<p class="lead">{esc(", ".join(names))}</p></header>'
        + "\n".join(sections)
        + f"<section><h2>At chosen rounds</h2>{html_table(rows)}</section>"
        + f"<section><h2>The runs</h2>{_run_table(runs, names, page)}</section>"
    )
    title = ", ".join(names[:4])
    return write_whole(page, document(f"{title}: elasticml", body).encode("utf-8"))


def _run_table(runs: Sequence[RunData], labels: Sequence[str], page: Path) -> str:
    """Return the table of the runs' key figures, with links to their own reports."""
    head = ["run", "objective at the end", "rounds", "time", "lost", "returned", "moved"]
    rows, links = [], []
    for run, label in zip(runs, labels, strict=True):
        summary = run.summary
        _, full = full_objective(run.history)
        end = finite(summary.get("objective"), float(full[-1]) if len(full) else math.nan)
        moved = finite(summary.get("moved_bytes"))
        rows.append([
            label, number(end), number(summary.get("rounds", last_round(run))),
            seconds_text(finite(summary.get("seconds"))), number(summary.get("lost")),
            number(summary.get("returned")), format_size(moved) if math.isfinite(moved) else "–",
        ])  # fmt: skip
        own = run.path / "report.html"
        if own.is_file():
            href = quote(os.path.relpath(own, page.parent or "."))
            links.append(f'<a href="{href}">{esc(label)}</a>')
    below = f'<p class="small">Reports: {", ".join(links)}</p>' if links else ""
    return table_html(head, rows) + below


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
