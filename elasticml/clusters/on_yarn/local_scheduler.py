"""Dask's scheduler at the client (deploy mode ``local``), with a container manager."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import skein
    from distributed import Scheduler, Security

    from elasticml.clusters.on_yarn.keeper import YarnKeeper


class LocalScheduler:
    """A scheduler in this process, on the loop that it is started on.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The running one.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._manager: YarnKeeper | None = None

    @classmethod
    async def start(cls, security: Security | None, **listening: Any) -> LocalScheduler:
        """Start a scheduler; ``listening`` holds its host, port and dashboard address."""
        from distributed import Scheduler

        from elasticml.clusters.on_yarn.scheduler_service import ALLOWED_FAILURES

        protocol = "tcp" if security is None else "tls"
        return cls(
            await Scheduler(
                security=security,
                protocol=protocol,
                allowed_failures=ALLOWED_FAILURES,
                **listening,
            )
        )

    @property
    def address(self) -> str:
        """Dask address of the scheduler."""
        return str(self._scheduler.address)

    @property
    def dashboard_address(self) -> str | None:
        """URL of its dashboard; None if it has none."""
        service = self._scheduler.services.get("dashboard")
        if service is None:
            return None
        host = self.address.partition("://")[2].rpartition(":")[0]
        return f"http://{host}:{service.port}"

    async def keep(self, application: skein.ApplicationClient) -> None:
        """Start the container manager for an application's worker containers."""
        from elasticml.clusters.notices import preemption_times
        from elasticml.clusters.on_yarn.allotment import Allotment
        from elasticml.clusters.on_yarn.keeper import YarnKeeper
        from elasticml.clusters.on_yarn.surroundings import cluster_grace

        grace = await asyncio.to_thread(cluster_grace, "", of_cluster=True)
        self._manager = YarnKeeper(
            self._scheduler, application, Allotment(), times=preemption_times(grace)
        )
        await self._manager.start()

    async def close(self) -> None:
        """Close the scheduler; the workers exit with it."""
        if self._manager is not None:
            await self._manager.close()
        await self._scheduler.close()
