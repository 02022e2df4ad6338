"""``elasticml submit``: run a job file on a Hadoop cluster."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticml.cli.job_options import is_quiet, job_options, print_summary
from elasticml.cli.submit_flow import (
    INTERRUPTED,
    SubmissionState,
    abort_before_submission,
    defer_interrupts,
    print_follow_up_commands,
    say,
    submission_in_doubt,
    submit_and_record,
)
from elasticml.errors import ConfigError

if TYPE_CHECKING:
    from elasticml.clusters.yarn.jobs.applications import Application
    from elasticml.clusters.yarn.jobs.submission import Verdict
    from elasticml.clusters.yarn.jobs.submit import SubmissionPlan
    from elasticml.clusters.yarn.yarn_client import YarnClient
    from elasticml.job import Job
    from elasticml.protocol.job_record import JobRecord

_HELP = """Run the job in JOB (a YAML file) in containers of a Hadoop cluster.

\b
Examples:
    elasticml submit job.yaml --queue ml
    elasticml submit job.yaml --pack --set cluster.workers=12 --set 'cluster.memory=4 GiB'
    elasticml submit job.yaml --detach       print the application's id and return

The driver runs in the cluster and this command only follows it: after Ctrl-C the job goes on.

\b
    elasticml status APPLICATION_ID          show its state
    elasticml logs   APPLICATION_ID          print the logs of its containers
    elasticml result APPLICATION_ID          fetch the run directory, now or when it has ended
    elasticml kill   APPLICATION_ID          end it; the result so far is kept

In the job file only kind is required, and --set overrides settings:

\b
    data: {format: svmlight, path: "hdfs:///data/train.svm"}   # or a path that all nodes share
    cluster:
      kind: yarn
      workers: 6                 # containers to request; workers_min: start with fewer,
      memory: 2 GiB              # workers_max: most that policies may request
      vcores: 1
      queue: ml
      environment: venv:///opt/elasticml    # on every node; or an archive; or use --pack
      scheduler: {memory: 2 GiB, vcores: 1}
      result: hdfs:///user/me/runs/first    # where the run directory is kept

Further settings: name, tags, node_label, nodes, racks, user, threads, security, specification,
keytab, principal; elasticml schema describes them. The defaults are those of dask-yarn's
configuration.

HADOOP_CONF_DIR names the cluster; elasticml doctor --yarn checks it.
"""


@click.command(help=_HELP, short_help="Run a job file on a Hadoop cluster.")
@job_options("runs/NAME-TIME, a copy of what the cluster keeps", "Show tracebacks of errors.")
@click.option("--queue", metavar="NAME", help="The queue to submit to; overrides cluster.queue.")
@click.option("--pack", is_flag=True, help="Ship this Python environment; it is uploaded once.")
@click.option("--detach", is_flag=True, help="Return as soon as the job is submitted.")
def submit(
    job: Path,
    settings: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    verbose: bool,
    queue: str | None,
    pack: bool,
    detach: bool,
) -> None:
    """Submit a job job."""
    from elasticml.job import Job

    if queue is not None:
        settings = (*settings, f"cluster.queue={queue}")
    if pack:
        settings = (*settings, "cluster.pack=true", "cluster.environment=null")
    if detach and out is not None:
        raise ConfigError(
            "--out: with --detach nothing is fetched; fetch the run later with: elasticml result "
            "APPLICATION_ID --out DIR"
        )
    run_on_yarn(
        Job.from_file(job, settings, default_kind="yarn"),
        out,
        as_json=as_json,
        detach=detach,
        cancels=False,
    )


def run_on_yarn(
    job: Job, out: Path | None, *, as_json: bool, detach: bool = False, cancels: bool
) -> None:
    """Submit a job, follow it to its end, fetch its run directory, and print its summary.

    Parameters
    ----------
    cancels : bool
        Whether Ctrl-C ends the job; otherwise it only ends the following.

    Raises
    ------
    ElasticmlError
        When the job or the cluster is wrong, or the job fails.
    """
    from elasticml.clusters.yarn.skein_client import start_client
    from elasticml.jobs.run_directory import check_free, default_run_path

    path = out or default_run_path(job.name, datetime.now())
    if not detach:
        check_free(path)
    with abort_before_submission():
        plan, record = _prepared(job)
        from elasticml.clusters.yarn.jobs.submit import packed

        plan = packed(plan, say)
        client = start_client(keytab=plan.cluster.keytab, principal=plan.cluster.principal)
    with client:
        ended = submit_and_follow(
            client, plan, record, detach=detach, path=path if cancels else None
        )
    if ended is not None:
        show_result(*ended, path, as_json=as_json)


def submit_and_follow(
    client: YarnClient,
    plan: SubmissionPlan,
    record: JobRecord,
    *,
    detach: bool = False,
    path: Path | None = None,
) -> tuple[Application, Verdict] | None:
    """Submit a job and follow it to its end; return None with ``detach``.

    Parameters
    ----------
    path : Path or None
        Where the run is fetched to when Ctrl-C ends the job; None if Ctrl-C leaves the job running.

    Raises
    ------
    ElasticmlError
        When the job is not submitted, or the connection to it is lost.
    KeyboardInterrupt
        When Ctrl-C has ended the job.
    click.exceptions.Exit
        When Ctrl-C has ended the following.
    """
    from elasticml.clusters.yarn.jobs.yarn_status import cancel

    def announce(application: Application) -> None:
        if detach:
            click.echo(application.id)
        else:
            say(f"{application.id}; its run is in {application.place}")

    state = SubmissionState()
    try:
        # Once submitted, the job runs: this command must not exit before it knows the job's id.
        with defer_interrupts() as held:
            application = submit_and_record(client, plan, record, state, announce=announce)
        if detach:
            print_follow_up_commands(application, is_listed=state.is_listed)
            return None
        held.act()
        return application, _follow(client, application)
    except KeyboardInterrupt:
        # A second interrupt is raised at once, so the submission may be at any step.
        if state.application is None:
            raise submission_in_doubt(plan) from None
        application = state.application
        if path is None:
            say(f"{application.id} keeps running")
            print_follow_up_commands(application, is_listed=state.is_listed)
            raise click.exceptions.Exit(INTERRUPTED) from None
        cancel(client, application.id, application.place)
        fetch_run(application, path)
        raise


def _prepared(job: Job) -> tuple[SubmissionPlan, JobRecord]:
    """Check job and cluster; return the plan and the job record."""
    from elasticml.clusters.yarn.jobs.submit import check_sources, plan_submission
    from elasticml.job import new_job_id
    from elasticml.protocol.job_record import job_record
    from elasticml.specification.sections import YarnContainers

    if not isinstance(job.cluster, YarnContainers):
        kind = job.cluster and job.cluster.kind
        raise ConfigError(
            f"cluster.kind: got {kind!r}, wanted 'yarn'; use elasticml run, or "
            "--set 'cluster={kind: yarn, workers: 4}'"
        )
    check_sources(job.source)
    job.check_data()
    plan = plan_submission(job.cluster, job.name, datetime.now())
    job.check_memory(plan.worker_bytes)
    start = job.members.start or plan.workers
    limits = [plan.worker_bytes] * start
    record = job.record(new_job_id(job.name), start, limits, run_dir=plan.place)
    return plan, job_record(record)


def _follow(client: Any, application: Application) -> Verdict:
    from elasticml.clusters.yarn.jobs.applications import follow_application
    from elasticml.jobs.progress_bar import ProgressBar

    if is_quiet():
        return follow_application(client, application, lambda records: None, lambda text: None)
    with ProgressBar(label=application.name) as shown:
        return follow_application(client, application, shown.on_records, shown.note)


def show_result(application: Application, verdict: Verdict, path: Path, *, as_json: bool) -> None:
    """Fetch the run directory of a finished job, and print its summary.

    Raises
    ------
    ElasticmlError
        When the job has failed, with its error.
    """
    error = verdict.to_error()
    try:
        is_fetched = bool(fetch_run(application, path))
    except ConfigError as unfetched:
        if error is None:
            raise
        say(unfetched.message)  # the job's own error matters more
        is_fetched = False
    if error is not None:
        message = error.message
        if is_fetched:
            message = message.replace(application.place, str(path))
            if str(path) not in message:
                message += f"; the run so far is in {path}"
        raise type(error)(f"{message}; see elasticml logs {application.id}", **error.fields)
    if verdict.state != "done":
        say(f"{application.id}: {verdict.state} after {verdict.reason}")
    summary = path / "summary.json"
    if not summary.exists():
        _report_without_summary(application, verdict, as_json)
        return
    print_summary(json.loads(summary.read_text(encoding="utf-8")), as_json)


def fetch_run(application: Application, path: Path) -> list[str]:
    """Fetch a run directory to a path that is still free; return the names of its files.

    Raises
    ------
    ConfigError
        When another run has appeared there since the first check, or it cannot be written.
    """
    from elasticml.clusters.yarn.jobs.run_sync import fetch
    from elasticml.jobs.run_directory import check_free

    try:
        check_free(path)
    except ConfigError as error:
        raise ConfigError(
            f"{error.message}; the run of {application.id} is kept, fetch it with: elasticml "
            f"result {application.id} --out DIR",
            **error.fields,
        ) from error
    return fetch(application.place, path)


def _report_without_summary(application: Application, verdict: Verdict, as_json: bool) -> None:
    """Report on a job that was ended before it started, or before it resumed."""
    from elasticml.clusters.yarn.jobs.applications import status_at
    from elasticml.data.storage import filesystem
    from elasticml.jobs.run_checkpoints import FOLDER

    kept = filesystem.join(application.place, FOLDER)
    if filesystem.names(kept):
        say(f"{application.id}: its earlier progress is kept as a checkpoint in {kept}")
    if as_json:
        rounds = status_at(application.place).round
        click.echo(
            json.dumps({"name": application.name, "reason": verdict.reason, "rounds": rounds})
        )
