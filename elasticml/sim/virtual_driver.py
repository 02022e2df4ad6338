"""The driver of a simulated job: real machine, policies, trainer and journal in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from elasticml.algorithms.base import Work
from elasticml.control.driver import Driver
from elasticml.control.driver_settings import DriverSettings
from elasticml.data.dataset_stats import BlockSummary
from elasticml.ids import ExchangeId, MemberId
from elasticml.policies.registry import policies_of_job
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.sim.environment import Environment
from elasticml.sim.exchange_messages import SentAnchor, SentPartial
from elasticml.sim.message_sizes import CONTROL_BYTES, message_bytes, up_values
from elasticml.sim.network import Endpoint, Port
from elasticml.training.array_buffers import Vector, unpack
from elasticml.training.checkpoint import ResumePoint
from elasticml.training.driving import JobDriver
from elasticml.training.trainer_runner import TrainerRunner


class Cluster(Protocol):
    """What a driver requests of its cluster."""

    def inject(self, command: cmd.Inject) -> None:
        """Perform a planned fault."""

    def request(self, count: int) -> None:
        """Start containers."""

    def release(self, addresses: Sequence[str]) -> None:
        """Take containers back."""


class VirtualDriver(JobDriver):
    """Drives a job in virtual time, on the virtual network.

    Parameters
    ----------
    environment : Environment
    settings : DriverSettings
    check_every_event : bool
        Check all invariants after every event (up to 64 members), not only at membership changes
        and round boundaries.
    """

    def __init__(
        self, environment: Environment, settings: DriverSettings, check_every_event: bool
    ) -> None:
        self.environment = environment
        self.endpoint = Endpoint("driver")
        session = environment.session
        policies = policies_of_job(session.record, settings)
        super().__init__(session, Driver(settings, policies, check_every_event))
        #: Performs faults and provides containers; set by the world before the job starts.
        self.cluster: Cluster
        self.has_ended = False
        #: The state after the last round, if the job has checkpoints: another driver can resume it.
        self.resume_point: ResumePoint | None = None
        self._ports: dict[MemberId, Port] = {}
        self._member_of: dict[Port, MemberId] = {}
        self._arrivals: dict[int, Port] = {}
        self._n_arrivals = 0
        self._arrays: dict[int, Vector] = {}
        #: The header of the current exchange with its model, as it is sent to members.
        self._sent: Work | None = None

    def feed(self, event: ev.Event) -> None:
        """Pass an event to the machine and perform its commands."""
        try:
            super().feed(event)
        finally:
            self.environment.clock.interrupt()  # the story may have grown

    def cancel(self) -> None:
        """End the job now."""
        if not self.has_ended:
            self.feed(ev.CancelRequested(cause="client"))

    # --- messages ------------------------------------------------------------------------------

    def connect(self, worker: Endpoint) -> Port:
        """Open a connection to a worker; return the worker's end."""
        port, theirs = self.environment.network.connect(self.endpoint, worker)
        port.on_message = lambda message: self._on_message(port, message)
        port.on_closed = lambda: self._on_closed(port)
        return theirs

    def _on_message(self, port: Port, message: Any) -> None:
        if isinstance(message, ev.Arrived):
            self._n_arrivals += 1
            self._arrivals[self._n_arrivals] = port
            self.feed(replace(message, arrival=self._n_arrivals))
        elif port in self._member_of:  # otherwise from a former incarnation
            if isinstance(message, SentPartial | SentAnchor):
                event = message.event
                assert event.handle is not None
                self._arrays[event.handle] = message.array
                self.report(self._member_of[port], event)
            else:
                self.report(self._member_of[port], message)

    def _on_closed(self, port: Port) -> None:
        member = self._member_of.pop(port, None)
        if member is not None and self._ports.pop(member, None) is not None:
            self.feed(ev.Lost(cause="link", member=member, reason="closed"))

    # --- effects -------------------------------------------------------------------------------

    def now_s(self) -> float:
        """Return the virtual time."""
        return self.environment.clock.now_s

    def sent_bytes(self) -> int:
        """Return the bytes that were sent on the network."""
        return self.environment.network.sent_bytes

    def computation_counts(self) -> Mapping[str, int]:
        """Return the number of computations of each member."""
        return {str(member): n for member, n in self.environment.computations.items()}

    def compute_times(self, exchange: int) -> dict[str, float]:
        """Return the compute seconds of an exchange, by slot."""
        return self.environment.compute_s.pop(ExchangeId(exchange), {})

    def block_summaries(self) -> Iterable[BlockSummary]:
        """Return the summaries of the blocks that members have read."""
        return self.environment.summaries.values()

    def array(self, handle: int) -> Vector:
        """Return the array with a handle."""
        return self._arrays[handle]

    def free(self, handle: int) -> None:
        """Free an array."""
        self._arrays.pop(handle, None)

    def _forget(self, command: cmd.Forget) -> None:
        super()._forget(command)
        self.environment.compute_s.pop(command.exchange, None)

    def _merge_facts(self, command: cmd.MergeFacts) -> None:
        super()._merge_facts(command)
        self.environment.library.source = self.driver_session.source

    def inject(self, command: cmd.Inject) -> None:
        """Perform a planned fault."""
        self.cluster.inject(command)

    def request(self, command: cmd.RequestMembers) -> None:
        """Request containers."""
        self.cluster.request(command.count)

    def release(self, command: cmd.ReleaseContainers) -> None:
        """Give containers back."""
        self.cluster.release(command.addresses)

    def finish(self, command: cmd.EndJob) -> None:
        """End the world."""
        self.has_ended = True

    # --- members -------------------------------------------------------------------------------

    def welcome(self, command: cmd.Welcome) -> bool:
        """Send an arrived worker its member id; return False if its connection has closed."""
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
        nbytes = message_bytes(order)
        if self.environment.library.is_in_memory:
            # Only the driver has the data: it is sent with the order.
            if isinstance(order, cmd.ReadBlocks):
                nbytes += self.environment.library.nbytes(order.blocks)
            elif isinstance(order, cmd.LoadChunks):
                nbytes += self.environment.library.nbytes({id.block for id in order.chunks})
        port.send(order, nbytes)

    def forward_model(self, command: cmd.ForwardModel) -> None:
        """Send the model of the current exchange to a member."""
        port, training = self._ports.get(command.to), self.driver_session.training
        running = self.machine.exchanges.running
        if port is None or training is None or running is None:
            return
        sent = self._sent
        if sent is None or sent.exchange != command.exchange:
            training.packed.setflags(write=False)  # all members share it
            header = running.header
            sent = self._sent = header.with_model(unpack(training.packed, header.model))
        port.send(sent, self.environment.shared(sent).down_bytes)

    # --- the trainer ------------------------------------------------------------------------------

    def start(self, training: TrainerRunner) -> None:
        """Run the trainer to its first request."""
        self._step(0.0, training.start)

    def deliver(
        self, command: cmd.Deliver, inputs: list[Vector], anchor: list[tuple[int, Vector]]
    ) -> None:
        """Pass the outcome of an exchange to the trainer."""
        training = self.driver_session.training
        assert training is not None and training.exchange is not None
        n_values = up_values(training.exchange)
        seconds = self.environment.merge_seconds(n_values, len(inputs) + len(anchor))
        seconds += self.environment.options.overhead_seconds(training.exchange.operation)
        self._step(seconds, training.deliver, command, inputs, anchor)

    def proceed(self, command: cmd.Continue) -> None:
        """Answer the end of a round."""
        session = self.driver_session
        assert session.training is not None
        if command.go_on and session.record.checkpoint is not None:
            self.resume_point = session.resume_point(self.machine, self.now_s(), command.tuned)
        self._step(0.0, session.training.proceed, command.go_on, command.tuned)

    def _step(self, seconds: float, function: Callable[..., ev.Event], *args: Any) -> None:
        """Run a step of the trainer; its event is handled after the virtual duration."""
        event = self.after_step(function(*args))
        self.environment.clock.after(seconds, self.feed, event)
