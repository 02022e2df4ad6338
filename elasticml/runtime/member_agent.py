"""One life of a member in one job: the member machine on asyncio, Dask's links and threads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from elasticml.algorithms.async_sgd.report_ops import ReportSolver
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.registry import algorithm
from elasticml.collective.frames import Frame, Header, Kind
from elasticml.collective.segmentation import IncomingVector
from elasticml.collective.transport import Link
from elasticml.control import effects as fx
from elasticml.control.member import Member
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.digests import digest_of_chunks
from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.source import Source, source_from_spec
from elasticml.data.storage.block_cache import CacheSetting
from elasticml.errors import ElasticmlError, JobFailedError, error_to_dict
from elasticml.ids import NO_EXCHANGE, ExchangeId, MemberId, chunk_id
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.protocol.codec import decode, encode
from elasticml.runtime.async_mode.async_member import AsyncMember
from elasticml.runtime.chunks.chunk_store import ChunkStore
from elasticml.runtime.chunks.chunk_transport import ChunkTransport
from elasticml.runtime.collective_agent import CollectiveAgent
from elasticml.runtime.executors import ThreadParallel, parallel
from elasticml.runtime.peer import Peer
from elasticml.runtime.worker_context import WorkerContext

logger = logging.getLogger(__name__)


class MemberAgent:
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
    computed : ExchangeId
        The last exchange that the former life has computed.
    """

    def __init__(
        self,
        link: Link,
        store: ChunkStore,
        environment: WorkerContext,
        slot: int | None,
        computed: ExchangeId = NO_EXCHANGE,
    ) -> None:
        self.job: str = link.hello["job"]
        self.slot = slot
        self._computed = computed
        self.me: MemberId | None = None
        #: Why the driver let this member go; None when the link just closed.
        self.dismissed: str | None = None
        self.gone = asyncio.Event()
        #: The worker's, with the job's network; after the welcome with the job's threads, too.
        self.environment = self._env = environment
        self._store = store
        self._driver = Peer(
            link,
            self._allocate,
            self._on_driver_frame,
            self._on_driver_closed,
            self._on_driver_piece,
        )
        #: Decides what this life does; None before the welcome.
        self.machine: Member | None = None
        #: What performs each of its commands.
        self._effects: dict[type[cmd.Command], Callable[[Any], None]] = {}
        #: The collective's side of this life; None before the welcome.
        self.place: CollectiveAgent | None = None
        #: Compute threads of this life, where the job asks for another number than the worker's.
        self._own_threads: Serial | ThreadParallel | None = None
        self._source: Source | None = None
        self._record: Mapping[str, Any] = {}
        self._n_members = 1
        self._transfers: ChunkTransport | None = None
        #: The loop of a member that runs free; None of one that only answers exchanges.
        self._free: AsyncMember | None = None
        #: What came with the order that is being handled, and summaries of blocks on their way up.
        self._extras: Mapping[str, Any] = {}
        self._summaries: dict[int, Any] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Those of them that take in chunks of the driver.
        self._coming: set[asyncio.Task[Any]] = set()

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
                "nodes": self._env.node_cores,
                "cpu": self._env.cpu,
                "blas_threads": self._env.blas_threads,
                "computed": self._computed,
                "slot": self.slot,
                "holdings": [str(id) for id in self._store.ids()],
                "limit_bytes": self._store.room_bytes,
                "memory_bytes": self._store.limit_bytes,
            }
        )
        try:
            await self._driver.run()
        finally:
            self.close()

    def close(self) -> None:
        """End this life: all links close, the chunks stay."""
        self._driver.close()
        if self.place is not None:
            self.place.close()
        if self._transfers is not None:
            self._transfers.close()
        if self._free is not None:
            self._free.close()
        if self._own_threads is not None:
            self._own_threads.close()
        for task in list(self._tasks):
            task.cancel()
        self.gone.set()

    def settle(self) -> None:
        """Wait until this life, which is closed, touches no chunk any more; in a thread."""
        if self._free is not None:
            self._free.join()

    def _spawn(self, work: Any, *sets: set[asyncio.Task[Any]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        for tasks in (self._tasks, *sets):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def notice(self, grace_s: float, reason: str) -> None:
        """Tell the driver that this worker will go."""
        if self.me is not None:
            self.feed(ev.Noticed(member=self.me, grace_s=grace_s, reason=reason))

    def feed(self, event: ev.Event | cmd.Order) -> None:
        """Let the machine handle an event, and perform what it commands."""
        assert self.machine is not None, "an order came before the welcome"
        try:
            for command in self.machine.handle(event, self._env.clock()):
                self._effects[type(command)](command)
        except ElasticmlError as error:
            self._fail(error)

    def _tell_driver(self, event: ev.Event, **extras: Any) -> None:
        self._driver.tell({**encode(event), **extras})

    def _report(self, command: fx.Report) -> None:
        event = command.event
        if isinstance(event, ev.BlockRead):
            self._tell_driver(event, summary=self._summaries.pop(event.block))
        else:
            self._tell_driver(event)

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
        self._tell_driver(ev.Failed(reason=error.message, member=self.me), error=body)

    # --- the driver's frames -------------------------------------------------------------

    def _allocate(self, header: Header, prefix: Mapping[str, Any]) -> memoryview:
        if header.kind == Kind.CHUNK:
            return self._store.buffer(header.payload_bytes)
        assert self.place is not None
        return self.place.allocate(header, prefix)

    def _on_driver_closed(self, peer: Peer, reason: str) -> None:
        self.gone.set()

    def _on_driver_frame(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == Kind.MODEL:
            self._the_place().on_model(frame)
        elif frame.kind == Kind.CHUNK:
            self._spawn(self._take_chunk(frame), self._coming)
        else:
            self._obey(frame.prefix)

    def _on_driver_piece(self, peer: Peer, arriving: IncomingVector) -> None:
        self._the_place().on_model_piece(peer, arriving)

    def _configure(self, order: cmd.Configure) -> None:
        """Make the solver; its errors about settings and data end the job, not this member."""
        extras = self._extras
        try:
            self._source = source_from_spec(extras["spec"])
            facts = DatasetStats.from_json(extras["facts"])
            settings = dict(self._record["algorithm"])
            solver = algorithm(settings.pop("name")).solver(settings, facts)
            self._the_place().solver = solver
            if isinstance(solver, ReportSolver):
                self._run_free(solver)
        except Exception as error:
            self._fail(error)

    def _run_free(self, solver: ReportSolver) -> None:
        place, transfers = self._the_place(), self._transfers
        assert transfers is not None
        free = self._free = AsyncMember(
            place.me,
            solver,
            # States are written once and read once: shared memory would save no copy.
            {"job": self.job, "transport": "stream"},
            int(self._record.get("seed") or 0),
            self._env,
            self.feed,
            self._fail,
        )
        place.moved_bytes = lambda: transfers.sent_bytes + free.sent_bytes

    def _obey(self, message: Mapping[str, Any]) -> None:
        extras = {k: message[k] for k in ("record", "spec", "n_members", "facts") if k in message}
        order = decode({k: v for k, v in message.items() if k not in extras})
        self._extras = extras
        if isinstance(order, cmd.Welcome):
            self._welcome(order)
        else:
            self.feed(order)

    def _welcome(self, order: cmd.Welcome) -> None:
        extras = self._extras
        self.me = order.member
        self.slot = order.member.slot
        self._record = extras["record"]
        self._source = source_from_spec(extras["spec"])
        self._n_members = extras["n_members"]
        threads = self._record.get("threads")
        if threads not in (None, self._env.threads):
            self._own_threads = own = parallel(threads)
            self.environment = self._env = replace(self._env, parallel=own, threads=threads)
        self._store.owned = frozenset()  # what a former life owned may be another's by now
        machine = self.machine = Member(self.me, self._store)
        self._transfers = transfers = ChunkTransport(
            self.me,
            self.job,
            self._store,
            self._env.transport,
            self._env.clock,
            self.feed,
            self._env.pause,
        )
        transport = (self._record.get("collective") or {}).get("transport", "auto")
        hello = {"job": self.job, "transport": transport}
        self.place = CollectiveAgent(machine, self._driver, hello, self._env, self.feed, self._fail)
        self.place.moved_bytes = lambda: transfers.sent_bytes
        self._effects = {
            **self.place.effects,
            fx.Report: self._report,
            fx.Fail: lambda command: self._fail(command.error),
            fx.StoreChunks: transfers.store,
            fx.SetStates: transfers.set_states,
            fx.AskPeers: self._ask_peers,
            cmd.GiveChunks: lambda order: self._spawn(transfers.give(order)),
            cmd.CopyChunks: lambda order: self._spawn(transfers.copy(order)),
            cmd.DropChunks: lambda order: self._store.drop(order.chunks),
            cmd.Own: self._own,
            cmd.ReadBlocks: self._read,
            cmd.LoadChunks: lambda order: self._spawn(self._load_chunks(order)),
            cmd.Configure: self._configure,
            cmd.Peers: self._know,
            cmd.Dismiss: self._dismiss,
        }

    def _own(self, order: cmd.Own) -> None:
        store = self._store
        owned = self._the_place().chunks = store.own(order.chunks)
        if store.is_out_of_core:
            self.feed(
                ev.WentOutOfCore(
                    member=order.member,
                    nbytes=store.held_bytes,
                    limit_bytes=store.limit_bytes or 0,
                )
            )
        if self._free is not None:
            self._free.own(owned)

    def _know(self, order: cmd.Peers) -> None:
        if self._free is not None:
            self._free.know(order)

    def _ask_peers(self, command: fx.AskPeers) -> None:
        if self._free is not None:
            self._free.ask()

    def _dismiss(self, order: cmd.Dismiss) -> None:
        self.dismissed = order.reason
        self.close()

    def _the_place(self) -> CollectiveAgent:
        assert self.place is not None, "an order came before the welcome"
        return self.place

    # --- data ----------------------------------------------------------------------------

    async def _take_chunk(self, frame: Frame) -> None:
        """Keep a chunk that the driver has sent."""
        assert frame.payload is not None
        out_of_core = self._store.out_of_core
        try:
            chunk = Chunk.from_body(chunk_id(frame.prefix["chunk"]), frame.payload)
            chunk.is_mapped = out_of_core is not None and out_of_core.maps(frame.payload)
            await self._store.take([chunk])
        except Exception as error:
            self._fail(error)

    async def _all_here(self) -> None:
        """Wait for chunks of the driver that are being copied to the disk."""
        while self._coming:
            await asyncio.wait(self._coming)

    def _read(self, order: cmd.ReadBlocks) -> None:
        self._source = source_from_spec(self._extras["spec"])  # after a survey it is another
        self._spawn(self._read_blocks(order))

    async def _read_blocks(self, order: cmd.ReadBlocks) -> None:
        """Read all blocks, as many at once as the runner has threads; none after one has failed."""
        await self._all_here()
        source = self._source
        assert source is not None
        try:
            async with asyncio.TaskGroup() as reads:
                for block in order.blocks:
                    reads.create_task(self._read_block(source, block, order.survey))
        except* Exception as errors:
            self._fail(errors.exceptions[0])

    async def _read_block(self, source: Source, block: int, survey: bool) -> None:
        assert self.me is not None
        chunks: list[Chunk] = []
        if survey:
            summary = await self._env.reading.run(source.survey, block)
        else:
            chunks, summary = await self._env.reading.run(
                self._store.read, source, block, *self._how_to_read()
            )
        self._summaries[block] = None if summary is None else summary.to_json()
        self.feed(
            ev.BlockRead(
                member=self.me,
                block=block,
                chunks=tuple(c.info() for c in chunks),
                digest=digest_of_chunks(chunks),
            )
        )

    def _how_to_read(self) -> tuple[int | None, int, CacheSetting]:
        """Chunk size, number of members and cache: what reading asks besides the source."""
        return self._record.get("chunk_bytes"), self._n_members, self._record.get("cache")

    async def _load_chunks(self, order: cmd.LoadChunks) -> None:
        await self._all_here()
        source = self._source
        assert source is not None and self.me is not None
        began_s = self._env.clock()
        try:
            nbytes = await self._env.reading.run(
                self._store.load, source, order.chunks, *self._how_to_read()
            )
        except Exception as error:
            self._fail(error)
            return
        seconds = self._env.clock() - began_s
        self.feed(
            ev.ChunksLoaded(
                member=self.me, chunks=order.chunks, nbytes=nbytes, seconds=round(seconds, 6)
            )
        )

    async def accept_child(self, link: Link) -> None:
        """Serve a link that a child in the tree has opened."""
        await self._the_place().accept_child(link)

    async def accept_mail(self, link: Link) -> None:
        """Serve a link on which a peer sends its states."""
        if self._free is None:
            link.close()
            return
        await self._free.accept(link)

    async def accept_chunks(self, link: Link) -> None:
        """Serve a link on which another member gives chunks."""
        if self._transfers is None:
            link.close()
            return
        try:
            await self._transfers.receive(link)
        except ElasticmlError as error:
            self._fail(error)
