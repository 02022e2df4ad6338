"""Open the cluster that a command runs on, and close it with the command."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from elasticml.errors import ConfigError, JobFailedError

if TYPE_CHECKING:
    from distributed import Client

    from elasticml.specification.sections import Address, LocalWorkers

#: Seconds for a scheduler to respond.
CONNECT_S = 10


@contextmanager
def client_of(
    cluster: LocalWorkers | Address, algorithm: str, *, verbose: bool = False
) -> Iterator[Client]:
    """Yield a client of the cluster that a job names; start and end local workers.

    Local workers compile the kernels of ``algorithm`` before they register.

    Raises
    ------
    ConfigError
        When no scheduler responds at the address.
    SubmissionError
        When local workers do not start.
    """
    from elasticml.specification.sections import Address

    quieten(verbose)
    if isinstance(cluster, Address):
        from distributed import Client

        quieten(verbose)
        try:
            client = Client(cluster.address, timeout=CONNECT_S)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cluster.address: no scheduler answers at {cluster.address!r} "
                f"({type(error).__name__}); start one or correct the address",
                path="cluster.address",
            ) from error
        with client:
            yield client
        return
    from elasticml.clusters.local.cluster import LocalCluster

    local = LocalCluster(
        cluster.workers,
        cluster.threads,
        memory_limit=cluster.memory,
        workers_max=cluster.workers_max,
        slowdown=cluster.slowdown,
        algorithms=[algorithm],
    )
    local.launch()  # starts in the background while Dask's client is imported
    try:
        with local:
            from distributed import Client

            quieten(verbose)
            with Client(local) as client:
                yield client
    except JobFailedError as error:
        if local.log_dir.exists():  # logs are kept if the scheduler did not shut down cleanly
            error = JobFailedError(f"{error.message}; see {local.log_dir}", **error.fields)
        raise error from None


def quieten(verbose: bool) -> None:
    """Suppress Dask's log of lost connections on the terminal: lost members are expected.

    Call it again after importing Dask, which sets the levels of its loggers.
    """
    if verbose:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
        return
    families = ("distributed", "tornado", "asyncio")
    children = [n for n in logging.root.manager.loggerDict if n.partition(".")[0] in families]
    for name in (*families, *children):
        logging.getLogger(name).setLevel(logging.CRITICAL)
