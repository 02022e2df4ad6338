"""A member's loop in a thread of its own: mini-batches one after the other, without a barrier.

What others want of it (other chunks, a copy of the state, an end) they leave as a request, which
it sees to between two mini-batches; so nobody but this thread touches the state, and it waits for
nobody.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from elasticml.algorithms.async_sgd.base import Mailbox
from elasticml.algorithms.async_sgd.worker_loop import WorkerLoop
from elasticml.algorithms.base import Parallel
from elasticml.errors import JobFailedError
from elasticml.runtime.async_mode.async_gossip import SendQueue
from elasticml.runtime.fault_injection import FaultSlowdown
from elasticml.training.message_codec import Shapes, pack_message

#: Longest wait for a place in the outgoing queue until requests are seen to.
WAIT_S = 0.02


@dataclass(slots=True, kw_only=True)
class LoopContext:
    """What a loop finds around itself."""

    mailbox: Mailbox
    outbox: SendQueue
    shapes: Shapes
    #: A full outbox is not waited for.
    newest: bool
    #: Whether there is anybody that states are sent to.
    sends: Callable[[], bool]
    clock: Callable[[], float]
    slowness: FaultSlowdown
    parallel: Parallel
    #: Told, in the loop's thread, that all passes are made; and of an error, with which it ends.
    on_ended: Callable[[], None]
    on_error: Callable[[BaseException], None]


class AsyncLoop:
    """Runs a looper until it is stopped.

    Parameters
    ----------
    looper : Looper
        The thread's own from the start on.
    around : Surroundings
    """

    def __init__(self, looper: WorkerLoop, around: LoopContext) -> None:
        self._looper = looper
        self._around = around
        self._requests: deque[tuple[Future[Any], Callable[[WorkerLoop], Any]]] = deque()
        self._something = threading.Event()
        self._stops = False
        self._began_s = around.clock()
        self._has_told_end = False
        #: The thread serves nobody any more.
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="em-loop", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def request(self, action: Callable[[WorkerLoop], Any]) -> Future[Any]:
        """Have something done between two mini-batches, after what was requested before."""
        future: Future[Any] = Future()
        self._requests.append((future, action))
        self._something.set()
        if self._is_over:
            self._refuse()
        return future

    def stop(self) -> None:
        """Take no further step; requests are seen to until ``end``."""
        self._stops = True
        self._something.set()

    def end(self) -> None:
        """Let the thread go."""
        self.stop()
        self._requests.append((Future(), _leave))
        self._something.set()

    def join(self) -> None:
        """Wait for the thread's end, as long as a mini-batch lasts."""
        self._thread.join()

    # --- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                self._serve()
                if self._stops or not self._looper.is_due():
                    self._tell_end()
                    self._wait()
                else:
                    self._turn()
        except _Left:
            pass
        except Exception as error:
            self._around.on_error(error)
        self._is_over = True
        self._refuse()

    def _turn(self) -> None:
        looper, around = self._looper, self._around
        self._has_told_end = False
        began_cpu_s = time.thread_time()
        looper.step()
        looper.merge(around.mailbox.take())
        around.slowness.add(time.thread_time() - began_cpu_s, around.parallel)
        fill = around.outbox.fill
        if around.sends():
            self._post()
            # A queue is empty, too, where there is nobody to send to: that tells nothing.
            looper.adapt(fill, around.clock() - self._began_s)

    def _post(self) -> None:
        looper, outbox = self._looper, self._around.outbox
        if not outbox.has_room():
            if self._around.newest:
                # What is sent when there is room is the newest state, after the next mini-batch.
                looper.counts["skipped"] += 1
                return
            began_s = self._around.clock()
            while not outbox.has_room() and not self._stops:
                outbox.wait(WAIT_S)
                self._serve()
            looper.counts["stalled_s"] += self._around.clock() - began_s
            if self._stops:
                return
        mail = looper.message()
        rows = None if mail.rows is None else int(mail.rows.size)
        outbox.post(pack_message(mail, self._around.shapes), rows)

    def _serve(self) -> None:
        while self._requests:
            future, action = self._requests.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(action(self._looper))
            except _Left:
                raise
            except Exception as error:
                future.set_exception(error)
                raise

    def _tell_end(self) -> None:
        if not self._stops and not self._has_told_end and self._looper.has_ended():
            self._has_told_end = True
            self._around.on_ended()

    def _wait(self) -> None:
        # Only a request gives a loop that has nothing to do something to do.
        self._something.wait()
        self._something.clear()

    def _refuse(self) -> None:
        """Let nobody wait for a thread that has gone."""
        while self._requests:
            future, _ = self._requests.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(JobFailedError("the member's loop has ended"))


class _Left(Exception):
    """The thread's end."""


def _leave(looper: WorkerLoop) -> None:
    raise _Left
