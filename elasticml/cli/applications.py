"""``elasticml status``, ``logs``, ``kill``, ``result``: of a job on a Hadoop cluster, by its id."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from elasticml.jobs.applications import Application
    from elasticml.jobs.standing import Standing
    from elasticml.jobs.submission import Verdict

F = TypeVar("F", bound=Callable[..., Any])

_STATUS = """Say how a job on a Hadoop cluster stands, running or over.

\b
Examples:
    elasticml status application_1700000000000_0001
    elasticml status application_1700000000000_0001 --json

elasticml submit prints the id of the application.
"""
_LOGS = """Print what the containers of a job have written, of a running one or of one that is over.

\b
Examples:
    elasticml logs application_1700000000000_0001
    elasticml logs application_1700000000000_0001 --service dask.scheduler

Of an application that is over they are there where YARN collects them
(yarn.log-aggregation-enable).
"""
_KILL = """End a job on a Hadoop cluster, and give its containers back.

\b
Examples:
    elasticml kill application_1700000000000_0001
    elasticml kill application_1700000000000_0001 --now

Its driver ends it, so that what it has reached is kept: elasticml result fetches it. --now has YARN
end everything at once; what was written until a few seconds before is kept, too.
"""
_RESULT = """Fetch the run directory of a job on a Hadoop cluster, and tell what it has come to.

\b
Examples:
    elasticml result application_1700000000000_0001
    elasticml result application_1700000000000_0001 --out runs/first

Of a job that still runs it is what there is so far. What made a job fail is said as elasticml run
does, with the same exit codes.
"""


def _application_options(command: F) -> F:
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors."),
        click.argument("application_id"),
    ):
        command = option(command)
    return command


@click.command(help=_STATUS, short_help="How a job on a Hadoop cluster stands.")
@_application_options
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def status(application_id: str, as_json: bool, verbose: bool) -> None:
    """Say how a job stands."""
    from elasticml.clusters.on_yarn.submission import client_or_own
    from elasticml.jobs.applications import recall, status_at
    from elasticml.jobs.standing import standing
    from elasticml.jobs.submission import read_verdict

    application = recall(application_id)
    with client_or_own(None) as client:
        now = standing(client, application_id)
    job = status_at(application.place)
    verdict = read_verdict(application.place)
    if as_json:
        from elasticml.jobs.run_directory import json_safe

        said = None if verdict is None else asdict(verdict)
        record = {**asdict(application), **asdict(now), "job": asdict(job), "verdict": said}
        click.echo(json.dumps(json_safe(record)))
        return
    from elasticml.jobs.progress import status_line

    click.echo(f"application {application.id} in queue {now.queue}, of {now.user}")
    click.echo(f"state       {_state(now, verdict)}")
    click.echo(f"job         {status_line(job, application.name)}")
    if not now.is_over:
        used = f"{now.containers} with {now.vcores} vcores and {now.memory_mib} MiB together"
        click.echo(f"containers  {used}")
    click.echo(f"run         {application.place}")
    click.echo(f"page        {now.url}")


def _state(now: Standing, verdict: Verdict | None = None) -> str:
    if not now.is_over:
        return f"{now.state}, {100 * now.progress:.0f} % done"
    if verdict is not None:
        return f"{now.final_status}: {verdict.state}: {verdict.reason}"
    return f"{now.final_status}: {now.diagnostics}" if now.diagnostics else now.final_status


@click.command(help=_LOGS, short_help="What the containers of a job have written.")
@_application_options
@click.option("--service", metavar="NAME", help="Only of dask.scheduler or dask.worker.")
def logs(application_id: str, service: str | None, verbose: bool) -> None:
    """Print the logs of a job's containers."""
    from elasticml.clusters.on_yarn.submission import client_or_own
    from elasticml.jobs.container_logs import container_logs

    with client_or_own(None) as client:
        for log in container_logs(client, application_id, service):
            click.echo(f"--- {log.title}")
            click.echo(log.text)


@click.command(help=_KILL, short_help="End a job on a Hadoop cluster.")
@_application_options
@click.option("--now", "at_once", is_flag=True, help="Do not wait for its driver.")
def kill(application_id: str, at_once: bool, verbose: bool) -> None:
    """End a job."""
    from elasticml.clusters.on_yarn.submission import client_or_own
    from elasticml.jobs import standing
    from elasticml.jobs.applications import place_of

    with client_or_own(None) as client:
        was = standing.standing(client, application_id)
        if was.is_over:
            click.echo(f"{application_id} has ended before: {_state(was)}")
            return
        if at_once:
            standing.kill(client, application_id)
        else:
            standing.cancel(client, application_id, place_of(application_id))
    click.echo(f"{application_id} has ended; elasticml result {application_id} fetches its run")


@click.command(help=_RESULT, short_help="Fetch the run of a job on a Hadoop cluster.")
@_application_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Where the run's directory is copied to; by default runs/NAME-TIME.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as the last line.")
def result(application_id: str, out: Path | None, as_json: bool, verbose: bool) -> None:
    """Fetch a job's run."""
    from datetime import datetime

    from elasticml.cli.submit import show_result
    from elasticml.clusters.on_yarn.submission import client_or_own
    from elasticml.jobs.applications import recall, verdict_of
    from elasticml.jobs.run_directory import check_free, default_run_path
    from elasticml.jobs.standing import standing
    from elasticml.jobs.submission import read_verdict

    application = recall(application_id)
    path = out or default_run_path(application.name, datetime.now())
    check_free(path)
    verdict = read_verdict(application.place)
    if verdict is None:
        with client_or_own(None) as client:
            now = standing(client, application_id)
        if not now.is_over:
            _show_unfinished(application, path)
            return
        verdict = verdict_of(application, now)
    show_result(application, verdict, path, as_json=as_json)


def _show_unfinished(application: Application, path: Path) -> None:
    from elasticml.jobs.applications import status_at
    from elasticml.jobs.mirror import fetch
    from elasticml.jobs.progress import status_line

    fetched = fetch(application.place, path)
    click.echo(f"job         {status_line(status_at(application.place), application.name)}")
    click.echo(f"run         {path}, as far as it is" if fetched else "run         not begun")
