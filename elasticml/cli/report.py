"""``elasticml report``: make a run's report again, lay runs over each other, or ask what if."""

from __future__ import annotations

from pathlib import Path

import click

_HELP = """Write the report of a run, or one page that compares several.

\b
Examples:
    elasticml report runs/first-20260101-120000        its report.html, made again
    elasticml report runs/taylor runs/ignore runs/stall --out compare.html
    elasticml report runs/a runs/b --label taylor --label ignore
    elasticml report runs/first-20260101-120000 --what-if stall,ignore,no-failure

A run that was interrupted or killed has a report too: of what had happened by then.

With --what-if the run's own losses and returns, by round, are simulated under other rules for
absent examples (auto, taylor, ignore, ignore_rescaled, stall, reload, freeze), or without them
(no-failure), with the real solvers on the run's data. The curves are laid over the run's; each
is kept in RUN_DIR/what-if, so that a second report does not simulate again.
"""


@click.command(help=_HELP, short_help="Report on a run, or compare runs.")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page to write.")
@click.option("--label", "labels", multiple=True, help="A name for each run, in their order.")
@click.option(
    "--what-if",
    "modes",
    metavar="RULES",
    help="Simulate the run under these rules, too, such as stall,ignore,no-failure.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
def report(
    runs: tuple[Path, ...],
    out: Path | None,
    labels: tuple[str, ...],
    modes: str | None,
    verbose: bool,
) -> None:
    """Report on runs."""
    from elasticml.report.html import write_report
    from elasticml.report.overlay import write_overlay

    if modes is not None:
        if len(runs) != 1 or labels:
            raise click.UsageError("--what-if is asked of one run, without --label")
        page = _what_if(runs[0], [m.strip() for m in modes.split(",") if m.strip()], out)
    elif len(runs) == 1 and not labels:
        page = write_report(runs[0], out)
    else:
        page = write_overlay(runs, labels or None, out or Path("overlay.html"))
    click.echo(f"report      {page}")


def _what_if(run: Path, modes: list[str], out: Path | None) -> Path:
    """Simulate what is not simulated yet, say what each rule comes to, and write the report."""
    from elasticml.cli.what_if import simulate_modes
    from elasticml.jobs.progress import Progress
    from elasticml.report.ghosts import OWN, ghost_rows
    from elasticml.report.html import write_report
    from elasticml.report.run import read_run

    ghosts, past = simulate_modes(run, modes, lambda mode: Progress(label=f"what if {mode}"))
    click.echo(
        f"history     {past.lost} lost, {past.returned} came, by round: a virtual world keeps its "
        "own seconds"
    )
    found = [read_run(run), *(read_run(ghost.path) for ghost in ghosts)]
    for row in ghost_rows(found, [OWN, *(ghost.mode for ghost in ghosts)]):
        click.echo(
            f"{row.name:<16}objective {row.objective:.9g}, rounds lost {row.rounds_lost:.0f}, "
            f"{row.seconds:.3g} s".replace("nan", "–")
        )
    notes = ("Losses and returns stand in the rounds in which they were", *past.notes)
    return write_report(run, out, {ghost.mode: ghost.path for ghost in ghosts}, notes)
