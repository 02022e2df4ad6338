"""The driver of a simulated job: the real machine, policies, trainer, journal; virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elasticml.algorithms.base import Work
from elasticml.control.driver import Driver
from elasticml.control.driver_settings import DriverSettings
from elasticml.data.dataset_stats import BlockSummary
from elasticml.ids import ExchangeId, MemberId
from elasticml.policies.registry import policies_of_job
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.sim.exchange_messages import SentAnchor, SentPartial
from elasticml.sim.message_sizes import CONTROL_BYTES, up_values
from elasticml.sim.network import Endpoint, Port
from elasticml.training.array_buffers import Vector, unpack
from elasticml.training.driving import JobDriver
from elasticml.training.trainer_runner import TrainerRunner

if TYPE_CHECKING:
    from elasticml.sim.world import World

#: Bytes of a chunk's id in a message.
ID_BYTES = 24


class VirtualDriver(JobDriver):
    """Drives a job in virtual time, on the virtual network.

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
        super().__init__(world.driver_session, Driver(settings, policies, check_every_event))
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
        #: The header of the exchange under way, with its model, as it goes down.
        self._sent: Work | None = None

    def feed(self, event: ev.Event) -> None:
        """Let the machine handle an event, and perform what it commands."""
        try:
            super().feed(event)
        finally:
            self.world.clock.interrupt()  # there may be something to tell

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

    # --- effects -------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Return the virtual time."""
        return self.world.clock.now_s

    def sent_bytes(self) -> int:
        """Return the bytes that were given to the network."""
        return self.world.network.sent_bytes

    def computation_counts(self) -> Mapping[str, int]:
        """Return how often each member has computed."""
        return {str(member): n for member, n in self.computations.items()}

    def compute_times(self, exchange: int) -> dict[str, float]:
        """Return, by slot, how long members computed in an exchange."""
        return self.compute_s.pop(ExchangeId(exchange), {})

    def block_summaries(self) -> Iterable[BlockSummary]:
        """Return what members have read of the blocks."""
        return self.summaries.values()

    def array(self, handle: int) -> Vector:
        """Return the array that has come under a handle."""
        return self._arrays[handle]

    def free(self, handle: int) -> None:
        """Forget an array."""
        self._arrays.pop(handle, None)

    def _forget(self, command: cmd.Forget) -> None:
        super()._forget(command)
        self.compute_s.pop(command.exchange, None)

    def _merge_facts(self, command: cmd.MergeFacts) -> None:
        super()._merge_facts(command)
        self.world.library.source = self.driver_session.source

    def inject(self, command: cmd.Inject) -> None:
        """Perform a planned fault."""
        self.world.faults.inject(command)

    def request(self, command: cmd.RequestMembers) -> None:
        """Ask for containers."""
        self.world.faults.request(command.count)

    def release(self, command: cmd.ReleaseContainers) -> None:
        """Give containers back."""
        self.world.faults.release(command.addresses)

    def finish(self, command: cmd.EndJob) -> None:
        """Let the world end."""
        self.has_ended = True

    # --- members -------------------------------------------------------------------------------

    def welcome(self, command: cmd.Welcome) -> bool:
        """Tell an arrival which member it is; return False when its connection has closed."""
        port = self._arrivals.pop(command.arrival)
        if not port.is_open:
            return False
        self._ports[command.member] = port
        self._member_of[port] = command.member
        port.send(command, CONTROL_BYTES)
        return True

    def dismiss(self, command: cmd.Dismiss) -> None:
        """Send the last order to a member."""
        port = self._ports.pop(command.member, None)
        if port is not None:
            del self._member_of[port]
            port.send(command, CONTROL_BYTES)

    def order(self, order: cmd.Order) -> None:
        """Send an order to a member."""
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

    def forward_model(self, command: cmd.ForwardModel) -> None:
        """Send the model of the exchange under way to a member."""
        port, training = self._ports.get(command.to), self.driver_session.training
        running = self.machine.exchanges.running
        if port is None or training is None or running is None:
            return
        sent = self._sent
        if sent is None or sent.exchange != command.exchange:
            training.packed.setflags(write=False)  # all members share it
            header = running.header
            sent = self._sent = header.with_model(unpack(training.packed, header.model))
        port.send(sent, self.world.sizes(sent).down_bytes)

    # --- the trainer ------------------------------------------------------------------------------

    def start(self, training: TrainerRunner) -> None:
        """Run the trainer to its first request."""
        self._step(0.0, training.start)

    def deliver(
        self, command: cmd.Deliver, inputs: list[Vector], anchor: list[tuple[int, Vector]]
    ) -> None:
        """Give the trainer the outcome of an exchange."""
        training = self.driver_session.training
        assert training is not None and training.exchange is not None
        n_values = up_values(training.exchange)
        seconds = self.world.merge_seconds(n_values, len(inputs) + len(anchor))
        seconds += self.world.options.overhead_seconds(training.exchange.operation)
        self._step(seconds, training.deliver, command, inputs, anchor)

    def proceed(self, command: cmd.Continue) -> None:
        """Answer the end of a round."""
        assert self.driver_session.training is not None
        self._step(0.0, self.driver_session.training.proceed, command.go_on, command.tuned)

    def _step(self, seconds: float, function: Callable[..., ev.Event], *args: Any) -> None:
        """Let the trainer work; what comes of it is known when the time has passed."""
        event = self.after_step(function(*args))
        self.world.clock.after(seconds, self.feed, event)
