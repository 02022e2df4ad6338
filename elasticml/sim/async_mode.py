"""A virtual member that runs free: the real loop's turns in virtual time, mail on the network.

A mini-batch takes the time of its examples; what has come by its end is merged then. A state takes
its bytes over the member's uplink, like everything else that it sends, and its place in the
outgoing queue is free when it has left. Reports are computed beside the loop, which goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.address_book import ASK_S, ASKED_MAX, AddressBook
from elasticml.algorithms.async_sgd.base import Mail, Mailbox
from elasticml.algorithms.async_sgd.report_ops import LoopReport, ReportSolver
from elasticml.algorithms.async_sgd.worker_loop import WorkerLoop
from elasticml.algorithms.base import Solver
from elasticml.control import effects as fx
from elasticml.data.chunks.chunk import Chunk
from elasticml.ids import MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.sim.message_sizes import CONTROL_BYTES
from elasticml.sim.network import Port
from elasticml.training.message_codec import message_values

if TYPE_CHECKING:
    from elasticml.sim.virtual_member import VirtualMember

#: The operation that a mini-batch is, for ``simulate.compute_s``.
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
    """A state in the outgoing queue, and for how many it has not left yet."""

    mail: Mail
    recipients: int


class VirtualLoop:
    """One life's loop.

    Parameters
    ----------
    member : VirtualMember
    solver : ReportSolver
        Is given the loop, to answer reports.
    """

    def __init__(self, member: VirtualMember, solver: ReportSolver) -> None:
        self._member = member
        self._world = member.world
        self._plan = solver.plan.loop
        self._shapes = self._plan.problem.shapes()
        seed, me = int(self._world.driver_session.record.get("seed") or 0), member.me
        self._looper = WorkerLoop(self._plan, seed=seed, slot=me.slot)
        self._mailbox = Mailbox(self._plan.slots)
        self._book = AddressBook(me, seed)
        self._ports: dict[MemberId, Port] = {}
        self._accepted: list[Port] = []
        #: States in the outgoing queue, each in one place, to however many it goes.
        self._unsent = 0
        #: Share of its places that they filled at the end of the last mini-batch.
        self._fill = 0.0
        self._stalled_since_s: float | None = None
        self._is_turning = False
        self._is_stopped = False
        self._has_told_end = False
        #: Peers that are still to be asked for a state; None before the first is asked.
        self._asked: list[MemberId] | None = None
        self._began_s = self._world.clock.now_s
        solver.running = self

    def close(self) -> None:
        """End it with its life."""
        self._is_stopped = True
        for port in [*self._ports.values(), *self._accepted]:
            port.close()

    # --- orders -----------------------------------------------------------------------------------

    def own(self, chunks: list[Chunk]) -> None:
        """Visit these chunks from now on."""
        self._looper.own(chunks)
        self._go_on()

    def know(self, order: cmd.Peers) -> None:
        """Take note of the others."""
        came = dict(zip(order.came, order.addresses, strict=True))
        self._book.update(came, order.gone, is_full=order.is_full)
        for member in [m for m in self._ports if m not in self._book.addresses]:
            self._ports.pop(member).close()

    # --- turns ------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Begin the next mini-batch, if there is something to do and none under way."""
        looper = self._looper
        if self._is_turning or self._is_stopped or self._stalled_since_s is not None:
            return
        if not looper.is_due():
            if looper.has_ended() and not self._has_told_end:
                self._has_told_end = True
                me = self._member.me
                self._member.feed(ev.LoopEnded(cause=f"member {me}", member=me))
            return
        self._is_turning, self._has_told_end = True, False
        began_s = time.perf_counter()
        n = looper.step()
        measured_s = time.perf_counter() - began_s
        world = self._world
        seconds = world.compute_seconds(self._member.me.slot, BATCH, n, measured_s)
        seconds += world.options.overhead_seconds(BATCH)
        # A loop whose mini-batches take no time would never let time pass.
        self._member.later(max(seconds, 1e-9), self._stepped)

    def _stepped(self) -> None:
        self._is_turning = False
        self._looper.merge(self._mailbox.take())
        self._fill = self._unsent / self._plan.queue
        if self._plan.sends and self._book.addresses and not self._is_stopped:
            if self._unsent >= self._plan.queue and self._plan.newest:
                self._looper.counts["skipped"] += 1
            elif self._unsent >= self._plan.queue:
                self._stalled_since_s = self._world.clock.now_s
                return
            else:
                self._post()
        self._turned()

    def _turned(self) -> None:
        if self._book.addresses:
            # A queue is empty, too, where there is nobody to send to: that tells nothing.
            self._looper.adapt(self._fill, self._world.clock.now_s - self._began_s)
        self._go_on()

    # --- mail out ---------------------------------------------------------------------------------

    def _post(self) -> None:
        mail = self._looper.message()
        chosen = self._book.choose(self._plan.sends)
        if not chosen:
            # Everybody went while it waited for a place.
            self._looper.counts["undelivered"] += 1
            return
        self._unsent += 1
        unsent = _Unsent(mail, len(chosen))
        for member in chosen:
            port = self._ports.get(member)
            if port is None:
                wait_s = 2 * self._world.options.latency_s
                self._member.later(wait_s, self._send_first, member, unsent)
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
        left_s = self._member.worker.endpoint.uplink_free_s - self._world.clock.now_s
        self._member.later(max(left_s, 0.0), self._left, unsent)

    def _left(self, unsent: _Unsent) -> None:
        """Free a state's place in the outgoing queue when it has left for all its recipients."""
        unsent.recipients -= 1
        if unsent.recipients:
            return
        self._unsent -= 1
        if self._stalled_since_s is not None and self._unsent < self._plan.queue:
            stalled_s = self._world.clock.now_s - self._stalled_since_s
            self._looper.counts["stalled_s"] += stalled_s
            self._stalled_since_s = None
            self._post()
            self._turned()

    def _connect(self, member: MemberId) -> Port | None:
        """Open a connection to a peer, or take the one that is open; None where it is gone."""
        if member in self._ports:
            return self._ports[member]
        address = self._book.addresses.get(member)
        peer = None if address is None else self._world.life_of(address, member)
        if peer is None or peer.free is None:
            return None
        mine, theirs = self._world.network.connect(
            self._member.worker.endpoint, peer.worker.endpoint
        )
        self._ports[member] = mine
        mine.on_message = lambda message: self._on_message(mine, message)
        mine.on_closed = lambda: self._on_closed(member, mine)
        peer.free.accept(theirs)
        return mine

    def _on_closed(self, member: MemberId, port: Port) -> None:
        if self._ports.get(member) is port:
            del self._ports[member]

    # --- mail in ----------------------------------------------------------------------------------

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

    # --- where to begin ---------------------------------------------------------------------------

    def _begin(self, arrays: Mapping[str, NDArray[np.float64]]) -> None:
        if self._looper.state is None:
            self._looper.begin(arrays)
            self._go_on()

    def ask(self) -> None:
        """Ask peers for a state, one after the other."""
        self._asked = self._book.choose(ASKED_MAX)
        self._ask()

    def _ask(self) -> None:
        if self._looper.state is None and self._asked:
            port = self._connect(self._asked.pop(0))
            if port is not None:
                port.send(Ask(), CONTROL_BYTES)
            self._member.later(ASK_S if port is not None else 0.0, self._ask)

    # --- reports ----------------------------------------------------------------------------------

    def standing(self, start: Mapping[str, NDArray[np.float64]], begin: bool) -> LoopReport:
        """Say where the loop is; see ``RunningLoop`` in async_sgd/report_ops.py."""
        looper = self._looper
        is_lonely = looper.state is None and (not self._book.addresses or self._asked == [])
        if begin or is_lonely:
            looper.begin(start)
            self._member.feed(fx.StateBegun())
        elif looper.state is None:
            self._member.feed(fx.StateLacking())
        received, overwritten = self._mailbox.count()
        looper.counts["received"] += received
        looper.counts["overwritten"] += overwritten
        standing = LoopReport(
            state=looper.copy(),
            counts=looper.take_counts(),
            batch=float(looper.batch),
            has_ended=looper.has_ended(),
            is_first=self._book.is_first(),
        )
        self._go_on()
        return standing

    def limit(self, passes: float) -> None:
        """Stop after so many passes."""
        self._looper.limit(passes)

    def stop(self) -> None:
        """Stop for good."""
        self._is_stopped = True


def loop_of(member: VirtualMember, solver: Solver) -> VirtualLoop | None:
    """Make the loop of a member whose solver runs beside one; None for any other."""
    return VirtualLoop(member, solver) if isinstance(solver, ReportSolver) else None
