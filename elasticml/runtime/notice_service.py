"""Notices of workers' ends that reach the scheduler by message: from clients and from workers.

A client announces that workers will be stopped, or that they stay; a worker with the preload
announces its own end. Both become marks on the scheduler's board. The workers of one allocation
share its notice: one of them asks the resource manager.
"""

from __future__ import annotations

import asyncio
import difflib
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from distributed import Scheduler

from elasticml.errors import ConfigError, ElasticmlError, error_to_dict
from elasticml.protocol.notices import ContainerMarked, MarkLifted, Reason
from elasticml.runtime.preemption_board import PreemptionBoard

#: Most workers that an error lists.
LISTED_MAX: Final = 12
#: What may be announced; the other reasons are what a cluster reports afterwards.
ANNOUNCED: Final[tuple[Reason, ...]] = ("preempted", "walltime", "lifetime", "maintenance")


def resolve_workers(scheduler: Scheduler, workers: Collection[str]) -> list[str]:
    """Return the addresses of workers that are named by address, by name or by host.

    Raises
    ------
    ConfigError
        When one is unknown; the message lists the known ones.
    """
    addresses: dict[str, None] = {}
    states = scheduler.workers
    for text in workers:
        if text in states:
            matches = [text]
        else:
            matches = [a for a, state in states.items() if str(state.name) == text]
            matches = matches or [a for a, state in states.items() if state.host == text]
        if not matches:
            raise ConfigError(_unknown(text, {str(s.name): a for a, s in states.items()}))
        addresses.update(dict.fromkeys(matches))
    return list(addresses)


def _unknown(text: str, addresses: Mapping[str, str]) -> str:
    """Return the message about a worker that does not exist."""
    if not addresses:
        return f"workers: got {text!r}, and no worker is connected; wait until one is"
    near = difflib.get_close_matches(text, [*addresses, *addresses.values()], 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    listed = [f"{name} at {address}" for name, address in sorted(addresses.items())]
    more = f" and {len(listed) - LISTED_MAX} more" if len(listed) > LISTED_MAX else ""
    return (
        f"workers: got {text!r}{hint}, wanted addresses, names or hosts of workers: "
        f"{', '.join(listed[:LISTED_MAX])}{more}"
    )


@dataclass(slots=True)
class _Allocation:
    """The workers of one allocation, such as a job of SLURM, and its last notice."""

    #: In the order in which they came: the first one asks the resource manager.
    workers: dict[str, None] = field(default_factory=dict)
    notice: Mapping[str, Any] | None = None
    #: Counts the changes of the notice.
    version: int = 0
    #: Replaced at each change of the notice or of the first worker.
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def first(self) -> str | None:
        """The worker that asks."""
        return next(iter(self.workers), None)

    def notify(self) -> None:
        """Answer the workers that wait."""
        self.changed.set()
        self.changed = asyncio.Event()


class NoticeService:
    """The scheduler's handlers for announced ends of workers.

    Parameters
    ----------
    scheduler : distributed.Scheduler
    board : PreemptionBoard
        Where marks are posted.
    """

    def __init__(self, scheduler: Scheduler, board: PreemptionBoard) -> None:
        self._scheduler = scheduler
        self._board = board
        self._allocations: dict[str, _Allocation] = {}
        self.handlers: dict[str, Callable[..., Awaitable[Any]]] = {
            "em_notice": self.notice,
            "em_withdraw": self.withdraw,
            "em_allocation": self.allocation,
        }

    async def notice(
        self,
        workers: Collection[str],
        grace_s: float,
        reason: Reason = "preempted",
        negotiable: bool = False,
    ) -> dict[str, Any]:
        """Mark workers that will be stopped; return their addresses, or the error."""
        try:
            check_notice(workers, grace_s, reason)
            addresses = resolve_workers(self._scheduler, workers)
        except ElasticmlError as error:
            return {"error": error_to_dict(error)}
        for address in addresses:
            self._board.post(
                ContainerMarked(
                    address=address, grace_s=grace_s, reason=reason, negotiable=negotiable
                )
            )
        return {"workers": addresses}

    async def withdraw(self, workers: Collection[str]) -> dict[str, Any]:
        """Lift the marks of workers that stay; return the addresses that were marked."""
        try:
            addresses = resolve_workers(self._scheduler, workers)
        except ElasticmlError as error:
            return {"error": error_to_dict(error)}
        marked = {mark.address for mark in self._board.live()}
        lifted = [address for address in addresses if address in marked]
        for address in lifted:
            self._board.post(MarkLifted(address=address))
        return {"workers": lifted}

    async def allocation(
        self,
        name: str,
        address: str,
        version: int | None = None,
        wait_s: float = 0.0,
        answer: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Share one allocation's notice among its workers.

        Parameters
        ----------
        name : str
            The allocation's name, the same on all of its workers.
        address : str
            The asking worker.
        version : int, optional
            The last version that this worker has seen: the reply waits for another one.
        wait_s : float
            The longest wait.
        answer : mapping, optional
            ``{"notice": ...}``: what the resource manager has answered to this worker.

        Returns
        -------
        dict
            ``asks``: whether this worker has to ask the resource manager; else ``notice`` and its
            ``version``.
        """
        allocation = self._allocations.setdefault(name, _Allocation())
        if address in self._scheduler.workers:  # a late call must not name a worker that is gone
            allocation.workers.setdefault(address)
        if answer is not None and answer["notice"] != allocation.notice:
            allocation.notice = answer["notice"]
            allocation.version += 1
            allocation.notify()
        if allocation.first != address and allocation.version == version:
            changed = asyncio.ensure_future(allocation.changed.wait())
            await asyncio.wait([changed], timeout=wait_s)
            changed.cancel()
        return {
            "asks": allocation.first == address,
            "notice": allocation.notice,
            "version": allocation.version,
        }

    def removed(self, address: str) -> None:
        """Drop what holds for a worker that is gone: another one may get its address."""
        for name, allocation in list(self._allocations.items()):
            if address in allocation.workers:
                del allocation.workers[address]
                allocation.notify()
            if not allocation.workers:
                del self._allocations[name]
        # Marks of containers with a name end with the container.
        if any(mark.address == address and not mark.container for mark in self._board.live()):
            self._board.post(MarkLifted(address=address, why="void"))


def check_notice(workers: Collection[str], grace_s: float, reason: str = ANNOUNCED[0]) -> None:
    """Raise a ConfigError if a message about the end of workers has anything else."""
    if isinstance(workers, str) or not all(isinstance(worker, str) for worker in workers):
        raise ConfigError(f"workers: got {workers!r}, wanted a list of addresses, names or hosts")
    if not workers:
        raise ConfigError("workers: got none, wanted addresses, names or hosts of workers")
    is_number = isinstance(grace_s, (int, float)) and not isinstance(grace_s, bool)
    if not is_number or not 0.0 <= grace_s < math.inf:
        raise ConfigError(f"grace_s: got {grace_s!r}, wanted seconds, 0 or more")
    if reason not in ANNOUNCED:
        raise ConfigError(f"reason: got {reason!r}, wanted one of {', '.join(ANNOUNCED)}")
