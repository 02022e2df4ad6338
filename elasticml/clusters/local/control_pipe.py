"""The client's end of the control pipe to the scheduler process: commands out, replies back."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from elasticml import errors
from elasticml.clusters.local.process_options import (
    ClusterOptions,
    encode,
    last_line,
    python_command,
    python_environment,
)
from elasticml.errors import SubmissionError

#: Seconds from the request to close to the SIGKILL of a scheduler process that is still running.
CLOSE_S_MAX = 15.0

#: Seconds for a reply, on top of the time that the command itself may take.
ANSWER_S_MAX = 30.0
#: A process that computes for at least this share of the wait is not stuck: the machine is busy.
BUSY_SHARE_MIN = 0.02


class ControlPipe:
    """A scheduler process that this process has started, and the pipes to it.

    Each command and each reply is one line of JSON.

    Parameters
    ----------
    options : ClusterOptions
        Options of the process.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self._log_dir = Path(options.log_dir)
        #: Held for a command and its reply.
        self._lock = threading.Lock()
        self._unread = b""
        #: Number of the last command; the reply to an interrupted one is skipped.
        self._number = 0
        with open(self._log_dir / "scheduler.log", "ab") as log:
            self._process = subprocess.Popen(
                python_command("elasticml.clusters.local.scheduler_process"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=python_environment(),
                start_new_session=True,
                bufsize=0,
            )
        self._write(encode(options))

    @property
    def pid(self) -> int:
        """Process id of the scheduler process."""
        return self._process.pid

    def ask(self, takes_s: float, **command: Any) -> dict[str, Any]:
        """Send a command and return its reply.

        Parameters
        ----------
        takes_s : float, seconds
            Longest time that the command itself takes.
        **command
            Its fields; ``op`` names the command.

        Raises
        ------
        ElasticmlError
            The scheduler process's own error; SubmissionError if there was no reply.
        """
        with self._lock:
            self._number += 1
            self._write(json.dumps({**command, "number": self._number}))
            return self._answer(takes_s)

    def first_answer(self, takes_s: float) -> dict[str, Any]:
        """Wait for the line that the process writes unasked when its workers have registered."""
        with self._lock:
            return self._answer(takes_s)

    def detach(self) -> None:
        """Close the pipes; the process goes on only if it was started to outlive its client."""
        self._close_pipes()
        # Reap the process when it exits.
        threading.Thread(target=self._process.wait, daemon=True).start()

    def end(self) -> int:
        """End the process and wait for it; return its exit status, 0 for a clean shutdown."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(b'{"op": "close"}\n')
        self._process.stdin.close()
        try:
            self._process.wait(CLOSE_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close_pipes()
        return self._process.returncode

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise self._lost() from None

    def _answer(self, takes_s: float) -> dict[str, Any]:
        """Read the reply to the last command; raise the error that it holds."""
        wait_s = takes_s + ANSWER_S_MAX
        while True:
            answer: dict[str, Any] = json.loads(self._read_line(wait_s))
            if answer["number"] == self._number:
                break
        if "error" in answer:
            error = answer["error"]
            raise getattr(errors, error["kind"])(error["message"], **error["fields"])
        return answer

    def _read_line(self, wait_s: float) -> bytes:
        """Read a line; wait longer than ``wait_s`` only while the process gets little done.

        On a busy machine its imports alone may take minutes. So the limit is on the processor time
        that it uses, and on the wall-clock time in which it uses hardly any.
        """
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        replies = select.poll()  # select.select() takes no descriptor above 1023
        replies.register(descriptor, select.POLLIN)
        first_s = before_s = self._processor_s()
        while b"\n" not in self._unread:
            if not replies.poll(1000.0 * wait_s):
                now_s = self._processor_s()
                if now_s - before_s >= BUSY_SHARE_MIN * wait_s and now_s - first_s < wait_s:
                    before_s = now_s
                    continue
                raise SubmissionError(
                    f"the scheduler process did not reply within {wait_s:g} s; its last log line "
                    f"is {self._last_line()!r}; see {self._log_dir}",
                    log_dir=str(self._log_dir),
                )
            piece = os.read(descriptor, 65536)
            if not piece:
                raise self._lost()
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _processor_s(self) -> float:
        """Return the processor time of the process; 0 if it has ended."""
        with suppress(psutil.Error):
            times = psutil.Process(self._process.pid).cpu_times()
            return float(times.user + times.system)
        return 0.0

    def _last_line(self) -> str:
        return last_line(self._log_dir / "scheduler.log")

    def _lost(self) -> SubmissionError:
        return SubmissionError(
            f"the scheduler process has exited; its last log line is {self._last_line()!r}; see "
            f"{self._log_dir} and start a new cluster",
            log_dir=str(self._log_dir),
        )
