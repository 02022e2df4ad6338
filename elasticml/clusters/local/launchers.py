"""Start worker processes through a fork server, and watch for their exit."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
from collections import deque
from contextlib import suppress

from elasticml.clusters.local.process_options import (
    WorkerOptions,
    encode,
    last_line,
    python_command,
    python_environment,
)
from elasticml.errors import SubmissionError

logger = logging.getLogger(__name__)

#: Requests in flight at the fork server; its socket's buffer holds a few times as many.
REQUESTS_MAX = 16

#: Seconds that the fork server has to exit when the cluster closes.
CLOSE_S_MAX = 5.0


class Process:
    """A worker process, a child of the fork server.

    Parameters
    ----------
    pid : int
        Its process id.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        #: Set when the process has exited.
        self.ended = asyncio.Event()
        self._descriptor: int | None = None

    def watch(self) -> None:
        """Start waiting for the process to exit."""
        loop = asyncio.get_running_loop()
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self.ended.set()
            return
        loop.add_reader(self._descriptor, self._on_end, loop)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process; do nothing if it has exited.

        A pidfd refers to this very process, so a reused process id is never hit.
        """
        if self._descriptor is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    def _on_end(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._descriptor is not None
        loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None
        self.ended.set()


class ForkServerLauncher:
    """Start workers through a fork server, which is restarted if it dies.

    Parameters
    ----------
    threads : int
        Threads for the numeric libraries of the workers.
    log_file : str
        Log file of the fork server.
    kernels : tuple
        The algorithms and the layout whose kernels the fork server compiles before it forks; see
        ``load_for_worker``.
    """

    def __init__(
        self,
        threads: int,
        log_file: str,
        kernels: tuple[list[str] | None, tuple[str, str] | None],
    ) -> None:
        self._threads = threads
        self._log_file = log_file
        self._kernels = json.dumps(kernels)
        self._forkserver: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        #: One future per request that the fork server has not answered, oldest first.
        self._pending: deque[asyncio.Future[int]] = deque()
        self._reading = False
        self._request_slots = asyncio.Semaphore(REQUESTS_MAX)

    def launch(self) -> None:
        """Start the fork server; this needs no event loop, so its imports can begin early."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, open(self._log_file, "ab") as log:
            self._forkserver = subprocess.Popen(
                python_command(
                    "elasticml.clusters.local.forkserver", str(theirs.fileno()), self._kernels
                ),
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
        """Process id of the fork server; None if it is not running."""
        return None if self._forkserver is None else self._forkserver.pid

    async def start(self, options: WorkerOptions, lifeline: int) -> Process:
        """Start a worker in a new session.

        Parameters
        ----------
        options : WorkerOptions
            The worker's options.
        lifeline : int
            Descriptor of the pipe that it watches; the caller closes its own copy.

        Raises
        ------
        SubmissionError
            When no process could be started.
        """
        async with self._request_slots:
            return await self._start(options, lifeline)

    async def _start(self, options: WorkerOptions, lifeline: int) -> Process:
        try:
            pid = await self._request(options, lifeline)
        except ConnectionError:
            # The fork server died between two requests: retry once with a new one.
            logger.warning("the fork server for workers died; restarting it")
            try:
                pid = await self._request(options, lifeline)
            except ConnectionError as error:
                raise SubmissionError(
                    f"cannot start worker {options.name}: the fork server exited, its last log "
                    f"line is {last_line(self._log_file)!r}; see {self._log_file}",
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
            self._clean_up()
            raise
        self._pending.append(answer)
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
            answer = self._pending.popleft()
            if not answer.done():
                answer.set_result(json.loads(message)["pid"])
        else:
            self._clean_up()

    def _clean_up(self) -> None:
        """Clean up after a fork server that has exited; unanswered requests fail."""
        if self._control is not None:
            if self._reading:
                asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._control.close()
            self._control = None
        if self._forkserver is not None:
            self._forkserver.kill()
            self._forkserver.wait()
            self._forkserver = None
        while self._pending:
            answer = self._pending.popleft()
            if not answer.done():
                answer.set_exception(ConnectionError("the fork server exited"))

    async def close(self) -> None:
        """Let the fork server exit, after the last workers that it forked."""
        forkserver, self._forkserver = self._forkserver, None
        self._clean_up()
        if forkserver is not None:
            try:
                await asyncio.to_thread(forkserver.wait, CLOSE_S_MAX)
            except subprocess.TimeoutExpired:
                forkserver.kill()
                forkserver.wait()
