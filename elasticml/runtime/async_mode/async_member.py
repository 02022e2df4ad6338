"""A member that runs free: its loop, its mail, and what it says of both in reports."""

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
from elasticml.collective.transport import Link
from elasticml.control import effects as fx
from elasticml.data.chunks.chunk import Chunk
from elasticml.ids import MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Peers
from elasticml.runtime.async_mode.async_gossip import AsyncGossip, SendQueue
from elasticml.runtime.async_mode.async_loop import AsyncLoop, LoopContext
from elasticml.runtime.worker_context import WorkerContext
from elasticml.training.array_buffers import Vector
from elasticml.training.message_codec import pack_message

#: A report does not wait longer than this for the end of a mini-batch: it then tells of the state
#: that was copied last.
REPORT_S = 0.25


class AsyncMember:
    """Runs the loop of one life of a member beside its exchanges.

    Parameters
    ----------
    me : MemberId
    solver : ReportSolver
        Is given the loop, to answer reports.
    hello : mapping
        Said to peers: job and transport.
    seed : int
        The job's.
    environment : Environment
    feed : callable (Event)
        Takes events for the member machine.
    fail : callable (BaseException)
        Tells the driver of what is no fault of the cluster.
    """

    def __init__(
        self,
        me: MemberId,
        solver: ReportSolver,
        hello: Mapping[str, Any],
        seed: int,
        environment: WorkerContext,
        feed: Callable[[ev.Event], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.me = me
        self._feed = feed
        plan = solver.plan.loop
        self._shapes = plan.problem.shapes()
        self._on_loop = asyncio.get_running_loop().call_soon_threadsafe
        self._is_closed = False
        self._mailbox = Mailbox(plan.slots)
        self._letters = AsyncGossip(
            AddressBook(me, seed),
            hello,
            transport=environment.transport,
            clock=environment.clock,
            pause=environment.pause,
            shapes=self._shapes,
            mailbox=self._mailbox,
            loop=self,
            sends=plan.sends,
            fail=fail,
        )
        outbox = SendQueue(plan.queue, lambda: self._later(self._letters.pump))
        self._letters.outbox = outbox
        ended = ev.LoopEnded(cause=f"member {me}", member=me)
        self._loop = AsyncLoop(
            WorkerLoop(plan, seed=seed, slot=me.slot),
            LoopContext(
                mailbox=self._mailbox,
                outbox=outbox,
                shapes=self._shapes,
                newest=plan.newest,
                sends=lambda: plan.sends > 0 and bool(self._letters.book.addresses),
                clock=environment.clock,
                slowness=environment.slowness,
                parallel=environment.parallel,
                on_ended=lambda: self._later(feed, ended),
                on_error=lambda error: self._later(fail, error),
            ),
        )
        #: What was told last, for reports that cannot wait.
        self._last: LoopReport | None = None
        #: Sent and undelivered when they were told last.
        self._told = (0, 0)
        self._is_stopping = False
        solver.running = self
        self._loop.start()

    def _later(self, action: Callable[..., None], *args: Any) -> None:
        """Have something done on the event loop, from any thread."""
        # The process's event loop may have ended, and the member with it.
        with suppress(RuntimeError):
            self._on_loop(self._unless_closed, action, args)

    def _unless_closed(self, action: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self._is_closed:
            action(*args)

    # --- orders ---------------------------------------------------------------------------------

    def own(self, chunks: Sequence[Chunk]) -> None:
        """Visit these chunks from now on."""
        self._loop.request(lambda looper: looper.own(chunks))

    def know(self, order: Peers) -> None:
        """Note which peers have come and gone."""
        self._letters.know(order)

    def ask(self) -> None:
        """Ask peers for a state to begin with."""
        self._letters.ask()

    def _begun(self) -> None:
        self._feed(fx.StateBegun())
        self._letters.has_begun()

    async def accept(self, link: Link) -> None:
        """Serve a link that a peer has opened."""
        await self._letters.accept(link)

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to peers."""
        return self._letters.sent_bytes

    def close(self) -> None:
        """End this life; the thread is gone after its present mini-batch."""
        self._is_closed = True
        self._loop.end()
        self._letters.close()

    def join(self) -> None:
        """Wait for the loop's end."""
        self._loop.join()

    # --- for correspondence ---------------------------------------------------------------------

    def copy_state(self, give: Callable[[Vector | None], None]) -> None:
        """Copy the whole state between two mini-batches, and give it back on the event loop."""

        def copied(looper: WorkerLoop) -> None:
            vector = None
            if looper.state is not None:
                whole = {name: looper.state[name] for name in self._shapes}
                vector = pack_message(Mail(arrays=whole), self._shapes)
            self._later(give, vector)

        self._loop.request(copied)

    def begin(self, mail: Mail) -> None:
        """Begin with a peer's state, unless there is one by now."""

        def begun(looper: WorkerLoop) -> None:
            if looper.state is None:
                looper.begin(mail.arrays)

        self._loop.request(begun)

    # --- for reports, in the compute thread -----------------------------------------------------

    def standing(self, start: Mapping[str, NDArray[np.float64]], begin: bool) -> LoopReport:
        """Say where the loop is; see ``RunningLoop`` in async_sgd/report_ops.py."""
        if begin:
            self._loop.request(lambda looper: looper.begin(start)).result()
            self._later(self._begun)
        waits = None if self._is_stopping else REPORT_S
        future = self._loop.request(lambda looper: self._stand(looper, start))
        try:
            found: LoopReport = future.result(waits)
        except Late:
            if future.cancel():
                # In the midst of a long mini-batch: what it has counted is told the next time.
                return self._late()
            found = future.result()
        self._last = found
        return found

    def _late(self) -> LoopReport:
        """Tell what was told last, without its counts."""
        counts = np.zeros(len(COUNTS))
        is_first = self._letters.book.is_first()
        if self._last is None:
            return LoopReport(
                state=None, counts=counts, batch=0.0, has_ended=False, is_first=is_first
            )
        return replace(self._last, counts=counts, has_ended=False, is_first=is_first)

    def _stand(self, looper: WorkerLoop, start: Mapping[str, NDArray[np.float64]]) -> LoopReport:
        """Copy what a report tells: in the loop's thread."""
        letters = self._letters
        if looper.state is None:
            if letters.has_asked or not letters.book.addresses:
                looper.begin(start)
                self._later(self._begun)
            else:
                self._later(self._feed, fx.StateLacking())
        received, overwritten = self._mailbox.count()
        looper.counts["received"] += received
        looper.counts["overwritten"] += overwritten
        told, self._told = self._told, (letters.n_sent, letters.n_undelivered)
        looper.counts["sent"] += self._told[0] - told[0]
        looper.counts["undelivered"] += self._told[1] - told[1]
        return LoopReport(
            state=looper.copy(),
            counts=looper.take_counts(),
            batch=float(looper.batch),
            has_ended=looper.has_ended(),
            is_first=self._letters.book.is_first(),
        )

    def limit(self, passes: float) -> None:
        """Stop after so many passes."""
        self._loop.request(lambda looper: looper.limit(passes))

    def stop(self) -> None:
        """Stop for good."""
        self._is_stopping = True
        self._loop.stop()
