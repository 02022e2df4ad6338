"""The seam through which a job asks its cluster for more members, and gives containers back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from elasticml.errors import ElasticmlError

logger = logging.getLogger(__name__)

#: The key in ``scheduler.extensions`` under which a cluster offers its scaler.
SCALER_EXTENSION = "elasticml-scaler"


class Scaler(Protocol):
    """What a cluster offers to a job that may grow and shrink; runs on the scheduler's loop."""

    async def request(self, count: int) -> int:
        """Start ``count`` more workers, or as many as may be.

        Returns
        -------
        int
            How many have been started and have registered.

        Raises
        ------
        ElasticmlError
            When it could have started them and failed.
        """
        ...

    async def release(self, addresses: Sequence[str]) -> None:
        """End the workers at these addresses; the job that asks is done with them.

        For those that it gives in place of containers that the resource manager asks for, the
        cluster asks for others by itself.

        Those that are gone already, or were never this cluster's, are passed over.
        """
        ...


class Containers:
    """What one job asks of its cluster.

    Where there is no scaler, workers that are given back stay idle, and are all that can be had.

    Parameters
    ----------
    scaler : Scaler, optional
    invite : callable
        Makes the worker at an address a member again.
    """

    def __init__(self, scaler: Scaler | None, invite: Callable[[str], None]) -> None:
        self._scaler = scaler
        self._invite = invite
        #: Workers that were given back and stay where they are, the first first.
        self._idle: list[str] = []

    async def request(self, count: int) -> tuple[int, str]:
        """Ask for more members.

        Returns
        -------
        missing : int
            How many of them will not come.
        reason : str
            Why.
        """
        if self._scaler is None:
            called, self._idle = self._idle[:count], self._idle[count:]
            for address in called:
                self._invite(address)
            return count - len(called), "this cluster starts no workers for a job"
        try:
            started = await self._scaler.request(count)
        except ElasticmlError as error:
            return count, error.message
        return count - started, "the cluster has as many workers as it may have"

    async def release(self, addresses: Sequence[str]) -> None:
        """Give containers back; the members in them have been dismissed."""
        if self._scaler is None:
            self._idle += addresses
            return
        try:
            await self._scaler.release(addresses)
        except ElasticmlError as error:
            logger.warning("cannot give back %s: %s", ", ".join(addresses), error.message)

    def forget(self, address: str) -> None:
        """Note that a worker is gone."""
        self._idle = [idle for idle in self._idle if idle != address]
