"""``elasticml announce``: tell the jobs of a Dask cluster that workers will be stopped."""

from __future__ import annotations

import click

from elasticml.cli.cluster import client_at

_HELP = """Tell the jobs of a Dask cluster that workers will be stopped, or that they stay.

WORKERS are addresses, names or hosts. The jobs move the examples of these workers to others within
the grace period, and release their members.

\b
Examples:
    elasticml announce --scheduler tcp://10.0.0.5:8786 --grace 120 worker-3
    elasticml announce --scheduler-file s.json --grace 600 --reason maintenance 10.0.0.17
    elasticml announce --scheduler-file s.json --withdraw worker-3

A worker that is still there three grace periods later is used again.
"""


@click.command(help=_HELP, short_help="Tell jobs that workers will be stopped.")
@click.option("--scheduler", "address", metavar="ADDRESS", help="The Dask scheduler.")
@click.option("--scheduler-file", type=click.Path(), help="Its file, instead of the address.")
@click.option("--grace", "grace_s", type=float, metavar="SECONDS", help="Until they are stopped.")
@click.option(
    "--reason",
    type=click.Choice(["preempted", "walltime", "lifetime", "maintenance"]),
    default="preempted",
    show_default=True,
    help="For the stories of the jobs.",
)
@click.option("--negotiable", is_flag=True, help="Any other worker may be given instead.")
@click.option("--withdraw", "is_withdrawn", is_flag=True, help="The workers stay after all.")
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
@click.argument("workers", nargs=-1, required=True)
def announce(
    workers: tuple[str, ...],
    address: str | None,
    scheduler_file: str | None,
    grace_s: float | None,
    reason: str,
    negotiable: bool,
    is_withdrawn: bool,
    verbose: bool,
) -> None:
    """Announce workers' ends."""
    if is_withdrawn == (grace_s is not None):
        raise click.UsageError("give either --grace SECONDS or --withdraw")
    from elasticml.jobs import announce as notices

    with client_at(address, scheduler_file, verbose=verbose) as client:
        if grace_s is None:
            done = notices.withdraw(client, workers)
            click.echo(f"withdrawn: {', '.join(done) or 'none of them had a notice'}")
        else:
            done = notices.announce(
                client,
                workers,
                grace_s=grace_s,
                reason=reason,  # type: ignore[arg-type]
                negotiable=negotiable,
            )
            click.echo(f"announced, {grace_s:g} s: {', '.join(done)}")
