"""Manage an application's worker containers: request and release them, forward YARN's notices.

The manager runs in the scheduler process, on its event loop. skein's calls block, so they run in
threads. The container allocator decides what to do; this module does it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from distributed.diagnostics.plugin import SchedulerPlugin

from elasticml.clusters.yarn import container_allocator as allocation
from elasticml.clusters.yarn.container_context import EXIT_MESSAGE_KEY, STARTUP_KEY, WORKER_SERVICE
from elasticml.clusters.yarn.exit_reasons import last_line, reason_from_skein, story_reason
from elasticml.clusters.yarn.notice_parser import AgentNotice, AgentSeen, PreemptionTimes
from elasticml.clusters.yarn.notice_stream import NoticeStream
from elasticml.clusters.yarn.yarn_client import (
    CONTAINER_STATES,
    ServiceContainer,
    YarnCallError,
    finish_application,
)
from elasticml.protocol.notices import ContainerEnded, ContainerMarked, MarkLifted, NodeChanged
from elasticml.runtime.preemption_board import board_of
from elasticml.runtime.scaler import SCALER_EXTENSION

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from elasticml.clusters.yarn.yarn_client import YarnApplication


#: A container's id: the epoch, which each restart of the ResourceManager increments, application
#: and attempt, and its number, which begins again in each epoch.
_ID = re.compile(r"container_(?:e(\d+)_)?(\d+_\d+_\d+)_0*(\d+)")


@dataclass(slots=True, kw_only=True)
class ContainerRegistry:
    """The containers of an application; entries stay when a container ends.

    Parameters
    ----------
    own_container : str
        YARN id of the scheduler's container.
    own_address : str
        Dask address of the scheduler.
    """

    own_container: str = ""
    own_address: str = ""
    _names: dict[str, str] = field(default_factory=dict, init=False)
    #: Containers of other services than ``dask.worker``.
    _services: set[str] = field(default_factory=set, init=False)
    _addresses: dict[str, str] = field(default_factory=dict, init=False)
    _nodes: dict[str, str] = field(default_factory=dict, init=False)

    def granted(self, container: str, name: str) -> None:
        """Record skein's name of a worker's container."""
        self._names[container] = name

    def registered(self, container: str, name: str, address: str, node: str) -> None:
        """Record the worker in a container, and its node."""
        self._names[container] = name
        self._addresses[container] = address
        self._nodes[container] = node

    def add_service(self, container: str) -> None:
        """Record a container of another service than ``dask.worker``."""
        self._services.add(container)

    def is_essential(self, container: str) -> bool:
        """Return whether jobs depend on a container: the master's, the scheduler's, or a service's.

        An unknown container is none of these: YARN may pre-empt what it has just granted, before
        skein has a worker for it. Releasing another container in its place would not pay.
        """
        if container == self.own_container or container in self._services:
            return True
        return self._is_master(container) and container not in self._names

    def _is_master(self, container: str) -> bool:
        """Return whether it may be the master's: the attempt's first, before the scheduler's."""
        one, own = _ID.fullmatch(container), _ID.fullmatch(self.own_container)
        if one is None or own is None or one[2] != own[2]:
            return False
        return int(one[3]) == 1 and int(one[1] or 0) <= int(own[1] or 0)

    def is_known(self, container: str) -> bool:
        """Return whether it is the container of a worker, of a service, or the scheduler's."""
        return container in self._names or container in {self.own_container, *self._services}

    def name(self, container: str) -> str | None:
        """Return skein's name of a worker's container."""
        return self._names.get(container)

    def address(self, container: str) -> str | None:
        """Return the address of a container's current or former worker."""
        return self._addresses.get(container)

    def board_address(self, container: str) -> str:
        """Return a container's address on the preemption board: Dask's, or else YARN's id."""
        if container == self.own_container:
            return self.own_address
        return self._addresses.get(container, container)

    def names(self, addresses: Iterable[str]) -> dict[str, str]:
        """Return skein's container names by worker address; for reused addresses the youngest."""
        by_address = {self._addresses[c]: n for c, n in self._names.items() if c in self._addresses}
        return {address: by_address[address] for address in addresses if address in by_address}

    def containers(self, names: Iterable[str]) -> dict[str, str]:
        """Return the containers of workers by skein's names, in the given order."""
        by_name = {name: container for container, name in self._names.items()}
        return {name: by_name[name] for name in names}

    def on_node(self, node: str, present: Container[str]) -> tuple[str, ...]:
        """List the addresses of the workers on a node that are in ``present``."""
        return tuple(
            address
            for container, address in sorted(self._addresses.items())
            if self._nodes[container] == node and address in present
        )


logger = logging.getLogger(__name__)

#: Seconds between two polls of the containers when no notice arrives.
LOOK_S = 1.0

#: Seconds for jobs and tasks to leave a worker that is released: if YARN waits for it, and if not.
HURRIED_S_MAX = 1.0
UNHURRIED_S_MAX = 30.0


class ContainerManager(SchedulerPlugin):
    """Request and release the containers of the service ``dask.worker``; the jobs' Scaler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The running scheduler that the workers register with.
    app : YarnApplication
        The application.
    allocator : ContainerAllocator
        Decides which containers to request and release.
    times : PreemptionTimes, optional
        Timing of the cluster's pre-emption; by default YARN's.
    container : str
        YARN id of the scheduler's own container.
    """

    name = "elasticml-yarn-container-manager"

    def __init__(
        self,
        scheduler: Scheduler,
        app: YarnApplication,
        allocator: allocation.ContainerAllocator,
        *,
        times: PreemptionTimes | None = None,
        container: str = "",
    ) -> None:
        self._scheduler = scheduler
        self._app = app
        self._allocator = allocator
        self._board = board_of(scheduler.extensions)
        self._stream = NoticeStream(app, times or PreemptionTimes())
        self._registry = ContainerRegistry(own_container=container, own_address=scheduler.address)
        #: Containers that have ended and been reported.
        self._ended_containers: set[str] = set()
        self._notices: asyncio.Queue[AgentNotice] = asyncio.Queue()
        self._has_agent = False
        #: Held for one decision and its actions.
        self._lock = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        #: Workers being drained whose containers are to be released.
        self._draining: set[asyncio.Task[None]] = set()

    # --- start and close -----------------------------------------------------------------

    async def start(self) -> None:
        """Poll the containers, register as the scaler, and start listening."""
        for seen in await self._look():
            if seen.state not in allocation.ACTIVE:
                self._ended_containers.add(seen.container)
        self._scheduler.add_plugin(self)
        self._scheduler.extensions[SCALER_EXTENSION] = self
        loop = asyncio.get_running_loop()

        def hand_over(notice: AgentNotice) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._notices.put_nowait, notice)

        self._stream.start(hand_over)
        self._watching = loop.create_task(self._watch())

    async def close(self) -> None:
        """Stop listening; the containers stay as they are."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
            await asyncio.to_thread(self._stream.close)

    # --- scheduler callbacks -------------------------------------------------------------

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Record the container of a worker that has registered."""
        state = scheduler.workers[worker]
        identity = state.extra.get(STARTUP_KEY)
        if identity is None:
            return
        container = identity["container"]
        self._registry.registered(container, str(state.name), worker, identity["node"])
        self._allocator.registered(str(state.name))
        self._board.registered(container, worker)

    # --- requests from jobs --------------------------------------------------------------

    async def request(self, count: int) -> int:
        """Request more containers from YARN, within the maximum.

        Returns
        -------
        int
            How many have been requested. They start when the queue has room, which may take long.
        """
        async with self._lock:
            return await self._perform(self._allocator.request(count))

    async def release(self, addresses: Sequence[str]) -> None:
        """Release the containers of workers after notifying their other users.

        A container that is released in place of one that YARN marked is requested again later.
        """
        present = [address for address in addresses if address in self._scheduler.workers]
        names = self._registry.names(present)
        containers = self._registry.containers(names.values())
        is_hurried = any(mark.reason != "retired" for mark in self._board.live())
        async with self._lock:
            marks = self._board.marks
            actions = self._allocator.release(containers, marks, time.monotonic())
        killed = {action.name for action in actions if isinstance(action, allocation.Kill)}
        drained = [address for address, name in names.items() if name in killed]
        grace_s = HURRIED_S_MAX if is_hurried else UNHURRIED_S_MAX
        # Not cancelled after the grace: Dask would log that as an error with a traceback.
        draining = asyncio.ensure_future(self._drain(drained, grace_s))
        self._draining.add(draining)
        draining.add_done_callback(self._on_drained)
        await asyncio.wait({draining}, timeout=grace_s)
        async with self._lock:
            await self._perform(actions)

    async def _drain(self, addresses: list[str], grace_s: float) -> None:
        """Let other jobs and plain Dask work leave workers."""
        await self._notify(addresses, grace_s)
        await self._scheduler.retire_workers(
            workers=addresses, close_workers=False, remove=False, stimulus_id="elasticml-release"
        )

    def _on_drained(self, draining: asyncio.Task[None]) -> None:
        self._draining.discard(draining)
        if not draining.cancelled() and draining.exception() is not None:
            logger.info("workers were released before they were drained: %s", draining.exception())

    async def _notify(self, addresses: list[str], grace_s: float) -> None:
        """Notify jobs that workers are released; return when they have left them."""

        async def notify(address: str) -> None:
            with suppress(OSError):
                await self._scheduler.rpc(address).em_notice(grace_s=grace_s, reason="released")

        await asyncio.gather(*(notify(address) for address in addresses))

    # --- notices from YARN ---------------------------------------------------------------

    async def _watch(self) -> None:
        """Handle each notice as it arrives; poll the containers when there is none."""
        while True:
            notice: AgentNotice | None = None
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    notice = await self._notices.get()
            try:
                async with self._lock:
                    if notice is None:
                        await self._poll()
                    else:
                        await self._handle(notice)
            except YarnCallError as error:
                # The scheduler service handles an application master that does not come back.
                logger.info("the application master does not respond: %s", error)
            except Exception:
                # A notice that cannot be handled must not end the loop.
                logger.exception("cannot handle %s", notice)

    async def _poll(self) -> None:
        """Poll the containers and do what is due; without an agent, detect their exits too."""
        seen = await self._look()
        await self._perform(self._allocator.see(seen, time.monotonic()))
        if self._has_agent:
            return
        for one in seen:
            if one.state not in allocation.ACTIVE and one.container not in self._ended_containers:
                reason = reason_from_skein(one.state, one.message)
                ended = ContainerEnded(container=one.container, reason=reason, message=one.message)
                await self._ended(ended)

    async def _handle(self, notice: AgentNotice) -> None:
        match notice:
            case AgentSeen():
                self._has_agent = True
            case ContainerMarked(container=container):
                await self._identify(container)
                if container not in self._ended_containers:
                    self._post_mark(notice)
            case ContainerEnded(container=container):
                await self._identify(container)
                await self._ended(notice)
            case NodeChanged():
                await self._node_changed(notice)

    def _post_mark(self, mark: ContainerMarked) -> None:
        """Post a mark under its worker's address; the board keeps it until a worker registers."""
        container = mark.container
        is_essential = self._registry.is_essential(container)
        if is_essential:
            address = self._registry.board_address(container)
        else:
            address = self._registry.address(container) or ""
        self._board.post(replace(mark, address=address, essential=is_essential))

    async def _ended(self, ended: ContainerEnded) -> None:
        """Report once how a container ended."""
        container, reason, status = ended.container, ended.reason, ended.status
        if container in self._ended_containers:
            return
        self._ended_containers.add(container)
        name, address = self._registry.name(container), self._registry.address(container)
        logger.info("%s (%s) ended: %s, status %s", name or "unknown", container, reason, status)
        # Posted before the allocator learns of it: no mark outlives its container.
        if address is not None:
            message = last_line(ended.message)
            reported = story_reason(reason)
            self._board.post(replace(ended, address=address, reason=reported, message=message))
        else:
            self._board.post(MarkLifted(container=container))
        if name is None:
            if reason == "released":
                self._allocator.unplaced()
            return
        message = ended.message
        if address is None and reason in allocation.OWN_FAULTS:
            text = await asyncio.to_thread(self._app.store.pop, EXIT_MESSAGE_KEY.format(name))
            message = message if text is None else text.decode()
        now_s = time.monotonic()
        await self._perform(self._allocator.ended(name, reason, status, message, now_s))

    async def _node_changed(self, change: NodeChanged) -> None:
        addresses = self._registry.on_node(change.node, self._scheduler.workers)
        self._board.post(replace(change, addresses=addresses))
        if change.state != "lost":
            return
        # The processes of a lost node may still run; nothing else removes their workers.
        for address in addresses:
            await self._scheduler.remove_worker(address, stimulus_id="elasticml-node-lost")

    # --- the application -----------------------------------------------------------------

    async def _identify(self, container: str) -> None:
        """Look up the service that a container belongs to, unless it is known."""
        if not self._registry.is_known(container):
            seen = await self._look()
            await self._perform(self._allocator.see(seen, time.monotonic()))

    async def _look(self) -> list[ServiceContainer]:
        """List the worker containers, including those that have ended."""
        seen: list[ServiceContainer] = []
        for one in await asyncio.to_thread(self._app.containers, None, CONTAINER_STATES):
            if one.service == WORKER_SERVICE:
                seen.append(one)
                if one.container:
                    self._registry.granted(one.container, one.name)
            elif one.container:
                self._registry.add_service(one.container)
        return seen

    async def _perform(self, actions: Iterable[allocation.Action]) -> int:
        """Perform actions; return how many containers have been requested."""
        count = 0
        for action in actions:
            match action:
                case allocation.Kill(name=name):
                    logger.info("releasing %s", name)
                    await asyncio.to_thread(self._app.kill, name)
                case allocation.Add(streak=streak):
                    new = await asyncio.to_thread(self._app.add, WORKER_SERVICE)
                    self._allocator.added(new.name, new.instance, streak)
                    logger.info("requested %s", new.name)
                    count += 1
                case allocation.EndApplication(message=message):
                    logger.error("%s", message)
                    await asyncio.to_thread(finish_application, self._app, "FAILED", message)
        return count
