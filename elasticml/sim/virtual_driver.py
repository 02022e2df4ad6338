"""The driver of a simulated job: the real machine, policies, trainer, journal; virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elasticml.algorithms.base import Exchange, Work
from elasticml.control.driver import Driver
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.exchange import RunningExchange
from elasticml.data.dataset_stats import BlockSummary
from elasticml.errors import ElasticmlError
from elasticml.ids import ExchangeId, MemberId
from elasticml.policies.registry import policies_of_job
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.sim.exchange_messages import SentAnchor, SentModel, SentPartial
from elasticml.sim.message_sizes import CONTROL_BYTES, down_bytes, up_bytes
from elasticml.sim.network import Endpoint, Port
from elasticml.training.array_buffers import Vector, n_values, unpack

if TYPE_CHECKING:
    from elasticml.sim.world import World

#: Bytes of a chunk's id in a message.
ID_BYTES = 24


class VirtualDriver:
    """Turns messages and trainer steps into events, and performs the machine's commands.

    Parameters
    ----------
    world : World
    settings : Settings
    check_every_event : bool
        Re-derive all invariants after every event (up to 64 members), or at membership changes and
        round boundaries only.
    """

    def __init__(self, world: World, settings: DriverSettings, check_every_event: bool) -> None:
        self.world = world
        self.endpoint = Endpoint("driver")
        policies = policies_of_job(world.driver_session.record, settings)
        self.machine = Driver(settings, policies, check_every_event)
        self.has_ended = False
        self.summaries: dict[int, BlockSummary] = {}
        #: Seconds that each slot's member computed in the exchanges under way.
        self.compute_s: dict[ExchangeId, dict[str, float]] = {}
        #: How often each member has computed; more than its exchanges would be work done twice.
        self.computations: dict[MemberId, int] = {}
        self._ports: dict[MemberId, Port] = {}
        self._member_of: dict[Port, MemberId] = {}
        self._arrivals: dict[int, Port] = {}
        self._n_arrivals = 0
        self._arrays: dict[int, Vector] = {}
        #: The model of the exchange under way, as it goes down.
        self._sent: SentModel | None = None
        self._queue: deque[ev.Event] = deque()
        self._is_draining = False

    def feed(self, event: ev.Event) -> None:
        """Let the machine handle an event, and perform what it commands."""
        self._queue.append(event)
        if self._is_draining:
            return
        self._is_draining = True
        try:
            while self._queue:
                self._handle(self._queue.popleft())
        finally:
            self._is_draining = False
            self.world.clock.interrupt()  # there may be something to tell

    def _handle(self, event: ev.Event) -> None:
        driver_session = self.world.driver_session
        driver_session.record_message(event, self._now)
        try:
            commands = self.machine.handle(event, self._now)
        except ElasticmlError as error:
            # A broken invariant must not be summed into a model.
            commands = self.machine.handle(driver_session.fail(error), self._now)
        for command in commands:
            driver_session.record_message(command, self._now)
            self._perform(command)

    def cancel(self) -> None:
        """End the job now."""
        if not self.has_ended:
            self.feed(ev.CancelRequested(cause="client"))

    # --- messages ------------------------------------------------------------------------------

    def accept(self, port: Port) -> None:
        """Serve a connection to a worker."""
        port.on_message = lambda message: self._on_message(port, message)
        port.on_closed = lambda: self._on_closed(port)

    def nbytes_of(self, message: cmd.Command | ev.Event) -> int:
        """Bytes of an order or an event; chunk ids are what makes one long."""
        ids: Sized = getattr(message, "chunks", ()) or getattr(message, "holdings", ())
        return CONTROL_BYTES + ID_BYTES * len(ids)

    def _on_message(self, port: Port, message: Any) -> None:
        if isinstance(message, ev.Arrived):
            self._n_arrivals += 1
            self._arrivals[self._n_arrivals] = port
            self.feed(replace(message, arrival=self._n_arrivals))
        elif port in self._member_of:  # else it is of a former life
            if isinstance(message, SentPartial | SentAnchor):
                event = message.event
                assert event.handle is not None
                self._arrays[event.handle] = message.array
                self.feed(event)
            else:
                self.feed(message)

    def _on_closed(self, port: Port) -> None:
        member = self._member_of.pop(port, None)
        if member is not None and self._ports.pop(member, None) is not None:
            self.feed(ev.Lost(cause="link", member=member, reason="closed"))

    # --- commands ------------------------------------------------------------------------------

    def _perform(self, command: cmd.Command) -> None:
        world = self.world
        match command:
            case cmd.Record():
                self._tell(command)
            case cmd.AddRow():
                sent_bytes = world.network.sent_bytes
                world.driver_session.add_row(
                    world.clock.now_s, command.fields, sent_bytes, command.idle
                )
            case cmd.Welcome():
                self._welcome(command)
            case cmd.Dismiss():
                self._dismiss(command)
            case cmd.Order():
                self._order(command)
            case cmd.ForwardModel():
                self._forward_model(command)
            case cmd.Refuse():
                self._arrays.pop(command.handle, None)
            case cmd.Forget():
                for handle in command.handles:
                    self._arrays.pop(handle, None)
                self.compute_s.pop(command.exchange, None)
            case cmd.Detach():
                pass  # a member's connection to the driver closes with its life
            case cmd.MergeFacts():
                self.feed(
                    world.driver_session.set_facts(
                        self.summaries.values(), command.survey, self._now
                    )
                )
                world.library.source = world.driver_session.source
            case cmd.StartTrainer():
                self._start_trainer()
            case cmd.Deliver():
                self._deliver(command)
            case cmd.Continue():
                assert world.driver_session.training is not None
                self._step(0.0, world.driver_session.training.proceed, command.go_on, command.tuned)
            case cmd.Inject():
                world.faults.inject(command)
            case cmd.RequestMembers():
                world.faults.request(command.count)
            case cmd.ReleaseContainers():
                world.faults.release(command.addresses)
            case cmd.EndJob():
                world.driver_session.close(
                    command,
                    self.machine,
                    self._now,
                    sent_bytes=world.network.sent_bytes,
                    computations={str(m): n for m, n in self.computations.items()},
                )
                self.has_ended = True
            case _:
                raise NotImplementedError(type(command).__name__)

    @property
    def _now(self) -> float:
        return self.world.clock.now_s

    def _tell(self, command: cmd.Record) -> None:
        fields = dict(command.fields)
        if command.event == "ExchangeEnded":
            fields["compute_s"] = self.compute_s.pop(fields["exchange"], {})
            fields["digest"] = self.world.driver_session.digest()
        self.world.driver_session.journal.tell(self._now, command.event, fields, command.cause)

    def _welcome(self, command: cmd.Welcome) -> None:
        port = self._arrivals.pop(command.arrival)
        if not port.is_open:
            self.feed(ev.Lost(cause="welcome", member=command.member, reason="closed"))
            return
        self._ports[command.member] = port
        self._member_of[port] = command.member
        port.send(command, CONTROL_BYTES)

    def _dismiss(self, command: cmd.Dismiss) -> None:
        port = self._ports.pop(command.member, None)
        if port is not None:
            del self._member_of[port]
            port.send(command, CONTROL_BYTES)

    def _order(self, order: cmd.Order) -> None:
        port = self._ports.get(order.member)
        if port is None:
            return
        nbytes = self.nbytes_of(order)
        if self.world.library.is_in_memory:
            # Only the driver has the chunks: they go along.
            if isinstance(order, cmd.ReadBlocks):
                nbytes += self.world.library.nbytes(order.blocks)
            elif isinstance(order, cmd.LoadChunks):
                nbytes += self.world.library.nbytes({id.block for id in order.chunks})
        port.send(order, nbytes)

    def _forward_model(self, command: cmd.ForwardModel) -> None:
        port, training = self._ports.get(command.to), self.world.driver_session.training
        running = self.machine.exchanges.running
        if port is None or training is None or training.exchange is None or running is None:
            return
        message = self._sent
        if message is None or message.id != command.exchange:
            message = self._sent = _sent_model(running, training.exchange, training.packed)
        port.send(message, message.down_bytes)

    # --- the trainer ------------------------------------------------------------------------------

    def _start_trainer(self) -> None:
        driver_session = self.world.driver_session
        refused = driver_session.make_trainer(self.machine.state.settings.absent)
        if refused is not None:
            self.feed(refused)
            return
        assert driver_session.training is not None
        self._step(0.0, driver_session.training.start)

    def _deliver(self, command: cmd.Deliver) -> None:
        training = self.world.driver_session.training
        assert training is not None and training.exchange is not None
        inputs = [self._arrays[handle] for handle in command.inputs]
        anchor = [(part.sign, self._arrays[part.handle]) for part in command.anchor]
        seconds = self.world.merge_seconds(training.exchange, len(inputs) + len(anchor))
        seconds += self.world.options.overhead_seconds(training.exchange.operation)
        self._step(seconds, training.deliver, command, inputs, anchor)

    def _step(self, seconds: float, function: Callable[..., ev.Event], *args: Any) -> None:
        """Let the trainer work; what comes of it is known when the time has passed."""
        event = function(*args)
        driver_session = self.world.driver_session
        error = None if driver_session.training is None else driver_session.training.error
        if isinstance(error, ElasticmlError):
            event = driver_session.fail(error)
        elif error is not None:
            raise error
        self.world.clock.after(seconds, self.feed, event)


def _sent_model(running: RunningExchange, exchange: Exchange, packed: Vector) -> SentModel:
    """Put together what goes down in an exchange."""
    packed.setflags(write=False)
    shapes = {name: array.shape for name, array in exchange.model.items()}
    return SentModel(
        id=running.id,
        generation=running.generation,
        exchange=exchange,
        arrived=ev.ModelArrived(
            exchange=running.id, generation=running.generation, keep=exchange.keep
        ),
        computed=ev.Computed(exchange=running.id),
        packed=packed,
        work=Work(
            exchange=running.id,
            operation=exchange.operation,
            model=unpack(packed, shapes),
            parameters=exchange.parameters,
            returns=exchange.returns,
            members=len(running.participants),
        ),
        values=n_values(exchange.returns),
        down_bytes=down_bytes(exchange),
        up_bytes=up_bytes(exchange),
    )
