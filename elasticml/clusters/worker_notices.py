"""Post what is known of a stock worker's end to the scheduler: the part behind the preload."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from elasticml.clusters.stop_notices import (
    Lifetime,
    NoticeSource,
    NoticeWatch,
    StopNotice,
    detected,
    source_of_name,
)
from elasticml.errors import ConfigError, error_from_dict
from elasticml.runtime.member_plugin import NAME as MEMBER_NAME

if TYPE_CHECKING:
    from distributed import Worker

logger = logging.getLogger(__name__)


class WorkerNotices:
    """Polls all sources of one worker, and posts its end as a mark.

    Parameters
    ----------
    worker : distributed.Worker
    sources : list of NoticeSource
    """

    def __init__(self, worker: Worker, sources: list[NoticeSource]) -> None:
        self._worker = worker
        self._watch = NoticeWatch(sources, self)
        #: The last version of each allocation's notice for which another worker polls.
        self._versions: dict[str, int] = {}

    def start(self) -> None:
        """Begin to poll."""
        self._watch.start()

    async def stop(self) -> None:
        """Stop polling."""
        await self._watch.close()

    async def ask(self, source: NoticeSource) -> StopNotice | None:
        """Return a source's notice; one worker of an allocation polls for all of them."""
        name = source.allocation
        if name and not self._has_plugin():
            return None  # no job needs it yet
        if name:
            reply = await self._share(name)
            if not reply["asks"]:
                return None if reply["notice"] is None else StopNotice(**reply["notice"])
        notice = await asyncio.to_thread(source.poll, time.time())
        if name:
            await self._share(name, answer={"notice": None if notice is None else asdict(notice)})
        return notice

    async def pause(self, source: NoticeSource, seconds: float) -> None:
        """Wait, at most until another worker of the allocation has a new answer."""
        until_s = time.monotonic() + seconds
        name = source.allocation
        if name in self._versions:
            with suppress(OSError):
                # The scheduler holds the call until something changes.
                await self._share(name, version=self._versions[name], wait_s=seconds)
                return
        await asyncio.sleep(until_s - time.monotonic())

    async def _share(self, name: str, **options: Any) -> Mapping[str, Any]:
        """Exchange an allocation's notice with its other workers."""
        reply: Mapping[str, Any] = await self._worker.scheduler.em_allocation(
            name=name, address=self._worker.address, **options
        )
        if reply["asks"]:
            self._versions.pop(name, None)
        else:
            self._versions[name] = reply["version"]
        return reply

    def _has_plugin(self) -> bool:
        """Whether the scheduler has elasticml's plugin: it takes notices."""
        return MEMBER_NAME in self._worker.plugins

    async def post(self, notice: StopNotice) -> bool:
        """Announce this worker's end; False while nothing would take it."""
        grace_s = notice.deadline_s - time.time()
        if not self._has_plugin():
            return False
        reply = await self._worker.scheduler.em_notice(
            workers=[self._worker.address], grace_s=max(0.0, grace_s), reason=notice.reason
        )
        _check(reply)
        return True

    async def withdraw(self, notice: StopNotice) -> bool:
        """Lift the mark: this worker stays."""
        _check(await self._worker.scheduler.em_withdraw(workers=[self._worker.address]))
        return True


def _check(reply: Mapping[str, Any]) -> None:
    if reply.get("error") is not None:
        raise error_from_dict(reply["error"])


_running: dict[str, WorkerNotices] = {}


def sources_of(
    notices: str, environment: Mapping[str, str], url: str | None, lifetime_s: float | None
) -> list[NoticeSource]:
    """Return the sources that ``--notices`` names.

    Raises
    ------
    ConfigError
        When one is unknown, or cannot be used here.
    """
    match notices:
        case "auto":
            names = detected(environment)
        case "none":
            names = []
        case _:
            names = [name.strip() for name in notices.split(",")]
    sources = [source_of_name(name, environment, url) for name in names]
    if lifetime_s is not None:
        sources.append(Lifetime(time.time() + lifetime_s))
    return sources


def start(worker: Worker, notices: str, url: str | None) -> None:
    """Begin to watch for notices of a worker's end."""
    try:
        sources = sources_of(notices, os.environ, url, worker.lifetime)
    except ConfigError as error:
        # Dask logs the error of a preload with a traceback, and runs the worker without it.
        logger.error("elasticml.preload: %s", error.message)
        return
    logger.info("notices: %s", ", ".join(source.name for source in sources) or "signals only")
    _running[worker.id] = WorkerNotices(worker, sources)
    _running[worker.id].start()


async def stop(worker: Worker) -> None:
    """Stop watching."""
    watching = _running.pop(worker.id, None)
    if watching is not None:
        await watching.stop()
