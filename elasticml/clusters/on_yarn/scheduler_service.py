"""Dask's scheduler in a YARN container, with the keeper of the worker containers in it.

It posts its address for the workers and the clients, and ends when the application takes another
process for its scheduler, or has no master any more: another attempt is coming then, and two
schedulers of one application must not both have workers. It then ends without a word, so that the
workers see a broken connection and are asked for anew.
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

from elasticml.clusters.linux import set_process_name
from elasticml.clusters.on_yarn.compat import import_skein
from elasticml.clusters.on_yarn.ending import end_for_good
from elasticml.clusters.on_yarn.surroundings import (
    DASHBOARD_KEY,
    SCHEDULER_KEY,
    Surroundings,
    cluster_grace,
    container_limits,
    surroundings,
)
from elasticml.clusters.on_yarn.tls import container_security
from elasticml.clusters.settings import SCHEDULER_MODULES, configure_dask, configure_logging, load
from elasticml.data.open_files import allow_open_files
from elasticml.errors import one_line

if TYPE_CHECKING:
    import skein
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

#: Work that the scheduler's process does beside: ``elasticml submit`` runs its job in it.
Work = Callable[["Scheduler", "skein.ApplicationClient"], Awaitable[None]]

#: Exit status of a scheduler that is no longer its application's.
DISOWNED = 76

#: Seconds without an application master after which there will not be this one again.
MASTER_LOST_S = 5.0

#: Pre-empted containers are no failures of what ran in them; a task that ends every worker it meets
#: still fails at some time.
ALLOWED_FAILURES = 1000

#: Seconds for the work to end after SIGTERM: of YARN's usual 0.25 s.
WORK_END_S_MAX = 0.15


class Claim:
    """Watches whether the application still takes a process for its scheduler.

    Parameters
    ----------
    connect : callable
        Makes a new client of the application.
    address : bytes
        What the process has posted.
    on_lost : callable
        Called once, in the watching thread, with the reason.
    """

    def __init__(
        self,
        connect: Callable[[], skein.ApplicationClient],
        address: bytes,
        on_lost: Callable[[str], None],
    ) -> None:
        self._connect = connect
        self._address = address
        self._on_lost = on_lost

    def start(self) -> None:
        """Begin to watch."""
        threading.Thread(target=self._watch, name="elasticml-claim", daemon=True).start()

    def _watch(self) -> None:
        error_type = import_skein().exceptions.SkeinError
        #: Since when nobody answers; None while somebody does.
        silent_s: float | None = None
        while True:
            try:
                with self._connect() as application:
                    with application.kv.events(key=SCHEDULER_KEY) as events:
                        value = application.kv.get(SCHEDULER_KEY)
                        silent_s = None
                        while value == self._address:
                            event = events.get()
                            value = None if event.result is None else event.result.value
                    break
            except error_type as error:
                logger.info("the application master does not answer: %s", error)
                silent_s = silent_s or time.monotonic()
                if time.monotonic() - silent_s > MASTER_LOST_S:
                    return self._on_lost(f"its master has gone ({error})")
                time.sleep(MASTER_LOST_S / 10)
        whose = "nobody" if value is None else repr(value.decode(errors="replace"))
        return self._on_lost(f"its scheduler is {whose} now")


class SchedulerService:
    """Serves an application's scheduler until somebody ends it.

    Parameters
    ----------
    here : Surroundings
    application : skein.ApplicationClient
    work : callable, optional
        Runs beside; its end is the scheduler's.
    """

    def __init__(
        self, here: Surroundings, application: skein.ApplicationClient, work: Work | None = None
    ) -> None:
        self._here = here
        self._app = application
        self._work = work
        #: Set with the exit status that the process ends with at once.
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Serve; return the exit status of the process, which ends without closing anything."""
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

        from elasticml.clusters.notices import preemption_times
        from elasticml.clusters.on_yarn.allotment import Allotment
        from elasticml.clusters.on_yarn.keeper import YarnKeeper

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
        keeper = YarnKeeper(
            scheduler,
            self._app,
            Allotment(minimum=minimum, maximum=maximum),
            times=preemption_times(grace),
            container=self._here.container,
        )
        await keeper.start()
        await asyncio.to_thread(self._post, scheduler)
        loop = asyncio.get_running_loop()
        Claim(
            import_skein().ApplicationClient.from_current,
            scheduler.address.encode(),
            lambda why: _call(loop, self._disowned, why),
        ).start()
        return scheduler

    def _post(self, scheduler: Scheduler) -> None:
        """Tell the application the scheduler's addresses, for as long as its container lives."""
        store, owner = self._app.kv, self._here.name
        # The dashboard first: clients wait for the scheduler's address alone.
        if "dashboard" in scheduler.services:
            host = urlsplit(scheduler.address).hostname
            dashboard = f"http://{host}:{scheduler.services['dashboard'].port}"
            store.put(DASHBOARD_KEY, value=dashboard.encode(), owner=owner)
        store.put(SCHEDULER_KEY, value=scheduler.address.encode(), owner=owner)

    async def _do_work(self, work: Work, scheduler: Scheduler) -> None:
        try:
            await work(scheduler, self._app)
        except Exception as error:
            # Whatever it is, it would be the same in the next scheduler.
            logger.exception("the work in the scheduler failed")
            await asyncio.to_thread(end_for_good, self._app, "FAILED", one_line(error))

    def _disowned(self, why: str) -> None:
        logger.warning("%s is no longer the application's scheduler: %s", self._here.name, why)
        self._end_with(DISOWNED)

    def _end_with(self, status: int) -> None:
        if not self._end.done():
            self._end.set_result(status)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[str], None], word: str) -> None:
    with suppress(RuntimeError):  # the loop is closed: the process ends
        loop.call_soon_threadsafe(function, word)


def serve(work: Work | None = None) -> None:
    """Run the scheduler of this container's application, and end the process with it.

    Parameters
    ----------
    work : callable, optional
        Coroutine function of the scheduler and the application's client that runs beside, on the
        scheduler's loop. When it returns, the scheduler ends; when it raises, the application has
        failed.

    Raises
    ------
    ConfigError
        Outside a container, and for settings that make no sense.
    """
    here = surroundings()
    container_limits()
    set_process_name("em-scheduler")
    allow_open_files()
    configure_dask(dashboard=True)
    configure_logging()
    load(SCHEDULER_MODULES)
    application = import_skein().ApplicationClient.from_current()
    asyncio.run(_run(here, application, work))


async def _run(here: Surroundings, application: skein.ApplicationClient, work: Work | None) -> None:
    status = await SchedulerService(here, application, work).run()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: threads that wait for skein would hold the process, and its workers with it.
    os._exit(status)
