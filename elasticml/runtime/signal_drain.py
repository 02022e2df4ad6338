"""Drain stock Dask workers when their process receives SIGTERM or SIGUSR1, then let Dask end it.

What stock processes do on SIGTERM, measured on distributed 2026.8:

* ``dask worker``: the process of the nannies closes them. Their plugins are torn down first,
  without a time limit; then each worker process has 8 s.
* ``dask worker --no-nanny``: the process ends. Plugins are torn down while its loop ends, when the
  link to the scheduler is closed already.
* a worker process below a nanny: it dies at once, and the nanny starts it again. SLURM and
  ``kill -- -PGID`` reach it, too. A nanny also sends it to a worker whose memory is 95 % full, and
  SIGKILL a moment later if it still is.

SIGUSR1 kills each of them. Here SIGTERM first moves the workers' chunks away, then closes the
workers, then does what Dask does: a nanny that stays starts its worker again. SIGUSR1 is a
notice: the process goes on. A second SIGTERM is handled as if this module were not there.

This module also runs in nannies, so it imports nothing heavy.
"""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from distributed.diagnostics.plugin import NannyPlugin

if TYPE_CHECKING:
    from distributed import Nanny

logger = logging.getLogger(__name__)

#: Module of the handler that ``dask worker`` installs.
DASK_SIGNALS: Final = "distributed._signals"
#: Environment variable with the seconds from a signal to SIGKILL.
GRACE_VARIABLE: Final = "ELASTICML_GRACE"
#: Its default: Kubernetes and SLURM wait 30 s after SIGTERM.
GRACE_S: Final = 25.0

#: Does what a signal asks of one server; returns when its process may end.
Drain = Callable[[signal.Signals], Awaitable[None]]


def signal_grace_s() -> float:
    """Return the seconds that this process has after a signal: ``$ELASTICML_GRACE``, else 25."""
    text = os.environ.get(GRACE_VARIABLE)
    if text is None:
        return GRACE_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds < math.inf:
        logger.warning("%s: got %r, wanted seconds; using %g", GRACE_VARIABLE, text, GRACE_S)
        return GRACE_S
    return seconds


class _Handlers:
    """The handlers of a process, for all servers in it."""

    #: Those of this process, while they are installed.
    current: _Handlers | None = None

    def __init__(self) -> None:
        self.drains: list[SignalDrain] = []
        self.former: dict[signal.Signals, Any] = {}
        self._received: set[signal.Signals] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def install(self) -> None:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            former = signal.getsignal(number)
            if number == signal.SIGUSR1 and former is not signal.SIG_DFL:
                continue  # another program part listens to it
            self.former[number] = former
            signal.signal(number, self._handle)
        _Handlers.current = self

    def restore(self) -> None:
        while self.former:
            number, former = self.former.popitem()
            if signal.getsignal(number) == self._handle:
                signal.signal(number, former)
        _Handlers.current = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Logging is not safe in a signal handler.
        received = signal.Signals(number)
        if received in self._received and received == signal.SIGTERM:
            self._insist(frame)
            return
        self._loop.call_soon_threadsafe(self._begin, received)

    def _begin(self, received: signal.Signals) -> None:
        if received in self._received:
            return
        self._received.add(received)
        task = self._loop.create_task(self._run(received))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, received: signal.Signals) -> None:
        drains, former = list(self.drains), self.former.get(received)
        await asyncio.gather(*(drain.run(received) for drain in drains))
        if received == signal.SIGUSR1:
            self._received.discard(received)
            return
        try:
            await asyncio.gather(*(drain.close() for drain in drains))
        finally:
            if callable(former):
                former(received, None)

    def _insist(self, frame: FrameType | None) -> None:
        """Do what the process would do without these handlers."""
        former = self.former.get(signal.SIGTERM, signal.SIG_DFL)
        if callable(former):
            former(signal.SIGTERM, frame)
            return
        signal.signal(signal.SIGTERM, former)
        os.kill(os.getpid(), signal.SIGTERM)


class SignalDrain:
    """Drains one server when a process that Dask's command line started receives a signal.

    Parameters
    ----------
    drain : callable
        Called with the signal: SIGTERM once, SIGUSR1 each time.
    close : callable
        Closes the server after SIGTERM.
    """

    def __init__(self, drain: Drain, close: Callable[[], Awaitable[None]]) -> None:
        self._drain = drain
        self.close = close

    def install(self) -> tuple[signal.Signals, ...]:
        """Install the handlers where no other program's would be lost; return their signals.

        Only the main thread may, and only in a process that is Dask's: others, as a notebook with a
        LocalCluster, keep their own way to end. All servers of a process share its handlers.
        """
        if threading.current_thread() is not threading.main_thread():
            return ()
        handlers = _Handlers.current
        if handlers is None:
            term = signal.getsignal(signal.SIGTERM)
            is_child = term is signal.SIG_DFL and multiprocessing.parent_process() is not None
            if getattr(term, "__module__", None) != DASK_SIGNALS and not is_child:
                return ()
            handlers = _Handlers()
            handlers.install()
        handlers.drains.append(self)
        return tuple(handlers.former)

    def restore(self) -> None:
        """Remove this server; after the last one the signals have their former handlers again."""
        handlers = _Handlers.current
        if handlers is None or self not in handlers.drains:
            return
        handlers.drains.remove(self)
        if not handlers.drains:
            handlers.restore()

    async def run(self, received: signal.Signals) -> None:
        """Drain the server; a failure does not keep the process."""
        logger.info("%s received", received.name)
        try:
            await self._drain(received)
        except Exception:
            logger.exception("%s: this worker could not be drained", received.name)


class NannySignals(NannyPlugin):
    """Drains a nanny's worker when the nanny's process receives SIGTERM, before Dask stops it.

    SIGUSR1 announces the worker's end to the jobs and leaves the processes alone.
    """

    name = "elasticml-nanny-signals"
    idempotent = True

    def setup(self, nanny: Nanny) -> None:
        """Install the handlers, in processes of Dask's command line."""

        async def drain(received: signal.Signals) -> None:
            address = nanny.worker_address
            if received == signal.SIGTERM:
                # The worker may have received it, too, and end first: it is not started again.
                nanny.close_gracefully(reason="signal-15")
            if address is not None and nanny.is_alive():
                await _drain_worker(nanny, address, received)

        async def close() -> None:
            """Leave that to the command line's own handler, which comes next."""

        self._signals = SignalDrain(drain, close)
        self._signals.install()

    def teardown(self, nanny: Nanny) -> None:
        """Remove the handlers."""
        self._signals.restore()


async def _drain_worker(nanny: Nanny, address: str, received: signal.Signals) -> None:
    grace_s = signal_grace_s()
    if received == signal.SIGUSR1:
        await nanny.scheduler.em_notice(workers=[address], grace_s=grace_s)
        return
    try:
        async with asyncio.timeout(grace_s):
            async with nanny.rpc(address) as worker:
                await worker.em_notice(grace_s=grace_s, reason="terminated")
    except (TimeoutError, OSError) as error:
        logger.info("the worker at %s was not drained: %s", address, error)
