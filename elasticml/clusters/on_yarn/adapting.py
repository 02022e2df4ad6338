"""Dask's adaptive scaling of a YARN cluster: by the load of plain Dask work."""

from __future__ import annotations

from typing import Any

from distributed.deploy.adaptive import Adaptive

#: The arguments of ``adapt()`` and what they are where they are not given, as in dask-yarn.
DEFAULTS: dict[str, Any] = {
    "interval": "1s",
    "wait_count": 3,
    "target_duration": "5s",
}


class YarnAdaptive(Adaptive):
    """Adaptive scaling over the containers of one application.

    Workers are named after their containers, by which they are asked for and given back.
    """

    #: Until the base class has set its own: its finaliser asks for it, also after a refusal.
    state = "inactive"

    @property
    def plan(self) -> set[str]:
        """Containers that there are to be."""
        return self.requested

    @property
    def requested(self) -> set[str]:
        """Containers that skein has, waits for, or is about to start."""
        return set(self.cluster._requested)

    @property
    def observed(self) -> set[str]:
        """Containers whose workers have registered."""
        return set(self.cluster._observed)

    async def target(self) -> int:
        """Return how many workers the load asks for, having looked at what there is."""
        await self.cluster._refresh()
        return int(await super().target())

    async def scale_up(self, n: int) -> None:
        """Ask for containers until there are ``n``."""
        await self.cluster._scale_up(n)

    async def scale_down(self, workers: list[str]) -> None:
        """Give containers back, their results first."""
        await self.cluster._scale_down(workers)
