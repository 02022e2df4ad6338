"""A virtual worker process: its successive members, and the chunks that outlive them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, Protocol

from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import DataError
from elasticml.ids import NO_EXCHANGE, ChunkId, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.sim.environment import Environment
from elasticml.sim.message_sizes import message_bytes
from elasticml.sim.network import Endpoint, Port
from elasticml.training.fingerprint import cpu_class

#: What a connection between two members is for.
Purpose = Literal["child", "chunks", "mail"]


class Incarnation(Protocol):
    """What a worker needs to know of its member."""

    me: MemberId
    is_over: bool

    def on_driver_message(self, message: Any) -> None:
        """Handle a message from the driver."""

    def feed(self, event: ev.Event) -> None:
        """Pass an event to the machine and perform its commands."""

    def accepts(self, purpose: Purpose) -> bool:
        """Whether the member takes connections for this purpose."""

    def accept(self, purpose: Purpose, source: MemberId, port: Port) -> None:
        """Serve a connection that another member has opened."""

    def close(self) -> None:
        """End this incarnation: close all its connections."""


class Worker:
    """One process, from its start to its end.

    Parameters
    ----------
    workers : Workers
        All workers of the world.
    number : int
        Unique among them.
    """

    __slots__ = (
        "_computing_until_s",
        "_reading_until_s",
        "_workers",
        "address",
        "chunks",
        "computed",
        "endpoint",
        "environment",
        "held_bytes",
        "host",
        "is_closing",
        "life",
        "notice_before",
        "number",
        "slot",
    )

    def __init__(self, workers: Workers, number: int) -> None:
        self._workers = workers
        self.environment = workers.environment
        self.number = number
        self.address = f"sim://{number}"
        self.host = f"host{number % self.environment.options.hosts}"
        self.endpoint = Endpoint(self.address, self.environment.card_of(self.host))
        #: Its member of the job; None before the first welcome.
        self.life: Incarnation | None = None
        #: The slot of its last member.
        self.slot: int | None = None
        #: The chunks that it holds, owned or not, each with its last state here.
        self.chunks: dict[ChunkId, Chunk] = {}
        self.held_bytes = 0
        #: The last exchange that its last member computed.
        self.computed = NO_EXCHANGE
        #: It is about to stop and is not offered again.
        self.is_closing = False
        #: End and reason of a notice that came before the welcome.
        self.notice_before: tuple[float, str] | None = None
        self._computing_until_s = 0.0
        self._reading_until_s = 0.0

    # --- time ------------------------------------------------------------------------------

    def later(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Perform an action after some seconds: after the pause if it is paused, never if dead."""
        if seconds > 0:
            self.environment.clock.after(
                seconds, self.environment.network.perform, self.endpoint, action, *args
            )
        else:
            self.environment.network.perform(self.endpoint, action, *args)

    def computing_s(self, seconds: float) -> float:
        """Return the seconds until a computation requested now is done, after earlier ones."""
        now_s = self.environment.clock.now_s
        begin_s = max(now_s, self._computing_until_s)
        self._computing_until_s = self.environment.processors.done_s(begin_s, seconds)
        return self._computing_until_s - now_s

    def reading_s(self, seconds: float) -> float:
        """Return the seconds until data requested now have been read, after earlier reads."""
        now_s = self.environment.clock.now_s
        self._reading_until_s = max(now_s, self._reading_until_s) + seconds
        return self._reading_until_s - now_s

    # --- members ------------------------------------------------------------------------------

    def offer(self) -> None:
        """Offer the worker: the driver opens a connection, and the worker announces itself."""
        if self.endpoint.is_alive and not self.is_closing:
            self.later(2 * self.environment.options.latency_s, self._report)

    def _report(self) -> None:
        mine = self._workers.connect_to_driver(self.endpoint)
        mine.on_message = lambda message: self._welcomed(mine, message)
        mine.on_closed = lambda: self._ended(mine)
        arrived = ev.Arrived(
            cause=self.address,
            arrival=0,
            address=self.address,
            host=self.host,
            pid=self.number,
            slot=self.slot,
            holdings=tuple(sorted(self.chunks)),
            limit_bytes=self.environment.options.limit_bytes,
            cpu=cpu_class(),
            blas_threads=self.environment.blas_threads,
            computed=self.computed,
        )
        mine.send(arrived, message_bytes(arrived))

    def _welcomed(self, port: Port, message: Any) -> None:
        if not isinstance(message, cmd.Welcome):
            return
        self.life = self._workers.new_life(message.member, self, port)
        self.slot = message.member.slot
        port.on_message = self.life.on_driver_message
        if self.notice_before is not None:
            end_s, reason = self.notice_before
            self._tell_notice(max(0.0, end_s - self.environment.clock.now_s), reason)

    def connect(
        self, purpose: Purpose, source: MemberId, address: str, target: MemberId
    ) -> Port | None:
        """Open a connection between two members; None if the target is gone or does not accept.

        The handshake is the caller's time.
        """
        worker = self._workers.by_address.get(address)
        life = None if worker is None or not worker.endpoint.is_alive else worker.life
        if worker is None or life is None or life.me != target or life.is_over:
            return None
        if not life.accepts(purpose):
            return None
        mine, theirs = self.environment.network.connect(self.endpoint, worker.endpoint)
        life.accept(purpose, source, theirs)
        return mine

    def hold(self, ids: Iterable[ChunkId]) -> None:
        """Store the bodies of chunks; chunks that are stored already keep their state.

        Raises
        ------
        DataError
            When they do not fit into the worker's memory.
        """
        for id in ids:
            if id not in self.chunks:
                self.chunks[id] = self.environment.library.lend(id)
                self.held_bytes += self.chunks[id].nbytes
        limit = self.environment.options.limit_bytes
        if limit is not None and self.held_bytes > limit:
            raise DataError(
                f"the chunks on {self.address} take {self.held_bytes} bytes, its limit is {limit}",
                held=self.held_bytes,
                limit=limit,
            )

    def drop(self, ids: Iterable[ChunkId]) -> None:
        """Remove chunks, body and state."""
        for id in ids:
            chunk = self.chunks.pop(id, None)
            self.held_bytes -= 0 if chunk is None else chunk.nbytes

    def dismissed(self, life: Incarnation, is_final: bool) -> None:
        """End a member that the driver has dismissed, for good or to return with its chunks."""
        life.close()
        if is_final:
            self.drop(list(self.chunks))
            if self.is_closing:
                self.environment.network.kill(self.endpoint)  # the worker has nothing left to do
        else:
            self.offer()

    def _ended(self, port: Port) -> None:
        """Handle the closed connection to the driver."""
        if self.life is not None and not self.life.is_over:
            self.life.close()
        self.offer()

    # --- the end of the process -----------------------------------------------------------------

    @property
    def is_serving(self) -> bool:
        """Whether it has a living member and is not about to stop."""
        return (
            self.endpoint.is_alive
            and not self.endpoint.is_paused
            and not self.is_closing
            and self.life is not None
            and not self.life.is_over
        )

    def kill(self) -> None:
        """Kill the process."""
        self.environment.network.kill(self.endpoint)

    def notice(self, grace_s: float, reason: str) -> None:
        """Announce its end; kill it after the grace period."""
        self.is_closing = True
        if self.life is not None and not self.life.is_over:
            self._tell_notice(grace_s, reason)
        else:
            self.notice_before = (self.environment.clock.now_s + grace_s, reason)
        self.environment.clock.after(grace_s, self.kill)

    def _tell_notice(self, grace_s: float, reason: str) -> None:
        assert self.life is not None
        self.life.feed(ev.Noticed(member=self.life.me, grace_s=grace_s, reason=reason))


class Workers:
    """The workers of a world.

    Parameters
    ----------
    environment : Environment
    connect_to_driver : callable
        Opens a connection from an endpoint to the driver.
    new_life : callable
        Creates the member that a worker has been welcomed as.
    """

    def __init__(
        self,
        environment: Environment,
        connect_to_driver: Callable[[Endpoint], Port],
        new_life: Callable[[MemberId, Worker, Port], Incarnation],
    ) -> None:
        self.environment = environment
        self.connect_to_driver = connect_to_driver
        self.new_life = new_life
        self.by_address: dict[str, Worker] = {}

    def start(self) -> None:
        """Start a new worker, which offers itself to the driver."""
        worker = Worker(self, len(self.by_address))
        self.by_address[worker.address] = worker
        worker.offer()

    def serving(self) -> list[Worker]:
        """Return the workers with a member that are not about to end, by slot."""
        serving = [w for w in self.by_address.values() if w.is_serving]
        return sorted(serving, key=lambda w: w.slot or 0)
