"""Drain a stock Dask worker when its process is told to end, then let Dask end it as usual.

What stock processes do on SIGTERM, measured on distributed 2026.8:

* ``dask worker``: the nanny process closes its nannies. Their preloads and plugins are torn down
  first, without a time limit; then the worker process has 8 s.
* ``dask worker --no-nanny``: the process ends. Plugins are torn down while its loop ends, when the
  link to the scheduler is closed already.
* a worker process below a nanny: it dies at once. SLURM and ``kill -- -PGID`` reach it, too.

SIGUSR1 kills each of them. Here both signals first move the worker's chunks away. A second SIGTERM
is handled as if this module were not there.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

#: Module of the handler that ``dask worker`` installs.
DASK_SIGNALS = "distributed._signals"

#: Moves chunks away, as a signal asks; returns when the process may end.
Drain = Callable[[signal.Signals], Awaitable[None]]


class SignalDrain:
    """Handlers of SIGTERM and SIGUSR1 in a process that Dask's command line started.

    Parameters
    ----------
    drain : callable
        Called with the signal, once for each of the two.
    close : callable
        Closes the server after SIGTERM.
    """

    def __init__(self, drain: Drain, close: Callable[[], Awaitable[None]]) -> None:
        self._drain = drain
        self._close = close
        self._former: dict[signal.Signals, Any] = {}
        self._told: set[signal.Signals] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def install(self) -> tuple[signal.Signals, ...]:
        """Install the handlers where no other program's would be lost; return their signals.

        Only the main thread may, and only in a process that is Dask's: others, as a notebook with a
        LocalCluster, keep their own way to end.
        """
        if threading.current_thread() is not threading.main_thread():
            return ()
        term = signal.getsignal(signal.SIGTERM)
        is_child = term is signal.SIG_DFL and multiprocessing.parent_process() is not None
        if getattr(term, "__module__", None) != DASK_SIGNALS and not is_child:
            return ()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            former = signal.getsignal(number)
            if number == signal.SIGUSR1 and former is not signal.SIG_DFL:
                continue  # somebody else listens to it
            self._former[number] = former
            signal.signal(number, self._handle)
        return tuple(self._former)

    def restore(self) -> None:
        """Give the signals back to those who had them."""
        while self._former:
            number, former = self._former.popitem()
            if signal.getsignal(number) == self._handle:
                signal.signal(number, former)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # Logging is not safe in here.
        told = signal.Signals(number)
        if told in self._told and told == signal.SIGTERM:
            self._insist(frame)
            return
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin, told)

    def _begin(self, told: signal.Signals) -> None:
        if told in self._told:
            return
        self._told.add(told)
        task = asyncio.get_running_loop().create_task(self._run(told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, told: signal.Signals) -> None:
        logger.info("%s: draining this worker", told.name)
        try:
            await self._drain(told)
        except Exception:
            logger.exception("%s: this worker could not be drained", told.name)
        if told != signal.SIGTERM:
            return
        former = self._former.get(told)
        try:
            await self._close()
        finally:
            if callable(former):
                former(told, None)

    def _insist(self, frame: FrameType | None) -> None:
        """Do what the process would have done without us."""
        former = self._former.get(signal.SIGTERM, signal.SIG_DFL)
        if callable(former):
            former(signal.SIGTERM, frame)
            return
        signal.signal(signal.SIGTERM, former)
        os.kill(os.getpid(), signal.SIGTERM)
