"""A virtual worker process: one life of a member after another, and what outlives a life."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from elasticml.control.member import FINAL
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import DataError
from elasticml.ids import NO_EXCHANGE, ChunkId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.sim.network import Endpoint, Port
from elasticml.sim.virtual_member import VirtualMember
from elasticml.training.fingerprint import cpu_class

if TYPE_CHECKING:
    from elasticml.sim.world import World


class Worker:
    """One process, from its start to its end.

    Parameters
    ----------
    world : World
    number : int
        Counted up over all workers of the world.
    """

    __slots__ = (
        "_computing_until_s",
        "_reading_until_s",
        "address",
        "chunks",
        "computed",
        "endpoint",
        "held_bytes",
        "host",
        "is_closing",
        "life",
        "number",
        "slot",
        "world",
    )

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.address = f"sim://{number}"
        self.host = f"host{number % world.options.hosts}"
        self.endpoint = Endpoint(self.address)
        #: Its member of the job; None before the first welcome.
        self.life: VirtualMember | None = None
        #: The slot of its last life.
        self.slot: int | None = None
        #: What it holds, owned or not, each with the state that it had here last.
        self.chunks: dict[ChunkId, Chunk] = {}
        self.held_bytes = 0
        #: The last exchange that its last life has computed.
        self.computed = NO_EXCHANGE
        #: It is about to go and is not offered again.
        self.is_closing = False
        self._computing_until_s = 0.0
        self._reading_until_s = 0.0

    # --- time ------------------------------------------------------------------------------

    def later(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Do something in a while: later when paused then, never when dead."""
        if seconds > 0:
            self.world.clock.after(
                seconds, self.world.network.perform, self.endpoint, action, *args
            )
        else:
            self.world.network.perform(self.endpoint, action, *args)

    def computing_s(self, seconds: float) -> float:
        """Seconds until a computation that is asked for now is done, after those before it."""
        now_s = self.world.clock.now_s
        self._computing_until_s = max(now_s, self._computing_until_s) + seconds
        return self._computing_until_s - now_s

    def reading_s(self, seconds: float) -> float:
        """Seconds until something that shall be read now has been read."""
        now_s = self.world.clock.now_s
        self._reading_until_s = max(now_s, self._reading_until_s) + seconds
        return self._reading_until_s - now_s

    # --- lives --------------------------------------------------------------------------------

    def offer(self) -> None:
        """Offer to serve: the driver opens a connection, the worker reports for duty."""
        if self.endpoint.is_alive and not self.is_closing:
            self.later(2 * self.world.options.latency_s, self._report)

    def _report(self) -> None:
        driver = self.world.driver
        theirs, mine = self.world.network.connect(driver.endpoint, self.endpoint)
        driver.accept(theirs)
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
            limit_bytes=self.world.options.limit_bytes,
            cpu=cpu_class(),
            blas_threads=self.world.blas_threads,
            computed=self.computed,
        )
        mine.send(arrived, driver.nbytes_of(arrived))

    def _welcomed(self, port: Port, message: Any) -> None:
        if not isinstance(message, cmd.Welcome):
            return
        self.life = VirtualMember(message.member, self, port)
        self.slot = message.member.slot
        port.on_message = self.life.on_driver_message

    def hold(self, ids: Iterable[ChunkId]) -> None:
        """Have the bodies of these chunks here; what is here already keeps its state.

        Raises
        ------
        DataError
            When they do not fit the worker's memory.
        """
        for id in ids:
            if id not in self.chunks:
                self.chunks[id] = self.world.library.lend(id)
                self.held_bytes += self.chunks[id].nbytes
        limit = self.world.options.limit_bytes
        if limit is not None and self.held_bytes > limit:
            raise DataError(
                f"the chunks on {self.address} take {self.held_bytes} bytes, its limit is {limit}",
                held=self.held_bytes,
                limit=limit,
            )

    def drop(self, ids: Iterable[ChunkId]) -> None:
        """Forget chunks, body and state."""
        for id in ids:
            chunk = self.chunks.pop(id, None)
            self.held_bytes -= 0 if chunk is None else chunk.nbytes

    def dismissed(self, life: VirtualMember, reason: str) -> None:
        """End a life at the driver's word: for good, or to come back with the same chunks."""
        life.close()
        if reason in FINAL:
            self.drop(list(self.chunks))
            if self.is_closing:
                self.world.network.kill(self.endpoint)  # nothing is left to do here
        else:
            self.offer()

    def _ended(self, port: Port) -> None:
        """Handle the closed connection to the driver."""
        if self.life is not None and not self.life.is_over:
            self.life.close()
        self.offer()

    # --- its end --------------------------------------------------------------------------------

    @property
    def is_serving(self) -> bool:
        """Whether it has a living member and no end is planned for it."""
        return (
            self.endpoint.is_alive
            and not self.endpoint.is_paused
            and not self.is_closing
            and self.life is not None
            and not self.life.is_over
        )

    def kill(self) -> None:
        """End it without a word."""
        self.world.network.kill(self.endpoint)

    def notice(self, grace_s: float, reason: str) -> None:
        """Say that it will go; it is killed when the grace is over."""
        self.is_closing = True
        if self.life is not None and not self.life.is_over:
            me = self.life.me
            self.life.feed(ev.Noticed(member=me, grace_s=grace_s, reason=reason))
        self.world.clock.after(grace_s, self.kill)
