"""One life of a member in one job: performs orders, computes, forwards, sums, reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticml.algorithms.base import Parallel, Solver, Work
from elasticml.algorithms.registry import algorithm
from elasticml.collective.frames import Frame, Header, Kind
from elasticml.collective.transport import Link, LinkClosedError, Transport
from elasticml.control import commands as cmd
from elasticml.control import events as ev
from elasticml.control.member import Member
from elasticml.data.chunk import Chunk
from elasticml.data.facts import DataFacts
from elasticml.data.source import Source, source_from_spec
from elasticml.errors import ElasticmlError, JobFailedError, error_to_dict
from elasticml.runtime.chunk_store import ChunkStore
from elasticml.runtime.codec import decode, encode
from elasticml.runtime.execution import Runner
from elasticml.runtime.payloads import bytes_of, vector_of
from elasticml.runtime.peer import Peer
from elasticml.runtime.transfers import Transfers, aligned
from elasticml.terms import ExchangeId, Mask, MemberId, chunk_id, member_id
from elasticml.training.arrays import Buffers, Vector, merge, n_values, pack, unpack

logger = logging.getLogger(__name__)

#: Times that a link to a living parent is opened again before the driver is told.
RECONNECTS_MAX = 3


@dataclass(slots=True, kw_only=True)
class Environment:
    """What a member finds around itself; the same for all jobs on its worker."""

    transport: Transport
    #: Runs the solver, one call at a time.
    compute: Runner
    #: Reads data, so that reading does not wait for computing.
    reading: Runner
    parallel: Parallel
    clock: Callable[[], float]
    host: str
    pid: int
    threads: int


@dataclass(slots=True)
class Share:
    """This member's arrays of one exchange."""

    prefix: Mapping[str, Any]
    model: Vector
    #: The own partial; after the sum went up, the subtree's sum.
    total: Vector | None = None
    summed: bool = False


class MemberShell:
    """Serves one driver link until it closes.

    Parameters
    ----------
    link : Link
        Opened by the driver.
    store : ChunkStore
        Chunks that this worker still has of the job.
    environment : Environment
    slot : int, optional
        The slot of this worker's former life in the job.
    """

    def __init__(
        self, link: Link, store: ChunkStore, environment: Environment, slot: int | None
    ) -> None:
        self.job: str = link.hello["job"]
        self.slot = slot
        self.me: MemberId | None = None
        #: Why the driver let this member go; None when the link just closed.
        self.dismissed: str | None = None
        self.computations = 0
        self.gone = asyncio.Event()
        self._env = environment
        self._store = store
        self._machine: Member | None = None
        self._driver = Peer(link, self._allocate, self._on_driver_frame, self._on_driver_closed)
        self._parent: Peer | None = None
        self._children: dict[MemberId, Peer] = {}
        self._waiting_children: list[tuple[Link, Frame | None]] = []
        self._solver: Solver | None = None
        self._source: Source | None = None
        self._record: Mapping[str, Any] = {}
        self._n_members = 1
        self._chunks: list[Chunk] = []
        self._buffers = Buffers()
        self._shares: dict[ExchangeId, Share] = {}
        self._transfers: Transfers | None = None
        self._compute_s: dict[str, float] = {}
        self._sent: dict[str, int] = {}
        self._past_bytes = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    # --- life ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Report for duty, serve the driver, and clean up."""
        self._driver.tell(
            {
                "type": "Arrive",
                "address": self._env.transport.address,
                "host": self._env.host,
                "pid": self._env.pid,
                "threads": self._env.threads,
                "slot": self.slot,
                "holdings": [str(id) for id in self._store.chunks],
            }
        )
        try:
            await self._driver.run()
        finally:
            self.close()

    def close(self) -> None:
        """End this life: all links close, the chunks stay."""
        self._driver.close()
        for peer in [self._parent, *self._children.values()]:
            if peer is not None:
                peer.close()
        if self._transfers is not None:
            self._transfers.close()
        for task in list(self._tasks):
            task.cancel()
        self.gone.set()

    def crash(self) -> None:
        """Stop at once and for good, as a killed process does; for tests."""
        self.dismissed = "crashed"
        self.close()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def notice(self, grace_s: float, reason: str) -> None:
        """Tell the driver that this worker will go."""
        if self.me is not None:
            self.report(ev.Noticed(member=self.me, grace_s=grace_s, reason=reason))

    def report(self, event: ev.Event, **extras: Any) -> None:
        """Send an event to the driver."""
        self._driver.tell({**encode(event), **extras})

    def _fail(self, error: BaseException) -> None:
        """Report what is no fault of the cluster: the job ends with this error."""
        if not isinstance(error, ElasticmlError):
            logger.error("member %s of job %s failed", self.me, self.job, exc_info=error)
        if not isinstance(error, ElasticmlError):
            error = JobFailedError(
                f"member {self.me} failed: {type(error).__name__}: {error}; see the worker's log",
                member=str(self.me),
            )
        body = error_to_dict(error)
        self.report(ev.Failed(reason=error.message, member=self.me), error=body)

    # --- the driver's frames -------------------------------------------------------------

    def _allocate(self, header: Header, prefix: Mapping[str, Any]) -> memoryview:
        if header.kind == Kind.CHUNK:
            return aligned(header.payload_bytes)
        return self._buffers.take(header.payload_bytes).data.cast("B")

    def _on_driver_closed(self, peer: Peer, reason: str) -> None:
        self.gone.set()

    def _on_driver_frame(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == Kind.MODEL:
            self._on_model(frame)
        elif frame.kind == Kind.CHUNK:
            assert frame.payload is not None
            id = chunk_id(frame.prefix["chunk"])
            self._store.put([Chunk.from_body(id, frame.payload)])
        else:
            self._obey(frame.prefix)

    def _configure(self, extras: Mapping[str, Any]) -> None:
        """Make the solver; what it says of settings and data ends the job, not this member."""
        try:
            self._source = source_from_spec(extras["spec"])
            facts = DataFacts.from_json(extras["facts"])
            settings = dict(self._record["algorithm"])
            self._solver = algorithm(settings.pop("name")).solver(settings, facts)
        except Exception as error:
            self._fail(error)

    def _obey(self, message: Mapping[str, Any]) -> None:
        extras = {k: message[k] for k in ("record", "spec", "n_members", "facts") if k in message}
        order = decode({k: v for k, v in message.items() if k not in extras})
        match order:
            case cmd.Welcome():
                self._welcome(order, extras)
            case cmd.Configure():
                self._configure(extras)
            case cmd.ReadBlocks():
                self._source = source_from_spec(extras["spec"])  # after a survey it is another
                self._spawn(self._read_blocks(order))
            case cmd.LoadChunks():
                self._spawn(self._load_chunks(order))
            case cmd.GiveChunks():
                assert self._transfers is not None
                self._spawn(self._transfers.give(order))
            case cmd.Own():
                self._chunks = self._store.own(order.chunks)
            case cmd.Rewire():
                self._feed(order)
            case cmd.AskStatus():
                assert self._machine is not None and self.me is not None
                stage: Any = self._machine.stage()
                self.report(ev.StatusTold(member=self.me, exchange=order.exchange, stage=stage))
            case cmd.SendAnchor():
                self._send_anchor(order)
            case cmd.Dismiss():
                self.dismissed = order.reason
                self.close()

    def _welcome(self, order: cmd.Welcome, extras: Mapping[str, Any]) -> None:
        self.me = order.member
        self.slot = order.member.slot
        self._record = extras["record"]
        self._source = source_from_spec(extras["spec"])
        self._n_members = extras["n_members"]
        self._machine = Member(self.me)
        self._transfers = Transfers(
            self.me, self.job, self._store, self._env.transport, self._env.clock, self.report
        )

    # --- data ----------------------------------------------------------------------------

    async def _read_blocks(self, order: cmd.ReadBlocks) -> None:
        source, chunk_bytes = self._source, self._record.get("chunk_bytes")
        assert source is not None and self.me is not None
        try:
            for block in order.blocks:
                if order.survey:
                    summary = await self._env.reading.run(source.survey, block)
                    chunks: list[Chunk] = []
                else:
                    chunks, summary = await self._env.reading.run(
                        self._store.read, source, block, chunk_bytes, self._n_members
                    )
                self.report(
                    ev.BlockRead(
                        member=self.me, block=block, chunks=tuple(c.info() for c in chunks)
                    ),
                    summary=None if summary is None else summary.to_json(),
                )
        except Exception as error:
            self._fail(error)

    async def _load_chunks(self, order: cmd.LoadChunks) -> None:
        source, chunk_bytes = self._source, self._record.get("chunk_bytes")
        assert source is not None and self.me is not None
        began_s = self._env.clock()
        try:
            nbytes = await self._env.reading.run(
                self._store.load, source, order.chunks, chunk_bytes, self._n_members
            )
        except Exception as error:
            self._fail(error)
            return
        seconds = self._env.clock() - began_s
        self.report(
            ev.ChunksLoaded(
                member=self.me, chunks=order.chunks, nbytes=nbytes, seconds=round(seconds, 6)
            )
        )

    # --- the collective ------------------------------------------------------------------

    async def accept_child(self, link: Link) -> None:
        """Serve a link that a child has opened, until it closes."""
        child = member_id(link.hello["member"])
        former = self._children.get(child)
        if former is not None:
            former.close()
        peer = Peer(link, self._allocate, self._on_child_frame, self._on_peer_closed)
        self._children[child] = peer
        await peer.run()

    def _child_of(self, peer: Peer) -> MemberId | None:
        return next((m for m, p in self._children.items() if p is peer), None)

    def _on_peer_closed(self, peer: Peer, reason: str) -> None:
        self._past_bytes += peer.link.sent_bytes
        child = self._child_of(peer)
        if child is not None:
            del self._children[child]
            self._feed(ev.PeerLost(peer=child))

    def _on_child_frame(self, peer: Peer, frame: Frame) -> None:
        child = self._child_of(peer)
        if child is None:
            return
        if frame.kind == Kind.PARTIAL:
            prefix = frame.prefix
            self._compute_s.update(prefix.get("compute_s") or {})
            self._sent.update(prefix.get("sent") or {})
            self._feed(
                ev.PartialArrived(
                    exchange=ExchangeId(frame.exchange),
                    sender=child,
                    contributors=Mask(int(prefix["of"], 16)),
                    order=prefix["order"],
                    handle=self._buffers.bind(vector_of(frame)),
                )
            )
        else:
            self._feed(decode(frame.prefix))

    def _on_model(self, frame: Frame) -> None:
        exchange = ExchangeId(frame.exchange)
        assert self._machine is not None
        array = vector_of(frame)
        if exchange in self._shares:
            self._buffers.give(array)  # a second copy, from a former parent
            return
        self._shares[exchange] = Share(frame.prefix, array)
        self._feed(
            ev.ModelArrived(
                exchange=exchange,
                generation=frame.prefix["generation"],
                keep=frame.prefix["keep"],
            )
        )

    def _feed(self, event: ev.Event | cmd.Rewire) -> None:
        if self._machine is None:
            return
        try:
            for command in self._machine.handle(event, self._env.clock()):
                self._perform(command)
        except ElasticmlError as error:
            self._fail(error)

    def _perform(self, command: cmd.Command) -> None:
        match command:
            case cmd.Attach():
                self._spawn(self._attach(command))
            case cmd.Detach():
                self._detach(command.peer)
            case cmd.ForwardModel():
                share, peer = self._shares[command.exchange], self._children.get(command.to)
                if peer is not None:
                    peer.send(
                        Frame(
                            kind=Kind.MODEL,
                            exchange=command.exchange,
                            prefix=share.prefix,
                            payload=bytes_of(share.model),
                        )
                    )
            case cmd.Compute():
                self._spawn(self._compute(command.exchange))
            case cmd.SendPartial():
                self._send_partial(command)
            case cmd.Refuse():
                self._buffers.free(command.handle)
            case cmd.Forget():
                self._forget(command)

    def _forget(self, command: cmd.Forget) -> None:
        for handle in command.handles:
            self._buffers.free(handle)
        share = self._shares.pop(command.exchange, None)
        if share is not None:
            self._buffers.give(share.model)
            if share.total is not None:
                self._buffers.give(share.total)

    # --- links up and down ---------------------------------------------------------------

    def _detach(self, peer: MemberId) -> None:
        child = self._children.pop(peer, None)
        if child is not None:
            child.close()
        elif self._parent is not None and self._parent.link.hello.get("to") == str(peer):
            self._parent.close()
            self._parent = None

    async def _attach(self, command: cmd.Attach) -> None:
        assert self.me is not None
        attached = ev.Attached(
            child=self.me, generation=command.generation, has_model=command.has_model
        )
        if command.parent is None:
            self.report(attached)
            self._feed(ev.PeerLinked(peer=None, generation=command.generation))
            return
        hello = {
            "job": self.job,
            "kind": "child",
            "member": str(self.me),
            "to": str(command.parent),
            "transport": (self._record.get("collective") or {}).get("transport", "auto"),
        }
        for _ in range(RECONNECTS_MAX):
            if not self._is_parent(command):
                return
            try:
                link = await self._env.transport.connect(command.address, hello)
            except LinkClosedError:
                continue
            if not self._is_parent(command):
                link.close()
                return
            peer = Peer(link, self._allocate, self._on_parent_frame, self._on_parent_closed)
            self._parent = peer
            peer.tell(encode(attached))
            self._spawn(peer.run())
            self._feed(ev.PeerLinked(peer=command.parent, generation=command.generation))
            return
        self.report(ev.LinkDown(member=self.me, peer=command.parent))

    def _is_parent(self, command: cmd.Attach) -> bool:
        machine = self._machine
        return machine is not None and machine.node.parent == command.parent

    def _on_parent_frame(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == Kind.MODEL:
            self._on_model(frame)

    def _on_parent_closed(self, peer: Peer, reason: str) -> None:
        self._past_bytes += peer.link.sent_bytes
        if self._parent is peer and self.me is not None:
            self._parent = None
            self.report(ev.LinkDown(member=self.me, peer=member_id(peer.link.hello["to"])))

    # --- computing, summing, sending -----------------------------------------------------

    async def _compute(self, exchange: ExchangeId) -> None:
        share = self._shares[exchange]
        prefix = share.prefix
        work = Work(
            exchange=exchange,
            operation=prefix["operation"],
            model=unpack(share.model, prefix["model"]),
            parameters=prefix["parameters"],
            returns={name: tuple(shape) for name, shape in prefix["returns"].items()},
        )
        total = self._buffers.take(8 * n_values(prefix["returns"]))
        try:
            seconds = await self._env.compute.run(self._solve, work, total)
        except Exception as error:
            self._fail(error)
            return
        assert self.me is not None
        self._compute_s[str(self.me.slot)] = round(seconds, 6)
        share.total = total
        self._feed(ev.Computed(exchange=exchange))

    def _solve(self, work: Work, total: Vector) -> float:
        began_s = self._env.clock()
        assert self._solver is not None
        arrays = self._solver.compute(work, self._chunks, self._env.parallel)
        pack(arrays, work.returns, total)
        self.computations += 1
        return self._env.clock() - began_s

    def _send_partial(self, command: cmd.SendPartial) -> None:
        share = self._shares[command.exchange]
        assert share.total is not None and self.me is not None
        if not share.summed:
            share.summed = True
            for handle in command.inputs:
                merge(share.total, self._buffers[handle], share.prefix["reduce"])
        links = [self._driver, self._parent, *self._children.values()]
        sent = sum(p.link.sent_bytes for p in links if p is not None) + self._past_bytes
        self._sent[str(self.me)] = sent + (self._transfers.sent_bytes if self._transfers else 0)
        frame = Frame(
            kind=Kind.PARTIAL,
            exchange=command.exchange,
            prefix={
                "of": hex(command.contributors),
                "order": command.order,
                "compute_s": self._compute_s,
                "sent": self._sent,
            },
            payload=bytes_of(share.total),
        )
        self._compute_s, self._sent = {}, {}
        peer = self._driver if command.to is None else self._parent
        if peer is not None:
            peer.send(frame)

    def _send_anchor(self, order: cmd.SendAnchor) -> None:
        """Answer with a kept partial; without a payload when it is gone."""
        assert self._machine is not None and self.me is not None
        array: Vector | None = None
        if order.sender is None:
            share = self._shares.get(order.exchange)
            array = share.total if share is not None and share.summed else None
        else:
            handle = self._machine.node.kept_handle(order.exchange, order.sender)
            array = None if handle is None else self._buffers[handle]
        if array is None:
            self.report(
                ev.AnchorArrived(
                    member=self.me, exchange=order.exchange, sender=order.sender, handle=None
                )
            )
            return
        self._driver.send(
            Frame(
                kind=Kind.PARTIAL,
                exchange=order.exchange,
                prefix={"anchor_of": None if order.sender is None else str(order.sender)},
                payload=bytes_of(np.array(array)),
            )
        )

    async def accept_chunks(self, link: Link) -> None:
        """Serve a link on which another member gives chunks."""
        if self._transfers is None:
            link.close()
            return
        try:
            await self._transfers.receive(link)
        except ElasticmlError as error:
            self._fail(error)
