"""One incarnation of a virtual member: the real machine and solver in virtual time.

It performs the commands of the member machine on the virtual network: links, computations, sums
and reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from elasticml.algorithms.async_sgd.report_ops import ReportSolver
from elasticml.algorithms.base import Solver, Work
from elasticml.control import effects as fx
from elasticml.control.member_machine import Member
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import ElasticmlError
from elasticml.evaluation.validation import training_solver
from elasticml.ids import ExchangeId, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.sim.async_mode import VirtualLoop
from elasticml.sim.chunk_links import ChunkTransport
from elasticml.sim.exchange_messages import SentAnchor, SentPartial, Share
from elasticml.sim.message_sizes import CONTROL_BYTES, examples_of
from elasticml.sim.network import Port
from elasticml.sim.virtual_worker import Purpose, Worker
from elasticml.training.array_buffers import Vector, merge, pack


class VirtualMember:
    """A member of the simulated job, from its welcome to its end.

    Parameters
    ----------
    me : MemberId
    worker : Worker
        Its process, which outlives it if the driver only fences the member.
    port : Port
        To the driver.
    """

    __slots__ = (
        "_cause",
        "_driver",
        "_parent",
        "_parent_id",
        "_partials",
        "_rows",
        "_shares",
        "_solver",
        "children",
        "chunks",
        "environment",
        "free",
        "is_over",
        "machine",
        "me",
        "transfers",
        "worker",
    )

    def __init__(self, me: MemberId, worker: Worker, port: Port) -> None:
        self.me = me
        self.worker = worker
        self.environment = worker.environment
        self.is_over = False
        self.machine = Member(me, worker.chunks)
        self._cause = f"link {me}"
        self.children: dict[MemberId, Port] = {}
        self.chunks: list[Chunk] = []
        #: Number of examples in them.
        self._rows = 0
        self.transfers = ChunkTransport(me, worker, self.feed, self.later)
        self._driver = port
        self._parent: Port | None = None
        self._parent_id: MemberId | None = None
        self._solver: Solver | None = None
        #: The training loop of a member of an asynchronous job.
        self.free: VirtualLoop | None = None
        self._shares: dict[ExchangeId, Share] = {}
        #: Partials of children, by handle.
        self._partials: dict[int, SentPartial] = {}

    def close(self) -> None:
        """End this incarnation: close all connections."""
        if not self.is_over:
            self.is_over = True
            for port in [self._driver, self._parent, *self.children.values()]:
                if port is not None:
                    port.close()
            self.transfers.close()
            if self.free is not None:
                self.free.close()

    def _report(self, command: fx.Report) -> None:
        event = command.event
        if not event.cause:
            event = replace(event, cause=self._cause)
        self._driver.send(event, CONTROL_BYTES)

    def fail(self, error: Exception) -> None:
        """Report an error: it ends the job, or this member if its host may be at fault."""
        assert isinstance(error, ElasticmlError)
        self.environment.session.fail(error)
        failed = ev.Failed(
            cause=f"member {self.me}",
            reason=error.message,
            member=self.me,
            host_fault=error.fields.get("host_fault"),
        )
        self._driver.send(failed, CONTROL_BYTES)

    def _fail(self, command: fx.Fail) -> None:
        self.fail(command.error)

    def later(self, seconds: float, action: Any, *args: Any) -> None:
        """Perform an action after some seconds, unless this incarnation has ended by then."""
        if seconds > 0:
            self.environment.clock.after(seconds, self._due, action, args)
        else:
            self._due(action, args)

    def _due(self, action: Any, args: tuple[Any, ...]) -> None:
        """Perform an action that is due: now, or when its paused process resumes."""
        endpoint = self.worker.endpoint
        if endpoint.is_paused:
            endpoint.backlog.append((self._due, (action, args)))
        elif endpoint.is_alive and not self.is_over:
            action(*args)

    # --- orders ---------------------------------------------------------------------------

    def on_driver_message(self, message: Any) -> None:
        """Handle a message from the driver."""
        if isinstance(message, ev.ExchangeHeader):
            self._on_model(message)
        else:
            self.feed(message)

    def _own(self, order: cmd.Own) -> None:
        self.chunks = [self.worker.chunks[id] for id in order.chunks]
        self._rows = sum(chunk.n_rows for chunk in self.chunks)
        if self.free is not None:
            self.free.own(self.chunks)

    def _know(self, order: cmd.Peers) -> None:
        if self.free is not None:
            self.free.know(order)

    def _ask_peers(self, command: fx.AskPeers) -> None:
        if self.free is not None:
            self.free.ask()

    def _dismiss(self, order: cmd.Dismiss) -> None:
        self.worker.dismissed(self, order.is_final)

    def _configure(self, order: cmd.Configure) -> None:
        try:
            self._solver = self.environment.make_solver()
            training = training_solver(self._solver)
            if isinstance(training, ReportSolver):
                # Its mini-batches run beside the exchanges.
                self.free = VirtualLoop(self.me, self.worker, self.feed, self.later, training)
        except ElasticmlError as error:
            self.fail(error)
            return
        if order.warms_up:
            seconds = self.worker.computing_s(self.environment.options.warm_up_s)
            self.later(seconds, self.feed, ev.Ready(member=self.me))

    def _read_blocks(self, order: cmd.ReadBlocks) -> None:
        library = self.environment.library
        for block in order.blocks:
            seconds = library.nbytes([block]) / self.environment.options.read_bandwidth
            delay = 0.0 if library.is_in_memory else self.worker.reading_s(seconds)
            self.later(delay, self._block_read, block, order.survey)

    def _block_read(self, block: int, survey: bool) -> None:
        library = self.environment.library
        try:
            if survey:
                self.environment.summarised(library.survey(block))
                chunks: list[Chunk] = []
            else:
                chunks, summary = library.read(block)
                self.environment.summarised(summary)
            self.worker.hold(chunk.id for chunk in chunks)
        except ElasticmlError as error:
            self.fail(error)
            return
        infos = tuple(chunk.info() for chunk in chunks)
        digest = library.digest(chunks)
        self.feed(ev.BlockRead(member=self.me, block=block, chunks=infos, digest=digest))

    def _load_chunks(self, order: cmd.LoadChunks) -> None:
        missing = [id for id in order.chunks if id not in self.worker.chunks]
        library = self.environment.library
        nbytes = library.chunk_bytes(missing)
        seconds = nbytes / self.environment.options.read_bandwidth
        delay = 0.0 if library.is_in_memory else self.worker.reading_s(seconds)
        self.later(delay, self._chunks_loaded, order, nbytes, seconds)

    def _chunks_loaded(self, order: cmd.LoadChunks, nbytes: int, seconds: float) -> None:
        try:
            self.worker.hold(order.chunks)
        except ElasticmlError as error:
            self.fail(error)
            return
        self.feed(
            ev.ChunksLoaded(
                member=self.me, chunks=order.chunks, nbytes=nbytes, seconds=round(seconds, 6)
            )
        )

    def _drop(self, order: cmd.DropChunks) -> None:
        self.worker.drop(order.chunks)

    def _after(self, command: fx.After) -> None:
        self.later(command.seconds, self.feed, fx.TimeUp())

    def _give(self, order: cmd.GiveChunks) -> None:
        self.transfers.give(order)

    def _copy(self, command: fx.SendCopy) -> None:
        self.transfers.copy(command)

    def _store(self, command: fx.StoreChunks) -> None:
        self.transfers.store(command.arrival)

    def _set_states(self, command: fx.SetStates) -> None:
        self.transfers.set_states(command)

    # --- the collective ---------------------------------------------------------------------

    def feed(self, event: ev.Event | cmd.Order) -> None:
        """Pass an event to the machine and perform its commands."""
        if self.is_over:
            return
        try:
            for command in self.machine.handle(event, self.environment.clock.now_s):
                self._perform[type(command)](self, command)
        except ElasticmlError as error:
            self.fail(error)

    def _forget(self, command: cmd.Forget) -> None:
        for handle in command.handles:
            self._partials.pop(handle, None)
        self._shares.pop(command.exchange, None)

    def _refuse(self, command: cmd.Refuse) -> None:
        self._partials.pop(command.handle, None)

    def _forward(self, command: cmd.ForwardModel) -> None:
        child = self.children.get(command.to)
        if child is not None:
            share = self._shares[command.exchange]
            child.send(share.header, share.shared.down_bytes)

    def _on_model(self, header: Work) -> None:
        if self.machine.takes_model(header.exchange):
            self._shares[header.exchange] = Share(header, self.environment.shared(header))
            self.feed(header)

    def _attach(self, command: cmd.Attach) -> None:
        self.later(2 * self.environment.options.latency_s, self._connect, command)

    def _connect(self, command: cmd.Attach) -> None:
        assert command.parent is not None
        if not self.machine.attaches_to(command):
            return
        mine = self.worker.connect("child", self.me, command.address, command.parent)
        if mine is None:
            self.feed(fx.ConnectFailed(peer=command.parent))
            return
        self._parent, self._parent_id = mine, command.parent
        mine.on_message = self._on_parent_message
        mine.on_closed = lambda: self._on_parent_closed(mine)
        self.feed(ev.PeerLinked(peer=command.parent, generation=command.generation))

    def _tell(self, command: fx.Tell) -> None:
        assert self._parent is not None
        self._parent.send(replace(command.event, cause=self._cause), CONTROL_BYTES)

    def accepts(self, purpose: Purpose) -> bool:
        """Whether the member takes connections for this purpose."""
        return purpose != "mail" or self.free is not None

    def accept(self, purpose: Purpose, source: MemberId, port: Port) -> None:
        """Serve a connection that another member has opened."""
        if purpose == "child":
            self._accept_child(source, port)
        elif purpose == "chunks":
            self.transfers.receive(source, port)
        else:
            assert self.free is not None
            self.free.accept(port)

    def _accept_child(self, child: MemberId, port: Port) -> None:
        former = self.children.get(child)
        if former is not None:
            former.close()
        self.children[child] = port
        port.on_message = self._on_child_message
        port.on_closed = lambda: self._on_child_closed(child, port)

    def _on_child_closed(self, child: MemberId, port: Port) -> None:
        if self.children.get(child) is port:
            del self.children[child]
            self.feed(ev.PeerLost(peer=child))

    def _on_parent_closed(self, port: Port) -> None:
        if self._parent is port and self._parent_id is not None:
            self._parent = None
            self.feed(fx.ParentLost(peer=self._parent_id))

    def _on_parent_message(self, message: Any) -> None:
        if isinstance(message, ev.ExchangeHeader):
            self._on_model(message)

    def _on_child_message(self, message: Any) -> None:
        if isinstance(message, SentPartial):
            self._partials[message.event.handle] = message
            self.feed(message.event)
        else:
            self.feed(message)

    def _detach(self, command: cmd.Detach) -> None:
        child = self.children.pop(command.peer, None)
        if child is not None:
            child.close()
        elif self._parent is not None and self._parent_id == command.peer:
            self._parent.close()
            self._parent = None

    # --- computing, summing, sending ----------------------------------------------------------

    def _compute(self, command: cmd.Compute) -> None:
        exchange = command.exchange
        share = self._shares[exchange]
        header = share.header
        try:
            arrays, measured_s = self.environment.solve(self._solver, header, self.chunks)
            self.worker.computed = exchange
            total = pack(arrays, header.returns, np.empty(share.shared.values))
        except ElasticmlError as error:
            self.fail(error)
            return
        n = examples_of(header, self._rows)
        seconds = self.environment.compute_seconds(self.me.slot, header.operation, n, measured_s)
        self.later(self.worker.computing_s(seconds), self._computed, exchange, total, seconds)

    def _computed(self, exchange: ExchangeId, total: Vector, seconds: float) -> None:
        share = self._shares.get(exchange)
        if share is not None:
            share.total = total
            share.compute_s[self.me] = seconds
            self.environment.computed(exchange, self.me, seconds)
            self.feed(share.shared.computed)

    def _send_partial(self, command: cmd.SendPartial) -> None:
        share = self._shares[command.exchange]
        assert share.total is not None
        delay = 0.0
        for handle in command.inputs:
            partial = self._partials[handle]
            merge(share.total, partial.array, share.header.reduce)
            share.compute_s.update(partial.event.compute_s)
        if command.inputs:
            delay = self.environment.merge_seconds(share.shared.up_values, len(command.inputs))
        event = ev.PartialArrived(
            cause=self._cause,
            exchange=command.exchange,
            sender=self.me,
            contributors=command.contributors,
            order=command.order,
            handle=next(self.environment.handles),
            compute_s=share.compute_s,
        )
        port = self._driver if command.to is None else self._parent
        if port is not None:
            message = SentPartial(event, share.total)
            self.later(delay, port.send, message, share.shared.up_bytes)

    def _send_kept(self, command: fx.SendKept) -> None:
        share = self._shares[command.exchange]
        array = share.total
        if command.handle is not None:
            array = self._partials[command.handle].array
        assert array is not None
        event = ev.AnchorArrived(
            cause=self._cause,
            member=self.me,
            exchange=command.exchange,
            sender=command.sender,
            handle=next(self.environment.handles),
        )
        self._driver.send(SentAnchor(event=event, array=array), share.shared.up_bytes)

    #: The method that performs each kind of command.
    _perform: ClassVar[dict[type[cmd.Command], Callable[[VirtualMember, Any], None]]] = {
        cmd.Compute: _compute,
        cmd.SendPartial: _send_partial,
        cmd.Forget: _forget,
        cmd.ForwardModel: _forward,
        cmd.Attach: _attach,
        cmd.Detach: _detach,
        cmd.Refuse: _refuse,
        fx.Report: _report,
        fx.Tell: _tell,
        fx.SendKept: _send_kept,
        fx.After: _after,
        fx.SendCopy: _copy,
        fx.StoreChunks: _store,
        fx.SetStates: _set_states,
        fx.AskPeers: _ask_peers,
        fx.Fail: _fail,
        cmd.Configure: _configure,
        cmd.ReadBlocks: _read_blocks,
        cmd.LoadChunks: _load_chunks,
        cmd.GiveChunks: _give,
        cmd.DropChunks: _drop,
        cmd.Own: _own,
        cmd.Peers: _know,
        cmd.Dismiss: _dismiss,
    }
