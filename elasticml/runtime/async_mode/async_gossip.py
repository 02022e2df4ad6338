"""Gossip of an asynchronous member: states go to random peers and come from any.

Everything here runs on the event loop and never waits for the training loop. A link is opened when
the first state is sent to a peer. A peer that cannot be reached is not drawn for a while. The
driver announces peers that are gone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import numpy as np

from elasticml.algorithms.async_sgd.address_book import ASK_S, ASKED_MAX, AddressBook
from elasticml.algorithms.async_sgd.base import Mail, Mailbox
from elasticml.collective.frames import Frame, Header, Kind, check_payload
from elasticml.collective.transport import Link, LinkClosedError, Transport
from elasticml.errors import ElasticmlError, RemoteProtocolError
from elasticml.ids import MemberId
from elasticml.protocol.commands import Peers
from elasticml.runtime.frame_payloads import bytes_of, vector_of
from elasticml.runtime.peer import Peer
from elasticml.training.array_buffers import Vector
from elasticml.training.message_codec import Shapes, message_values, unpack_message


class SendQueue:
    """A bounded queue of states that wait for the network.

    Parameters
    ----------
    places : int, >= 1
        Capacity.
    wake : callable
        Wakes the network's thread after a post; may be called from any thread.
    """

    def __init__(self, places: int, wake: Callable[[], None]) -> None:
        self.places = places
        self._wake = wake
        self._waiting: deque[tuple[Vector, int | None]] = deque()
        #: Written by the loop's thread only.
        self._posted = 0
        #: Written by the network's thread only: states that have left this host or were dropped.
        self._done = 0
        self._room = threading.Event()
        #: Called when a place is free.
        self.freed = self._room.set

    @property
    def fill(self) -> float:
        """Share of the places that hold unsent states."""
        return (self._posted - self._done) / self.places

    def has_room(self) -> bool:
        """Whether there is room for another state."""
        return self._posted - self._done < self.places

    def post(self, vector: Vector, rows: int | None) -> None:
        """Queue a state; called by the loop's thread.

        Parameters
        ----------
        vector : ndarray
            The caller does not write to it any more.
        rows : int, optional
            Number of rows that it contains if it is not a whole state.
        """
        self._posted += 1
        self._waiting.append((vector, rows))
        self._wake()

    def wait(self, seconds: float) -> None:
        """Wait at most ``seconds`` for a free place; called by the loop's thread."""
        self._room.clear()
        if not self.has_room():
            self._room.wait(seconds)

    def take(self) -> tuple[Vector, int | None] | None:
        """Return the next state to send; its place stays occupied until ``done``."""
        return self._waiting.popleft() if self._waiting else None

    def done(self) -> None:
        """Free a place; called by the network's thread."""
        self._done += 1
        self.freed()


#: Open links to peers, and seconds after which one of them may be replaced: with more members than
#: links, states go to these, and over time to all members.
LINKS_MAX = 32
TURN_S = 2.0
#: Seconds in which a peer that could not be reached is not drawn.
SHUN_S = 5.0
#: Shortest and longest interval of polling for frames that have not left this host.
LOOK_S_MIN, LOOK_S_MAX = 5e-4, 1e-3
#: Iterations of the event loop before the first poll.
TURNS_FIRST = 3
#: Seconds without progress after which a send is given up: the peer may be stopped.
STUCK_S = 1.0
ASK = "AskState"


class GossipingMember(Protocol):
    """The member that gossips: its mailbox, and requests to its training loop's thread."""

    @property
    def shapes(self) -> Shapes:
        """Shapes of a state's arrays."""
        ...

    @property
    def mailbox(self) -> Mailbox:
        """Receives the states of peers."""
        ...

    def fail(self, error: BaseException) -> None:
        """Report an error that ends the job."""
        ...

    def copy_state(self, give: Callable[[Vector | None], None]) -> None:
        """Copy the whole state as a message and pass it to ``give`` on the event loop."""
        ...

    def begin(self, mail: Mail) -> None:
        """Start from a peer's state."""
        ...


class AsyncGossip:
    """Sends a member's states and puts those of peers into its mailbox.

    Parameters
    ----------
    book : AddressBook
        The member's peers.
    member : GossipingMember
    hello : mapping
        First message on a link to a peer: job and transport.
    transport : Transport
    clock : callable
        Seconds, monotonic.
    pause : callable
        Sleeps for a number of seconds of ``clock``.
    sends : int
        Number of peers that each state is sent to.
    """

    def __init__(
        self,
        book: AddressBook,
        member: GossipingMember,
        hello: Mapping[str, Any],
        *,
        transport: Transport,
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]],
        sends: int,
    ) -> None:
        #: Members that states are sent to.
        self.book = book
        #: States to send; set once after construction.
        self.send_queue: SendQueue | None = None
        #: States given to the network; states for which there was no peer.
        self.n_sent = 0
        self.n_undelivered = 0
        self._hello = hello
        self._transport = transport
        self._clock = clock
        self._pause = pause
        self._member = member
        self._sends = sends
        self._links: dict[MemberId, Peer] = {}
        self._opening: dict[MemberId, asyncio.Task[Peer | None]] = {}
        self._shunned: dict[MemberId, float] = {}
        #: When a link may be replaced next.
        self._turn_s = 0.0
        #: Links that peers have opened, in order.
        self._accepted: dict[Peer, None] = {}
        self._past_bytes = 0
        self._has_state = asyncio.Event()
        #: Peers have been asked for a state, and no more will be.
        self.has_asked = False
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def sent_bytes(self) -> int:
        """Bytes sent on all links to peers so far."""
        peers = [*self._links.values(), *self._accepted]
        return self._past_bytes + sum(peer.link.sent_bytes for peer in peers)

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Close all links and cancel all tasks."""
        for peer in [*self._links.values(), *self._accepted]:
            peer.close()
        for task in list(self._tasks):
            task.cancel()

    # --- peers ----------------------------------------------------------------------------------

    def know(self, order: Peers) -> None:
        """Update the peers after the driver's order."""
        came = dict(zip(order.came, order.addresses, strict=True))
        self.book.update(came, order.gone, is_full=order.is_full)
        for member in [m for m in self._links if m not in self.book.addresses]:
            self._links[member].close()
            self._drop(member)

    def _drop(self, member: MemberId) -> None:
        peer = self._links.pop(member, None)
        if peer is not None:
            self._past_bytes += peer.link.sent_bytes

    def _candidates(self) -> list[MemberId]:
        now_s = self._clock()
        self._shunned = {m: t for m, t in self._shunned.items() if t > now_s}
        return [m for m in self.book.addresses if m not in self._shunned]

    async def _link_to(self, member: MemberId) -> Peer | None:
        """Return the link to a peer, opened if necessary; None if the peer cannot be reached."""
        peer = self._links.get(member)
        if peer is not None:
            return peer
        if member not in self._opening:
            task = self._opening[member] = self._spawn(self._open(member))
            task.add_done_callback(lambda done: self._opening.pop(member, None))
        return await asyncio.shield(self._opening[member])

    async def _open(self, member: MemberId) -> Peer | None:
        hello = {**self._hello, "kind": "mail", "member": str(self.book.me), "to": str(member)}
        try:
            link = await self._transport.connect(self.book.addresses[member], hello)
        except (LinkClosedError, KeyError):
            self._shunned[member] = self._clock() + SHUN_S
            return None
        except ElasticmlError as error:
            self._member.fail(error)
            return None
        if member not in self.book.addresses:
            link.close()
            return None
        self._make_room()

        def closed(peer: Peer, reason: str) -> None:
            if self._links.get(member) is peer:
                self._drop(member)
                self._shunned[member] = self._clock() + SHUN_S

        peer = Peer(link, self._allocate, self._on_frame, closed, watches=True)
        self._links[member] = peer
        self._spawn(peer.run())
        return peer

    def _may_open(self) -> bool:
        """Whether another link may be opened: up to ``LINKS_MAX``, then one every ``TURN_S``."""
        if len(self._links) + len(self._opening) < LINKS_MAX:
            return True
        if self._clock() < self._turn_s:
            return False
        self._turn_s = self._clock() + TURN_S
        return True

    def _make_room(self) -> None:
        """Close random links, idle ones first, until there is room for another."""
        while len(self._links) >= LINKS_MAX:
            idle = [m for m, peer in self._links.items() if peer.n_left() == peer.n_posted]
            member = self.book.choose(1, idle or self._links)[0]
            self._links[member].close()
            self._drop(member)

    # --- out ------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send the states in the send queue."""
        assert self.send_queue is not None
        while (entry := self.send_queue.take()) is not None:
            self._spawn(self._send(*entry))

    async def _send(self, vector: Vector, rows: int | None) -> None:
        """Send a state to random peers; free its place when it has left this host."""
        assert self.send_queue is not None
        try:
            recipients = await self._recipients()
            if not recipients:
                self.n_undelivered += 1
            prefix = {} if rows is None else {"rows": rows}
            ends = []
            for peer in recipients:
                peer.send(Frame(kind=Kind.MAIL, prefix=prefix, payload=bytes_of(vector)))
                self.n_sent += 1
                ends.append(peer.n_posted)
            for peer, end in zip(recipients, ends, strict=True):
                await self._wait_until_sent(peer, end)
        finally:
            self.send_queue.done()

    async def _wait_until_sent(self, peer: Peer, end: int) -> None:
        """Wait until ``end`` of a peer's frames have left this host, or none leave any more."""
        before, since_s, look_s = (-1, -1), self._clock(), LOOK_S_MIN
        for _ in range(TURNS_FIRST):
            # On an idle network the frame leaves as soon as the link's writer has run.
            await asyncio.sleep(0)
        while (n_left := peer.n_left()) < end:
            now = (n_left, peer.link.unsent_bytes)
            if now != before:
                before, since_s = now, self._clock()
            elif self._clock() - since_s > STUCK_S:
                self._shun(peer)
                return
            await self._pause(look_s)
            look_s = min(1.5 * look_s, LOOK_S_MAX)

    def _shun(self, peer: Peer) -> None:
        """Do not draw a peer for a while, nor wait for its frames."""
        for member, linked in self._links.items():
            if linked is peer:
                self._shunned[member] = self._clock() + SHUN_S

    async def _recipients(self) -> list[Peer]:
        """Draw peers; replace one whose link is not open yet by another."""
        recipients: list[Peer] = []
        drawn = self.book.choose(self._sends, self._candidates())
        for member in drawn:
            peer = self._links.get(member)
            if peer is not None:
                recipients.append(peer)
            elif member not in self._opening and self._may_open():
                self._spawn(self._link_to(member))
        n_lacking = len(drawn) - len(recipients)
        if n_lacking:
            others = self.book.choose(
                n_lacking, self._links.keys() - set(drawn) - self._shunned.keys()
            )
            recipients += [self._links[m] for m in others]
        if not recipients and drawn:
            peer = await self._link_to(drawn[0])
            recipients = [] if peer is None else [peer]
        return recipients

    # --- in -------------------------------------------------------------------------------------

    def _allocate(self, header: Header, prefix: Mapping[str, Any]) -> memoryview:
        """Return a buffer for a state, or for the rows of one that the prefix announces."""
        rows = prefix.get("rows")
        if rows is not None and not (type(rows) is int and rows >= 0):
            raise RemoteProtocolError(f"mail of {str(rows)[:40]} rows, wanted a number of them")
        check_payload(header, Kind.MAIL, 8 * message_values(self._member.shapes, rows))
        # A new array each time: a state in the mailbox is read while the next one arrives.
        return np.empty(header.payload_bytes // 8).data.cast("B")

    async def accept(self, link: Link) -> None:
        """Serve a link that a peer has opened, until it closes."""
        peer = Peer(link, self._allocate, self._on_frame, lambda peer, reason: None)
        self._accepted[peer] = None
        try:
            await peer.run()
        finally:
            self._accepted.pop(peer, None)
            self._past_bytes += link.sent_bytes

    def _on_frame(self, peer: Peer, frame: Frame) -> None:
        if frame.kind == Kind.MAIL:
            try:
                mail = unpack_message(
                    vector_of(frame), self._member.shapes, frame.prefix.get("rows")
                )
            except ValueError as error:
                raise RemoteProtocolError(f"{peer.link.peer} sent {error}") from None
            if frame.prefix.get("asked"):
                self._begin(mail)
            else:
                self._member.mailbox.put(mail)
        elif frame.prefix.get("type") == ASK:
            self._member.copy_state(lambda vector: self._answer(peer, vector))

    def _answer(self, peer: Peer, vector: Vector | None) -> None:
        if vector is not None:
            payload = bytes_of(vector)
            peer.send(Frame(kind=Kind.MAIL, prefix={"asked": True}, payload=payload))

    # --- the initial state ----------------------------------------------------------------------

    def ask(self) -> None:
        """Ask peers for an initial state, one after the other, until one answers."""
        self._spawn(self._ask())

    async def _ask(self) -> None:
        for member in self.book.choose(ASKED_MAX, self._candidates()):
            peer = await self._link_to(member)
            if peer is None:
                continue
            peer.tell({"type": ASK})
            until_s = self._clock() + ASK_S
            while not self._has_state.is_set() and self._clock() < until_s:
                await self._pause(4 * LOOK_S_MAX)
            if self._has_state.is_set():
                return
        self.has_asked = True

    def _begin(self, mail: Mail) -> None:
        if not self._has_state.is_set():
            self._has_state.set()
            self._member.begin(mail)

    def has_begun(self) -> None:
        """Stop asking for an initial state: the loop has one."""
        self._has_state.set()
