"""Install elasticml on a cluster that lacks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticml.errors import ConfigError, one_line
from elasticml.ids import VERSION
from elasticml.jobs.cluster_client import Target
from elasticml.jobs.handle import workers_of
from elasticml.jobs.installed import (
    SCHEDULER,
    WHEEL_NAME,
    Found,
    ask,
    check_installed,
    is_complete,
    own_wheel,
    requirements,
    sent_by_value,
)
from elasticml.jobs.on_cluster import called_on

if TYPE_CHECKING:
    from distributed import Client


def install(client: Target = None) -> list[str]:
    """Install the elasticml that runs here on a cluster's scheduler and workers.

    A wheel is built from the running package and sent; no package index needs to have it. Pip
    installs it where elasticml is missing or has another version, and the packages that it requires
    from pip's index. Workers that join later get it too, until the scheduler ends. Workers
    that had loaded another version are restarted by their nannies.

    Parameters
    ----------
    client : distributed.Client, cluster or str, optional
        As of :meth:`Job.start`; for a client with ``asynchronous=True`` await it.

    Returns
    -------
    list of str
        Where it was installed: "the scheduler" and addresses of workers.

    Raises
    ------
    ConfigError
        When it could not be installed, or a process has to be restarted; the message says where.

    Examples
    --------
    >>> em.install(client)  # all have it
    []
    """
    return called_on(client, _install)


def _install(client: Client) -> list[str]:
    workers = workers_of(client)
    names = [SCHEDULER, *workers]
    before: Found = client.sync(ask, client, names)
    wrong = [name for name in names if name in before and not is_complete(before[name])]
    with sent_by_value() as remote:
        wheel = remote.Wheel(WHEEL_NAME, VERSION, own_wheel(), requirements())
        there: dict[str, Any] = {}
        if SCHEDULER in wrong:
            try:
                there[SCHEDULER] = client.run_on_scheduler(remote.install_in_thread, wheel)
            except RuntimeError as error:
                there[SCHEDULER] = error
        on_workers = [name for name in wrong if name != SCHEDULER]
        if on_workers:
            call = remote.install_in_thread
            there |= client.run(call, wheel, workers=on_workers, on_error="return")
        for name, has in there.items():
            if isinstance(has, BaseException):
                raise ConfigError(
                    f"em.install: {name} on {before[name]['host']}: {one_line(has)}; install "
                    "elasticml there by hand"
                )
        client.register_plugin(remote.WorkerInstall(wheel))
        client.register_plugin(remote.NannyInstall(wheel))
        client.run_on_scheduler(remote.install_first)
    stale = [
        name
        for name in on_workers
        if (there[name]["loaded"] or VERSION) != VERSION and workers[name].get("nanny")
    ]
    if stale:
        client.restart_workers(stale)
    check_installed(client, list(workers_of(client)))
    return wrong
