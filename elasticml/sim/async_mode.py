"""The training loop of a virtual asynchronous member: real mini-batches in virtual time.

The time of a mini-batch depends on its examples; states that have arrived by its end are merged
then. A state is sent over the member's uplink like all its messages, and its place in the send
queue is free when it has left. Reports are computed beside the loop, without stopping it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.address_book import ASK_S, ASKED_MAX, AddressBook
from elasticml.algorithms.async_sgd.base import Mail, Mailbox
from elasticml.algorithms.async_sgd.report_ops import LoopReport, ReportSolver
from elasticml.algorithms.async_sgd.worker_loop import WorkerLoop
from elasticml.control import effects as fx
from elasticml.data.chunks.chunk import Chunk
from elasticml.ids import MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.sim.message_sizes import CONTROL_BYTES
from elasticml.sim.network import Port
from elasticml.sim.virtual_worker import Worker
from elasticml.training.message_codec import message_values

#: The operation of a mini-batch, for ``simulate.compute_s``.
BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a peer for its state."""


@dataclass(frozen=True, slots=True)
class StateMessage:
    """A state on the network."""

    mail: Mail
    is_asked: bool = False


@dataclass(slots=True)
class _Unsent:
    """A state in the send queue, and the number of peers that it is still to be sent to."""

    mail: Mail
    recipients: int


class VirtualLoop:
    """The training loop of one member.

    Parameters
    ----------
    me : MemberId
    worker : Worker
    feed : callable
        Takes events for the member machine.
    later : callable
        Calls a function after some seconds, unless the member is over by then.
    solver : ReportSolver
        Gets this object, to answer reports.
    """

    def __init__(
        self,
        me: MemberId,
        worker: Worker,
        feed: Callable[[ev.Event], None],
        later: Callable[..., None],
        solver: ReportSolver,
    ) -> None:
        self._me = me
        self._worker = worker
        self._environment = worker.environment
        self._feed = feed
        self._later = later
        self._plan = solver.plan.loop
        self._shapes = self._plan.problem.shapes()
        seed = self._environment.session.record.seed
        self._looper = WorkerLoop(self._plan, seed=seed, slot=me.slot)
        self._mailbox = Mailbox(self._plan.slots)
        self._book = AddressBook(me, seed)
        self._ports: dict[MemberId, Port] = {}
        self._accepted: list[Port] = []
        #: Number of states in the send queue; a state takes one place, however many peers get it.
        self._unsent = 0
        #: Fill of the queue at the end of the last mini-batch.
        self._fill = 0.0
        self._stalled_since_s: float | None = None
        #: A mini-batch is in progress.
        self._is_stepping = False
        self._is_stopped = False
        self._has_reported_end = False
        #: Peers that are still to be asked for a state; None before the first is asked.
        self._asked: list[MemberId] | None = None
        self._began_s = self._environment.clock.now_s
        solver.running = self

    def close(self) -> None:
        """Stop the loop and close its connections."""
        self._is_stopped = True
        for port in [*self._ports.values(), *self._accepted]:
            port.close()

    # --- orders -----------------------------------------------------------------------------------

    def own(self, chunks: list[Chunk]) -> None:
        """Train on these chunks from now on."""
        self._looper.own(chunks)
        self._continue()

    def know(self, order: cmd.Peers) -> None:
        """Update the peers after the driver's order."""
        came = dict(zip(order.came, order.addresses, strict=True))
        self._book.update(came, order.gone, is_full=order.is_full)
        for member in [m for m in self._ports if m not in self._book.addresses]:
            self._ports.pop(member).close()

    # --- mini-batches -----------------------------------------------------------------------------

    def _continue(self) -> None:
        """Start the next mini-batch if one is due and none is in progress."""
        looper = self._looper
        if self._is_stepping or self._is_stopped or self._stalled_since_s is not None:
            return
        if not looper.is_due():
            if looper.has_ended() and not self._has_reported_end:
                self._has_reported_end = True
                me = self._me
                self._feed(ev.LoopEnded(cause=f"member {me}", member=me))
            return
        self._is_stepping, self._has_reported_end = True, False
        began_s = time.perf_counter()
        n = looper.step()
        measured_s = time.perf_counter() - began_s
        environment = self._environment
        seconds = environment.compute_seconds(self._me.slot, BATCH, n, measured_s)
        seconds += environment.options.overhead_seconds(BATCH)
        # A loop whose mini-batches take no time would never let time pass.
        self._later(max(seconds, 1e-9), self._stepped)

    def _stepped(self) -> None:
        self._is_stepping = False
        self._looper.merge(self._mailbox.take())
        self._fill = self._unsent / self._plan.queue
        if self._plan.sends and self._book.addresses and not self._is_stopped:
            if self._unsent >= self._plan.queue and self._plan.newest:
                self._looper.counts["skipped"] += 1
            elif self._unsent >= self._plan.queue:
                self._stalled_since_s = self._environment.clock.now_s
                return
            else:
                self._post()
        self._finish_step()

    def _finish_step(self) -> None:
        if self._book.addresses:
            # Without peers the queue is always empty: its fill carries no information then.
            self._looper.adapt(self._fill, self._environment.clock.now_s - self._began_s)
        self._continue()

    # --- sending states ---------------------------------------------------------------------------

    def _post(self) -> None:
        mail = self._looper.message()
        chosen = self._book.choose(self._plan.sends)
        if not chosen:
            # All peers left while the state waited for a place.
            self._looper.counts["undelivered"] += 1
            return
        self._unsent += 1
        unsent = _Unsent(mail, len(chosen))
        for member in chosen:
            port = self._ports.get(member)
            if port is None:
                wait_s = 2 * self._environment.options.latency_s
                self._later(wait_s, self._send_first, member, unsent)
            else:
                self._send(port, unsent)

    def _send_first(self, member: MemberId, unsent: _Unsent) -> None:
        port = self._connect(member)
        if port is None:
            self._looper.counts["undelivered"] += 1
            self._left(unsent)
        else:
            self._send(port, unsent)

    def _send(self, port: Port, unsent: _Unsent) -> None:
        mail = unsent.mail
        rows = None if mail.rows is None else int(mail.rows.size)
        port.send(StateMessage(mail), CONTROL_BYTES + 8 * message_values(self._shapes, rows))
        self._looper.counts["sent"] += 1
        left_s = self._worker.endpoint.card.up_free_s - self._environment.clock.now_s
        self._later(max(left_s, 0.0), self._left, unsent)

    def _left(self, unsent: _Unsent) -> None:
        """Free a state's place in the send queue when it has left for all its recipients."""
        unsent.recipients -= 1
        if unsent.recipients:
            return
        self._unsent -= 1
        if self._stalled_since_s is not None and self._unsent < self._plan.queue:
            stalled_s = self._environment.clock.now_s - self._stalled_since_s
            self._looper.counts["stalled_s"] += stalled_s
            self._stalled_since_s = None
            self._post()
            self._finish_step()

    def _connect(self, member: MemberId) -> Port | None:
        """Return the connection to a peer, opened if necessary; None if the peer is gone."""
        if member in self._ports:
            return self._ports[member]
        address = self._book.addresses.get(member)
        if address is None:
            return None
        mine = self._worker.connect("mail", self._me, address, member)
        if mine is None:
            return None
        self._ports[member] = mine
        mine.on_message = lambda message: self._on_message(mine, message)
        mine.on_closed = lambda: self._on_closed(member, mine)
        return mine

    def _on_closed(self, member: MemberId, port: Port) -> None:
        if self._ports.get(member) is port:
            del self._ports[member]

    # --- receiving states -------------------------------------------------------------------------

    def accept(self, port: Port) -> None:
        """Serve a connection that a peer has opened."""
        self._accepted.append(port)
        port.on_message = lambda message: self._on_message(port, message)
        port.on_closed = lambda: self._accepted.remove(port)

    def _on_message(self, port: Port, message: Any) -> None:
        if isinstance(message, StateMessage) and not message.is_asked:
            self._mailbox.put(message.mail)
        elif isinstance(message, StateMessage):
            self._begin(message.mail.arrays)
        elif isinstance(message, Ask):
            state = self._looper.copy()
            if state is not None:
                mail = Mail(arrays={name: state[name] for name in self._shapes})
                nbytes = CONTROL_BYTES + 8 * message_values(self._shapes, None)
                port.send(StateMessage(mail, is_asked=True), nbytes)

    # --- the initial state ------------------------------------------------------------------------

    def _begin(self, arrays: Mapping[str, NDArray[np.float64]]) -> None:
        if self._looper.state is None:
            self._looper.begin(arrays)
            self._continue()

    def ask(self) -> None:
        """Ask peers for an initial state, one after the other."""
        self._asked = self._book.choose(ASKED_MAX)
        self._ask()

    def _ask(self) -> None:
        if self._looper.state is None and self._asked:
            port = self._connect(self._asked.pop(0))
            if port is not None:
                port.send(Ask(), CONTROL_BYTES)
            self._later(ASK_S if port is not None else 0.0, self._ask)

    # --- reports ----------------------------------------------------------------------------------

    def standing(self, start: Mapping[str, NDArray[np.float64]], begin: bool) -> LoopReport:
        """Report the loop's state; see ``RunningLoop`` in async_sgd/report_ops.py."""
        looper = self._looper
        has_no_source = looper.state is None and (not self._book.addresses or self._asked == [])
        if begin or has_no_source:
            looper.begin(start)
            self._feed(fx.StateBegun())
        elif looper.state is None:
            self._feed(fx.StateLacking())
        received, overwritten = self._mailbox.count()
        looper.counts["received"] += received
        looper.counts["overwritten"] += overwritten
        report = LoopReport(
            state=looper.copy(),
            counts=looper.take_counts(),
            batch=float(looper.batch),
            has_ended=looper.has_ended(),
            is_first=self._book.is_first(),
        )
        self._continue()
        return report

    def limit(self, passes: float) -> None:
        """Stop after a number of passes."""
        self._looper.limit(passes)

    def stop(self) -> None:
        """Stop for good."""
        self._is_stopped = True
