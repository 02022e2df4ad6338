"""A member's training loop in its own thread: mini-batches without a barrier.

Other threads post requests (new chunks, a copy of the state, the end), which the loop serves
between two mini-batches. So only this thread accesses the state, and it never waits for others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from elasticml.algorithms.async_sgd.base import Mailbox
from elasticml.algorithms.async_sgd.worker_loop import WorkerLoop
from elasticml.algorithms.base import Parallel
from elasticml.errors import JobFailedError
from elasticml.runtime.async_mode.async_gossip import SendQueue
from elasticml.runtime.fault_injection import FaultSlowdown
from elasticml.training.message_codec import Shapes, pack_message

#: Longest wait for room in the send queue before requests are served.
WAIT_S = 0.02


class Pause(Enum):
    """Where a loop may pause."""

    #: A mini-batch has been computed.
    BATCH = auto()
    #: Only a request can make the loop continue.
    REQUEST = auto()
    #: The send queue is full.
    ROOM = auto()


@dataclass(slots=True, kw_only=True)
class LoopContext:
    """What a loop uses: mailbox, send queue, clock and callbacks."""

    mailbox: Mailbox
    send_queue: SendQueue
    shapes: Shapes
    #: Whether to skip a state, instead of waiting, if the send queue is full.
    newest: bool
    #: Whether there are peers to send states to.
    sends: Callable[[], bool]
    clock: Callable[[], float]
    slowness: FaultSlowdown
    parallel: Parallel
    #: Called in the loop's thread: after the last pass; with an error that ends the loop.
    on_ended: Callable[[], None]
    on_error: Callable[[BaseException], None]


class AsyncLoop:
    """Runs a worker loop in a thread until it is stopped.

    Parameters
    ----------
    worker : WorkerLoop
        Used by the thread only, from ``start`` on.
    context : LoopContext
    """

    def __init__(self, worker: WorkerLoop, context: LoopContext) -> None:
        self.worker = worker
        self._context = context
        self._requests: deque[tuple[Future[Any], Callable[[WorkerLoop], Any]]] = deque()
        self._wake = threading.Event()
        self._stops = False
        self._has_reported_end = False
        #: Examples of the last mini-batch.
        self.examples = 0
        #: The thread serves no more requests.
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="em-async-loop", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request(self, action: Callable[[WorkerLoop], Any]) -> Future[Any]:
        """Run an action between two mini-batches, in the order of requests."""
        future: Future[Any] = Future()
        self._requests.append((future, action))
        self.wake()
        if self._is_over:
            self._refuse()
        return future

    def wake(self) -> None:
        """Let a loop that pauses look at its requests."""
        self._wake.set()

    def stop(self) -> None:
        """Make no further step; serve requests until ``end``."""
        self._stops = True
        self.wake()

    def end(self) -> None:
        """End the thread after the current mini-batch."""
        self.stop()
        self.request(_leave)

    def join(self) -> None:
        """Wait for the thread's end, at most for the rest of a mini-batch."""
        self._thread.join()

    # --- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        for pause in self.turns():
            if pause is Pause.REQUEST:
                self._wake.wait()
                self._wake.clear()
            elif pause is Pause.ROOM:
                self._context.send_queue.wait(WAIT_S)

    def turns(self) -> Iterator[Pause]:
        """Serve requests and make mini-batches until the end; yield at each pause."""
        try:
            while True:
                self._serve()
                if self._stops or not self.worker.is_due():
                    self._report_end()
                    yield Pause.REQUEST
                else:
                    yield from self._step()
        except (_Left, GeneratorExit):
            pass
        except BaseException as error:  # of user code: an ended thread reports nothing
            self._context.on_error(error)
        self._is_over = True
        self._refuse()

    def _step(self) -> Iterator[Pause]:
        worker, context = self.worker, self._context
        self._has_reported_end = False
        began_cpu_s = context.slowness.begin()
        self.examples = worker.step()
        yield Pause.BATCH
        worker.merge(context.mailbox.take())
        context.slowness.end(began_cpu_s, context.parallel)
        fill = context.send_queue.fill
        if context.sends():
            yield from self._post()
            # Without peers the queue is always empty: its fill carries no information then.
            worker.adapt(fill)

    def _post(self) -> Iterator[Pause]:
        worker, send_queue = self.worker, self._context.send_queue
        if not send_queue.has_room():
            if self._context.newest:
                # Once there is room, the newest state is sent, after the next mini-batch.
                worker.counts["skipped"] += 1
                return
            began_s = self._context.clock()
            while not send_queue.has_room() and not self._stops:
                yield Pause.ROOM
                self._serve()
            worker.counts["stalled_s"] += self._context.clock() - began_s
            if self._stops:
                return
        mail = worker.message()
        rows = None if mail.rows is None else int(mail.rows.size)
        send_queue.post(pack_message(mail, self._context.shapes), rows)

    def _serve(self) -> None:
        while self._requests:
            future, action = self._requests.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(action(self.worker))
            except _Left:
                raise
            except BaseException as error:
                future.set_exception(error)
                raise

    def _report_end(self) -> None:
        if not self._stops and not self._has_reported_end and self.worker.has_ended():
            self._has_reported_end = True
            self._context.on_ended()

    def _refuse(self) -> None:
        """Fail the requests that no thread will serve."""
        while self._requests:
            future, _ = self._requests.popleft()
            if future.set_running_or_notify_cancel():
                future.set_exception(JobFailedError("the member's loop has ended"))


class _Left(Exception):
    """Ends the thread."""


def _leave(worker: WorkerLoop) -> None:
    raise _Left
