"""``elasticml status``, ``logs``, ``kill`` and ``result`` for a job on a Hadoop cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from elasticml.clusters.yarn.jobs.applications import Application
    from elasticml.clusters.yarn.jobs.submission import Verdict
    from elasticml.clusters.yarn.yarn_client import ApplicationStatus

F = TypeVar("F", bound=Callable[..., Any])

_STATUS = """Show the state of a job on a Hadoop cluster, running or finished.

\b
Examples:
    elasticml status application_1700000000000_0001
    elasticml status application_1700000000000_0001 --json

elasticml submit prints the id of the application.
"""
_LOGS = """Print the logs of the containers of a job, running or finished.

\b
Examples:
    elasticml logs application_1700000000000_0001
    elasticml logs application_1700000000000_0001 --service dask.scheduler

Logs of a finished application are available if YARN aggregates them
(yarn.log-aggregation-enable).
"""
_KILL = """End a job on a Hadoop cluster and release its containers.

\b
Examples:
    elasticml kill application_1700000000000_0001
    elasticml kill application_1700000000000_0001 --now

The job's driver ends it and keeps the result so far: elasticml result fetches it. With --now YARN
kills everything at once; files written up to a few seconds before are still kept.
"""
_RESULT = """Fetch the run directory of a job on a Hadoop cluster, and print its summary.

\b
Examples:
    elasticml result application_1700000000000_0001
    elasticml result application_1700000000000_0001 --out runs/first

For a running job this is the run so far. For a failed job the error and the exit code are those of
elasticml run.
"""


def _application_options(command: F) -> F:
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors."),
        click.argument("application_id"),
    ):
        command = option(command)
    return command


@click.command(help=_STATUS, short_help="Show the state of a job on a Hadoop cluster.")
@_application_options
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def status(application_id: str, as_json: bool, verbose: bool) -> None:
    """Show the state of a job."""
    from elasticml.clusters.yarn.jobs.applications import load_application, status_at
    from elasticml.clusters.yarn.jobs.submission import read_verdict
    from elasticml.clusters.yarn.jobs.yarn_status import application_status
    from elasticml.clusters.yarn.skein_client import client_or_own

    application = load_application(application_id)
    with client_or_own(None) as client:
        now = application_status(client, application_id)
    job = status_at(application.place)
    verdict = read_verdict(application.place)
    if as_json:
        from elasticml.jobs.run_directory import json_safe

        ending = None if verdict is None else asdict(verdict)
        record = {**asdict(application), **asdict(now), "job": asdict(job), "verdict": ending}
        click.echo(json.dumps(json_safe(record)))
        return
    from elasticml.jobs.progress_bar import status_line, waiting_line

    click.echo(f"application {application.id} in queue {now.queue}, user {now.user}")
    click.echo(f"state       {_state(now, verdict)}")
    click.echo(f"job         {status_line(job, application.name)}")
    if job.waiting is not None:
        click.echo(f"            {waiting_line(job.waiting, job.seconds)}")
    if not now.is_over:
        used = f"{now.containers} with {now.vcores} vcores and {now.memory_mib} MiB in total"
        click.echo(f"containers  {used}")
    click.echo(f"run         {application.place}")
    click.echo(f"page        {now.url}")


def _state(now: ApplicationStatus, verdict: Verdict | None = None) -> str:
    if not now.is_over:
        return f"{now.state}, {100 * now.progress:.0f} % done"
    if verdict is not None:
        return f"{now.final_status}: {verdict.state}: {verdict.reason}"
    return f"{now.final_status}: {now.diagnostics}" if now.diagnostics else now.final_status


@click.command(help=_LOGS, short_help="Print the logs of a job's containers.")
@_application_options
@click.option("--service", metavar="NAME", help="Only this service: dask.scheduler or dask.worker.")
def logs(application_id: str, service: str | None, verbose: bool) -> None:
    """Print the logs of a job's containers."""
    from elasticml.clusters.yarn.jobs.container_logs import container_logs
    from elasticml.clusters.yarn.skein_client import client_or_own

    with client_or_own(None) as client:
        for log in container_logs(client, application_id, service):
            click.echo(f"--- {log.title}")
            click.echo(log.text)


@click.command(help=_KILL, short_help="End a job on a Hadoop cluster.")
@_application_options
@click.option(
    "--now", "at_once", is_flag=True, help="Kill it at once, without waiting for its driver."
)
def kill(application_id: str, at_once: bool, verbose: bool) -> None:
    """End a job."""
    from elasticml.clusters.yarn.jobs import yarn_status
    from elasticml.clusters.yarn.jobs.applications import place_of
    from elasticml.clusters.yarn.skein_client import client_or_own

    with client_or_own(None) as client:
        was = yarn_status.application_status(client, application_id)
        if was.is_over:
            click.echo(f"{application_id} has already ended: {_state(was)}")
            return
        if at_once:
            yarn_status.kill(client, application_id)
        else:
            yarn_status.cancel(client, application_id, place_of(application_id))
    click.echo(f"{application_id} has ended; elasticml result {application_id} fetches its run")


@click.command(help=_RESULT, short_help="Fetch the run of a job on a Hadoop cluster.")
@_application_options
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The directory to copy the run to; default: runs/NAME-TIME.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as the last line.")
def result(application_id: str, out: Path | None, as_json: bool, verbose: bool) -> None:
    """Fetch a job's run."""
    from datetime import datetime

    from elasticml.cli.submit import show_result
    from elasticml.clusters.yarn.jobs.applications import load_application, verdict_of
    from elasticml.clusters.yarn.jobs.submission import read_verdict
    from elasticml.clusters.yarn.jobs.yarn_status import application_status
    from elasticml.clusters.yarn.skein_client import client_or_own
    from elasticml.jobs.run_directory import check_free, default_run_path

    application = load_application(application_id)
    path = out or default_run_path(application.name, datetime.now())
    check_free(path)
    verdict = read_verdict(application.place)
    if verdict is None:
        with client_or_own(None) as client:
            now = application_status(client, application_id)
        if not now.is_over:
            _show_unfinished(application, path)
            return
        verdict = verdict_of(application, now)
    show_result(application, verdict, path, as_json=as_json)


def _show_unfinished(application: Application, path: Path) -> None:
    from elasticml.clusters.yarn.jobs.applications import status_at
    from elasticml.clusters.yarn.jobs.run_sync import fetch
    from elasticml.jobs.progress_bar import status_line

    fetched = fetch(application.place, path)
    click.echo(f"job         {status_line(status_at(application.place), application.name)}")
    click.echo(f"run         {path}, so far" if fetched else "run         not started")
