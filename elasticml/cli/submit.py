"""``elasticml submit``: run a job file on a Hadoop cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from elasticml.cli.interrupts import held_interrupts
from elasticml.cli.job_options import job_options, tell
from elasticml.errors import ConfigError

if TYPE_CHECKING:
    from elasticml.jobs.applications import Application
    from elasticml.jobs.job_file import JobFile
    from elasticml.jobs.submission import Verdict
    from elasticml.jobs.yarn_submit import Plan

INTERRUPTED = 130

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
    from elasticml.jobs.mirror import fetch
    from elasticml.jobs.run_directory import check_free, default_run_path
    from elasticml.jobs.standing import cancel

    path = out or default_run_path(file.name, datetime.now())
    if not detach:
        check_free(path)
    with _nothing_submitted():
        plan, record, evaluates = _prepared(file)
        from elasticml.jobs.yarn_submit import packed, submit_plan

        plan = packed(plan, _say)
        client = start_client(keytab=plan.cluster.keytab, principal=plan.cluster.principal)
    with client:
        # What is submitted runs: nobody may go before its id is known.
        with held_interrupts() as held:
            application = submit_plan(client, plan, record, evaluates=evaluates)
        if detach:
            click.echo(application.id)
            _tell_how_to_get_back(application)
            return
        _say(f"{application.id}; its run is in {application.place}")
        try:
            held.act()
            verdict = _look_on(client, application)
        except KeyboardInterrupt:
            if not cancels:
                _say(f"{application.id} goes on")
                _tell_how_to_get_back(application)
                raise click.exceptions.Exit(INTERRUPTED) from None
            cancel(client, application.id, application.place)
            fetch(application.place, path)
            raise
    show_result(application, verdict, path, as_json=as_json)


@contextmanager
def _nothing_submitted() -> Iterator[None]:
    """Say of an interrupt that it came before there was anything to interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        _say("interrupted; nothing has been submitted")
        raise click.exceptions.Exit(INTERRUPTED) from None


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
    from elasticml.jobs.mirror import fetch

    is_there = bool(fetch(application.place, path))
    error = verdict.to_error()
    if error is not None:
        message = error.message.replace(application.place, str(path))
        if is_there and str(path) not in message:
            message += f"; what there is of the run is in {path}"
        raise type(error)(f"{message}; see elasticml logs {application.id}", **error.fields)
    if verdict.state != "done":
        _say(f"{application.id}: {verdict.state} after {verdict.reason}")
    if not (path / "summary.json").exists():
        return  # it was ended before it had begun, or before it went on
    tell(json.loads((path / "summary.json").read_text(encoding="utf-8")), as_json)


def _tell_how_to_get_back(application: Application) -> None:
    for command, what in (
        ("status", "how it stands"),
        ("result", f"fetch its run, which is in {application.place}"),
        ("kill", "end it"),
    ):
        _say(f"elasticml {command} {application.id}: {what}")


def _say(text: str) -> None:
    click.echo(f"elasticml: {text}", err=True)
