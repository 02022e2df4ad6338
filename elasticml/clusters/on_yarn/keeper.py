"""The keeper of an application's worker containers: asks for them, gives them back, passes word on.

It lives in the scheduler's process, on its loop; skein's calls, which block, are made in threads.
What is to be done is decided in ``allotment``; here it is done.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from distributed.diagnostics.plugin import SchedulerPlugin

from elasticml.clusters import notices as told
from elasticml.clusters.on_yarn import allotment as plan
from elasticml.clusters.on_yarn.ending import end_for_good
from elasticml.clusters.on_yarn.exits import board_reason, last_line, reason_in
from elasticml.clusters.on_yarn.surroundings import STARTUP_KEY, WORD_KEY, WORKER_SERVICE
from elasticml.clusters.on_yarn.whereabouts import Whereabouts
from elasticml.runtime.reclaims import Ended, NodeTold, Reclaim, Restored, reclaims_of
from elasticml.runtime.scaling import SCALER_EXTENSION

if TYPE_CHECKING:
    import skein
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: Seconds between two looks at the containers, where nothing is told.
LOOK_S = 1.0

#: Seconds that others have to leave a worker that is given back: where YARN waits, and else.
HURRIED_S_MAX = 1.0
UNHURRIED_S_MAX = 30.0

#: States as skein names them.
_STATES = ("WAITING", "REQUESTED", "RUNNING", "SUCCEEDED", "FAILED", "KILLED")


class YarnKeeper(SchedulerPlugin):
    """Keeps the containers of the service ``dask.worker``; the jobs' Scaler.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The running scheduler that the workers register with.
    app : skein.ApplicationClient
        The application.
    allotment : Allotment
        What decides how many containers there are to be.
    times : PreemptionTimes, optional
        How the cluster takes containers back; YARN's defaults.
    container : str
        YARN's name of the scheduler's own container.
    """

    name = "elasticml-yarn-keeper"

    def __init__(
        self,
        scheduler: Scheduler,
        app: skein.ApplicationClient,
        allotment: plan.Allotment,
        *,
        times: told.PreemptionTimes | None = None,
        container: str = "",
    ) -> None:
        self._scheduler = scheduler
        self._app = app
        self._allotment = allotment
        self._board = reclaims_of(scheduler.extensions)
        self._stream = told.NoticeStream(app, times or told.PreemptionTimes())
        self._where = Whereabouts(own_container=container, own_address=scheduler.address)
        #: Containers that are over: nothing more is said of them.
        self._over: set[str] = set()
        #: Marks on containers whose workers have not registered: strictness, and when they end.
        self._marks: dict[str, tuple[bool, float]] = {}
        self._notices: asyncio.Queue[told.Notice] = asyncio.Queue()
        self._has_agent = False
        #: One decision and what follows from it at a time.
        self._turn = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        #: Workers being left whose containers are given back.
        self._leaving: set[asyncio.Task[None]] = set()

    # --- begin and end -------------------------------------------------------------------

    async def start(self) -> None:
        """Look at the containers, offer the scaler, and begin to listen."""
        for seen in await self._look():
            if seen.state not in plan.ACTIVE:
                self._over.add(seen.container)
        self._scheduler.add_plugin(self)
        self._scheduler.extensions[SCALER_EXTENSION] = self
        self._scheduler.handlers["retire_workers"] = self.retire
        loop = asyncio.get_running_loop()

        def hand_over(notice: told.Notice) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(self._notices.put_nowait, notice)

        self._stream.start(hand_over)
        self._watching = loop.create_task(self._watch())

    async def close(self) -> None:
        """End listening; containers stay as they are."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
            await asyncio.to_thread(self._stream.close)

    # --- what Dask's scheduler tells -----------------------------------------------------

    def add_worker(self, scheduler: Scheduler, worker: str) -> None:
        """Note which container a worker that has registered lives in."""
        state = scheduler.workers[worker]
        identity = state.extra.get(STARTUP_KEY)
        if identity is None:
            return
        container = identity["container"]
        self._where.registered(container, str(state.name), worker, identity["node"])
        self._allotment.registered(str(state.name))
        if container in self._marks:
            strict, until_s = self._marks.pop(container)
            now_s = time.monotonic()
            self._allotment.marked(str(state.name), strict=strict, now_s=now_s)
            self._post_mark(worker, max(0.0, until_s - now_s), strict)

    # --- what jobs ask -------------------------------------------------------------------

    async def request(self, count: int) -> int:
        """Ask YARN for more containers, as many as there may be.

        Returns
        -------
        int
            How many have been asked for. They come when the queue has room, which may take long.
        """
        async with self._turn:
            return await self._perform(self._allotment.request(count))

    async def release(self, addresses: Sequence[str]) -> None:
        """Give the containers of workers back, after a word to others who use them.

        A container that is given in place of one that YARN marked is asked for anew later.
        """
        present = [address for address in addresses if address in self._scheduler.workers]
        names = self._where.names(present)
        is_hurried = bool(self._board.live())
        async with self._turn:
            actions = self._allotment.release([*names.values()], time.monotonic())
        given = {action.name for action in actions if isinstance(action, plan.Kill)}
        left = [address for address, name in names.items() if name in given]
        grace_s = HURRIED_S_MAX if is_hurried else UNHURRIED_S_MAX
        # It is not broken off: Dask would call that an error, with its stack.
        leaving = asyncio.ensure_future(self._leave(left, grace_s))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._has_left)
        await asyncio.wait({leaving}, timeout=grace_s)
        async with self._turn:
            await self._perform(actions)

    async def retire(
        self,
        workers: list[str] | None = None,
        names: list[Any] | None = None,
        **options: Any,
    ) -> Any:
        """Let jobs leave the workers that somebody scales in, then retire them as Dask does.

        It stands in for the scheduler's handler ``retire_workers``, which closes workers that jobs
        still have members in.
        """
        if workers is None and names is not None:
            named = {str(name) for name in names}
            states = self._scheduler.workers.items()
            workers = [address for address, state in states if str(state.name) in named]
        if workers is None:
            return await self._scheduler.retire_workers(**options)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._notify(workers, UNHURRIED_S_MAX), UNHURRIED_S_MAX)
        return await self._scheduler.retire_workers(workers=workers, **options)

    async def _leave(self, addresses: list[str], grace_s: float) -> None:
        """Let other jobs and plain Dask work leave workers."""
        await self._notify(addresses, grace_s)
        await self._scheduler.retire_workers(
            workers=addresses, close_workers=False, remove=False, stimulus_id="elasticml-release"
        )

    def _has_left(self, leaving: asyncio.Task[None]) -> None:
        self._leaving.discard(leaving)
        if not leaving.cancelled() and leaving.exception() is not None:
            logger.info("workers that are given back were not left: %s", leaving.exception())

    async def _notify(self, addresses: list[str], grace_s: float) -> None:
        """Tell the jobs that workers are given back; return when they have left them."""

        async def notify(address: str) -> None:
            with suppress(OSError):
                await self._scheduler.rpc(address).em_notice(grace_s=grace_s, reason="released")

        await asyncio.gather(*(notify(address) for address in addresses))

    # --- what YARN tells -----------------------------------------------------------------

    async def _watch(self) -> None:
        """Act on each notice as it comes, and look at the containers now and then."""
        while True:
            notice: told.Notice | None = None
            with suppress(TimeoutError):
                notice = await asyncio.wait_for(self._notices.get(), LOOK_S)
            try:
                async with self._turn:
                    if notice is None:
                        await self._keep()
                    else:
                        await self._act_on(notice)
            except _skein_error() as error:
                # An application master that is gone for good is the service's matter.
                logger.info("the application master does not answer: %s", error)
            except Exception:
                # One notice that cannot be acted on must not end the keeping.
                logger.exception("cannot act on %s", notice)

    async def _keep(self) -> None:
        """Look at the containers, and do what is due; without an agent, find out who ended."""
        seen = await self._look()
        await self._perform(self._allotment.see(seen, time.monotonic()))
        if self._has_agent:
            return
        for one in seen:
            if one.state not in plan.ACTIVE and one.container not in self._over:
                reason = reason_in(one.state, one.message)
                await self._ended(one.container, reason, None, one.message)

    async def _act_on(self, notice: told.Notice) -> None:
        match notice:
            case told.AgentSeen():
                self._has_agent = True
            case told.ContainerMarked(container=container):
                await self._know(container)
                self._mark(notice)
            case told.MarkLapsed(container=container):
                self._marks.pop(container, None)
                name = self._where.name(container) or container
                self._allotment.lapsed(name, time.monotonic())
                self._board.post(Restored(address=self._where.on_board(container)))
            case told.ContainerExited(container=container):
                await self._know(container)
                await self._ended(container, notice.reason, notice.status, notice.message)
            case told.NodeChanged():
                await self._node_changed(notice)

    def _mark(self, notice: told.ContainerMarked) -> None:
        container = notice.container
        if container in self._over:
            return
        name, address = self._where.name(container), self._where.address(container)
        now_s = time.monotonic()
        if name is None and self._where.is_essential(container):
            word = Reclaim(
                address=self._where.on_board(container),
                grace_s=notice.deadline_s,
                negotiable=not notice.strict,
                essential=True,
            )
            self._allotment.marked(container, strict=notice.strict, now_s=now_s)
            self._board.post(word)
            return
        if name is not None:
            self._allotment.marked(name, strict=notice.strict, now_s=now_s)
        if address is not None:
            self._post_mark(address, notice.deadline_s, notice.strict)
        else:
            self._marks[container] = (notice.strict, now_s + notice.deadline_s)

    def _post_mark(self, address: str, grace_s: float, strict: bool) -> None:
        self._board.post(Reclaim(address=address, grace_s=grace_s, negotiable=not strict))

    async def _ended(self, container: str, reason: str, status: int | None, message: str) -> None:
        """Pass on how a container ended, once."""
        if container in self._over:
            return
        self._over.add(container)
        self._marks.pop(container, None)
        name, address = self._where.name(container), self._where.address(container)
        logger.info("%s (%s) ended: %s, status %s", name or "nobody's", container, reason, status)
        if name is None and reason == "released":
            self._allotment.unplaced()
        if address is not None:
            self._board.post(
                Ended(
                    address=address,
                    container=container,
                    reason=board_reason(reason),
                    status=status,
                    message=last_line(message),
                )
            )
        if name is None:
            self._allotment.lapsed(container, time.monotonic())
            if self._where.is_essential(container):
                # No mark outlives its container: nothing more is to be given for it.
                self._board.post(Restored(address=self._where.on_board(container)))
        else:
            if address is None and reason in plan.OWN_FAULTS:
                word = await asyncio.to_thread(self._app.kv.pop, WORD_KEY.format(name), None)
                message = message if word is None else word.decode()
            now_s = time.monotonic()
            await self._perform(self._allotment.ended(name, reason, status, message, now_s))

    async def _node_changed(self, notice: told.NodeChanged) -> None:
        state = notice.state.lower()
        addresses = self._where.on_node(notice.node, self._scheduler.workers)
        grace_s = notice.timeout_s or 0.0
        self._board.post(
            NodeTold(node=notice.node, state=state, grace_s=grace_s, addresses=addresses)
        )
        if state != "lost":
            return
        # The processes of a node that does not answer may live on; nobody else ends them.
        for address in addresses:
            await self._scheduler.remove_worker(address, stimulus_id="elasticml-node-lost")

    # --- skein ---------------------------------------------------------------------------

    async def _know(self, container: str) -> None:
        """Learn which service a container belongs to, where that is not known yet."""
        if not self._where.is_known(container):
            seen = await self._look()
            await self._perform(self._allotment.see(seen, time.monotonic()))

    async def _look(self) -> list[plan.ContainerSeen]:
        """List the worker containers, those that are over, too."""
        seen: list[plan.ContainerSeen] = []
        for one in await asyncio.to_thread(self._app.get_containers, None, _STATES):
            container = one.yarn_container_id
            if one.service_name == WORKER_SERVICE:
                state: Any = str(one.state).lower()
                seen.append(
                    plan.ContainerSeen(
                        name=one.id,
                        instance=one.instance,
                        state=state,
                        container=container,
                        message=one.exit_message,
                    )
                )
                if container:
                    self._where.granted(container, one.id)
            elif container:
                self._where.serves(container)
        return seen

    async def _perform(self, actions: Iterable[plan.Action]) -> int:
        """Do what was decided; return how many containers have been asked for."""
        count = 0
        for action in actions:
            match action:
                case plan.Kill(name=name):
                    logger.info("%s is given back", name)
                    with suppress(ValueError):  # it is over already
                        await asyncio.to_thread(self._app.kill_container, name)
                case plan.Add(streak=streak):
                    new = await asyncio.to_thread(self._app.add_container, WORKER_SERVICE)
                    self._allotment.added(new.id, new.instance, streak)
                    logger.info("%s is asked for", new.id)
                    count += 1
                case plan.EndApplication(message=message):
                    logger.error("%s", message)
                    await asyncio.to_thread(end_for_good, self._app, "FAILED", message)
        return count


def _skein_error() -> type[Exception]:
    error: type[Exception] = importlib.import_module("skein.exceptions").SkeinError
    return error
