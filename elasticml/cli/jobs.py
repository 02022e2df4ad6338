"""``elasticml jobs``: list the jobs of a Dask scheduler."""

from __future__ import annotations

import json

import click

from elasticml.cli.cluster import client_at

_HELP = """List the jobs of a Dask scheduler, running or ended in the last 24 hours, newest first.

\b
Examples:
    elasticml jobs --scheduler tcp://10.0.0.5:8786
    elasticml jobs --scheduler-file s.json --json

From Python, em.Job.attach(client, ID) follows one.
"""


@click.command(help=_HELP, short_help="List the jobs of a Dask scheduler.")
@click.option("--scheduler", "address", metavar="ADDRESS", help="The Dask scheduler.")
@click.option("--scheduler-file", type=click.Path(), help="Its file, instead of the address.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
def jobs(address: str | None, scheduler_file: str | None, as_json: bool, verbose: bool) -> None:
    """List jobs."""
    with client_at(address, scheduler_file, verbose=verbose) as client:
        from elasticml.jobs.handle import jobs_on

        listed = jobs_on(client)
    if as_json:
        click.echo(json.dumps(listed))
        return
    if not listed:
        click.echo("no jobs")
        return
    columns = ("job", "algorithm", "state", "round", "objective", "gap", "members", "seconds")
    rows = [columns, *(tuple(_cell(one.get(name)) for name in columns) for one in listed)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(columns))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
