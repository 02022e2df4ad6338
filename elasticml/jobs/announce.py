"""Announce by hand that workers of any Dask cluster will be stopped, or that they stay."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

from elasticml.errors import JobFailedError
from elasticml.jobs.handle import prepare_scheduler
from elasticml.jobs.rpc import unwrap_reply

if TYPE_CHECKING:
    from distributed import Client


def announce(
    client: Client,
    workers: str | Collection[str],
    *,
    grace_s: float,
    reason: Literal["preempted", "walltime", "lifetime", "maintenance"] = "preempted",
    negotiable: bool = False,
) -> tuple[str, ...]:
    """Tell all jobs of a cluster that workers will be stopped.

    The jobs move the chunks of these workers to others and release their members; jobs that start
    later use other workers. A worker that has not been stopped three grace periods later (at least
    a minute after its grace) is used again, and so is one whose notice is withdrawn.

    Parameters
    ----------
    client : distributed.Client
        Any Dask cluster.
    workers : str or collection of str
        Workers by address, by name, or by host: then all workers of the host.
    grace_s : float
        Seconds until their processes are stopped, at the earliest; at least 0.
    reason : {"preempted", "walltime", "lifetime", "maintenance"}
        Recorded in the stories of the jobs.
    negotiable : bool
        Whether any other worker may be given in place of each: then a job that can release workers
        chooses the one whose loss costs least.

    Returns
    -------
    tuple of str
        The addresses of the workers.

    Raises
    ------
    ConfigError
        When a worker is unknown: the message lists the known ones; and for invalid arguments.
    JobFailedError
        When the scheduler cannot be reached.

    Examples
    --------
    >>> worker = next(iter(client.scheduler_info()["workers"]))
    >>> em.announce(client, worker, grace_s=30) == (worker,)
    True
    >>> em.withdraw(client, worker) == (worker,)
    True
    """
    return _call(
        client,
        "em_notice",
        workers,
        grace_s=grace_s,
        reason=reason,
        negotiable=negotiable,
    )


def withdraw(client: Client, workers: str | Collection[str]) -> tuple[str, ...]:
    """Tell all jobs of a cluster that announced workers stay: they are used again.

    Parameters
    ----------
    client : distributed.Client
    workers : str or collection of str
        Workers by address, by name, or by host.

    Returns
    -------
    tuple of str
        The addresses of those that had been announced.

    Raises
    ------
    ConfigError
        When a worker is unknown: the message lists the known ones.
    JobFailedError
        When the scheduler cannot be reached.

    Examples
    --------
    >>> worker = next(iter(client.scheduler_info()["workers"]))
    >>> em.announce(client, worker, grace_s=30) == em.withdraw(client, worker)
    True
    """
    return _call(client, "em_withdraw", workers)


def _call(
    client: Client, handler: str, workers: str | Collection[str], **arguments: Any
) -> tuple[str, ...]:
    listed = [workers] if isinstance(workers, str) else list(workers)
    try:
        prepare_scheduler(client)
        call = getattr(client.scheduler, handler)
        reply = unwrap_reply(client.sync(call, workers=listed, **arguments))
    except OSError as error:
        raise JobFailedError(
            f"the scheduler cannot be reached: {error or 'it is gone'}", reason="scheduler lost"
        ) from error
    return tuple(reply["workers"])
