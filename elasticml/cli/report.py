"""``elasticml report``: write a run's report, compare runs, or simulate a run under other rules."""

from __future__ import annotations

from pathlib import Path

import click

_HELP = """Write the report of a run, or one page that compares several.

\b
Examples:
    elasticml report runs/first-20260101-120000        rewrite its report.html
    elasticml report runs/taylor runs/ignore runs/stall --out compare.html
    elasticml report runs/a runs/b --label taylor --label ignore
    elasticml report runs/first-20260101-120000 --what-if stall,ignore,no-failure

A run that was interrupted or killed has a report too, up to that point.

With --what-if the run is simulated with its own losses and returns, by round, under other rules for
absent examples (auto, taylor, ignore, ignore_rescaled, stall, reload, freeze), or without losses
(no-failure), with the real solvers on the run's data. The report overlays the curves. Each
simulation is kept in RUN_DIR/what-if and reused by later reports.
"""


@click.command(help=_HELP, short_help="Report on a run, or compare runs.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page to write.")
@click.option("--label", "labels", multiple=True, help="A label for each run, in order.")
@click.option(
    "--what-if",
    "modes",
    metavar="RULES",
    help="Also simulate the run under these rules, such as stall,ignore,no-failure.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
def report(
    runs: tuple[Path, ...],
    out: Path | None,
    labels: tuple[str, ...],
    modes: str | None,
    verbose: bool,
) -> None:
    """Write the report of one run, or compare several."""
    from elasticml.report.overlay_page import write_overlay
    from elasticml.report.run_page import write_report

    if modes is not None:
        if len(runs) != 1 or labels:
            raise click.UsageError("--what-if needs exactly one run, without --label")
        page = _what_if(runs[0], [m.strip() for m in modes.split(",") if m.strip()], out)
    elif len(runs) == 1 and not labels:
        page = write_report(runs[0], out)
    else:
        page = write_overlay(runs, labels or None, out or Path("overlay.html"))
    click.echo(f"report      {page}")


def _what_if(run: Path, modes: list[str], out: Path | None) -> Path:
    """Simulate the missing rules, print the result of each rule, and write the report."""
    from elasticml.cli.what_if import simulate_modes
    from elasticml.jobs.progress_bar import ProgressBar
    from elasticml.report.run_page import write_report
    from elasticml.report.run_reader import read_run
    from elasticml.report.what_if import OWN, what_if_rows

    ghosts, past = simulate_modes(run, modes, lambda mode: ProgressBar(label=f"what if {mode}"))
    click.echo(
        f"history     {past.lost} lost, {past.returned} joined, matched by round: simulated "
        "seconds differ from real ones"
    )
    runs = [read_run(run), *(read_run(ghost.path) for ghost in ghosts)]
    for row in what_if_rows(runs, [OWN, *(ghost.mode for ghost in ghosts)]):
        click.echo(
            f"{row.name:<16}objective {row.objective:.9g}, rounds lost {row.rounds_lost:.0f}, "
            f"{row.seconds:.3g} s".replace("nan", "–")
        )
    notes = ("Losses and returns happen in the same rounds as in the run", *past.notes)
    return write_report(run, out, {ghost.mode: ghost.path for ghost in ghosts}, notes)
