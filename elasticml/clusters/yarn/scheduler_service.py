"""Dask's scheduler in a YARN container, with the manager of the worker containers.

It publishes its address for workers and clients. It exits when the application has another
scheduler or has lost its master: another attempt follows then, and two schedulers of one
application must not both have workers. In that case it exits without closing connections, so that
workers see a broken connection and are requested again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from elasticml.clusters.process_setup import (
    SCHEDULER_MODULES,
    configure_dask,
    configure_logging,
    load,
    set_process_name,
)
from elasticml.clusters.yarn.container_context import (
    SCHEDULER_KEY,
    ContainerContext,
    cluster_grace,
    container_context,
    container_limits,
)
from elasticml.clusters.yarn.skein_client import container_security, current_application
from elasticml.clusters.yarn.yarn_client import (
    YarnCallError,
    finish_application,
    post_addresses,
)
from elasticml.data.storage.file_limits import raise_open_file_limit
from elasticml.errors import one_line

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

    from elasticml.clusters.yarn.yarn_client import YarnApplication

logger = logging.getLogger(__name__)

#: Work that runs in the scheduler process: ``elasticml submit`` runs the job's driver in it.
Work = Callable[["Scheduler", "YarnApplication"], Awaitable[None]]

#: Exit status of a scheduler that its application has replaced.
DISOWNED = 76

#: Seconds without a response after which the application master counts as lost.
MASTER_LOST_S = 5.0

#: Dask counts a lost worker as a failure of its tasks. Pre-emption is not their fault, so the limit
#: is high; a task that kills every worker still fails in the end.
ALLOWED_FAILURES = 1000

#: Seconds for the work to end after SIGTERM, out of YARN's default of 0.25 s.
WORK_END_S_MAX = 0.15


class SchedulerOwnership:
    """Watch whether a process is still its application's scheduler.

    Parameters
    ----------
    connect : callable
        Returns a new client of the application.
    address : bytes
        The address that the process has published.
    on_lost : callable
        Called once, in the watching thread, with the reason.
    """

    def __init__(
        self,
        connect: Callable[[], YarnApplication],
        address: bytes,
        on_lost: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._address = address
        self._on_lost = on_lost

    def start(self) -> None:
        """Start watching in a thread."""
        threading.Thread(target=self._watch, name="elasticml-claim", daemon=True).start()

    def _watch(self) -> None:
        #: When the master stopped responding; None while it responds.
        silent_s: float | None = None
        while True:
            try:
                with self._connect() as application:
                    with application.store.watch(SCHEDULER_KEY) as changes:
                        value = application.store.get(SCHEDULER_KEY)
                        silent_s = None
                        while value == self._address:
                            key, changed = changes.get() or ("", None)
                            value = changed if key == SCHEDULER_KEY else value
                    break
            except YarnCallError as error:
                logger.info("the application master does not respond: %s", error)
                silent_s = silent_s or time.monotonic()
                if time.monotonic() - silent_s > MASTER_LOST_S:
                    return self._on_lost(f"the application master is lost ({one_line(error)})")
                time.sleep(MASTER_LOST_S / 10)
        if value is None:
            return self._on_lost("the application has no scheduler now")
        return self._on_lost(f"the scheduler is {value.decode(errors='replace')!r} now")


class SchedulerService:
    """Run an application's scheduler until it is closed, replaced, or its work is done.

    Parameters
    ----------
    here : Surroundings
        The container that it runs in.
    application : YarnApplication
    work : callable, optional
        Runs on the scheduler's loop; the scheduler ends with it.
    """

    def __init__(
        self, here: ContainerContext, application: YarnApplication, work: Work | None = None
    ) -> None:
        self._here = here
        self._app = application
        self._work = work
        #: Result: the exit status with which the process must exit at once.
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Serve; return the exit status of the process, which then exits without cleaning up."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._end_with, 128 + signal.SIGTERM)
        scheduler = await self._start()
        finished = asyncio.ensure_future(scheduler.finished())
        waits: set[asyncio.Future[Any]] = {finished, self._end}
        working = None
        if self._work is not None:
            working = asyncio.ensure_future(self._do_work(self._work, scheduler))
            waits.add(working)
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if self._end.done():
            if working is not None:
                working.cancel()
                await asyncio.wait([working], timeout=WORK_END_S_MAX)
            return self._end.result()
        await scheduler.close(reason="elasticml-application-over")
        return 0

    async def _start(self) -> Scheduler:
        from distributed.scheduler import Scheduler

        from elasticml.clusters.yarn.container_allocator import ContainerAllocator
        from elasticml.clusters.yarn.container_manager import ContainerManager
        from elasticml.clusters.yarn.notice_parser import preemption_times

        security = container_security()
        minimum, maximum = container_limits()
        scheduler = await Scheduler(
            protocol="tcp" if security is None else "tls",
            security=security,
            dashboard_address=":0",
            allowed_failures=ALLOWED_FAILURES,
        )
        grace = await asyncio.to_thread(cluster_grace, self._here.node_http, of_cluster=True)
        logger.info("%s; %s", scheduler.address, grace)
        manager = ContainerManager(
            scheduler,
            self._app,
            ContainerAllocator(minimum=minimum, maximum=maximum),
            times=preemption_times(grace),
            container=self._here.container,
        )
        await manager.start()
        await asyncio.to_thread(self._post, scheduler)
        loop = asyncio.get_running_loop()
        SchedulerOwnership(
            current_application,
            scheduler.address.encode(),
            lambda why: _call(loop, self._disowned, why),
        ).start()
        return scheduler

    def _post(self, scheduler: Scheduler) -> None:
        """Publish the scheduler's addresses, until the container ends."""
        dashboard = None
        if "dashboard" in scheduler.services:
            host = urlsplit(scheduler.address).hostname
            dashboard = f"http://{host}:{scheduler.services['dashboard'].port}"
            logger.info("running jobs are shown at %s/elasticml", dashboard)
        post_addresses(self._app, scheduler.address, dashboard, owner=self._here.name)

    async def _do_work(self, work: Work, scheduler: Scheduler) -> None:
        try:
            await work(scheduler, self._app)
        except Exception as error:
            # The next scheduler would fail in the same way.
            logger.exception("the work in the scheduler failed")
            await asyncio.to_thread(finish_application, self._app, "FAILED", one_line(error))

    def _disowned(self, why: str) -> None:
        logger.warning("%s is no longer the application's scheduler: %s", self._here.name, why)
        self._end_with(DISOWNED)

    def _end_with(self, status: int) -> None:
        if not self._end.done():
            self._end.set_result(status)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[str], None], word: str) -> None:
    with suppress(RuntimeError):  # the loop is closed: the process exits
        loop.call_soon_threadsafe(function, word)


def serve(work: Work | None = None) -> None:
    """Run the scheduler of this container's application, then exit the process.

    Parameters
    ----------
    work : callable, optional
        Coroutine function of the scheduler and the application's client; it runs on the scheduler's
        loop. When it returns, the scheduler ends; when it raises, the application fails.

    Raises
    ------
    ConfigError
        Outside a container, and for invalid settings.
    """
    here = container_context()
    container_limits()
    set_process_name("em-scheduler")
    raise_open_file_limit()
    configure_dask(dashboard=True)
    configure_logging()
    load(SCHEDULER_MODULES)
    application = current_application()
    asyncio.run(_run(here, application, work))


async def _run(here: ContainerContext, application: YarnApplication, work: Work | None) -> None:
    status = await SchedulerService(here, application, work).run()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit at once: threads that wait for skein would keep the process and its workers alive.
    os._exit(status)
