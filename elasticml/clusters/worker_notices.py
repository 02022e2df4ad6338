"""What a stock worker or nanny does with notices of its end: the parts behind the preload."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distributed import Nanny

from elasticml.clusters.signal_drain import SignalDrain
from elasticml.clusters.stop_notices import (
    Lifetime,
    NoticeSource,
    NoticeWatch,
    Reason,
    StopNotice,
    detected,
    source_of_name,
)
from elasticml.errors import ConfigError
from elasticml.runtime.member_plugin import NAME as MEMBER_NAME
from elasticml.runtime.member_plugin import announce_notice

if TYPE_CHECKING:
    from distributed import Worker

logger = logging.getLogger(__name__)

#: Seconds from SIGTERM to SIGKILL if nothing else is said: Kubernetes and SLURM wait 30 s.
GRACE_S = 25.0
#: A worker is drained this long before an end that has been known for longer.
LEAD_S = 120.0
#: Seconds that a drained worker has to close before its process is ended.
CLOSE_S_MAX = 2.0


class WorkerNotices:
    """Listens to all sources of one worker.

    Parameters
    ----------
    worker : distributed.Worker
    sources : sequence of NoticeSource
    grace_s : float
        Seconds between a signal and SIGKILL.
    """

    def __init__(self, worker: Worker, sources: list[NoticeSource], grace_s: float) -> None:
        self._worker = worker
        self._grace_s = grace_s
        self._watch = NoticeWatch(sources, self.post, self.withdraw)
        self._signals = SignalDrain(self._signalled, self._close)
        self._announcing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Install the handlers and begin to poll."""
        self._worker.handlers.setdefault("em_notice", self.notice)
        self._watch.start()
        self._signals.install()

    async def stop(self) -> None:
        """Stop polling, and give the signals back."""
        self._signals.restore()
        await self._watch.close()

    async def notice(self, grace_s: float, reason: str = "terminated") -> str:
        """Drain this worker; the reply means that it may be stopped."""
        await announce_notice(self._worker, grace_s, reason)
        return "OK"

    async def post(self, notice: StopNotice) -> bool:
        """Announce this worker's end; False while that is too early, or nobody would listen."""
        grace_s = notice.deadline_s - time.time()
        if MEMBER_NAME not in self._worker.plugins or grace_s > LEAD_S:
            return False
        task = asyncio.create_task(announce_notice(self._worker, max(0.0, grace_s), notice.reason))
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)
        return True

    async def withdraw(self, notice: StopNotice) -> bool:
        """Do nothing: a worker that has been drained stays without chunks."""
        return True

    async def _signalled(self, told: signal.Signals) -> None:
        reason: Reason = "terminated" if told == signal.SIGTERM else "preempted"
        await announce_notice(self._worker, self._grace_s, reason)

    async def _close(self) -> None:
        if self._worker.nanny:
            await self._worker.close(timeout=CLOSE_S_MAX, reason="signal-15")
        else:
            # The command line does not close it, and would cut its link to the scheduler.
            await self._worker.close(timeout=CLOSE_S_MAX, executor_wait=False, reason="signal-15")


class NannyNotices:
    """Drains a nanny's worker when the nanny's process is told to end.

    Parameters
    ----------
    nanny : distributed.Nanny
    grace_s : float
    """

    def __init__(self, nanny: Nanny, grace_s: float) -> None:
        self._nanny = nanny
        self._grace_s = grace_s
        self._signals = SignalDrain(self._signalled, self._no_close)

    def start(self) -> None:
        """Install the handlers."""
        self._signals.install()

    async def stop(self) -> None:
        """Drain the worker: its process is stopped next."""
        self._signals.restore()
        await self._drain("terminated")

    async def _signalled(self, told: signal.Signals) -> None:
        await self._drain("terminated" if told == signal.SIGTERM else "preempted")

    async def _no_close(self) -> None:
        """Leave that to the command line's own handler, which comes next."""

    async def _drain(self, reason: Reason) -> None:
        address = self._nanny.worker_address
        if address is None or not self._nanny.is_alive():
            return
        try:
            async with asyncio.timeout(self._grace_s):
                async with self._nanny.rpc(address) as worker:
                    await worker.em_notice(grace_s=self._grace_s, reason=reason)
        except (TimeoutError, OSError) as error:
            logger.info("the worker at %s was not drained: %s", address, error)


_running: dict[str, WorkerNotices | NannyNotices] = {}


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


async def start(server: Any, notices: str, grace_s: float, url: str | None) -> None:
    """Listen for notices on a worker or a nanny."""
    listening: WorkerNotices | NannyNotices
    if isinstance(server, Nanny):
        listening = NannyNotices(server, grace_s)
    else:
        try:
            sources = sources_of(notices, os.environ, url, server.lifetime)
        except ConfigError as error:
            # A preload that fails is logged by Dask, and the worker runs on without it.
            logger.error("elasticml.preload: %s", error.message)
            sources = []
        listening = WorkerNotices(server, sources, grace_s)
        logger.info("notices: %s", ", ".join(source.name for source in sources) or "signals only")
    _running[server.id] = listening
    listening.start()


async def stop(server: Any) -> None:
    """Stop listening."""
    listening = _running.pop(server.id, None)
    if listening is not None:
        await listening.stop()
