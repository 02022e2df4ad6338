"""The driver's links to workers: invitations, arrivals, and the member behind each link."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elasticml.collective.frames import Frame
from elasticml.collective.transport import Allocate, Link, LinkClosedError, Transport
from elasticml.errors import ElasticmlError
from elasticml.ids import MemberId
from elasticml.runtime.peer import Peer

logger = logging.getLogger(__name__)

#: Attempts to connect to a worker that does not answer: it may be stopped, or busy for a while.
CONNECTS_MAX = 100
#: Links that are opened at the same time: of thousands, each would take longer than its timeout.
CONNECTING_MAX = 256
#: First and longest pause between attempts; each pause is twice the previous one.
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkHandlers:
    """What the driver does when something happens on a link."""

    #: Allocates buffers for payloads.
    allocate: Allocate
    #: A frame from a current member.
    frame: Callable[[MemberId, Frame], None]
    #: A worker offers itself, with a number to pass to ``welcome``.
    arrival: Callable[[int, Mapping[str, Any]], None]
    #: The link of a current member has closed, and why.
    lost: Callable[[MemberId, str], None]
    #: A worker cannot take part, and retrying would not help.
    refused: Callable[[ElasticmlError], None]


class DriverLinks:
    """Links to workers, from the invitation to the end of each member.

    Parameters
    ----------
    transport : Transport
    hello : mapping
        The first message on each link that the driver opens.
    handlers : LinkHandlers
    pause : callable (float)
        Sleeps for a number of seconds.
    """

    def __init__(
        self,
        transport: Transport,
        hello: Mapping[str, Any],
        handlers: LinkHandlers,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._transport = transport
        self._hello = hello
        self._handlers = handlers
        self._pause = pause
        self._peers: dict[MemberId, Peer] = {}
        self._member_of: dict[Peer, MemberId] = {}
        self._arrivals: dict[int, Peer] = {}
        self._n_arrivals = 0
        #: The task that serves each invited address. Retiring a member frees its address: the
        #: worker may announce itself again before its previous link is seen to close.
        self._invited: dict[str, asyncio.Task[None]] = {}
        self._address_of: dict[Peer, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._past_bytes = 0
        self._closed = False
        self._connecting = asyncio.Semaphore(CONNECTING_MAX)

    def invite(self, address: str) -> None:
        """Open a link to a worker that has announced itself; do nothing if one is open."""
        if address not in self._invited and not self._closed:
            task = asyncio.get_running_loop().create_task(self._serve(address))
            self._invited[address] = task
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._forget(address, done))

    def uninvite(self, address: str) -> None:
        """Stop connecting to a worker that is gone; open links close by themselves."""
        if address in self._invited and address not in self._address_of.values():
            self._invited.pop(address).cancel()

    def _forget(self, address: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._invited.get(address) is task:
            del self._invited[address]

    async def _connect(self, address: str) -> Link | None:
        """Open a link, with retries; return None if the worker refuses or never answers."""
        pause_s = PAUSE_S_MIN
        for _ in range(CONNECTS_MAX):
            try:
                async with self._connecting:
                    return await self._transport.connect(address, self._hello)
            except LinkClosedError as error:
                logger.info("worker %s does not answer: %s", address, error)
            except ElasticmlError as error:
                logger.warning("worker %s cannot take part: %s", address, error)
                self._handlers.refused(error)
                return None
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
        logger.warning("worker %s did not answer %d attempts to connect", address, CONNECTS_MAX)
        return None

    async def _serve(self, address: str) -> None:
        link = await self._connect(address)
        if link is None:
            return
        peer = Peer(link, self._handlers.allocate, self._on_frame, self._on_closed)
        self._address_of[peer] = address
        try:
            await peer.run()
        finally:
            self._address_of.pop(peer, None)
            self._past_bytes += link.sent_bytes

    def _on_frame(self, peer: Peer, frame: Frame) -> None:
        member = self._member_of.get(peer)
        if member is not None:
            self._handlers.frame(member, frame)
        elif frame.prefix.get("type") == "Arrive":
            self._n_arrivals += 1
            self._arrivals[self._n_arrivals] = peer
            # It is where the driver has reached it, whatever it says: another member may be there.
            arrival = {**frame.prefix, "address": self._address_of[peer]}
            self._handlers.arrival(self._n_arrivals, arrival)

    def _on_closed(self, peer: Peer, reason: str) -> None:
        self._arrivals = {n: p for n, p in self._arrivals.items() if p is not peer}
        member = self._member_of.pop(peer, None)
        if member is not None:
            del self._peers[member]
            self._handlers.lost(member, reason)

    def welcome(self, arrival: int, member: MemberId) -> bool:
        """Assign an arrival to a member; return False if its link has closed meanwhile."""
        peer = self._arrivals.pop(arrival, None)
        if peer is None:
            return False
        self._peers[member] = peer
        self._member_of[peer] = member
        return True

    def send(self, member: MemberId, frame: Frame) -> None:
        """Queue a frame; drop it if the member is gone."""
        peer = self._peers.get(member)
        if peer is not None:
            peer.send(frame)

    def tell(self, member: MemberId, message: dict[str, Any]) -> None:
        """Queue a control message; drop it if the member is gone."""
        peer = self._peers.get(member)
        if peer is not None:
            peer.tell(message)

    def retire(self, member: MemberId, message: dict[str, Any]) -> None:
        """Send a last message to a member and ignore what it sends from now on."""
        peer = self._peers.pop(member, None)
        if peer is not None:
            del self._member_of[peer]
            self._invited.pop(self._address_of[peer], None)
            peer.tell(message)
            peer.retire()

    async def drained(self, seconds: float) -> None:
        """Wait until all workers have read what was sent and closed their links, or in time."""
        for address in list(self._invited):
            self.uninvite(address)
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=seconds)

    def sent_bytes(self) -> int:
        """Return the bytes sent on all links so far."""
        return self._past_bytes + sum(p.link.sent_bytes for p in self._peers.values())

    async def close(self) -> None:
        """Close all links without calling ``on_lost``; what is sent to members is dropped now."""
        self._closed = True
        self._past_bytes = self.sent_bytes()
        for peer in [*self._peers.values(), *self._arrivals.values()]:
            peer.close()
        # A job that is closed while it runs still gets events, and orders members.
        self._peers, self._member_of, self._arrivals = {}, {}, {}
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
