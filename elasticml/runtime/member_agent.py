"""A member of one job: the member machine on asyncio, Dask's links and threads."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from elasticml.algorithms.async_sgd.report_ops import ReportSolver
from elasticml.algorithms.base import Solver, WarmingSolver
from elasticml.algorithms.kernel_modules import is_warm, kernel_modules, warm_up, warms_up
from elasticml.algorithms.parallel import Serial
from elasticml.collective.frames import Frame, Header, Kind, check_payload
from elasticml.collective.segmentation import IncomingVector
from elasticml.collective.transport import Link
from elasticml.control import effects as fx
from elasticml.control.member_machine import Member
from elasticml.data.chunks.chunk import Chunk, digest_of_chunks
from elasticml.data.dataset_stats import BlockSummary, DatasetStats
from elasticml.data.readers.dask_partitions import has_partitions
from elasticml.data.readers.files import located
from elasticml.data.source import Source, pin_blocks, source_from_spec
from elasticml.data.storage.block_files import unpin
from elasticml.errors import (
    ConfigError,
    DataError,
    ElasticmlError,
    RemoteProtocolError,
    error_to_dict,
    fault_of,
)
from elasticml.evaluation.scoring import make_solver, training_solver
from elasticml.ids import NO_EXCHANGE, ChunkId, ExchangeId, MemberId, chunk_id
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.protocol.codec import decode, encode
from elasticml.protocol.job_record import job_record
from elasticml.runtime.async_mode.async_member import AsyncMember
from elasticml.runtime.chunks.chunk_links import ChunkTransport
from elasticml.runtime.chunks.chunk_store import ChunkStore, parsed_bytes
from elasticml.runtime.collective_agent import CollectiveAgent
from elasticml.runtime.executors import ThreadParallel, parallel
from elasticml.runtime.partitions import PartitionRequests
from elasticml.runtime.peer import Peer
from elasticml.runtime.worker_context import WorkerContext
from elasticml.user_cache import CacheSetting

logger = logging.getLogger(__name__)


class MemberAgent:
    """Serves one driver link until it closes.

    Parameters
    ----------
    link : Link
        Opened by the driver.
    store : ChunkStore
        The job's chunks on this worker, possibly from an earlier incarnation.
    context : WorkerContext
    slot : int, optional
        The slot of the earlier incarnation on this worker.
    computed : ExchangeId
        The last exchange that the earlier incarnation computed.
    """

    def __init__(
        self,
        link: Link,
        store: ChunkStore,
        context: WorkerContext,
        slot: int | None,
        computed: ExchangeId = NO_EXCHANGE,
    ) -> None:
        self.job: str = link.hello["job"]
        #: The job's secret, which the driver gives to its members alone: peers show it.
        self.key = str(link.hello.get("key", ""))
        self.slot = slot
        self._computed = computed
        self.me: MemberId | None = None
        #: The driver has dismissed this member for good: the worker is not offered again.
        self.is_dismissed = False
        self.gone = asyncio.Event()
        #: The worker's context with the job's network, and after the welcome the job's threads.
        self.context = context
        self._store = store
        self.driver = Peer(
            link,
            self._allocate,
            self._on_driver_frame,
            self._on_driver_closed,
            self._on_driver_piece,
        )
        #: Decides what the member does; None before the welcome.
        self.machine: Member | None = None
        #: Performs each of its commands.
        self._effects: dict[type[cmd.Command], Callable[[Any], None]] = {}
        #: None before the welcome.
        self.collective: CollectiveAgent | None = None
        #: Compute threads, if the job sets another number than the worker has.
        self._own_threads: Serial | ThreadParallel | None = None
        self._source: Source | None = None
        #: The part of the job record that came with the welcome.
        self._record = job_record({})
        self._n_members = 1
        self._transfers: ChunkTransport | None = None
        #: The training loop of an asynchronous job; None in a synchronous one.
        self.async_member: AsyncMember | None = None
        #: Fields that came with the current order; summaries of blocks that are to be reported.
        self._extras: Mapping[str, Any] = {}
        self._summaries: dict[int, Any] = {}
        #: End and reason of a notice that came before the welcome.
        self._notice: tuple[float, str] | None = None
        #: Loads what the algorithm needs; begins with the welcome, beside the reading of blocks.
        self._warming: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        #: Those of the tasks that store chunks from the driver.
        self._storing: set[asyncio.Task[Any]] = set()

    # --- start and end -------------------------------------------------------------------

    async def run(self) -> None:
        """Announce this member to the driver, serve it, and clean up."""
        self.driver.tell(
            {
                "type": "Arrive",
                "address": self.context.transport.address,
                "host": self.context.host,
                "pid": self.context.pid,
                "threads": self.context.threads,
                "nodes": self.context.node_cores,
                "cpu": self.context.cpu,
                "blas_threads": self.context.blas_threads,
                "computed": self._computed,
                "slot": self.slot,
                "holdings": [str(id) for id in self._store.ids()],
                "limit_bytes": self._store.room_bytes,
                "memory_bytes": self._store.limit_bytes,
            }
        )
        try:
            await self.driver.run()
        finally:
            self.close()

    def close(self) -> None:
        """Close all links; the chunks stay in the store."""
        self.driver.close()
        if self.collective is not None:
            self.collective.close()
        if self._transfers is not None:
            self._transfers.close()
        if self.async_member is not None:
            self.async_member.close()
        if self._own_threads is not None:
            self._own_threads.close()
        for task in list(self._tasks):
            task.cancel()
        self.gone.set()

    def dismantle(self) -> None:
        """Drop everything, after the job's end and :meth:`settle`.

        The parts refer to each other. Without this their arrays would be free only after the
        garbage collector's next look at old objects.
        """
        if self.collective is not None:
            vars(self.collective).clear()
        vars(self).clear()

    @property
    def is_computing(self) -> bool:
        """Whether the worker's compute thread is in a computation of this member."""
        return self.collective is not None and self.collective.is_computing

    def settle(self) -> None:
        """Wait in a thread until this member, which is closed, no longer uses its chunks."""
        if self.async_member is not None:
            self.async_member.join()

    def _spawn(self, work: Any, *sets: set[asyncio.Task[Any]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        for tasks in (self._tasks, *sets):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    def notice(self, grace_s: float, reason: str) -> None:
        """Announce the end of this worker to the driver."""
        if self.me is None:
            # The driver may be about to count on this member: the notice follows the welcome.
            self._notice = (self.context.clock() + grace_s, reason)
            return
        self.feed(ev.Noticed(member=self.me, grace_s=grace_s, reason=reason))

    def feed(self, event: ev.Event | cmd.Order) -> None:
        """Pass an event to the machine and perform its commands."""
        if self.machine is None:
            raise RemoteProtocolError("an order came before the welcome")
        try:
            for command in self.machine.handle(event, self.context.clock()):
                self._effects[type(command)](command)
        except ElasticmlError as error:
            self._fail(error)

    def _tell_driver(self, event: ev.Event, **extras: Any) -> None:
        self.driver.tell({**encode(event), **extras})

    def _report(self, command: fx.Report) -> None:
        event = command.event
        if isinstance(event, ev.BlockRead):
            self._tell_driver(event, summary=self._summaries.pop(event.block))
            return
        if isinstance(event, ev.StatusReported):
            event = replace(event, busy_with=" ".join(self.context.computing - {self.job}))
        self._tell_driver(event)

    def _fail(self, error: BaseException) -> None:
        """Report an error: it ends the job, or this member if its host may be at fault.

        The frames that it passed are in a cycle with it, and would keep chunks and their files.
        """
        raised: BaseException | None = error
        if not isinstance(error, ElasticmlError):
            logger.error("member %s of job %s failed", self.me, self.job, exc_info=error)
            error = fault_of(error, f"member {self.me}", member=str(self.me))
        error = located(error, "a worker")
        fault = error.fields.get("host_fault")
        failed = ev.Failed(reason=error.message, member=self.me, host_fault=fault)
        self._tell_driver(failed, error=error_to_dict(error))
        while raised is not None:
            traceback.clear_frames(raised.__traceback__)
            raised = raised.__cause__ or raised.__context__

    # --- the driver's frames -------------------------------------------------------------

    def _allocate(self, header: Header, prefix: Mapping[str, Any]) -> memoryview:
        if header.kind == Kind.CHUNK:
            check_payload(header, Kind.CHUNK, None)
            return self._store.buffer(header.payload_bytes)
        return self._welcomed().allocate_model(header, prefix)

    def _on_driver_closed(self, peer: Peer, reason: str) -> None:
        self.gone.set()

    def _on_driver_frame(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == Kind.MODEL:
            self._welcomed().on_model(frame)
        elif frame.kind == Kind.CHUNK:
            self._spawn(self._take_chunk(frame), self._storing)
        else:
            self._handle_order(frame.prefix)

    def _on_driver_piece(self, peer: Peer, arriving: IncomingVector) -> None:
        self._welcomed().on_model_piece(peer, arriving)

    def _configure(self, order: cmd.Configure) -> None:
        """Create the solver; its errors about settings and data end the job, not this member."""
        extras = self._extras
        try:
            self._source = source_from_spec(extras["spec"])
            facts = DatasetStats.from_json(extras["facts"])
            record = self._record
            sections = record.validate, record.evaluate
            new = partial(make_solver, record.algorithm, facts, *sections)
            solver = self._welcomed().solver = new()
            self._welcomed().new_solver = new
            training = training_solver(solver)
            if isinstance(training, ReportSolver):
                self._start_loop(training)
        except BaseException as error:  # of user code, which must not end this process
            self._fail(error)
            return
        if order.warms_up:
            self._spawn(self._report_ready(order.member, training))

    async def _warm_up(self, algorithm: str) -> None:
        """Load what the algorithm needs, and compile its kernels, where it computes."""
        try:
            missing = await self.context.compute.run(warm_up, kernel_modules([algorithm]))
        except Exception as error:
            missing = [error]  # the computation that needs them raises a better error
        for fault in missing:
            logger.warning("job %s: could not be warmed up: %s", self.job, fault)

    async def _report_ready(self, me: MemberId, solver: Solver) -> None:
        """Report that this member can take part in a round without delaying it."""
        if self._warming is not None:
            await self._warming
        if isinstance(solver, WarmingSolver):
            try:
                await self.context.compute.run(solver.warm_up, self.context.parallel)
            except Exception as error:
                # The exchange that needs it raises the same, and ends the job with it.
                logger.warning("job %s: could not be warmed up: %s", self.job, error)
        self.feed(ev.Ready(cause=str(me), member=me))

    def _start_loop(self, solver: ReportSolver) -> None:
        collective, transfers = self._welcomed(), self._transfers
        assert transfers is not None
        member = self.async_member = AsyncMember(
            collective.me,
            solver,
            # States are written once and read once: shared memory would save no copy.
            {"job": self.job, "key": self.key, "transport": "stream"},
            self._record.seed,
            self.context,
            self.feed,
            self._fail,
        )
        collective.moved_bytes = lambda: transfers.sent_bytes + member.gossip.sent_bytes

    def _handle_order(self, message: Mapping[str, Any]) -> None:
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
        self._record = job_record(extras["record"])
        self._source = source_from_spec(extras["spec"])
        self._n_members = extras["n_members"]
        threads = self._record.threads
        if threads is not None and threads != self.context.threads:
            self._own_threads = own = parallel(threads)
            self.context = replace(self.context, parallel=own, threads=threads)
        self._store.owned = frozenset()  # chunks of an earlier incarnation may have new owners
        machine = self.machine = Member(self.me, self._store)
        self._transfers = transfers = ChunkTransport(
            self.me,
            self.job,
            self._store,
            self.context.transport,
            self.context.clock,
            self.feed,
            self.key,
        )
        transport = self._record.collective.transport
        hello = {"job": self.job, "key": self.key, "transport": transport}
        self.collective = CollectiveAgent(
            machine, self.driver, hello, self.context, self.feed, self._fail
        )
        self.collective.moved_bytes = lambda: transfers.sent_bytes
        name = self._record.algorithm_name
        if warms_up(name) and not is_warm(name):
            self._warming = asyncio.get_running_loop().create_task(self._warm_up(name))
            self._tasks.add(self._warming)
            self._warming.add_done_callback(self._tasks.discard)
        self._effects = {
            **self.collective.effects,
            fx.Report: self._report,
            fx.Fail: lambda command: self._fail(command.error),
            fx.After: lambda command: self._spawn(self._wait(command.seconds)),
            fx.SendCopy: lambda command: self._spawn(transfers.copy(command)),
            fx.StoreChunks: transfers.store,
            fx.SetStates: transfers.set_states,
            fx.AskPeers: self._ask_peers,
            cmd.GiveChunks: lambda order: self._spawn(transfers.give(order)),
            cmd.DropChunks: lambda order: self._store.drop(order.chunks),
            cmd.Own: self._own,
            cmd.ReadBlocks: self._read,
            cmd.LoadChunks: lambda order: self._spawn(self._load_chunks(order)),
            cmd.Configure: self._configure,
            cmd.Peers: self._update_peers,
            cmd.Dismiss: self._dismiss,
        }
        if self._notice is not None:
            end_s, reason = self._notice
            self.notice(max(0.0, end_s - self.context.clock()), reason)

    async def _wait(self, seconds: float) -> None:
        await self.context.pause(seconds)
        self.feed(fx.TimeUp())

    def _own(self, order: cmd.Own) -> None:
        store = self._store
        owned = self._welcomed().chunks = store.own(order.chunks)
        if store.is_out_of_core:
            self.feed(
                ev.WentOutOfCore(
                    member=order.member,
                    nbytes=store.held_bytes,
                    limit_bytes=store.limit_bytes or 0,
                )
            )
        if self.async_member is not None:
            self.async_member.own(owned)

    def _update_peers(self, order: cmd.Peers) -> None:
        if self.async_member is not None:
            self.async_member.gossip.know(order)

    def _ask_peers(self, command: fx.AskPeers) -> None:
        if self.async_member is not None:
            self.async_member.gossip.ask()

    def _dismiss(self, order: cmd.Dismiss) -> None:
        self.is_dismissed = order.is_final
        place = self._checkpoint_place()
        if place is not None and order.reason == cmd.JOB_ENDED:
            unpin(place, self._record.cache)
        self.close()

    def _welcomed(self) -> CollectiveAgent:
        if self.collective is None:
            raise RemoteProtocolError("an order came before the welcome")
        return self.collective

    # --- data ----------------------------------------------------------------------------

    async def _take_chunk(self, frame: Frame) -> None:
        """Store a chunk that the driver has sent."""
        assert frame.payload is not None
        out_of_core = self._store.out_of_core
        try:
            chunk = Chunk.from_body(chunk_id(frame.prefix["chunk"]), frame.payload)
            chunk.is_mapped = out_of_core is not None and out_of_core.maps(frame.payload)
            await self._store.take([chunk])
        except Exception as error:
            self._fail(error)

    async def _wait_for_stores(self) -> None:
        """Wait until the driver's chunks are stored: they may be copied to disk."""
        while self._storing:
            await asyncio.wait(self._storing)

    def _read(self, order: cmd.ReadBlocks) -> None:
        self._source = source_from_spec(self._extras["spec"])  # a survey changes it
        self._spawn(self._read_blocks(order))

    async def _read_blocks(self, order: cmd.ReadBlocks) -> None:
        """Read all blocks, one per thread of the runner at a time; stop at the first failure."""
        await self._wait_for_stores()
        source, place = self._source, self._checkpoint_place()
        assert source is not None
        if has_partitions(source):
            await self._read_partitions(source, order)
            return
        try:
            if place is not None:
                cache = self._record.cache
                await self.context.reading.run(pin_blocks, source, place, cache)
            async with asyncio.TaskGroup() as reads:
                for block in order.blocks:
                    reads.create_task(self._read_block(source, block, order.survey))
        except* Exception as errors:
            self._fail(errors.exceptions[0])

    async def _read_block(self, source: Source, block: int, survey: bool) -> None:
        assert self.me is not None
        chunks: list[Chunk] = []
        if survey:
            summary = await self.context.reading.run(source.survey, block)
        else:
            chunks, summary = await self.context.reading.run(
                self._store.read, source, block, *self._read_settings()
            )
        self._report_block(block, chunks, summary)

    async def _read_partitions(self, source: Any, order: cmd.ReadBlocks) -> None:
        """Make chunks of Dask's partitions, in Dask's threads, as the partitions are ready."""
        loop = asyncio.get_running_loop()

        def take(block: int, parts: Sequence[Any]) -> None:
            chunks: list[Chunk] = []
            if order.survey:
                summary = source.with_parts(parts).survey(block)
            else:
                chunks, summary = source.with_parts(parts).read(block, *self._read_settings()[:2])
                self._store.put(chunks)
            loop.call_soon_threadsafe(self._report_block, block, chunks, summary)

        try:
            await self._partitions().request(self.job, order.blocks, take)
        except Exception as error:
            self._fail(error)

    def _partitions(self) -> PartitionRequests:
        if self.context.partitions is None:
            raise ConfigError("Dask collections can be read only by members on a Dask cluster")
        return self.context.partitions

    def _report_block(
        self, block: int, chunks: Sequence[Chunk], summary: BlockSummary | None
    ) -> None:
        if self.gone.is_set():
            return
        assert self.me is not None
        self._summaries[block] = None if summary is None else summary.to_json()
        self.feed(
            ev.BlockRead(
                member=self.me,
                block=block,
                chunks=tuple(c.info() for c in chunks),
                digest=digest_of_chunks(chunks),
                # The driver has sent the chunks of an in-memory source.
                parsed_bytes=None if summary is None else parsed_bytes(chunks),
            )
        )

    def _checkpoint_place(self) -> str | None:
        """Return where the job's checkpoints are; its blocks stay in the cache until its end."""
        place = self._record.checkpoint
        return None if place is None else place.path

    def _read_settings(self) -> tuple[int | None, int, CacheSetting]:
        """Return chunk size, number of members and cache: the settings for reading blocks."""
        return self._record.chunk_bytes, self._n_members, self._record.cache

    async def _load_chunks(self, order: cmd.LoadChunks) -> None:
        await self._wait_for_stores()
        source = self._source
        assert source is not None and self.me is not None
        began_s = self.context.clock()
        try:
            if has_partitions(source):
                nbytes = parsed = await self._load_partitions(source, order.chunks)
            else:
                nbytes, parsed = await self.context.reading.run(
                    self._store.load, source, order.chunks, *self._read_settings()
                )
        except Exception as error:
            self._fail(error)
            return
        seconds = self.context.clock() - began_s
        self.feed(
            ev.ChunksLoaded(
                member=self.me,
                chunks=order.chunks,
                nbytes=nbytes,
                seconds=round(seconds, 6),
                parsed_bytes=None if getattr(source, "is_in_memory", False) else parsed,
            )
        )

    async def _load_partitions(self, source: Any, ids: Sequence[ChunkId]) -> int:
        """Make those of these chunks that are missing of their partitions; return their bytes."""
        store = self._store
        missing = frozenset(id for id in ids if id not in store)

        def take(block: int, parts: Sequence[Any]) -> None:
            chunks, _ = source.with_parts(parts).read(block, *self._read_settings()[:2])
            store.put([chunk for chunk in chunks if chunk.id in missing])

        if missing:
            blocks = sorted({id.block for id in missing})
            await self._partitions().request(self.job, blocks, take)
        for id in missing:
            if id not in store:
                raise DataError(
                    f"partition {id.block} of the Dask collection no longer has the rows of chunk "
                    f"{id}: its graph must give the same rows each time"
                )
        return sum(store.chunks[id].nbytes for id in missing)

    async def accept_child(self, link: Link) -> None:
        """Serve a link that a child in the tree has opened."""
        await self._welcomed().accept_child(link)

    async def accept_mail(self, link: Link) -> None:
        """Serve a link on which a peer sends its states."""
        if self.async_member is None:
            link.close()
            return
        await self.async_member.gossip.accept(link)

    async def accept_chunks(self, link: Link) -> None:
        """Serve a link on which another member sends chunks."""
        if self._transfers is None:
            link.close()
            return
        try:
            await self._transfers.receive(link)
        except RemoteProtocolError:
            raise  # closes the link
        except Exception as error:
            self._fail(error)
