"""``elasticml simulate``: run a job file in virtual time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path

import click

from elasticml.cli.job_options import is_quiet, job_options, print_summary
from elasticml.story.summary import summary_from_json

_HELP = """Simulate a job in virtual time: the same decisions, the same arithmetic, no processes.

The section simulate of the file sets network, speeds and pre-emptions. The same seed gives the same
story. The run directory is like that of a real run.

\b
Examples:
    elasticml simulate job.yaml
    elasticml simulate job.yaml --set cluster.workers=64 --set simulate.latency_s=0.001
    elasticml simulate job.yaml --set 'simulate.preemption={rate: 0.02, away: [10, 60]}'
    elasticml simulate job.yaml --set 'simulate.preemption={trace: taken.csv}'
    elasticml simulate job.yaml --set 'simulate.slow={0: 1.5}' --set 'policies=[rebalance]'

No data are read if the file gives the cost of an exchange:

\b
    simulate: {seed: 1, costs: {rows: 1000000, columns: 47028}, jitter: 0.1}
"""


@click.command(help=_HELP, short_help="Run a job file in virtual time.")
@job_options("runs/NAME-simulated-TIME", "Show tracebacks of errors.")
def simulate(
    job: Path, settings: tuple[str, ...], out: Path | None, as_json: bool, verbose: bool
) -> None:
    """Run a job file in virtual time."""
    from elasticml.job import Job
    from elasticml.jobs.follow import follow
    from elasticml.jobs.progress_bar import ProgressBar
    from elasticml.jobs.run_directory import default_run_path
    from elasticml.jobs.simulated_job import SimulatedJob
    from elasticml.specification.sections import Address

    made = Job.from_file(job, settings)
    assert made.cluster is not None
    has_data = not (made.simulate or {}).get("costs")
    if has_data:
        made.check_data()
    workers = 1 if isinstance(made.cluster, Address) else made.cluster.workers
    # A deterministic job id: the same file gives the same story, byte for byte.
    record = made.record(f"{made.name}-simulated", made.members.start or workers)
    with _rare_collections(), nullcontext() if is_quiet() else ProgressBar() as progress:
        result = follow(
            SimulatedJob(record, made.source if has_data else None),
            run_dir=out or default_run_path(f"{made.name}-simulated", datetime.now()),
            callbacks=[] if progress is None else [progress],
            cluster=made.cluster.model_dump(mode="json"),
            cancels=True,
        )
    print_summary(result.summary, as_json)
    if not as_json and not is_quiet():
        click.echo(f"time        {summary_from_json(result.summary).seconds:.3f} s, virtual")


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage less often: thousands of members are millions of long-lived objects."""
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
