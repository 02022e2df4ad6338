"""Dask's adaptive scaling of a YARN cluster, driven by the load of plain Dask work."""

from __future__ import annotations

from typing import Any

from distributed.deploy.adaptive import Adaptive

#: Default arguments of ``adapt()``, as in dask-yarn.
DEFAULTS: dict[str, Any] = {
    "interval": "1s",
    "wait_count": 3,
    "target_duration": "5s",
}


class YarnAdaptive(Adaptive):
    """Adaptive scaling over the containers of one application.

    Workers are named after their containers.
    """

    #: Fallback until the base class sets its own: its finaliser reads it even if __init__ raised.
    state = "inactive"

    @property
    def plan(self) -> set[str]:
        """Containers that should exist."""
        return self.requested

    @property
    def requested(self) -> set[str]:
        """Containers that skein has, has requested, or is about to start."""
        return set(self.cluster._requested)

    @property
    def observed(self) -> set[str]:
        """Containers whose workers have registered."""
        return set(self.cluster._observed)

    async def target(self) -> int:
        """Refresh the list of containers; return the number of workers that the load calls for."""
        await self.cluster._refresh()
        return int(await super().target())

    async def scale_up(self, n: int) -> None:
        """Request containers until there are ``n``."""
        await self.cluster._scale_up(n)

    async def scale_down(self, workers: list[str]) -> None:
        """Retire workers, which moves their results, then release their containers."""
        await self.cluster._scale_down(workers)
