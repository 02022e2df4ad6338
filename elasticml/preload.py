"""Turn the end of a stock Dask worker into a notice: ``dask worker --preload elasticml.preload``.

The worker learns of its end from SIGTERM and SIGUSR1, from ``--lifetime``, from its SLURM job, and
from the metadata servers of AWS, GCE and Azure (``elasticml/clusters/stop_notices.py``). It tells
the jobs, which move its chunks away before it goes. ``--preload-nanny elasticml.preload`` does the
same for signals to the nanny's process.

Where a worker runs is detected without asking the network. ``ELASTICML_NOTICES=aws,slurm`` names
the sources instead, and ``ELASTICML_GRACE=110`` says how long the process has after a signal.
``dask worker ADDRESS --preload elasticml.preload --notices=aws`` works, too, where the scheduler's
address is given: without it, Dask takes the first of these options for the address.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from elasticml.clusters.worker_notices import GRACE_S, start, stop

if TYPE_CHECKING:
    from distributed import Nanny, Worker


@click.command()
@click.option(
    "--notices",
    default="auto",
    envvar="ELASTICML_NOTICES",
    help="'auto', 'none', or some of slurm,aws,gce,azure",
)
@click.option(
    "--grace",
    "grace_s",
    default=GRACE_S,
    envvar="ELASTICML_GRACE",
    help=f"Seconds between SIGTERM or SIGUSR1 and SIGKILL; {GRACE_S:g} by default",
)
@click.option(
    "--metadata-url",
    default=None,
    envvar="ELASTICML_METADATA_URL",
    help="Metadata server; by default the cloud's",
)
def dask_setup(
    server: Worker | Nanny, notices: str, grace_s: float, metadata_url: str | None
) -> Any:
    """Listen for notices; Dask calls this when a worker or a nanny starts."""
    return start(server, notices, grace_s, metadata_url)


async def dask_teardown(server: Worker | Nanny) -> None:
    """Drain a nanny's worker, and stop listening; Dask calls this when a server closes."""
    await stop(server)
