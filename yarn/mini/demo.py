"""``python -m yarn.mini demo``: another queue pre-empts half of a job's containers for a while."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from elasticml.cli.submit import run_on_yarn
from elasticml.clusters.yarn.skein_client import start_client
from elasticml.job import Job
from elasticml.report.preemptions import preemptions_table
from elasticml.report.run_reader import read_run
from yarn.mini.mini_settings import Preemption
from yarn.mini.mini_yarn import MiniYarn
from yarn.mini.preemptor import ContainerKiller, ContainerPreemptor, PreemptionPlan
from yarn.mini.tenant import Tenant

# Pre-emption options that the commands of a mini YARN share.

F = TypeVar("F", bound=Callable[..., Any])


def preemption_options(command: F) -> F:
    """Add ``--max-wait`` and ``--sigkill-delay``."""
    for option in (
        click.option(
            "--sigkill-delay",
            type=click.FloatRange(0.0),
            default=5.0,
            show_default=True,
            help="Seconds from SIGTERM to SIGKILL in a container; YARN's default is 0.25.",
        ),
        click.option(
            "--max-wait",
            type=click.FloatRange(0.5),
            default=5.0,
            show_default=True,
            help="Seconds from a pre-emption notice to SIGTERM; YARN's default is 15.",
        ),
    ):
        command = option(command)
    return command


NAME = "yarn-demo"
CONTAINER = "1 GiB"

_HELP = """See a job survive pre-emption on a real Hadoop, which is started on this machine.

A job in the queue ml trains in 6 containers. Then an application in the queue prod requests the
guaranteed share of prod: the capacity scheduler notifies the job, takes half of its containers, and
prod holds them for a while. When prod releases them, the job gets containers again and moves chunks
to them. At the end one of its containers is killed without notice, and a stand-in replaces its
share.

Prints when each container was requested back, stopped, emptied, lost and replaced; the report has
plots.

\b
Examples:
    python -m yarn.mini demo
    python -m yarn.mini demo --max-wait 0.5 --sigkill-delay 0.25
"""


@click.command(name="demo", help=_HELP, short_help="See a job survive pre-emption.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/yarn-demo"),
    show_default=True,
    help="The run directory; that of a former demo is removed.",
)
@click.option("--rows", default=30_000, show_default=True, type=click.IntRange(min=1000))
@click.option(
    "--seconds",
    default=100.0,
    show_default=True,
    type=click.FloatRange(min=60.0),
    help="How long the job trains; Ctrl-C ends it before, and its run is kept.",
)
@click.option("--workers", default=6, show_default=True, type=click.IntRange(min=2, max=8))
@preemption_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as the last line.")
@click.option("-v", "--verbose", is_flag=True, help="Show tracebacks of errors.")
def yarn_demo(
    out: Path,
    rows: int,
    seconds: float,
    workers: int,
    max_wait: float,
    sigkill_delay: float,
    as_json: bool,
    verbose: bool,
) -> None:
    """Start a Hadoop, run a job on it, pre-empt some of its containers and release them."""
    began_s = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"[{time.monotonic() - began_s:5.1f} s] {line}", err=True)

    if (out / "story.jsonl").is_file():
        shutil.rmtree(out)
    # Two nodes that the job's containers and the other application's master just fill: 1 GiB each
    # for workers, scheduler and that master, and half a GiB for the job's master on either node.
    node_gib = (workers + 3) // 2 + 0.5
    with MiniYarn(
        say=say,
        node_memory=f"{node_gib} GiB",
        preemption=Preemption(max_wait_s=max_wait),
        sigkill_delay_s=sigkill_delay,
    ) as yarn:
        os.environ.update(yarn.environment())
        place = f"{yarn.hdfs_url}/runs/{NAME}"
        job = _job(place, rows, seconds, workers)
        with start_client() as client, Tenant(client, memory=CONTAINER) as tenant:
            killer = ContainerKiller(client, yarn, NAME)
            plan = PreemptionPlan(containers=workers // 2, begin_s=10.0, hold_s=20.0)
            with ContainerPreemptor(tenant, killer, place, plan, say) as preemptor:
                run_on_yarn(job, out, as_json=as_json, detach=False, cancels=True)
    preemptor.check()
    _show(out, time.monotonic() - began_s, to_errors=as_json)


def _job(place: str, rows: int, seconds: float, workers: int) -> Job:
    splice = {"format": "synthetic_splice", "rows": rows, "seed": 1, "positive_share": 0.1}
    return Job.from_sections(
        {
            "data": {**splice, "test": {**splice, "rows": rows // 2, "seed": 2}},
            # The job trains until its time is over: containers come and go when YARN decides.
            "algorithm": {"name": "batch_gradient", "l2": 1e-4, "optimizer": "gd", "tolerance": 0},
            "cluster": {
                "kind": "yarn",
                "queue": "ml",
                "workers": workers,
                "memory": CONTAINER,
                "scheduler": {"memory": CONTAINER},
                "result": place,
            },
            "absent": "taylor",
            "stop": {"seconds": seconds, "rounds": 1_000_000},
            "evaluate": {"every": 20},
        },
        folder=Path.cwd(),
        name=NAME,
    )


def _show(out: Path, seconds: float, to_errors: bool) -> None:
    table = preemptions_table(read_run(out).records)
    click.echo(
        "\nContainers that were taken, in seconds since the start of the job:", err=to_errors
    )
    if table is not None:
        for row in table.rows:
            cells = zip(table.names[2:], row[2:], strict=True)
            texts = [f"{name} {cell}" for name, cell in cells if cell != "–"]
            click.echo(f"{row[0]}: {row[1]}; {', '.join(texts)}", err=to_errors)
    click.echo(f"time        {seconds:.0f} s", err=to_errors)
