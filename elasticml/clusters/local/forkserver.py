"""The fork server of a local cluster: it has imported everything and forks a worker per request.

A worker's imports cost more than half a second of CPU; forking costs milliseconds and shares the
memory. The fork server starts neither threads nor an event loop, so that forking is safe. Each
child leads a session of its own. The fork server reaps its children. When the scheduler process
exits (end of file on the control socket), it ends every child before it exits itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from types import FrameType

from elasticml.clusters.local.process_options import WorkerOptions, worker_options
from elasticml.clusters.process_setup import (
    configure_dask,
    configure_logging,
    freeze_memory,
    load,
    load_for_worker,
    pause_collections,
    redirect_output,
    set_process_name,
)

#: Seconds that orphaned workers have to exit by themselves after the scheduler has exited.
ORPHAN_GRACE_S = 3.0

#: Largest request, bytes.
REQUEST_BYTES_MAX = 65536


class ForkServer:
    """Fork workers on request until the other end of the control socket is closed."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        #: Children that have been forked and not yet reaped.
        self._children: set[int] = set()

    def serve(self) -> None:
        """Serve requests; return when the scheduler process and all workers have exited.

        A request is one message: ``encode(WorkerOptions)`` with the read end of the worker's
        lifeline attached. The reply is ``{"pid": int}``.
        """
        signal.signal(signal.SIGCHLD, self._reap)
        while True:
            try:
                request, descriptors, _, _ = socket.recv_fds(self._control, REQUEST_BYTES_MAX, 1)
            except ConnectionError:
                request = b""
            if not request:
                break
            pid = self._fork(worker_options(request.decode()), descriptors[0])
            os.close(descriptors[0])
            try:
                self._control.send(json.dumps({"pid": pid}).encode())
            except ConnectionError:
                break
        self._end_children()

    def _fork(self, options: WorkerOptions, lifeline: int) -> int:
        # A child that exits at once must not be reaped before it is recorded.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            pid = os.fork()
            if pid == 0:
                self._control.close()
                _become_worker(options, lifeline)
            self._children.add(pid)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        return pid

    def _reap(self, _signal: int, _frame: FrameType | None) -> None:
        while self._children:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._children.discard(pid)

    def _end_children(self) -> None:
        """Wait for the children; kill those still running after the grace."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        deadline_s = time.monotonic() + ORPHAN_GRACE_S
        while True:
            # Children may have exited before the signal was blocked, or during the last wait.
            self._reap(signal.SIGCHLD, None)
            left_s = deadline_s - time.monotonic()
            if not self._children or left_s <= 0:
                break
            signal.sigtimedwait({signal.SIGCHLD}, left_s)
        for pid in sorted(self._children):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _become_worker(options: WorkerOptions, lifeline: int) -> None:
    """Turn the forked child into a worker process; never return."""
    status = 1
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        os.set_inheritable(lifeline, False)
        redirect_output(options.log_file)
        from elasticml.clusters.local.worker_process import run_worker

        status = run_worker(options, lifeline)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Run the fork server: ``python -m elasticml.clusters.local.forkserver CONTROL_FD KERNELS``.

    ``KERNELS`` is JSON: the arguments of ``load_for_worker``.
    """
    pause_collections()
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_process_name("em-forkserver")
    configure_dask(dashboard=False)
    configure_logging()
    load_for_worker(*json.loads(sys.argv[2]), with_helper=True)
    load(("elasticml.clusters.local.worker_process",))
    freeze_memory()
    ForkServer(control).serve()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
