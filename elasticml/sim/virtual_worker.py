"""A virtual worker process: its successive members, and the chunks that outlive them."""

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
        Unique among all workers of the world.
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
        #: The slot of its last member.
        self.slot: int | None = None
        #: The chunks that it holds, owned or not, each with its last state here.
        self.chunks: dict[ChunkId, Chunk] = {}
        self.held_bytes = 0
        #: The last exchange that its last member computed.
        self.computed = NO_EXCHANGE
        #: It is about to stop and is not offered again.
        self.is_closing = False
        self._computing_until_s = 0.0
        self._reading_until_s = 0.0

    # --- time ------------------------------------------------------------------------------

    def later(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Perform an action after some seconds: after the pause if it is paused, never if dead."""
        if seconds > 0:
            self.world.clock.after(
                seconds, self.world.network.perform, self.endpoint, action, *args
            )
        else:
            self.world.network.perform(self.endpoint, action, *args)

    def computing_s(self, seconds: float) -> float:
        """Return the seconds until a computation requested now is done, after earlier ones."""
        now_s = self.world.clock.now_s
        self._computing_until_s = max(now_s, self._computing_until_s) + seconds
        return self._computing_until_s - now_s

    def reading_s(self, seconds: float) -> float:
        """Return the seconds until data requested now have been read, after earlier reads."""
        now_s = self.world.clock.now_s
        self._reading_until_s = max(now_s, self._reading_until_s) + seconds
        return self._reading_until_s - now_s

    # --- members ------------------------------------------------------------------------------

    def offer(self) -> None:
        """Offer the worker: the driver opens a connection, and the worker announces itself."""
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
        """Store the bodies of chunks; chunks that are stored already keep their state.

        Raises
        ------
        DataError
            When they do not fit into the worker's memory.
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
        """Remove chunks, body and state."""
        for id in ids:
            chunk = self.chunks.pop(id, None)
            self.held_bytes -= 0 if chunk is None else chunk.nbytes

    def dismissed(self, life: VirtualMember, reason: str) -> None:
        """End a member that the driver has dismissed, for good or to return with its chunks."""
        life.close()
        if reason in FINAL:
            self.drop(list(self.chunks))
            if self.is_closing:
                self.world.network.kill(self.endpoint)  # the worker has nothing left to do
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
        self.world.network.kill(self.endpoint)

    def notice(self, grace_s: float, reason: str) -> None:
        """Announce its end; kill it after the grace period."""
        self.is_closing = True
        if self.life is not None and not self.life.is_over:
            me = self.life.me
            self.life.feed(ev.Noticed(member=me, grace_s=grace_s, reason=reason))
        self.world.clock.after(grace_s, self.kill)
