"""``elasticml report``: write a run's report, or compare runs."""

from __future__ import annotations

from pathlib import Path

import click

_HELP = """Write the report of a run, or one page that compares several.

\b
Examples:
    elasticml report runs/first-20260101-120000        rewrite its report.html
    elasticml report runs/first-20260101-120000 --png  its plots as files, for slides
    elasticml report runs/taylor runs/ignore runs/stall --out compare.html
    elasticml report runs/a runs/b --label taylor --label ignore

A run that was interrupted or killed has a report too, up to that point.
"""


@click.command(help=_HELP, short_help="Report on a run, or compare runs.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page to write.")
@click.option("--label", "labels", multiple=True, help="A label for each run, in order.")
@click.option("--png", is_flag=True, help="Write the plots of one run as PNG files, too.")
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
def report(
    runs: tuple[Path, ...],
    out: Path | None,
    labels: tuple[str, ...],
    png: bool,
    verbose: bool,
) -> None:
    """Write the report of one run, or compare several."""
    from elasticml.report.overlay_page import write_overlay
    from elasticml.report.run_page import write_report

    is_one = len(runs) == 1 and not labels
    if png and not is_one:
        raise click.UsageError(
            "--png: got several runs or labels, wanted one run; leave --png out: a comparison has "
            "overlay.png beside its page"
        )
    if is_one:
        page = write_report(runs[0], out, png=png)
    else:
        page = write_overlay(runs, labels or None, out or Path("overlay.html"))
    click.echo(f"report      {page}")
