"""Elasticml in stock Dask processes from their start: ``--preload elasticml.preload``.

In ``dask worker`` it posts what is known of the worker's end as a notice: its ``--lifetime``, the
end or pre-emption of its SLURM job, and the spot notices of AWS, GCE and Azure
(``elasticml/clusters/stop_notices.py``). The jobs move its chunks away before it goes. SIGTERM and
SIGUSR1 need no preload: every worker of a scheduler that has run a job handles them.

In ``dask scheduler`` it loads elasticml's plugin at the start instead of with the first job.

Where a worker runs is detected without asking the network. ``ELASTICML_NOTICES=aws,slurm`` names
the sources instead; ``ELASTICML_GRACE=110`` says how many seconds a process has after a signal.
"""

from __future__ import annotations

from typing import Any

import click
from distributed import Scheduler, Worker


@click.command()
@click.option(
    "--notices",
    default="auto",
    envvar="ELASTICML_NOTICES",
    help="'auto', 'none', or some of slurm,aws,gce,azure",
)
@click.option(
    "--metadata-url",
    default=None,
    envvar="ELASTICML_METADATA_URL",
    help="Metadata server; by default the cloud's",
)
def dask_setup(server: Any, notices: str, metadata_url: str | None) -> None:
    """Load the plugin, or watch for notices; Dask calls this when a server starts."""
    if isinstance(server, Scheduler):
        from elasticml.runtime.scheduler_plugin import ElasticmlScheduler

        server.add_plugin(ElasticmlScheduler(), idempotent=True)  # it is started next
    elif isinstance(server, Worker):
        from elasticml.clusters.worker_notices import start

        start(server, notices, metadata_url)


async def dask_teardown(server: Any) -> None:
    """Stop watching; Dask calls this when a server closes."""
    if isinstance(server, Worker):
        from elasticml.clusters.worker_notices import stop

        await stop(server)
