"""``elasticml mini-yarn demo``: another queue takes half of a job's containers for a while."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from elasticml.clusters.tenant import Tenant
    from elasticml.jobs.job_file import JobFile

#: Seconds between two looks at the job's story.
LOOK_S = 0.5
#: The other queue begins at this share of the job's time, and keeps what it has for such a share.
BEGIN_SHARE, HOLD_SHARE = 0.1, 0.2
#: Seconds for a job to begin, and for the other queue to get what it asks for.
WAIT_S_MAX = 300.0
CONTAINER = "1 GiB"

_HELP = """See a job live with pre-emption, on a real Hadoop that is started on this machine for it.

A job in the queue ml trains in 6 containers. Then an application in the queue prod asks for what
prod is guaranteed: the capacity scheduler tells the job, takes half of its containers, and prod has
them for a while. When prod gives them back, the job gets containers again, and chunks with them.
Prints when each container was asked for, stopped, lost and replaced; the report has pictures.

With 5 s of notice all chunks move in time. With next to none, a stand-in takes their place.

\b
Examples:
    elasticml mini-yarn demo
    elasticml mini-yarn demo --max-wait 0.5 --sigkill-delay 0.25 --rows 200000
"""


@click.command(name="demo", help=_HELP, short_help="See a job live with pre-emption.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/yarn-demo"),
    show_default=True,
    help="The run directory; that of a former demo goes.",
)
@click.option("--rows", default=30_000, show_default=True, type=click.IntRange(min=1000))
@click.option(
    "--seconds",
    default=100.0,
    show_default=True,
    type=click.FloatRange(min=20.0),
    help="How long the job trains.",
)
@click.option("--workers", default=6, show_default=True, type=click.IntRange(min=2, max=8))
@click.option(
    "--max-wait",
    type=click.FloatRange(0.5),
    default=5.0,
    show_default=True,
    help="Seconds from the notice of a pre-emption to SIGTERM; YARN's default is 15.",
)
@click.option(
    "--sigkill-delay",
    type=click.FloatRange(0.0),
    default=5.0,
    show_default=True,
    help="Seconds from SIGTERM to SIGKILL in a container; YARN's default is 0.25.",
)
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
    """Start a Hadoop, run a job on it, take containers from it and give them back."""
    from elasticml.clusters.hadoop.settings import Preemption
    from elasticml.clusters.mini_yarn import MiniYarn
    from elasticml.clusters.on_yarn.submission import start_client
    from elasticml.clusters.tenant import Tenant

    began_s = time.monotonic()

    def say(line: str) -> None:
        click.echo(f"[{time.monotonic() - began_s:5.1f} s] {line}", err=True)

    if (out / "story.jsonl").is_file():
        shutil.rmtree(out)
    # Two nodes that the job's containers and the other application's master just fill: GiBs for
    # workers, scheduler and that master, and half of one for the job's master wherever it is.
    node_gib = (workers + 3) // 2 + 0.5
    with MiniYarn(
        say=say,
        node_memory=f"{node_gib} GiB",
        preemption=Preemption(max_wait_s=max_wait),
        sigkill_delay_s=sigkill_delay,
    ) as yarn:
        os.environ.update(yarn.environment())
        place = f"{yarn.hdfs_url}/runs/yarn-demo"
        with start_client() as client, Tenant(client, memory=CONTAINER) as tenant:
            rival = Rival(tenant, place, containers=workers // 2, seconds=seconds, say=say)
            with rival:
                _run(_job(place, rows, seconds, workers), out, as_json)
    rival.check()
    _show(out, time.monotonic() - began_s, to_errors=as_json)


def _job(place: str, rows: int, seconds: float, workers: int) -> JobFile:
    from elasticml.jobs.job_file import parse_job

    splice = {"format": "synthetic_splice", "rows": rows, "seed": 1, "positive_share": 0.1}
    return parse_job(
        {
            "data": {**splice, "test": {**splice, "rows": rows // 2, "seed": 2}},
            "algorithm": {"name": "batch_gradient", "loss": "logistic", "l2": 3e-3},
            "cluster": {
                "kind": "yarn",
                "queue": "ml",
                "workers": workers,
                "memory": CONTAINER,
                "scheduler": {"memory": CONTAINER},
                "result": place,
            },
            "absent": "taylor",
            "stop": {"seconds": seconds},
            "evaluate": {"every": 20},
        },
        folder=Path.cwd(),
        name="yarn-demo",
    )


def _run(job: JobFile, out: Path, as_json: bool) -> None:
    from elasticml.cli.submit import run_on_yarn

    run_on_yarn(job, out, as_json=as_json, detach=False, cancels=True)


class Rival:
    """Takes containers from a job while it trains, and gives them back; a context manager.

    Parameters
    ----------
    tenant : Tenant
        Who takes them: an application in another queue.
    place : str
        Where the job's run directory is.
    containers : int
        How many.
    seconds : float
        How long the job trains.
    say : callable
        Is told, in a line each, what happens.
    """

    def __init__(
        self,
        tenant: Tenant,
        place: str,
        *,
        containers: int,
        seconds: float,
        say: Callable[[str], None],
    ) -> None:
        from elasticml.jobs.applications import StoryReader

        self._tenant = tenant
        self._reader = StoryReader(place)
        self._containers = containers
        self._seconds = seconds
        self._say = say
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._act, name="elasticml-rival")
        self._error: Exception | None = None

    def __enter__(self) -> Rival:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def check(self) -> None:
        """Raise what kept containers from being taken."""
        if self._error is not None:
            raise self._error

    def _act(self) -> None:
        from elasticml.errors import ElasticmlError

        try:
            if self._job_trains():
                self._take_and_give_back()
        except ElasticmlError as error:
            self._error = error

    def _job_trains(self) -> bool:
        """Wait until the job has trained for a while; False when it is over before."""
        deadline_s = time.monotonic() + WAIT_S_MAX + self._seconds
        while time.monotonic() < deadline_s and not self._is_over.wait(LOOK_S):
            if _trained_s(self._reader.news()) > BEGIN_SHARE * self._seconds:
                return True
        return False

    def _take_and_give_back(self) -> None:
        self._say(f"prod asks for {self._containers} containers")
        self._tenant.take(self._containers)
        self._tenant.wait(self._containers, WAIT_S_MAX)
        self._say(f"prod has {self._containers} containers")
        self._is_over.wait(HOLD_SHARE * self._seconds)
        self._tenant.give_back()
        self._say("prod gives them back")


def _trained_s(news: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of the job at its last round."""
    return max((float(r["t"]) for r in news if r["event"] == "RoundEnded"), default=0.0)


def _show(out: Path, seconds: float, to_errors: bool) -> None:
    from elasticml.report.preemption_table import preemption_table
    from elasticml.report.run import read_run

    table = preemption_table(read_run(out).records) or "none was asked for\n"
    click.echo(f"\nContainers, in seconds since the job began:\n{table}", err=to_errors)
    click.echo(f"time        {seconds:.0f} s", err=to_errors)
