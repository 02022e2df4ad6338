"""Open the cluster that a command runs on, and close it with the command."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from elasticml.errors import ConfigError, JobFailedError, SubmissionError, one_line

if TYPE_CHECKING:
    from distributed import Client

    from elasticml.clusters.local.cluster import LocalCluster
    from elasticml.specification.sections import Address, ClusterFactory, LocalWorkers


@contextmanager
def client_of(
    cluster: LocalWorkers | Address | ClusterFactory,
    algorithm: str,
    layout: tuple[str, str] | None = None,
    *,
    verbose: bool = False,
) -> Iterator[Client]:
    """Yield a client of the cluster that a job names; start and end local workers.

    Local workers compile the kernels of ``algorithm`` before they register; with ``layout`` only
    those for chunks of this kind and type of values.

    Raises
    ------
    ConfigError
        When no scheduler responds at the address, or a cluster's function cannot be imported.
    SubmissionError
        When local workers do not start, or a cluster's function fails.
    """
    from elasticml.specification.sections import Address, ClusterFactory

    quieten(verbose)
    if isinstance(cluster, Address):
        with _connected(cluster, verbose) as client:
            yield client
        return
    if isinstance(cluster, ClusterFactory):
        with _made(cluster, verbose) as client:
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
        layout=layout,
    )
    local.launch()
    try:
        # Imported while the cluster starts, with what a job submits.
        with _ended_on_failure(local):
            from distributed import Client

            for module in ("elasticml.runtime.scheduler_plugin", "elasticml.jobs.handle"):
                importlib.import_module(module)
        with local:
            quieten(verbose)
            with Client(local) as client:
                yield client
    except JobFailedError as error:
        if local.log_dir.exists():  # logs are kept if the scheduler did not shut down cleanly
            error = JobFailedError(f"{error.message}; see {local.log_dir}", **error.fields)
        raise error from None


@contextmanager
def _ended_on_failure(local: LocalCluster) -> Iterator[None]:
    """Shut down a cluster if what is done while it starts fails or is interrupted."""
    try:
        yield
    except BaseException:
        local.shutdown()
        raise


@contextmanager
def client_at(
    address: str | None, scheduler_file: str | None, *, verbose: bool = False
) -> Iterator[Client]:
    """Yield a client of a running scheduler that a command's options name.

    Raises
    ------
    click.UsageError
        When they name none, or two.
    ConfigError
        When no scheduler responds.
    """
    if (address is None) == (scheduler_file is None):
        raise click.UsageError("give the scheduler: either --scheduler or --scheduler-file")
    from elasticml.jobs.cluster_client import connect

    quieten(verbose)
    with connect(address, scheduler_file, key="scheduler") as client:
        yield client


def _connected(cluster: Address, verbose: bool) -> Client:
    """Return a client of a running scheduler."""
    from distributed.security import Security

    from elasticml.jobs.cluster_client import connect

    quieten(verbose)
    security = None
    if cluster.tls is not None:
        security = Security(
            tls_ca_file=cluster.tls.ca,
            tls_client_cert=cluster.tls.cert,
            tls_client_key=cluster.tls.key or cluster.tls.cert,
            require_encryption=True,
        )
    key = "address" if cluster.scheduler_file is None else "scheduler_file"
    if cluster.scheduler_file is not None and not os.path.exists(cluster.scheduler_file):
        raise ConfigError(
            f"cluster.scheduler_file: there is no file {cluster.scheduler_file}; start the "
            "scheduler with --scheduler-file or correct the path"
        )
    return connect(cluster.address, cluster.scheduler_file, security, key=f"cluster.{key}")


@contextmanager
def _made(cluster: ClusterFactory, verbose: bool) -> Iterator[Client]:
    """Yield a client of a cluster that a function makes, and close both at the end."""
    from distributed import Client
    from distributed.deploy import Cluster

    module, _, name = cluster.call.partition(":")
    try:
        call: Any = importlib.import_module(module)
        for part in name.split("."):
            call = getattr(call, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"cluster.call: {cluster.call!r} cannot be imported: {one_line(error)}; install the "
            "package, or give module:function"
        ) from None
    quieten(verbose)
    with ExitStack() as stack:
        try:
            made = call(**cluster.arguments)
        except Exception as error:
            raise SubmissionError(
                f"cluster.call: {cluster.call} failed: {type(error).__name__}: {one_line(error)}; "
                "correct cluster.arguments"
            ) from error
        if not isinstance(made, Cluster):
            raise ConfigError(
                f"cluster.call: {cluster.call} returned {type(made).__name__}, wanted a "
                "distributed.deploy.Cluster"
            )
        stack.enter_context(made)
        if len(made.plan) < cluster.workers:
            made.scale(cluster.workers)
        yield stack.enter_context(Client(made))


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
