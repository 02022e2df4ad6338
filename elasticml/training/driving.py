"""What drives a job: the driver machine, the trainer and the story.

A shell gives it a clock, links to members and a place to run the trainer's steps: asyncio, Dask's
links and threads, or their virtual counterparts in the simulator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from elasticml.control.driver import Driver
from elasticml.data.dataset_stats import BlockSummary
from elasticml.errors import ElasticmlError
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.story.records import ExchangeEnded, StoryRecord
from elasticml.training.array_buffers import Vector
from elasticml.training.driver_session import DriverSession
from elasticml.training.trainer_runner import TrainerRunner


class JobDriver(ABC):
    """Turns events into commands and performs them; a shell adds what its world is made of.

    Parameters
    ----------
    driver_session : DriverSession
    machine : Driver
    """

    def __init__(self, driver_session: DriverSession, machine: Driver) -> None:
        self.driver_session = driver_session
        self.machine = machine
        self._queue: deque[ev.Event] = deque()
        self._is_draining = False
        self._effects: Mapping[type, Callable[[Any], None]] = {
            cmd.Record: self._record,
            cmd.AddRow: self._add_row,
            cmd.Welcome: self._welcome,
            cmd.Dismiss: self.dismiss,
            cmd.ForwardModel: self.forward_model,
            cmd.Refuse: self._refuse,
            cmd.Forget: self._forget,
            # A member's link to the driver closes with its life, not with its place in the tree.
            cmd.Detach: lambda command: None,
            cmd.MergeFacts: self._merge_facts,
            cmd.StartTrainer: self._start_trainer,
            cmd.Deliver: self._deliver,
            cmd.Continue: self.proceed,
            cmd.Inject: self.inject,
            cmd.RequestMembers: self.request,
            cmd.ReleaseContainers: self.release,
            cmd.EndJob: self._end,
        }

    # --- what a shell adds ----------------------------------------------------------------------

    @abstractmethod
    def now_s(self) -> float:
        """Return the seconds since the job began."""

    @abstractmethod
    def sent_bytes(self) -> int:
        """Return the bytes that were sent in the job so far."""

    @abstractmethod
    def computation_counts(self) -> Mapping[str, int]:
        """Return how often each member has computed."""

    @abstractmethod
    def compute_times(self, exchange: int) -> dict[str, float]:
        """Return, by slot, how long members computed in an exchange that has ended; once."""

    @abstractmethod
    def block_summaries(self) -> Iterable[BlockSummary]:
        """Return what members have reported of the blocks."""

    @abstractmethod
    def array(self, handle: int) -> Vector:
        """Return the array that members sent under a handle."""

    @abstractmethod
    def free(self, handle: int) -> None:
        """Free an array that members sent."""

    @abstractmethod
    def welcome(self, command: cmd.Welcome) -> bool:
        """Tell an arrival which member it is; return False when its link has closed."""

    @abstractmethod
    def order(self, order: cmd.Order) -> None:
        """Send an order to a member, with the chunks that only the driver has."""

    @abstractmethod
    def dismiss(self, command: cmd.Dismiss) -> None:
        """Send the last order to a member; nothing that it sends counts any more."""

    @abstractmethod
    def forward_model(self, command: cmd.ForwardModel) -> None:
        """Send the model of the exchange under way to a member."""

    @abstractmethod
    def start(self, training: TrainerRunner) -> None:
        """Run the trainer to its first request."""

    @abstractmethod
    def deliver(
        self, command: cmd.Deliver, inputs: list[Vector], anchor: list[tuple[int, Vector]]
    ) -> None:
        """Run the trainer's step that takes the outcome of an exchange."""

    @abstractmethod
    def proceed(self, command: cmd.Continue) -> None:
        """Run the trainer's step after the end of a round."""

    @abstractmethod
    def inject(self, command: cmd.Inject) -> None:
        """Perform a planned fault."""

    @abstractmethod
    def request(self, command: cmd.RequestMembers) -> None:
        """Ask the cluster for members."""

    @abstractmethod
    def release(self, command: cmd.ReleaseContainers) -> None:
        """Give containers back to the cluster."""

    @abstractmethod
    def finish(self, command: cmd.EndJob) -> None:
        """Stop what the shell runs for the job: its last record is written."""

    # --- events and commands --------------------------------------------------------------------

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

    def _handle(self, event: ev.Event) -> None:
        desk, now_s = self.driver_session, self.now_s()
        desk.record_message(event, now_s)
        for command in self.commands_after(event, now_s):
            desk.record_message(command, self.now_s())
            effect = self._effects.get(type(command))
            if effect is not None:
                effect(command)
            else:
                assert isinstance(command, cmd.Order), f"no shell performs {command}"
                self.order(command)
        if isinstance(event, ev.Failed) and self.machine.state.stage != "ended":
            desk.error = None  # of a member that was excluded

    def commands_after(self, event: ev.Event, now_s: float) -> list[cmd.Command]:
        """Return what the machine commands; after an error of its own, the job's orderly end."""
        try:
            return self.machine.handle(event, now_s)
        except ElasticmlError as error:
            # A broken invariant must not be summed into a model.
            return self.machine.handle(self.driver_session.fail(error), now_s)

    def after_step(self, event: ev.Event) -> ev.Event:
        """Return the event that a trainer's step has led to: its error, when it failed.

        Raises
        ------
        BaseException
            A trainer's error that is no ``ElasticmlError``.
        """
        error = None if self.driver_session.training is None else self.driver_session.training.error
        if isinstance(error, ElasticmlError):
            return self.driver_session.fail(error)
        if error is not None:
            raise error
        return event

    # --- effects that are the same in every world -------------------------------------------------

    def write(self, record: StoryRecord) -> None:
        """Append a record to the story."""
        self.driver_session.journal.write(self.now_s(), record)

    def _record(self, command: cmd.Record) -> None:
        record = command.record
        if isinstance(record, ExchangeEnded):
            record = replace(
                record,
                compute_s=self.compute_times(record.exchange),
                digest=self.driver_session.digest(),
            )
        self.write(record)

    def _add_row(self, command: cmd.AddRow) -> None:
        self.driver_session.add_row(self.now_s(), command.row, self.sent_bytes(), command.idle)

    def _welcome(self, command: cmd.Welcome) -> None:
        if not self.welcome(command):
            self.feed(ev.Lost(cause="welcome", member=command.member, reason="closed"))

    def _refuse(self, command: cmd.Refuse) -> None:
        self.free(command.handle)

    def _forget(self, command: cmd.Forget) -> None:
        for handle in command.handles:
            self.free(handle)

    def _merge_facts(self, command: cmd.MergeFacts) -> None:
        self.feed(
            self.driver_session.set_facts(self.block_summaries(), command.survey, self.now_s())
        )

    def _start_trainer(self, command: cmd.StartTrainer) -> None:
        refused = self.driver_session.make_trainer(self.machine.state.settings.absent)
        if refused is not None:
            self.feed(refused)
            return
        assert self.driver_session.training is not None
        self.start(self.driver_session.training)

    def _deliver(self, command: cmd.Deliver) -> None:
        inputs = [self.array(handle) for handle in command.inputs]
        anchor = [(part.sign, self.array(part.handle)) for part in command.anchor]
        self.deliver(command, inputs, anchor)

    def _end(self, command: cmd.EndJob) -> None:
        self.driver_session.close(
            command,
            self.machine,
            self.now_s(),
            sent_bytes=self.sent_bytes(),
            computations=self.computation_counts(),
        )
        self.finish(command)
