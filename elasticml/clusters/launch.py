"""Start worker processes, by forking a zygote or by spawning, and watch them until they end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import Protocol

from elasticml.clusters.options import (
    WorkerOptions,
    encode,
    last_line,
    python_command,
    python_environment,
)
from elasticml.errors import SubmissionError

logger = logging.getLogger(__name__)

#: Requests in flight at the zygote: its socket's buffer holds a few times as many.
REQUESTS_MAX = 16

#: Seconds that the zygote has to end when the cluster is over.
CLOSE_S_MAX = 5.0


class Process:
    """A process that the cluster started, by whatever parent.

    Parameters
    ----------
    pid : int
        Its process id.
    popen : subprocess.Popen or None
        Where it is a child of this process.
    """

    def __init__(self, pid: int, popen: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        #: Set when the process has ended.
        self.ended = asyncio.Event()
        self._popen = popen
        self._descriptor: int | None = None

    def watch(self) -> None:
        """Begin to wait for the end of the process."""
        loop = asyncio.get_running_loop()
        if sys.platform != "linux":
            assert self._popen is not None
            wait = self._popen.wait
            threading.Thread(
                target=lambda: (wait(), loop.call_soon_threadsafe(self.ended.set)), daemon=True
            ).start()
            return
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self.ended.set()
            return
        loop.add_reader(self._descriptor, self._on_end, loop)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process; nothing happens where it has ended.

        The descriptor names this very process, so that a reused process id is never hit.
        """
        with suppress(ProcessLookupError):
            if sys.platform != "linux":
                if not self.ended.is_set():
                    os.kill(self.pid, number)
            elif self._descriptor is not None:
                signal.pidfd_send_signal(self._descriptor, number)

    def _on_end(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._descriptor is not None
        loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None
        if self._popen is not None:
            self._popen.wait()
        self.ended.set()


class Launcher(Protocol):
    """A way to start worker processes."""

    async def start(self, options: WorkerOptions, lifeline: int) -> Process:
        """Start a worker in a new session.

        Parameters
        ----------
        options : WorkerOptions
            What the worker is told.
        lifeline : int
            Descriptor that becomes its standard input; the caller closes its own copy.

        Raises
        ------
        SubmissionError
            When no process could be started.
        """
        ...

    async def close(self) -> None:
        """Give up what the launcher keeps; the workers have ended before."""
        ...


class SpawnLauncher:
    """Starts each worker as a fresh interpreter."""

    def __init__(self, threads: int) -> None:
        self._environment = python_environment(threads)

    async def start(self, options: WorkerOptions, lifeline: int) -> Process:
        """Start a worker in a new session; see :class:`Launcher`."""
        popen = subprocess.Popen(
            python_command("elasticml.clusters.worker_process", encode(options), str(os.getpid())),
            stdin=lifeline,
            env=self._environment,
            start_new_session=True,
        )
        process = Process(popen.pid, popen)
        process.watch()
        return process

    async def close(self) -> None:
        """Do nothing: there is no helper process."""


class ZygoteLauncher:
    """Starts workers by forking a zygote, which it starts anew where it was lost.

    Parameters
    ----------
    threads : int
        Threads for the numeric libraries of the workers.
    log_file : str
        Where the zygote writes what it has to say.
    algorithms : list of str or None
        Algorithms whose kernels the zygote compiles before it forks; None for all.
    """

    def __init__(self, threads: int, log_file: str, algorithms: list[str] | None) -> None:
        self._threads = threads
        self._log_file = log_file
        self._algorithms = json.dumps(algorithms)
        self._zygote: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        #: One future per request that the zygote has not answered, oldest first.
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._reading = False
        self._turns = asyncio.Semaphore(REQUESTS_MAX)

    def launch(self) -> None:
        """Start the zygote; it needs no event loop yet, so that its imports begin at once."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(self._log_file, "ab") as log:
            self._zygote = subprocess.Popen(
                python_command("elasticml.clusters.zygote", str(theirs.fileno()), self._algorithms),
                env=python_environment(self._threads),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        ours.setblocking(False)
        self._control = ours
        self._reading = False

    @property
    def pid(self) -> int | None:
        """Process id of the zygote, None where there is none."""
        return None if self._zygote is None else self._zygote.pid

    async def start(self, options: WorkerOptions, lifeline: int) -> Process:
        """Start a worker in a new session; see :class:`Launcher`."""
        async with self._turns:
            return await self._start(options, lifeline)

    async def _start(self, options: WorkerOptions, lifeline: int) -> Process:
        try:
            pid = await self._request(options, lifeline)
        except ConnectionError:
            # The zygote was lost between two requests: a new one gets one try.
            logger.warning("the process that forks workers was lost; it is started again")
            try:
                pid = await self._request(options, lifeline)
            except ConnectionError as error:
                raise SubmissionError(
                    f"cannot start worker {options.name}: the process that forks workers ended "
                    f"with {last_line(self._log_file)!r}, wanted a running one; see "
                    f"{self._log_file} or use start_method='spawn'",
                    log_file=self._log_file,
                ) from error
        process = Process(pid)
        process.watch()
        return process

    async def _request(self, options: WorkerOptions, lifeline: int) -> int:
        if self._control is None:
            self.launch()
        assert self._control is not None
        loop = asyncio.get_running_loop()
        if not self._reading:
            loop.add_reader(self._control.fileno(), self._on_answer)
            self._reading = True
        answer: asyncio.Future[int] = loop.create_future()
        try:
            socket.send_fds(self._control, [encode(options).encode()], [lifeline])
        except ConnectionError:
            self._forget()
            raise
        self._waiting.append(answer)
        return await answer

    def _on_answer(self) -> None:
        assert self._control is not None
        try:
            message = self._control.recv(4096)
        except BlockingIOError:
            return
        except ConnectionError:
            message = b""
        if message:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(json.loads(message)["pid"])
        else:
            self._forget()

    def _forget(self) -> None:
        """Drop a zygote that has ended; requests without an answer fail."""
        if self._control is not None:
            if self._reading:
                asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if self._zygote is not None:
            self._zygote.kill()
            self._zygote.wait()
            self._zygote = None
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(ConnectionError("the zygote ended"))

    async def close(self) -> None:
        """Let the zygote end, with whatever it forked last."""
        zygote, self._zygote = self._zygote, None
        self._forget()
        if zygote is not None:
            try:
                await asyncio.to_thread(zygote.wait, CLOSE_S_MAX)
            except subprocess.TimeoutExpired:
                zygote.kill()
                zygote.wait()
