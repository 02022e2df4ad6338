"""``elasticml run``: run a job file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

_HELP = """Run the job that JOB (a YAML file) describes, and write its run directory.

\b
Examples:
    elasticml run job.yaml
    elasticml run job.yaml --set stop.rounds=50 --set algorithm.l2=1e-3 --out runs/try
    elasticml run job.yaml --json | tail -1

The directory holds job.yaml, story.jsonl, history.csv, model.npz, summary.json and report.html.
Story and history grow while the job runs. Ctrl-C ends the job; the directory stays usable.

Sections of a job file: data, algorithm, cluster, absent, policies, stop, faults, evaluate,
members, collective, partitions, holders, placement, warm_start, seed, threads; docs/job-files.md
tells of each. Members that shall be killed on purpose:

\b
    algorithm: {name: batch_gradient, loss: logistic, l2: 1.0e-4}
    cluster: {kind: local, workers: 14}
    absent: taylor                # or ignore, ignore_rescaled, stall, reload
    faults: [{round: 100, lose: 7, how: kill}, {round: 200, return: 7}]

A support vector machine to a certified gap; the knee policy gives workers back that no longer pay:

\b
    algorithm: {name: cocoa, loss: hinge, l2: 1.0e-2}
    cluster: {kind: local, workers: 4, workers_max: 8}
    absent: reload                # or freeze (go on; the gap becomes a bound), stall
    policies: [knee, rebalance]   # or straggler, redeal, shuffle, tune_local_work,
                                  # gap_per_container_second
    stop: {rounds: 200, gap: 1.0e-6}
"""


@click.command(help=_HELP, short_help="Run a job file.")
@click.argument("job", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Change one setting of the file; may be given several times.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="The run's directory; by default runs/NAME-TIME.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as the last line.")
@click.option("-v", "--verbose", is_flag=True, help="Show Dask's log, and tracebacks of errors.")
def run(
    job: Path, settings: tuple[str, ...], out: Path | None, as_json: bool, verbose: bool
) -> None:
    """Run a job file."""
    from elasticml.cli.cluster import client_of
    from elasticml.job import Job
    from elasticml.jobs.job_file import read_job_file
    from elasticml.jobs.run_directory import check_free, default_run_path, json_safe
    from elasticml.jobs.settings import LocalWorkers
    from elasticml.terms import parse_size

    file = read_job_file(job, settings)
    made = Job.from_file(file)
    path = out or default_run_path(file.name, datetime.now())
    check_free(path)
    if isinstance(file.cluster, LocalWorkers):
        # Nothing is started for a job that cannot run.
        made.check_data()
        if file.cluster.memory != "auto":
            made.check_memory(parse_size(file.cluster.memory))
    with client_of(file.cluster, verbose=verbose) as client:
        result = made.run(
            client,
            progress=True,
            run_dir=path,
            cluster=file.cluster.model_dump(mode="json"),
        )
    if as_json:
        click.echo(json.dumps(json_safe(result.summary)))
    else:
        for line in summary_lines(result.summary):
            click.echo(line)


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Say what a run has come to, for people."""
    lines = [f"rounds      {summary.get('rounds')} ({summary.get('stopped_by')})"]
    objective = summary.get("objective")
    if objective is None:
        lines.append(f"objective   not known: {summary.get('objective_missing_because')}")
    else:
        lines.append(f"objective   {objective:.8g}")
    if summary.get("gap") is not None:
        bound = "at most " if summary.get("gap_is_bound") else ""
        lines.append(f"gap         {bound}{summary['gap']:.3g}")
    for name in ("train", "test"):
        metrics = summary.get(name) or {}
        if metrics:
            lines.append(f"{name:<12}" + ", ".join(f"{k} {v:.4f}" for k, v in metrics.items()))
    if summary.get("lost"):
        lines.append(f"members     {summary['lost']} lost, {summary.get('returned')} returned")
    if summary.get("retired"):
        lines.append(f"members     {summary['retired']} given back by a policy")
    decisions = summary.get("decisions") or {}
    if decisions:
        lines.append("decisions   " + ", ".join(f"{name} {n}" for name, n in decisions.items()))
    lines += [f"note        {note}" for note in summary.get("notes") or ()]
    lines += [f"note        test data: {note}" for note in summary.get("test_notes") or ()]
    if summary.get("not_evaluated"):
        lines.append(f"note        not evaluated: {summary['not_evaluated']}")
    lines.append(f"report      {Path(str(summary.get('run_dir'))) / 'report.html'}")
    return lines
