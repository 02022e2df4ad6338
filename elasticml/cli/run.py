"""``elasticml run``: run a job file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import click

from elasticml.cli.job_options import is_quiet, job_options, print_summary

_HELP = """Run the job in JOB (a YAML file), and write its run directory.

\b
Examples:
    elasticml run job.yaml
    elasticml run job.yaml --set stop.rounds=50 --set algorithm.l2=1e-3 --out runs/try
    elasticml run job.yaml --json --quiet
    elasticml run --resume runs/job-20260801-101500

The directory holds job.yaml, story.jsonl, history.csv, model.npz, summary.json and report.html.
Story and history grow while the job runs. Ctrl-C ends the job; the directory stays usable, or is
removed if no round has ended. The run can be resumed with --resume, also after a crash: a
checkpoint is written every 5 seconds, on a cluster that is named by its address only if the section
checkpoint names a path.

With cluster: {kind: yarn} the job runs on a Hadoop cluster, and Ctrl-C ends it there too;
elasticml submit -h describes the settings.

Sections of a job file: data, algorithm, cluster, absent, policies, stop, faults, evaluate,
members, collective, partitions, holders, placement, warm_start, seed, threads, memory_limit,
checkpoint. elasticml schema describes their keys. To kill members on purpose:

\b
    algorithm: {name: batch_gradient, loss: logistic, l2: 1.0e-4}
    cluster: {kind: local, workers: 14}
    absent: taylor                # or ignore, ignore_rescaled, stall, reload
    faults: [{round: 100, lose: 7, how: kill}, {round: 200, return: 7}]

A support vector machine to a certified gap. The policy knee releases workers when convergence
slows down:

\b
    algorithm: {name: cocoa, loss: hinge, l2: 1.0e-2}
    cluster: {kind: local, workers: 4, workers_max: 8}
    absent: reload                # or freeze (continue; the gap becomes a bound), stall
    policies: [knee, rebalance]   # or straggler, redeal, shuffle, tune_local_work,
                                  # gap_per_container_second
    stop: {rounds: 200, gap: 1.0e-6}
"""


@click.command(help=_HELP, short_help="Run a job file.")
@job_options("runs/NAME-TIME", "Show Dask's log, and tracebacks of errors.", required=False)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RUN_DIR",
    help="Resume the interrupted run in this directory, instead of a JOB.",
)
def run(
    job: Path | None,
    settings: tuple[str, ...],
    out: Path | None,
    as_json: bool,
    verbose: bool,
    resume: Path | None,
) -> None:
    """Run a job file, or resume an interrupted run."""
    with _nothing_written():
        from elasticml.cli.cluster import client_of
        from elasticml.ids import parse_size
        from elasticml.job import Job
        from elasticml.jobs.run_checkpoints import interrupted_run, job_file_of_run
        from elasticml.jobs.run_directory import check_free, default_run_path
        from elasticml.specification.sections import LocalWorkers, YarnContainers
        from elasticml.training.shortfall import NOT_CONVERGED

    if (job is None) == (resume is None) or (resume is not None and out is not None):
        raise click.UsageError("give a JOB, or --resume RUN_DIR, which continues in that directory")
    if resume is not None:
        job = job_file_of_run(resume)
    assert job is not None
    with _nothing_written():
        made = Job.from_file(job, settings)
    assert made.cluster is not None
    if isinstance(made.cluster, YarnContainers):
        from elasticml.cli.submit import run_on_yarn

        run_on_yarn(made, out, as_json=as_json, cancels=True)
        return
    path = resume or out or default_run_path(made.name, datetime.now())
    if resume is None:
        check_free(path)
    else:
        interrupted_run(resume, made.checkpoint)  # before anything is started
    layout = None
    if isinstance(made.cluster, LocalWorkers):
        # Check first: nothing is started for a job that cannot run.
        layout = made.check_data()
        if made.cluster.memory != "auto":
            made.check_memory(parse_size(made.cluster.memory))
    with (
        _nothing_written(),
        warnings.catch_warnings(),
        client_of(made.cluster, made.algorithm.name, layout, verbose=verbose) as client,
    ):
        # The summary says it in its last line.
        warnings.filterwarnings("ignore", NOT_CONVERGED)
        result = made.run(
            client,
            progress=not is_quiet(),
            run_dir=path,
            resume=resume is not None,
            cluster=made.cluster.model_dump(mode="json"),
        )
    print_summary(result.summary, as_json)


@contextmanager
def _nothing_written() -> Iterator[None]:
    """Say of an interrupt, unless it says more itself, that nothing was written."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if not getattr(interrupt, "__notes__", ()):
            interrupt.add_note("the job had not started, and nothing was written")
        raise
