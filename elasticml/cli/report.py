"""``elasticml report``: make a run's report again, or lay runs over each other."""

from __future__ import annotations

from pathlib import Path

import click

_HELP = """Write the report of a run, or one page that compares several.

\b
Examples:
    elasticml report runs/first-20260101-120000        its report.html, made again
    elasticml report runs/taylor runs/ignore runs/stall --out compare.html
    elasticml report runs/a runs/b --label taylor --label ignore

A run that was interrupted or killed has a report too: of what had happened by then.
"""


@click.command(help=_HELP, short_help="Report on a run, or compare runs.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page to write.")
@click.option("--label", "labels", multiple=True, help="A name for each run, in their order.")
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
def report(
    runs: tuple[Path, ...], out: Path | None, labels: tuple[str, ...], verbose: bool
) -> None:
    """Report on runs."""
    from elasticml.report.html import write_report
    from elasticml.report.overlay import write_overlay

    if len(runs) == 1 and not labels:
        page = write_report(runs[0], out)
    else:
        page = write_overlay(runs, labels or None, out or Path("overlay.html"))
    click.echo(f"report      {page}")
