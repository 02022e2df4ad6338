"""Interface through which a job requests members from its cluster and releases containers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from elasticml.errors import ElasticmlError

logger = logging.getLogger(__name__)

#: The key in ``scheduler.extensions`` under which a cluster offers its scaler.
SCALER_EXTENSION = "elasticml-scaler"


class Scaler(Protocol):
    """Interface of a cluster that can scale a job; runs on the scheduler's event loop."""

    async def request(self, count: int) -> int:
        """Start ``count`` more workers, or as many as the cluster may have.

        Returns
        -------
        int
            Number of workers that were started and have registered.

        Raises
        ------
        ElasticmlError
            When starting workers failed.
        """
        ...

    async def release(self, addresses: Sequence[str]) -> None:
        """End the workers at these addresses, which the job no longer needs.

        The cluster itself requests replacements for workers that are released in place of
        containers that the resource manager has asked back. Workers that are gone, or that do not
        belong to this cluster, are ignored.
        """
        ...


#: Waits for a number of workers; returns how many have come, and why it is not more.
MoreWorkers = Callable[[int], Awaitable[tuple[int, str]]]


class Containers:
    """Requests and releases the containers of one job.

    Without a scaler, released workers stay idle and are invited again on request. A cluster that
    follows the demand of its jobs closes idle workers and starts others.

    Parameters
    ----------
    scaler : Scaler, optional
    invite : callable
        Makes the worker at an address a member again.
    more_workers : callable, optional
        Waits for workers from a cluster that follows the demand.
    """

    def __init__(
        self,
        scaler: Scaler | None,
        invite: Callable[[str], None],
        more_workers: MoreWorkers | None = None,
    ) -> None:
        self._scaler = scaler
        self._invite = invite
        self._more_workers = more_workers
        #: Released workers that keep running, in the order of their release.
        self._idle: list[str] = []

    async def request(self, count: int) -> tuple[int, str]:
        """Ask for more members.

        Returns
        -------
        missing : int
            Number of members that will not come.
        reason : str
            Why.
        """
        if self._scaler is None:
            invited, self._idle = self._idle[:count], self._idle[count:]
            for address in invited:
                self._invite(address)
            missing = count - len(invited)
            if missing == 0 or self._more_workers is None:
                return missing, "this cluster starts no workers for a job"
            came, reason = await self._more_workers(missing)
            return missing - came, reason
        try:
            started = await self._scaler.request(count)
        except ElasticmlError as error:
            return count, error.message
        return count - started, "the cluster has as many workers as it may have"

    async def release(self, addresses: Sequence[str]) -> None:
        """Release containers; the members in them have been dismissed."""
        if self._scaler is None:
            self._idle += addresses
            return
        try:
            await self._scaler.release(addresses)
        except ElasticmlError as error:
            logger.warning("cannot release %s: %s", ", ".join(addresses), error.message)

    def forget(self, address: str) -> None:
        """Remove a worker that is gone."""
        self._idle = [idle for idle in self._idle if idle != address]
