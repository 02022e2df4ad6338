"""The driver on asyncio: links to members, the trainer's steps in a thread, the cluster.

It turns messages into the machine's events, and performs its commands. It does not depend on Dask:
links come from a Transport, blocking work goes to a Runner, time is a callable. The scheduler
plugin passes the real ones, the simulator virtual ones, tests in-memory ones.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from secrets import token_hex
from typing import Any, Final

from elasticml.algorithms.kernel_modules import warms_up
from elasticml.algorithms.registry import memory_use
from elasticml.collective.frames import (
    Frame,
    Header,
    Kind,
    check_payload,
    model_frame,
    reading_prefix,
)
from elasticml.collective.transport import Transport
from elasticml.control.checkpoint_state import restore
from elasticml.control.driver import Driver
from elasticml.control.driver_settings import DriverSettings, settings_from_record
from elasticml.data.source import Source
from elasticml.errors import (
    ConfigError,
    ControlFlowError,
    ElasticmlError,
    RemoteProtocolError,
    error_from_dict,
    error_to_dict,
    fault_of,
)
from elasticml.ids import ExchangeId, MemberId, format_size
from elasticml.policies.registry import policies_of_job
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.protocol.codec import decode, encode
from elasticml.protocol.job_record import JobRecord
from elasticml.runtime.block_registry import BlockRegistry
from elasticml.runtime.checkpoints.attempt_claim import AttemptClaim
from elasticml.runtime.checkpoints.checkpoint_writer import Checkpointer
from elasticml.runtime.driver_links import DriverLinks, LinkHandlers
from elasticml.runtime.executors import Long, Runner, parallel
from elasticml.runtime.fault_injection import FaultInjector, carry_out
from elasticml.runtime.frame_payloads import (
    bytes_of,
    not_finite_of,
    numbers_of,
    partial_event,
    vector_of,
)
from elasticml.runtime.numa import spanned
from elasticml.runtime.scaler import Containers, MoreWorkers, Scaler
from elasticml.story.journal import Journal
from elasticml.story.records import (
    ExchangeEnded,
    GroupReturned,
    MemberActive,
    MemberLost,
    MemberNoticed,
    StoryRecord,
)
from elasticml.training.array_buffers import Buffers, n_values
from elasticml.training.checkpoint import Checkpoint
from elasticml.training.driver_session import DriverSession
from elasticml.training.trainer_runner import TrainerRunner

logger = logging.getLogger(__name__)

#: Threads that sum long partials: the driver's machine is otherwise idle then.
SUM_THREADS = 2
#: No member's slot is larger: masks have a bit for each slot.
SLOTS_MAX = 2**20
#: Longest wait, after a job's end, until its members have closed their links.
LINGER_S = 10.0
#: Seconds of failing ticks after which a job fails.
FAILING_S_MAX = 5.0
#: Planned faults that are being performed: a worker that had a notice is ended, whatever the job.
_faults: set[asyncio.Task[Any]] = set()


def _in_background(work: Coroutine[Any, Any, Any]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _faults.add(task)
    task.add_done_callback(_faults.discard)


class TrainerSteps:
    """Runs a job's trainer in a thread, one step at a time; each result becomes an event.

    Parameters
    ----------
    driver : DriverAgent
        Receives the events.
    buffers : Buffers
        Has the partials; allocates the arrays that models are packed into.
    runner : Runner
        Runs the steps.
    spawn : callable
        Starts a coroutine on the event loop.
    """

    def __init__(
        self,
        driver: DriverAgent,
        buffers: Buffers,
        runner: Runner,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._driver = driver
        self._buffers = buffers
        self._runner = runner
        self._spawn = spawn
        self._parallel = parallel(SUM_THREADS)

    def start(self, training: TrainerRunner) -> None:
        """Run the trainer to its first request."""
        training.new_buffer = self._buffers.take_to_send
        training.parallel = self._parallel
        self._spawn(self._step(training.start))

    def proceed(self, command: cmd.Continue) -> None:
        """Answer the end of a round."""
        training = self._driver.driver_session.training
        assert training is not None
        end = training.round_end
        proceed = _marked(training.proceed, is_long=end is not None and end.is_long)
        self._spawn(self._step(proceed, command.go_on, command.tuned))

    def deliver(self, command: cmd.Deliver) -> None:
        """Sum the partials and pass the outcome to the trainer."""
        training = self._driver.driver_session.training
        assert training is not None and training.exchange is not None
        inputs = [self._buffers[handle] for handle in command.inputs]
        anchor = [(part.sign, self._buffers[part.handle]) for part in command.anchor]
        deliver = _marked(training.deliver, is_long=training.exchange.is_long)
        self._spawn(self._step(deliver, command, inputs, anchor))

    async def _step(self, function: Callable[..., ev.Event], *args: Any) -> None:
        session = self._driver.driver_session
        try:
            event = await self._runner.run(function, *args)
            error = None if session.training is None else session.training.error
            if isinstance(error, ElasticmlError):
                event = session.fail(error)
            elif error is not None:
                raise error
        except Exception as fault:
            # No caller awaits this task: a step that ended without an event would leave the job
            # hanging. Examples: no memory for a sum, a model that cannot be packed.
            error = None if session.training is None else session.training.error
            is_trainers = fault is error or isinstance(fault, ControlFlowError)
            who = "the trainer" if is_trainers else "the driver"
            logger.exception("job %s: %s failed", session.record.job, who)
            event = session.fail(fault_of(fault, who))
        self._driver.feed(event)

    def close(self) -> None:
        """End the worker threads."""
        self._runner.close()
        self._parallel.close()


def _marked(step: Callable[..., ev.Event], *, is_long: bool) -> Callable[..., ev.Event]:
    return Long(step) if is_long else step


messages = logging.getLogger(f"{__name__}.messages")


@dataclass(slots=True, kw_only=True)
class DriverContext:
    """What the scheduler's process provides to the driver of a job."""

    #: Reaches the members.
    transport: Transport
    #: Runs the trainer and sums partials.
    runner: Runner
    #: Seconds, monotonic.
    clock: Callable[[], float]
    #: Performs planned faults.
    injector: FaultInjector | None = None
    #: Starts members that policies request.
    scaler: Scaler | None = None
    #: Waits for workers from a cluster without a scaler that follows the demand of its jobs.
    more_workers: MoreWorkers | None = None
    #: Writes checkpoints if the job record asks for them.
    io_runner: Runner | None = None
    #: To the place of the checkpoints, if it is taken already.
    claim: AttemptClaim | None = None
    #: Whether members ask the scheduler for objects of the user that they cannot import.
    has_objects: bool = False
    #: Returns the settings of the machine from those of the record.
    adjusted: Callable[[DriverSettings], DriverSettings] = lambda settings: settings
    #: Whether the story has the chunks' digests: without them a run cannot be replayed.
    tells_chunks: bool = True
    #: The job's secret, which its members show each other.
    key: str = field(default_factory=lambda: token_hex(16))


#: Most of a worker's memory limit that its process should take.
MEMORY_SHARE_MAX: Final = 0.75


class DriverAgent:
    """One job on the scheduler.

    Parameters
    ----------
    record : JobRecord
    context : DriverContext
    source : Source
    blocks : BlockRegistry, optional
        With the chunks of an in-memory source; by default empty.
    resumed : Checkpoint, optional
        The checkpoint from which the job resumes, with the next round.
    check_every_event : bool
        Check all invariants after every event (tests), or only at membership changes and round
        boundaries.
    """

    #: Since when every tick has failed.
    _failing_since_s = math.inf
    #: Bytes of the longest partial of all exchanges.
    _partial_bytes_max = 0

    def __init__(
        self,
        record: JobRecord,
        context: DriverContext,
        *,
        source: Source,
        blocks: BlockRegistry | None = None,
        resumed: Checkpoint | None = None,
        check_every_event: bool = False,
    ) -> None:
        self.record = record
        self.job = record.job
        self._blocks = BlockRegistry({}, ()) if blocks is None else blocks
        session = DriverSession(record, source, resumed, tells_chunks=context.tells_chunks)
        settings = settings_from_record(record, len(source.blocks()), session.source.needs_survey)
        warms = warms_up(record.algorithm_name)
        settings = context.adjusted(replace(settings, warms_up=warms))
        policies = policies_of_job(record, settings)
        self.driver_session = session
        self.machine = machine = Driver(settings, policies, check_every_event)
        self._queue: deque[ev.Event] = deque()
        self._is_draining = False
        #: Set when the job is over; set whenever the story has grown, and cleared by who waits.
        self.ended = asyncio.Event()
        self.grown = asyncio.Event()
        self._clock = context.clock
        self._start_s = context.clock() - (0.0 if resumed is None else resumed.seconds)
        self._ended_for_memory: set[str] = set()  # names of workers
        self._injector = context.injector
        self._containers = Containers(context.scaler, self.invite, context.more_workers)
        self._buffers = Buffers(context.transport.lendable)
        hello = {
            "job": record.job,
            "key": context.key,
            "kind": "driver",
            "transport": record.collective.transport,
            "memory_limit": record.memory_limit,
            "has_objects": context.has_objects,
        }
        self._links = DriverLinks(
            context.transport,
            hello | memory_use(record.algorithm, record.data),
            LinkHandlers(
                allocate=self._allocate,
                frame=self._on_frame,
                arrival=self._on_arrival,
                lost=self._on_lost,
                refused=self._on_refused,
            ),
        )
        #: Bytes of a partial of the running exchange, and of those that may anchor it.
        self._partial_bytes: dict[ExchangeId, int] = {}
        #: The model of the last exchange, as all members get it.
        self._model = Frame(kind=Kind.MODEL, prefix={})
        #: The scheduler ends, or the job is forgotten: nothing more is decided.
        self._is_closed = False
        self._compute_s: dict[str, float] = {}
        self._member_bytes: dict[str, int] = {}
        #: Number of computations of each member; more than its exchanges means repeated work.
        self._computations: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._steps = TrainerSteps(self, self._buffers, context.runner, self._spawn)
        if resumed is not None:
            restore(machine, resumed.resume_point.machine, resumed.progress)
        self._checkpoints = self._checkpointer(context)
        self._effects = self._performers()

    def _performers(self) -> Mapping[type[cmd.Command], Callable[[Any], None]]:
        """Return what performs each of the machine's commands that is not an order."""
        return {
            cmd.Record: self._record,
            cmd.AddRow: self._add_row,
            cmd.Welcome: self._welcome,
            cmd.Dismiss: self._dismiss,
            cmd.ForwardModel: self._forward_model,
            cmd.Refuse: lambda command: self._buffers.free(command.handle),
            cmd.Forget: self._forget,
            # A member's link to the driver closes with its life, not with its place in the tree.
            cmd.Detach: lambda command: None,
            cmd.MergeFacts: self._merge_facts,
            cmd.StartTrainer: self._start_trainer,
            cmd.Deliver: self._steps.deliver,
            cmd.Continue: self._proceed,
            cmd.Inject: lambda command: self._spawn(self._inject(command)),
            cmd.RequestMembers: lambda command: self._spawn(self._request(command.count)),
            cmd.ReleaseContainers: self._release,
            cmd.EndJob: self._end,
        }

    def _checkpointer(self, context: DriverContext) -> Checkpointer | None:
        checkpoint = self.record.checkpoint
        if checkpoint is None or context.io_runner is None:
            return None
        return Checkpointer(
            checkpoint.every_s,
            self.driver_session,
            self.machine,
            claim=context.claim or AttemptClaim(self.job, checkpoint),
            runner=context.io_runner,
            spawn=self._spawn,
            write=self._append,
            clock=context.clock,
        )

    @property
    def journal(self) -> Journal:
        """The job's story, history and model snapshots."""
        return self.driver_session.journal

    @property
    def state(self) -> str:
        """Return "loading", "running", "done", "failed" or "cancelled"."""
        return self.driver_session.state

    @property
    def error(self) -> dict[str, Any] | None:
        """The error that ended the job, as plain values."""
        return self.driver_session.error

    # --- time and events -----------------------------------------------------------------

    def now_s(self) -> float:
        """Return the seconds since the start of the job."""
        return self._clock() - self._start_s

    def feed(self, event: ev.Event) -> None:
        """Let the machine handle an event, and perform what it commands.

        Nothing is decided once the scheduler has closed this job.
        """
        if self._is_closed:
            return
        self._queue.append(event)
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self._queue:
                self._handle(self._queue.popleft())
        finally:
            self._is_draining = False

    def _handle(self, event: ev.Event) -> None:
        """Handle an event; an error in performing a command ends the job.

        No caller awaits links and ticks: without this the job would hang, past its stop rules, too.
        """
        session = self.driver_session
        try:
            now_s = self.now_s()
            session.record_message(event, now_s)
            for command in self._commands_after(event, now_s):
                session.record_message(command, self.now_s())
                effect = self._effects.get(type(command))
                if effect is not None:
                    effect(command)
                else:
                    assert isinstance(command, cmd.Order), f"nothing performs {command}"
                    self._order(command)
            if isinstance(event, ev.Failed) and self.machine.state.stage != "ended":
                session.error = None  # of a member that was excluded
        except BaseException as error:  # a user's trainer may raise anything when it is made
            logger.exception("job %s: a command failed after %s", self.job, type(event).__name__)
            failed = session.fail(fault_of(error, "the driver"))
            if self.machine.state.stage != "ended":
                self._queue.append(failed)
            elif not self.ended.is_set():
                session.state = "failed"
                self._finish("failed")

    def _commands_after(self, event: ev.Event, now_s: float) -> list[cmd.Command]:
        """Return the machine's commands; if the machine fails, those that end the job.

        A broken invariant must not be summed into a model. A policy's suggestion may turn out to be
        invalid only when it is carried out, and a policy of a user may raise anything: without the
        driver the job would hang.
        """
        messages.debug("job %s: %s", self.job, event)
        try:
            return self.machine.handle(event, now_s)
        except ElasticmlError as error:
            failed = self.driver_session.fail(error)
        except BaseException as error:
            logger.exception("job %s: the driver failed", self.job)
            failed = self.driver_session.fail(fault_of(error, "the driver"))
        return self.machine.handle(failed, now_s)

    def tick(self) -> None:
        """Report the time to the machine; called every few milliseconds.

        A tick that fails is followed by the next one, or the job would not end at its time; if they
        fail for long, the job fails.
        """
        try:
            self.feed(ev.Ticked(cause="clock"))
            if self._checkpoints is not None:
                self._checkpoints.look(self.now_s())
            self._failing_since_s = math.inf
        except Exception as error:
            now_s = self.now_s()
            if self._failing_since_s > now_s:
                self._failing_since_s = now_s
                logger.exception("job %s: a tick failed", self.job)
            if now_s - self._failing_since_s >= FAILING_S_MAX:
                self.feed(self.driver_session.fail(fault_of(error, "the driver")))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- links ---------------------------------------------------------------------------

    def invite(self, address: str) -> None:
        """Open a link to a worker that has announced itself; do nothing if one is open.

        The job takes a worker that it has excluded no more.
        """
        if not self.ended.is_set() and address not in self.machine.state.excluded:
            self._links.invite(address)

    def _allocate(self, header: Header, prefix: Mapping[str, Any]) -> memoryview:
        running = self.machine.exchanges.running
        if running is not None and header.exchange == running.id == self._model.exchange:
            check_payload(header, Kind.PARTIAL, self._partial_bytes[running.id])
        elif header.payload_bytes > self._partial_bytes_max or header.payload_bytes % 8:
            raise RemoteProtocolError(
                f"payload of {header.payload_bytes} bytes of exchange {header.exchange}, wanted at "
                f"most {self._partial_bytes_max}, the longest partial of this job"
            )
        else:
            check_payload(header, Kind.PARTIAL, header.payload_bytes)
        return self._buffers.take(header.payload_bytes).data.cast("B")

    def _on_lost(self, member: MemberId, reason: str) -> None:
        self.feed(ev.Lost(cause="link", member=member, reason=reason))

    def _on_arrival(self, arrival: int, message: Mapping[str, Any]) -> None:
        # The number of threads that the job sets, if any: the member gets it with the welcome.
        threads = self.record.threads or message.get("threads", 1)
        body = {**message, "type": "Arrived", "arrival": arrival, "threads": threads}
        with reading_prefix("the arrival of a worker"):
            body["nodes"] = spanned(threads, message.get("nodes", ()))
            event: ev.Arrived = decode(body)
            limits = (event.limit_bytes or 0, event.memory_bytes or 0)
            if event.threads < 1 or min(event.pid, event.slot or 0, event.computed, *limits) < 0:
                raise ValueError("a number is below its range")
            if (event.slot or 0) >= SLOTS_MAX:
                raise ValueError(f"slot {event.slot}, wanted less than {SLOTS_MAX}")
        self.feed(event)

    def _on_refused(self, error: ElasticmlError) -> None:
        if self.machine.state.stage == "gathering":  # later the job continues without this worker
            self.feed(self.driver_session.fail(error))

    def worker_removed(self, address: str) -> None:
        """Handle the scheduler's report that a worker is gone."""
        self._links.uninvite(address)
        self._containers.forget(address)
        record = self.machine.state.membership.at(address)
        if record is not None:
            self.feed(ev.Lost(cause="scheduler", member=record.id, reason="closed"))
        else:
            self.feed(ev.WorkerGone(cause="scheduler", address=address))

    def ended_for_memory(
        self, address: str, name: str, resident_bytes: int, limit_bytes: int
    ) -> None:
        """Handle a nanny's report that it ends a worker for memory; a second end fails the job."""
        membership = self.machine.state.membership
        if membership.at(address) is None and membership.former(address) is None:
            return
        logger.warning("job %s: worker %s is ended for memory", self.job, name)
        if name not in self._ended_for_memory:
            self._ended_for_memory.add(name)
            return
        need = format_size(int(resident_bytes / MEMORY_SHARE_MAX))
        error = ConfigError(
            f"worker {name} was ended by its nanny for memory a second time in this job: it took "
            f"{format_size(resident_bytes)} of {format_size(limit_bytes)}, and this job needs "
            f"{need}; set memory_limit of the workers to {need} at least, or use more workers, "
            "fewer threads per worker, or smaller blocks of the data"
        )
        self.feed(self.driver_session.fail(error))

    def _on_frame(self, member: MemberId, frame: Frame) -> None:
        if frame.kind == Kind.PARTIAL:
            self._on_partial(member, frame)
            return
        extras = {k: v for k, v in frame.prefix.items() if k in ("summary", "error")}
        event = decode({k: v for k, v in frame.prefix.items() if k not in extras})
        if getattr(event, "handle", None) is not None:
            raise RemoteProtocolError(f"{type(event).__name__} without an array")
        self.machine.check_report(member, event)
        with reading_prefix(f"what {type(event).__name__} reports"):
            if isinstance(event, ev.BlockRead):
                self._blocks.note(event.block, extras["summary"])
            elif isinstance(event, ev.Failed) and extras:
                self.driver_session.error = error_to_dict(error_from_dict(extras["error"]))
        self.feed(event)

    def _on_partial(self, member: MemberId, frame: Frame) -> None:
        times, sent, done = numbers_of(frame)
        not_finite = not_finite_of(frame)
        vector, running = vector_of(frame), self.machine.exchanges.running
        if running is not None and running.id == self._model.exchange:
            # A frame without payload has not been checked, nor an anchor's.
            is_added = frame.exchange in (running.id, running.anchor_of)
            wanted = self._partial_bytes.get(ExchangeId(frame.exchange))
            if is_added and vector.nbytes != wanted:
                raise RemoteProtocolError(f"a partial of {vector.nbytes} bytes, wanted {wanted}")
        handle = self._buffers.bind(vector)
        try:
            event = partial_event(member, frame, handle, times)
            self.machine.check_report(member, event)
        except RemoteProtocolError:
            self._buffers.free(handle)
            raise
        if self.driver_session.training is not None:
            self.driver_session.training.not_finite.update(not_finite)
        self._member_bytes.update(sent)
        self._computations.update(done)
        if isinstance(event, ev.PartialArrived):
            self._compute_s.update({str(m.slot): s for m, s in event.compute_s.items()})
        self.feed(event)

    # --- commands ------------------------------------------------------------------------

    def write(self, record: StoryRecord) -> None:
        """Append a record to the story and wake those who wait for it."""
        self._append(record)
        if self._checkpoints is not None:
            self._checkpoints.noted(record)
        if isinstance(record, MemberLost | MemberActive | MemberNoticed | GroupReturned):
            logger.info("job %s: %s %s", self.job, record.event, record.fields_json())

    def _append(self, record: StoryRecord) -> None:
        self.journal.write(self.now_s(), record)
        self.grown.set()

    def _record(self, command: cmd.Record) -> None:
        record = command.record
        if isinstance(record, ExchangeEnded):
            times, self._compute_s = self._compute_s, {}
            digest = self.driver_session.digest()
            record = replace(record, compute_s=times, digest=digest)
        self.write(record)

    def _add_row(self, command: cmd.AddRow) -> None:
        self.driver_session.add_row(self.now_s(), command.row, self._sent_bytes(), command.idle)

    def _sent_bytes(self) -> int:
        """Return the bytes that the driver and the members have sent."""
        return self._links.sent_bytes() + sum(self._member_bytes.values())

    def _forget(self, command: cmd.Forget) -> None:
        for handle in command.handles:
            self._buffers.free(handle)

    def _merge_facts(self, command: cmd.MergeFacts) -> None:
        summaries = self._blocks.summaries()
        self.feed(self.driver_session.set_facts(summaries, command.survey, self.now_s()))

    def _order(self, order: cmd.Order) -> None:
        """Send an order to a member, preceded by chunks that only the driver has."""
        extras: dict[str, Any] = {}
        match order:
            case cmd.Configure():
                assert self.driver_session.facts is not None
                extras["facts"] = self.driver_session.facts.to_json()
                extras["spec"] = self.driver_session.source.spec()
            case cmd.ReadBlocks():
                extras["spec"] = self.driver_session.source.spec()
                for frame in self._blocks.frames(order.blocks):
                    self._links.send(order.member, frame)
            case cmd.LoadChunks():
                chunks = order.chunks
                for frame in self._blocks.frames({c.block for c in chunks}, only=chunks):
                    self._links.send(order.member, frame)
        self._links.tell(order.member, {**encode(order), **extras})

    def _dismiss(self, command: cmd.Dismiss) -> None:
        """Send the last order to a member."""
        self._links.retire(command.member, encode(command))

    def _welcome(self, command: cmd.Welcome) -> None:
        """Tell an arrival which member it is; it is lost if its link has closed."""
        if not self._links.welcome(command.arrival, command.member):
            self.feed(ev.Lost(cause="welcome", member=command.member, reason="closed"))
            return
        names = ("job", "algorithm", "absent", "chunk_bytes", "cache", "threads", "seed")
        more = ("collective", "checkpoint", "validate", "evaluate")
        record = {name: self.record.json.get(name) for name in (*names, *more)}
        extras = {
            "record": {**record, "data": {"format": self.record.data.get("format")}},
            "spec": self.driver_session.source.spec(),
            "n_members": self.machine.state.settings.start_members,
        }
        self._links.tell(command.member, {**encode(command), **extras})

    def _start_trainer(self, command: cmd.StartTrainer) -> None:
        """Make the trainer, and run it to its first request."""
        refused = self.driver_session.make_trainer(self.machine.state.settings.absent)
        if refused is not None:
            self.feed(refused)
            return
        assert self.driver_session.training is not None
        self._steps.start(self.driver_session.training)

    def _proceed(self, command: cmd.Continue) -> None:
        """Answer the end of a round, after offering a checkpoint."""
        if command.go_on and self._checkpoints is not None:
            self._checkpoints.offer(command.tuned, self.now_s())
        self._steps.proceed(command)

    def _forward_model(self, command: cmd.ForwardModel) -> None:
        """Send the model of the current exchange to a member."""
        training, running = self.driver_session.training, self.machine.exchanges.running
        if training is None or running is None:
            return
        if self._model.exchange != running.id:
            nbytes = 8 * n_values(running.header.returns)
            kept = {exchange.id for exchange in self.machine.exchanges.kept}
            self._partial_bytes = {i: n for i, n in self._partial_bytes.items() if i in kept}
            self._partial_bytes[running.id] = nbytes
            self._partial_bytes_max = max(self._partial_bytes_max, nbytes)
            self._model = model_frame(running.header, bytes_of(training.packed))
        self._links.send(command.to, self._model)

    # --- the cluster, the end ------------------------------------------------------------

    def _release(self, command: cmd.ReleaseContainers) -> None:
        """Release containers to the cluster."""
        self._spawn(self._containers.release(command.addresses))

    async def _request(self, count: int) -> None:
        missing, reason = await self._containers.request(count)
        if missing > 0:
            self.feed(ev.MembersRefused(cause="cluster", count=missing, reason=reason))

    async def _inject(self, command: cmd.Inject) -> None:
        living = self.machine.state.membership.members
        addresses = [living[m].address for m in command.members if m in living]
        error = await carry_out(command, addresses, self._injector, _in_background)
        if error is not None:
            logger.warning("job %s: fault %s failed: %s", self.job, command.kind, error)
        self.feed(ev.FaultPerformed(cause="planned", kind=command.kind, error=error))

    def _end(self, command: cmd.EndJob) -> None:
        """Write the last record, and release what only a running job needs."""
        self.driver_session.close(
            command,
            self.machine,
            self.now_s(),
            sent_bytes=self._sent_bytes(),
            computations=self._computations,
        )
        self._finish(command.state)

    def _finish(self, state: str) -> None:
        if self._checkpoints is not None:
            self._checkpoints.end(state == "done")
        self._steps.close()
        self._blocks.drop_bodies()
        self.ended.set()
        self.grown.set()

    def cancel(self) -> None:
        """End the job now; its last model becomes its result."""
        if not self.ended.is_set():
            self.feed(ev.CancelRequested(cause="client"))

    async def wind_down(self) -> None:
        """Close a job that has ended, once its members and its last checkpoint are done."""
        await self._links.drained(LINGER_S)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=LINGER_S)
        await self.close()

    def dismantle(self) -> None:
        """Drop everything, after the end; this object is of no use any more.

        Its parts refer to each other. Their memory, models among it, would be free only after the
        garbage collector's next look at old objects: in a scheduler, perhaps hours later.
        """
        self.driver_session.training = None
        self._buffers.clear()
        del self.machine.membership_changes.preemption
        for part in (self.machine, self.driver_session, self):
            vars(part).clear()

    async def close(self) -> None:
        """Write the last checkpoint, then close all links and end the threads."""
        self._is_closed = True
        if self._checkpoints is not None:
            await self._checkpoints.close()
        await self._links.close()
        self._steps.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
