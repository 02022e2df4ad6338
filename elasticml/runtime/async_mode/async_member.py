"""A member of an asynchronous job: its training loop, its messages to peers, and its reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.address_book import AddressBook
from elasticml.algorithms.async_sgd.base import Mail, Mailbox
from elasticml.algorithms.async_sgd.report_ops import LoopReport, ReportSolver
from elasticml.algorithms.async_sgd.worker_loop import COUNTS, WorkerLoop
from elasticml.control import effects as fx
from elasticml.data.chunks.chunk import Chunk
from elasticml.ids import MemberId
from elasticml.protocol import events as ev
from elasticml.runtime.async_mode.async_gossip import AsyncGossip, SendQueue
from elasticml.runtime.async_mode.async_loop import LoopContext
from elasticml.runtime.worker_context import WorkerContext
from elasticml.training.array_buffers import Vector
from elasticml.training.message_codec import pack_message

#: Longest wait of a report for the end of a mini-batch; then it repeats the last copied state.
REPORT_S = 0.25


class AsyncMember:
    """Runs a member's training loop beside its exchanges.

    Parameters
    ----------
    me : MemberId
    solver : ReportSolver
        Gets this object, to answer reports.
    hello : mapping
        First message on links to peers: job and transport.
    seed : int
        The job's seed.
    context : WorkerContext
    feed : callable (Event)
        Passes events to the member machine.
    fail : callable (BaseException)
        Reports an error to the driver that ends the job.
    """

    def __init__(
        self,
        me: MemberId,
        solver: ReportSolver,
        hello: Mapping[str, Any],
        seed: int,
        context: WorkerContext,
        feed: Callable[[ev.Event], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.me = me
        self._feed = feed
        plan = solver.plan.loop
        #: Reports an error to the driver that ends the job.
        self.fail = fail
        self.shapes = plan.problem.shapes()
        self._on_loop = asyncio.get_running_loop().call_soon_threadsafe
        self._is_closed = False
        self.mailbox = Mailbox(plan.slots)
        #: Its messages to peers.
        self.gossip = AsyncGossip(
            AddressBook(me, seed),
            self,
            hello,
            transport=context.transport,
            clock=context.clock,
            pause=context.pause,
            sends=plan.sends,
        )
        send_queue = SendQueue(plan.queue, lambda: self._later(self.gossip.pump))
        self.gossip.send_queue = send_queue
        ended = ev.LoopEnded(cause=f"member {me}", member=me)
        self.loop = context.make_loop(
            WorkerLoop(plan, seed=seed, slot=me.slot),
            LoopContext(
                mailbox=self.mailbox,
                send_queue=send_queue,
                shapes=self.shapes,
                newest=plan.newest,
                sends=lambda: plan.sends > 0 and bool(self.gossip.book.addresses),
                clock=context.clock,
                slowness=context.slowness,
                parallel=context.parallel,
                on_ended=lambda: self._later(feed, ended),
                on_error=lambda error: self._later(fail, error),
            ),
        )
        #: The last report, for reports that cannot wait.
        self._last: LoopReport | None = None
        #: Sent and undelivered states that have been reported.
        self._reported = (0, 0)
        self._is_stopping = False
        solver.running = self
        self.loop.start()

    def _later(self, action: Callable[..., None], *args: Any) -> None:
        """Run an action on the event loop; may be called from any thread."""
        # The event loop may have ended.
        with suppress(RuntimeError):
            self._on_loop(self._unless_closed, action, args)

    def _unless_closed(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self._is_closed:
            action(*args)

    # --- orders ---------------------------------------------------------------------------------

    def own(self, chunks: Sequence[Chunk]) -> None:
        """Train on these chunks from now on."""
        self.loop.request(lambda worker: worker.own(chunks))

    def _begun(self) -> None:
        self._feed(fx.StateBegun())
        self.gossip.has_begun()

    def close(self) -> None:
        """Close all links; the thread ends after its current mini-batch."""
        self._is_closed = True
        self.loop.end()
        self.gossip.close()

    def join(self) -> None:
        """Wait for the loop's end."""
        self.loop.join()

    # --- for gossip -----------------------------------------------------------------------------

    def copy_state(self, give: Callable[[Vector | None], None]) -> None:
        """Copy the state between two mini-batches and pass it to ``give`` on the event loop."""

        def copy(worker: WorkerLoop) -> None:
            vector = None
            if worker.state is not None:
                whole = {name: worker.state[name] for name in self.shapes}
                vector = pack_message(Mail(arrays=whole), self.shapes)
            self._later(give, vector)

        self.loop.request(copy)

    def begin(self, mail: Mail) -> None:
        """Start from a peer's state unless the loop has a state already."""

        def begin(worker: WorkerLoop) -> None:
            if worker.state is None:
                worker.begin(mail.arrays)

        self.loop.request(begin)

    # --- for reports, in the compute thread -----------------------------------------------------

    def standing(self, start: Mapping[str, NDArray[np.float64]], begin: bool) -> LoopReport:
        """Report the loop's state; see ``RunningLoop`` in async_sgd/report_ops.py."""
        if begin:
            self.loop.request(lambda worker: worker.begin(start)).result()
            self._later(self._begun)
        timeout_s = None if self._is_stopping else REPORT_S
        future = self.loop.request(lambda worker: self._report(worker, start))
        try:
            report: LoopReport = future.result(timeout_s)
        except Late:
            if future.cancel():
                # The loop is in a long mini-batch: the next report will contain its counts.
                return self._stale_report()
            report = future.result()
        self._last = report
        return report

    def _stale_report(self) -> LoopReport:
        """Repeat the last report with counts of zero."""
        counts = np.zeros(len(COUNTS))
        is_first = self.gossip.book.is_first()
        if self._last is None:
            return LoopReport(
                state=None, counts=counts, batch=0.0, has_ended=False, is_first=is_first
            )
        return replace(self._last, counts=counts, has_ended=False, is_first=is_first)

    def _report(self, worker: WorkerLoop, start: Mapping[str, NDArray[np.float64]]) -> LoopReport:
        """Copy what a report contains; runs in the loop's thread."""
        gossip = self.gossip
        if worker.state is None:
            if gossip.has_asked or not gossip.book.addresses:
                worker.begin(start)
                self._later(self._begun)
            else:
                self._later(self._feed, fx.StateLacking())
        received, overwritten = self.mailbox.count()
        worker.counts["received"] += received
        worker.counts["overwritten"] += overwritten
        before, self._reported = self._reported, (gossip.n_sent, gossip.n_undelivered)
        worker.counts["sent"] += self._reported[0] - before[0]
        worker.counts["undelivered"] += self._reported[1] - before[1]
        return LoopReport(
            state=worker.copy(),
            counts=worker.take_counts(),
            batch=float(worker.batch),
            has_ended=worker.has_ended(),
            is_first=gossip.book.is_first(),
        )

    def limit(self, passes: float) -> None:
        """Stop after a number of passes."""
        self.loop.request(lambda worker: worker.limit(passes))

    def stop(self) -> None:
        """Stop for good."""
        self._is_stopping = True
        self.loop.stop()
