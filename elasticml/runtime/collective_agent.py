"""A member in the reduce tree: links to parent and children, computing, summing, sending."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticml.algorithms.base import Solver, WaitingSolver, Work
from elasticml.collective.frames import (
    Frame,
    Header,
    Kind,
    check_payload,
    header_of,
    model_frame,
    reading_prefix,
    vector_bytes,
)
from elasticml.collective.segmentation import IncomingVector
from elasticml.collective.transport import Link, LinkClosedError
from elasticml.control import effects as fx
from elasticml.control.member_machine import Member
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.out_of_core.store import plan_residency
from elasticml.data.storage.block_files import MappedFile, files_of
from elasticml.errors import RemoteProtocolError, one_line
from elasticml.ids import NO_EXCHANGE, ChunkId, ExchangeId, MemberId, member_id
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.protocol.codec import decode, encode
from elasticml.runtime.executors import Long, Repeated
from elasticml.runtime.frame_payloads import (
    bytes_of,
    not_finite_of,
    numbers_of,
    partial_event,
    vector_of,
)
from elasticml.runtime.peer import Peer
from elasticml.runtime.pipelined_transfer import PipelinedTransfer
from elasticml.runtime.worker_context import WorkerContext
from elasticml.training.array_buffers import (
    Buffers,
    Vector,
    is_finite,
    merge,
    n_values,
    pack,
    unpack,
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Share:
    """This member's arrays of one exchange."""

    header: ev.ExchangeHeader[ev.Shape]
    model: Vector
    #: Number of values of a partial.
    n_values: int
    #: The own partial; after the sum went up, the subtree's sum.
    total: Vector | None = None
    #: The frame with the model for this member's children.
    frame: Frame | None = None


class CollectiveAgent:
    """Performs the member machine's commands in the tree: links, computations, sums.

    Parameters
    ----------
    machine : Member
    driver : Peer
        The link to the driver, which is the root of the tree.
    hello : mapping
        First message on the link to a parent: job and transport.
    context : WorkerContext
    feed : callable
        Passes events to the member machine.
    fail : callable
        Reports an error that ends the job.
    """

    def __init__(
        self,
        machine: Member,
        driver: Peer,
        hello: Mapping[str, Any],
        context: WorkerContext,
        feed: Callable[[ev.Event], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.me = machine.me
        self._name = str(self.me)
        self.machine = machine
        #: The solver computes now, in the worker's compute thread.
        self.is_computing = False
        #: Number of computations, for tests of repeated work.
        self.computations = 0
        #: The last exchange that was computed.
        self.computed = NO_EXCHANGE
        #: Solver and chunks, set by the driver's orders.
        self.solver: Solver | None = None
        self._chunks: list[Chunk] = []
        self.n_rows = 0
        self._files: set[MappedFile] = set()
        self._check_s = 0.0
        #: The computation of each operation over these chunks: some take longer than others.
        self._solves: dict[str, Long | Repeated] = {}
        #: The chunks that have been among them, and their most rows at a time.
        self._seen: set[ChunkId] = set()
        self._rows_max = 0
        #: Returns the bytes that chunk transfers have sent.
        self.moved_bytes: Callable[[], int] = lambda: 0
        self._driver = driver
        self._hello = hello
        self._context = context
        self._feed = feed
        self._fail = fail
        self._parent: Peer | None = None
        self._children: dict[MemberId, Peer] = {}
        self._buffers = Buffers(context.transport.lendable)
        self._pipeline = PipelinedTransfer(self.machine.node, self._buffers)
        self._shares: dict[ExchangeId, Share] = {}
        #: Compute seconds of this subtree's members, by exchange; repeated with a repeated sum.
        self._compute_s: dict[ExchangeId, dict[str, float]] = {}
        self._sent: dict[str, int] = {}
        #: Numbers of computations of this subtree's members, to report with the next sum.
        self._done: dict[str, int] = {}
        #: Members of this subtree whose partial is not finite, each with the chunk at fault.
        self._not_finite: dict[str, str] = {}
        #: The chunk at fault, by operation, since its partial is not finite.
        self._at_fault: dict[str, str] = {}
        #: Makes another solver, to find that chunk.
        self.new_solver: Callable[[], Solver]
        self._past_bytes = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        #: The exchanges to compute, and what the one task that does so waits for.
        self._asked: deque[ExchangeId] = deque()
        self._idle: asyncio.Future[None] | None = None

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks that this member computes over."""
        return self._chunks

    @chunks.setter
    def chunks(self, chunks: list[Chunk]) -> None:
        self._chunks, self._files = chunks, files_of(chunks)
        ids, self.n_rows = {chunk.id for chunk in chunks}, sum(chunk.n_rows for chunk in chunks)
        if self.n_rows > self._rows_max or not ids <= self._seen:
            # More rows take longer, and so do bodies that no computation has read.
            self._solves.clear()
            self._seen |= ids
            self._rows_max = max(self.n_rows, self._rows_max)

    def close(self) -> None:
        """Close the links to parent and children, cancel all tasks, and drop the kept sums.

        The agent itself may live on, in the frames of a closed link's error; the sums may lie in
        slots of shared memory.
        """
        self._shares.clear()
        for peer in [self._parent, *self._children.values()]:
            if peer is not None:
                peer.close()
        for task in list(self._tasks):
            task.cancel()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def allocate_model(self, header: Header, prefix: Mapping[str, Any]) -> memoryview:
        """Return a buffer for a model from the parent or the driver, as long as it says.

        Raises
        ------
        RemoteProtocolError
            When the payload is not the model that the prefix describes.
        """
        check_payload(header, Kind.MODEL, vector_bytes(prefix.get("model")))
        take = self._buffers.take_to_send if self._children else self._buffers.take
        return take(header.payload_bytes).data.cast("B")

    def _allocate_partial(self, header: Header, prefix: Mapping[str, Any]) -> memoryview:
        """Return a buffer for a child's partial, as long as its exchange's is.

        The length of a partial of an exchange that has not begun here is not known yet.
        """
        share = self._shares.get(ExchangeId(header.exchange))
        nbytes = None if share is None else 8 * share.n_values
        if share is None and header.payload_bytes % 8 == 0:
            check_payload(header, Kind.PARTIAL, None)
        else:
            check_payload(header, Kind.PARTIAL, nbytes)
        return self._buffers.take(header.payload_bytes).data.cast("B")

    # --- the collective ------------------------------------------------------------------

    async def accept_child(self, link: Link) -> None:
        """Serve a link that a child has opened, until it closes."""
        with reading_prefix("the name of a child"):
            child = member_id(link.hello["member"])
        former = self._children.get(child)
        if former is not None:
            former.close()
        peer = Peer(
            link,
            self._allocate_partial,
            functools.partial(self._on_child_frame, child),
            functools.partial(self._on_child_closed, child),
            functools.partial(self._on_child_piece, child),
        )
        self._children[child] = peer
        await peer.run()

    def _on_child_closed(self, child: MemberId, peer: Peer, reason: str) -> None:
        self._past_bytes += peer.link.sent_bytes
        if self._children.get(child) is peer:
            del self._children[child]
            self._pipeline.lost(child)
            self._feed(ev.PeerLost(peer=child))

    def _on_child_frame(self, child: MemberId, peer: Peer, frame: Frame) -> None:
        if self._children.get(child) is not peer:
            return
        if frame.kind == Kind.PARTIAL:
            vector, share = vector_of(frame), self._shares.get(ExchangeId(frame.exchange))
            if share is not None and vector.size != share.n_values:
                raise RemoteProtocolError(f"child {child} sent a partial of {vector.size} values")
            event = partial_event(child, frame, handle := self._buffers.bind(vector), {})
            times, sent, done = numbers_of(frame)
            self._compute_s.setdefault(ExchangeId(frame.exchange), {}).update(times)
            self._sent.update(sent)
            self._done.update(done)
            self._not_finite.update(not_finite_of(frame))
            self._pipeline.came(child, handle, peer.arrived)
            self._feed(event)
            self._stream_up()
            return
        event = decode(frame.prefix)
        if not isinstance(event, ev.Attached) or event.child != child:
            raise RemoteProtocolError(
                f"child {child} sent {type(event).__name__}, wanted its own attachment or a partial"
            )
        self._feed(event)

    def _on_child_piece(self, child: MemberId, peer: Peer, arriving: IncomingVector) -> None:
        if self._children.get(child) is peer and arriving.kind == Kind.PARTIAL:
            self._pipeline.partial_piece(child, arriving)
            self._stream_up()

    def on_model_piece(self, peer: Peer, arriving: IncomingVector) -> None:
        """Forward a piece of a model from the parent or the driver."""
        if arriving.kind == Kind.MODEL:
            self._pipeline.model_piece(arriving, self._children)

    def on_model(self, frame: Frame) -> None:
        """Receive the model of an exchange from the parent or the driver."""
        exchange = ExchangeId(frame.exchange)
        if not self.machine.takes_model(exchange):
            return  # pieces of this copy may have been forwarded
        header = header_of(frame)
        self._shares[exchange] = Share(header, vector_of(frame), n_values(header.returns))
        self._feed(header)

    @property
    def effects(self) -> dict[type[cmd.Command], Callable[[Any], None]]:
        """The function that performs each of the machine's commands."""
        return {
            cmd.Compute: self._ask,
            cmd.ForwardModel: self._forward_model,
            cmd.SendPartial: self._send_partial,
            cmd.Forget: self._forget,
            cmd.Refuse: self._refuse,
            cmd.Attach: lambda command: self._spawn(self._attach(command)),
            cmd.Detach: self._detach,
            fx.Tell: self._tell,
            fx.SendKept: self._send_kept,
        }

    def _forward_model(self, command: cmd.ForwardModel) -> None:
        share, peer = self._shares[command.exchange], self._children.get(command.to)
        if peer is None or self._pipeline.commit_model(peer, command.exchange, share.model):
            return
        if share.frame is None:
            share.frame = model_frame(share.header, bytes_of(share.model))
        peer.send(share.frame)

    def _refuse(self, command: cmd.Refuse) -> None:
        self._pipeline.forget([command.handle])
        self._buffers.free(command.handle)

    def _forget(self, command: cmd.Forget) -> None:
        self._pipeline.forget(command.handles)
        for handle in command.handles:
            self._buffers.free(handle)
        for exchange in [e for e in self._compute_s if e <= command.exchange]:
            del self._compute_s[exchange]
        share = self._shares.pop(command.exchange, None)
        if share is not None:
            self._buffers.give(share.model)
            if share.total is not None:
                self._buffers.give(share.total)

    # --- links to parent and children ----------------------------------------------------

    def _detach(self, command: cmd.Detach) -> None:
        child = self._children.pop(command.peer, None)
        if child is not None:
            child.close()
        elif self._parent is not None and self._parent.link.hello.get("to") == str(command.peer):
            self._parent.close()
            self._parent = None

    async def _attach(self, command: cmd.Attach) -> None:
        assert command.parent is not None
        if not self.machine.attaches_to(command):
            return
        hello = {**self._hello, "kind": "child", "member": str(self.me), "to": str(command.parent)}
        try:
            link = await self._context.transport.connect(command.address, hello)
        except Exception as error:
            if not isinstance(error, LinkClosedError):
                logger.warning("no link to parent %s: %s", command.parent, one_line(error))
            self._feed(fx.ConnectFailed(peer=command.parent))
            return
        if not self.machine.attaches_to(command):
            link.close()
            return
        peer = Peer(
            link,
            self.allocate_model,
            self._on_parent_frame,
            self._on_parent_closed,
            self.on_model_piece,
        )
        self._parent = peer
        self._spawn(peer.run())
        self._feed(ev.PeerLinked(peer=command.parent, generation=command.generation))

    def _tell(self, command: fx.Tell) -> None:
        assert self._parent is not None
        self._parent.tell(encode(command.event))

    def _on_parent_frame(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == Kind.MODEL:
            self.on_model(frame)

    def _on_parent_closed(self, peer: Peer, reason: str) -> None:
        self._past_bytes += peer.link.sent_bytes
        if self._parent is peer:
            self._parent = None
            self._feed(fx.ParentLost(peer=member_id(peer.link.hello["to"])))

    # --- computing, summing, sending -----------------------------------------------------

    def _ask(self, command: cmd.Compute) -> None:
        self._asked.append(command.exchange)
        if self._idle is None:
            self._idle = asyncio.get_running_loop().create_future()
            self._spawn(self._compute_all())
        elif not self._idle.done():
            self._idle.set_result(None)

    async def _compute_all(self) -> None:
        """Compute what is asked for, in order, in one task: one for each takes longer to start."""
        while True:
            while self._asked:
                await self._compute(self._asked.popleft())
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    async def _compute(self, exchange: ExchangeId) -> None:
        share = self._shares.get(exchange)
        if share is None:
            return  # forgotten while an earlier one was computed
        header = share.header
        work = header.with_model(unpack(share.model, header.model))
        total = self._buffers.take_to_send(8 * share.n_values)
        try:
            seconds = await self._context.compute.run(self._solve_of(work), work, total)
        except Exception as error:
            self._fail(error)
            return
        self._compute_s.setdefault(exchange, {})[self._name] = round(seconds, 6)
        share.total = total
        self._feed(ev.Computed(exchange=exchange))
        self._stream_up()

    def _solve_of(self, work: Work) -> Callable[[Work, Vector], float]:
        solve = self._solves.get(work.operation)
        if solve is None:
            marked = Long if isinstance(self.solver, WaitingSolver) else Repeated
            solve = self._solves[work.operation] = marked(self._solve)
        return solve

    def _solve(self, work: Work, total: Vector) -> float:
        began_s, began_cpu_s = self._context.clock(), self._context.slowness.begin()
        assert self.solver is not None
        if began_s >= self._check_s:
            for file in self._files:
                file.check()
            # Of thousands of files: a hundredth of the time, or once a second.
            ended_s = self._context.clock()
            self._check_s = ended_s + min(100.0 * (ended_s - began_s), 1.0)
        plan_residency(self.chunks)
        self.is_computing = True
        self._context.computing.add(self._hello["job"])
        try:
            arrays = self.solver.compute(work, self.chunks, self._context.parallel)
        finally:
            self.is_computing = False
            self._context.computing.discard(self._hello["job"])
        pack(arrays, work.returns, total)
        self._look_for_fault(work, total)
        self._context.slowness.end(began_cpu_s, self._context.parallel)
        self.computations += 1
        self.computed = work.exchange
        return self._context.clock() - began_s

    def _look_for_fault(self, work: Work, total: Vector) -> None:
        """Note a partial that is not finite, and the chunk at fault, looked for only once.

        Some algorithms report what is unknown as NaN in every round.
        """
        if is_finite(total):
            self._at_fault.pop(work.operation, None)
            return
        if work.operation not in self._at_fault:
            self._at_fault[work.operation] = self._chunk_at_fault(work)
        self._not_finite[self._name] = self._at_fault[work.operation]

    def _chunk_at_fault(self, work: Work) -> str:
        """Return the first chunk whose own partial is not finite, or "" if that is not known.

        Where an algorithm keeps states, what computed with them cannot be computed again; a solver
        that waits for its own thread would wait for ever.
        """
        if isinstance(self.solver, WaitingSolver):
            return ""
        total = np.empty(n_values(work.returns))
        with contextlib.suppress(Exception):  # the error that matters is raised elsewhere
            solver = self.new_solver()
            for chunk in self.chunks:
                if chunk.state:
                    wrong = not all(is_finite(values) for values in chunk.state.values())
                else:
                    arrays = solver.compute(work, [chunk], self._context.parallel)
                    wrong = not is_finite(pack(arrays, work.returns, total))
                if wrong:
                    return str(chunk.id)
        return ""

    def _send_partial(self, command: cmd.SendPartial) -> None:
        share = self._shares[command.exchange]
        assert share.total is not None
        peer = self._driver if command.to is None else self._parent
        stream = self._pipeline.finish(peer, share.total, command.inputs)
        if stream is not None:
            self._buffers.give(share.total)
            share.total = stream.out
        else:
            for handle in command.inputs:
                merge(share.total, self._buffers[handle], share.header.reduce)
            self._context.slowness.merged(share.header, len(command.inputs))
        links = [self._driver, self._parent, *self._children.values()]
        sent = sum(p.link.sent_bytes for p in links if p is not None) + self._past_bytes
        self._sent[self._name] = sent + self.moved_bytes()
        self._done[self._name] = self.computations
        frame = Frame(
            kind=Kind.PARTIAL,
            exchange=command.exchange,
            prefix={
                "of": hex(command.contributors),
                "order": command.order,
                "compute_s": self._compute_s.get(command.exchange, {}),
                "sent": self._sent,
                "done": self._done,
                **({"not_finite": self._not_finite} if self._not_finite else {}),
            },
            payload=bytes_of(share.total),
        )
        self._sent, self._done, self._not_finite = {}, {}, {}
        if stream is not None:
            stream.commit(frame)
        elif peer is not None:
            peer.send(frame)

    def _stream_up(self) -> None:
        """Send the part of the sum whose inputs have arrived from all children."""
        node = self.machine.node
        gather = node.gather
        if gather is None or gather.sent or not gather.ready or not node.parent_ready:
            return
        share = self._shares.get(gather.exchange)
        if share is not None and share.total is not None and not gather.summed:
            peer = self._driver if node.parent is None else self._parent
            self._pipeline.stream_up(peer, share.total, share.header.reduce)

    def _send_kept(self, command: fx.SendKept) -> None:
        array = self._shares[command.exchange].total
        if command.handle is not None:
            array = self._buffers[command.handle]
        assert array is not None
        self._driver.send(
            Frame(
                kind=Kind.PARTIAL,
                exchange=command.exchange,
                prefix={"anchor_of": None if command.sender is None else str(command.sender)},
                payload=bytes_of(np.array(array)),
            )
        )
