"""``elasticml submit``: run a job file on a Hadoop cluster."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticml.cli.handover import (
    INTERRUPTED,
    Handed,
    hand_over,
    left_in_doubt,
    nothing_submitted,
    say,
    tell_how_to_get_back,
)
from elasticml.cli.interrupts import held_interrupts
from elasticml.cli.job_options import job_options, tell
from elasticml.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import skein

    from elasticml.jobs.applications import Application
    from elasticml.jobs.job_file import JobFile
    from elasticml.jobs.submission import Verdict
    from elasticml.jobs.yarn_submit import Plan

_HELP = """Run the job that JOB (a YAML file) describes in containers of a Hadoop cluster.

\b
Examples:
    elasticml submit job.yaml --queue ml
    elasticml submit job.yaml --pack --set cluster.workers=12 --set 'cluster.memory=4 GiB'
    elasticml submit job.yaml --detach       prints the application's id, and returns

The driver lives in the cluster, this command looks on: Ctrl-C ends that, and the job goes on:

\b
    elasticml status APPLICATION_ID          how it stands
    elasticml logs   APPLICATION_ID          what its containers say
    elasticml result APPLICATION_ID          fetch the run's directory, now or when it is over
    elasticml kill   APPLICATION_ID          end it; what it has reached is kept

In the job file, all but kind may be left out, and --set changes it:

\b
    data: {format: svmlight, path: "hdfs:///data/train.svm"}   # or a path that all nodes share
    cluster:
      kind: yarn
      workers: 6                 # containers to ask for; workers_min: begin with fewer,
      memory: 2 GiB              # workers_max: what policies may ask for
      vcores: 1
      queue: ml
      environment: venv:///opt/elasticml    # on every node; or an archive; or use --pack
      scheduler: {memory: 2 GiB, vcores: 1}
      result: hdfs:///user/me/runs/first    # where the run's directory is kept

Further: name, tags, node_label, nodes, racks, user, threads, security, specification, keytab,
principal; docs/job-files.md tells of each. What is not said is as dask-yarn's configuration has it.

HADOOP_CONF_DIR names the cluster; elasticml doctor --yarn looks whether it is usable.
"""


@click.command(help=_HELP, short_help="Run a job file on a Hadoop cluster.")
@job_options("runs/NAME-TIME, a copy of what the cluster keeps", "Show tracebacks of errors.")
@click.option("--queue", metavar="NAME", help="The queue to submit to; cluster.queue.")
@click.option("--pack", is_flag=True, help="Take this Python environment along, uploaded once.")
@click.option("--detach", is_flag=True, help="Return when the job is submitted.")
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
    """Submit a job file."""
    from elasticml.jobs.job_file import read_job_file

    if queue is not None:
        settings = (*settings, f"cluster.queue={queue}")
    if pack:
        settings = (*settings, "cluster.pack=true", "cluster.environment=null")
    if detach and out is not None:
        raise ConfigError(
            "--out: with --detach nothing is fetched; elasticml result APPLICATION_ID --out DIR "
            "does that later"
        )
    run_on_yarn(
        read_job_file(job, settings, default_kind="yarn"),
        out,
        as_json=as_json,
        detach=detach,
        cancels=False,
    )


def run_on_yarn(
    file: JobFile, out: Path | None, *, as_json: bool, detach: bool = False, cancels: bool
) -> None:
    """Submit a job, follow it to its end, fetch its directory, and tell what it has come to.

    Parameters
    ----------
    cancels : bool
        Whether Ctrl-C ends the job, and not only the looking on.

    Raises
    ------
    ElasticmlError
        What is wrong with the job or the cluster, or made the job fail.
    """
    from elasticml.clusters.on_yarn.submission import start_client
    from elasticml.jobs.run_directory import check_free, default_run_path

    path = out or default_run_path(file.name, datetime.now())
    if not detach:
        check_free(path)
    with nothing_submitted():
        plan, record, evaluates = _prepared(file)
        from elasticml.jobs.yarn_submit import packed

        plan = packed(plan, say)
        client = start_client(keytab=plan.cluster.keytab, principal=plan.cluster.principal)
    with client:
        ended = submit_and_follow(
            client, plan, record, evaluates=evaluates, detach=detach, path=path if cancels else None
        )
    if ended is not None:
        show_result(*ended, path, as_json=as_json)


def submit_and_follow(
    client: skein.Client,
    plan: Plan,
    record: Mapping[str, Any],
    *,
    evaluates: bool,
    detach: bool = False,
    path: Path | None = None,
) -> tuple[Application, Verdict] | None:
    """Submit a job and follow it to its end; None where it is left alone from the beginning.

    Parameters
    ----------
    path : Path or None
        Where the run is fetched to when Ctrl-C ends the job; None where it ends the looking on.

    Raises
    ------
    ElasticmlError
        When the job is not submitted, or nothing is heard of it any more.
    KeyboardInterrupt
        When the job has been ended by Ctrl-C.
    click.exceptions.Exit
        When the looking on has.
    """
    from elasticml.jobs.standing import cancel

    def announce(application: Application) -> None:
        if detach:
            click.echo(application.id)
        else:
            say(f"{application.id}; its run is in {application.place}")

    handed = Handed()
    try:
        # What is submitted runs: nobody may go before its id is known.
        with held_interrupts() as held:
            application = hand_over(
                client, plan, record, handed, evaluates=evaluates, announce=announce
            )
        if detach:
            tell_how_to_get_back(application, is_listed=handed.is_listed)
            return None
        held.act()
        return application, _look_on(client, application)
    except KeyboardInterrupt:
        # A second one is heard at once, wherever the first one was held back.
        if handed.application is None:
            raise left_in_doubt(plan) from None
        application = handed.application
        if path is None:
            say(f"{application.id} goes on")
            tell_how_to_get_back(application, is_listed=handed.is_listed)
            raise click.exceptions.Exit(INTERRUPTED) from None
        cancel(client, application.id, application.place)
        fetch_run(application, path)
        raise


def _prepared(file: JobFile) -> tuple[Plan, dict[str, Any], bool]:
    """Check job and cluster; return what is to be submitted."""
    from elasticml.job import Job, new_job_id
    from elasticml.jobs.settings import YarnContainers
    from elasticml.jobs.yarn_submit import check_sources, plan_submission

    if not isinstance(file.cluster, YarnContainers):
        raise ConfigError(
            f"cluster.kind: got {file.cluster.kind!r}, wanted 'yarn'; use elasticml run, or "
            "--set 'cluster={kind: yarn, workers: 4}'",
            path="cluster.kind",
        )
    job = Job.from_file(file)
    check_sources(job.data, job.test)
    job.check_data()
    plan = plan_submission(file.cluster, file.name, datetime.now())
    job.check_memory(plan.worker_bytes)
    start = file.members.start or plan.workers
    limits = [plan.worker_bytes] * start
    record = job.record(new_job_id(file.name), start, limits, run_dir=plan.place)
    return plan, record, job.evaluates


def _look_on(client: Any, application: Application) -> Verdict:
    from elasticml.jobs.applications import follow_application
    from elasticml.jobs.progress import Progress

    with Progress(label=application.name) as shown:
        return follow_application(client, application, [shown], shown.note)


def show_result(application: Application, verdict: Verdict, path: Path, *, as_json: bool) -> None:
    """Fetch the directory of a job that is over, and tell what it has come to.

    Raises
    ------
    ElasticmlError
        What made the job fail.
    """
    error = verdict.to_error()
    try:
        is_there = bool(fetch_run(application, path))
    except ConfigError as unfetched:
        if error is None:
            raise
        say(unfetched.message)  # what made the job fail matters more
        is_there = False
    if error is not None:
        message = error.message
        if is_there:
            message = message.replace(application.place, str(path))
            if str(path) not in message:
                message += f"; what there is of the run is in {path}"
        raise type(error)(f"{message}; see elasticml logs {application.id}", **error.fields)
    if verdict.state != "done":
        say(f"{application.id}: {verdict.state} after {verdict.reason}")
    summary = path / "summary.json"
    if not summary.exists():
        _tell_unsummarised(application, verdict, as_json)
        return
    tell(json.loads(summary.read_text(encoding="utf-8")), as_json)


def fetch_run(application: Application, path: Path) -> list[str]:
    """Fetch the directory of a run to where nothing else is by now; return its files' names.

    Raises
    ------
    ConfigError
        When another run has been put there since it was looked at, or it cannot be written.
    """
    from elasticml.jobs.mirror import fetch
    from elasticml.jobs.run_directory import check_free

    try:
        check_free(path)
    except ConfigError as error:
        raise ConfigError(
            f"{error.message}; {application.id} has kept its run: elasticml result "
            f"{application.id} --out DIR",
            **error.fields,
        ) from error
    return fetch(application.place, path)


def _tell_unsummarised(application: Application, verdict: Verdict, as_json: bool) -> None:
    """Tell of a job that was ended before it had begun, or before it went on."""
    from elasticml.data import places
    from elasticml.jobs.applications import status_at
    from elasticml.jobs.checkpoints import FOLDER

    kept = places.join(application.place, FOLDER)
    if places.names(kept):
        say(f"{application.id}: what it had reached before is kept as a checkpoint in {kept}")
    if as_json:
        rounds = status_at(application.place).round
        click.echo(
            json.dumps({"name": application.name, "reason": verdict.reason, "rounds": rounds})
        )
