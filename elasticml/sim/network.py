"""A virtual network: connections with latency, bandwidth, in-order delivery, and process deaths.

A message leaves when its sender's uplink is free, takes its bytes over the bandwidth, and arrives a
latency later when the receiver's downlink has received it. So the link of a driver with many
children is a bottleneck. Messages that a killed process had sent completely still arrive; then its
peers see the connection closed, as after ``kill -9``. A paused process receives nothing and closes
nothing; it catches up when it is resumed. A process may take processor time for each message.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol

from elasticml.sim.processors import Processors

#: Messages of at least this size also occupy the receiver's downlink.
LARGE_BYTES = 4096
_CLOSED = object()


class Clock(Protocol):
    """Performs actions at virtual times."""

    now_s: float

    def at(self, t_s: float, action: Callable[..., object], *args: Any) -> None:
        """Plan an action for a time; a time in the past means now."""

    def after(self, seconds: float, action: Callable[..., object], *args: Any) -> None:
        """Plan an action for ``seconds`` from now."""


class NetworkCard:
    """The uplink and the downlink of a process, or of a host whose processes share them."""

    __slots__ = ("down_free_s", "up_free_s")

    def __init__(self) -> None:
        self.up_free_s = self.down_free_s = 0.0


class Endpoint:
    """One virtual process on the network.

    Parameters
    ----------
    address : str
    card : NetworkCard, optional
        That of its host; by default it has one of its own. Messages between processes with the
        same card do not occupy it.
    """

    __slots__ = (
        "address",
        "backlog",
        "busy_until_s",
        "card",
        "died_s",
        "is_alive",
        "is_paused",
        "ports",
        "tasks",
    )

    def __init__(self, address: str, card: NetworkCard | None = None) -> None:
        self.address = address
        self.card = NetworkCard() if card is None else card
        self.is_alive = True
        self.is_paused = False
        #: Time of death: messages that had not left by then never arrive.
        self.died_s = float("inf")
        #: When it has handled the messages that have arrived.
        self.busy_until_s = 0.0
        self.ports: dict[Port, None] = {}
        #: Its tasks that have not ended.
        self.tasks: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Actions to perform when it is resumed.
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []


class Port:
    """One end of a connection; its owner sets ``on_message`` and ``on_closed``."""

    __slots__ = (
        "is_open",
        "large_in_flight",
        "last_arrival_s",
        "network",
        "on_closed",
        "on_message",
        "owner",
        "peer",
    )

    def __init__(self, owner: Endpoint, network: Network) -> None:
        self.owner = owner
        self.network = network
        self.peer: Port = self
        self.is_open = True
        self.on_message: Callable[[Any], None] = _ignore
        self.on_closed: Callable[[], None] = _nothing
        #: Number of large messages on the way to this end; arrival time of the last message.
        self.large_in_flight = 0
        self.last_arrival_s = 0.0

    def send(self, message: Any, nbytes: int) -> None:
        """Send a message; it is lost silently if either end dies before it arrives."""
        if self.is_open:
            self.network.carry(self.owner, self.peer, message, nbytes)

    def close(self) -> None:
        """Close this end; the other end is informed after all messages sent before."""
        if self.is_open:
            self.shut()
            self.network.carry(self.owner, self.peer, _CLOSED, 0)

    def shut(self) -> None:
        """Receive no more messages."""
        self.is_open = False
        self.owner.ports.pop(self, None)

    def take(self, message: Any) -> None:
        """Handle a message that has arrived."""
        if not self.is_open:
            return
        if message is _CLOSED:
            self.shut()
            self.on_closed()
        else:
            self.on_message(message)


class Network:
    """Carries messages between endpoints.

    Parameters
    ----------
    clock : Clock
    latency_s : float
        One way.
    bandwidth : float
        Bytes per second of every endpoint's uplink, and of its downlink.
    detect_s : float
        Seconds from a process's death until its peers see their connections closed.
    message_s : float
        Processor seconds that a process takes for each message that it receives.
    processors : Processors, optional
        On which it does so.
    """

    def __init__(
        self,
        clock: Clock,
        latency_s: float,
        bandwidth: float,
        detect_s: float,
        message_s: float = 0.0,
        processors: Processors | None = None,
    ) -> None:
        self.clock = clock
        self.latency_s = latency_s
        self.bandwidth = bandwidth
        self.detect_s = detect_s
        self.message_s = message_s
        self.processors = Processors(None) if processors is None else processors
        self.sent_bytes = 0

    def connect(self, a: Endpoint, b: Endpoint) -> tuple[Port, Port]:
        """Open a connection between two living endpoints; the caller adds the handshake's time."""
        one, two = Port(a, self), Port(b, self)
        one.peer, two.peer = two, one
        a.ports[one] = None
        b.ports[two] = None
        return one, two

    def carry(self, sender: Endpoint, to: Port, message: Any, nbytes: int) -> None:
        """Transmit a message."""
        self.sent_bytes += nbytes
        card, now_s = sender.card, self.clock.now_s
        if card is to.owner.card:
            to.last_arrival_s = max(now_s + self.latency_s, to.last_arrival_s)
            self.clock.at(to.last_arrival_s, self._arrive, sender, now_s, to, message)
            return
        seconds, free_s = nbytes / self.bandwidth, card.up_free_s
        begins_s = now_s if now_s > free_s else free_s
        left_s = card.up_free_s = begins_s + seconds
        if nbytes < LARGE_BYTES and not to.large_in_flight:
            to.last_arrival_s = max(left_s + self.latency_s, to.last_arrival_s)
            self.clock.at(to.last_arrival_s, self._arrive, sender, left_s, to, message)
            return
        # The downlink is occupied when the first byte arrives, not in the order of sending.
        to.large_in_flight += 1
        first_s = begins_s + self.latency_s
        self.clock.at(first_s, self._receive, sender, left_s, to, message, seconds)

    def _receive(
        self, sender: Endpoint, left_s: float, to: Port, message: Any, seconds: float
    ) -> None:
        card, now_s = to.owner.card, self.clock.now_s
        free_s = card.down_free_s
        free_s = card.down_free_s = (now_s if now_s > free_s else free_s) + seconds
        to.last_arrival_s = max(free_s, left_s + self.latency_s, to.last_arrival_s)
        self.clock.at(to.last_arrival_s, self._arrive_large, sender, left_s, to, message)

    def _arrive_large(self, sender: Endpoint, left_s: float, to: Port, message: Any) -> None:
        to.large_in_flight -= 1
        self._arrive(sender, left_s, to, message)

    def _arrive(self, sender: Endpoint, left_s: float, to: Port, message: Any) -> None:
        if left_s > sender.died_s:
            return
        if self.message_s > 0.0:
            who = to.owner
            begin_s = max(self.clock.now_s, who.busy_until_s)
            who.busy_until_s = self.processors.done_s(begin_s, self.message_s)
            self.clock.at(who.busy_until_s, self._hand_over, to, message)
        else:
            self._hand_over(to, message)

    def _hand_over(self, to: Port, message: Any) -> None:
        who = to.owner
        if who.is_paused:
            who.backlog.append((to.take, (message,)))
        elif who.is_alive and to.is_open:
            if message is _CLOSED:
                to.take(message)
            else:
                to.on_message(message)

    def perform(self, who: Endpoint, action: Callable[..., None], *args: Any) -> None:
        """Perform an action at an endpoint: now, after a pause, or never if it is dead."""
        if who.is_paused:
            who.backlog.append((action, args))
        elif who.is_alive:
            action(*args)

    def kill(self, who: Endpoint) -> None:
        """Kill a process."""
        if not who.is_alive:
            return
        who.is_alive = who.is_paused = False
        who.died_s = self.clock.now_s
        who.backlog.clear()
        for port in list(who.ports):
            port.shut()
            self.clock.after(self.detect_s, self.detect, port.peer)

    def detect(self, port: Port) -> None:
        """Close an end whose peer has died, after the peer's last message."""
        if port.large_in_flight:
            self.clock.after(self.detect_s, self.detect, port)
            return
        t_s = max(self.clock.now_s, port.last_arrival_s, port.owner.busy_until_s)
        self.clock.at(t_s, self.perform, port.owner, port.take, _CLOSED)

    def pause(self, who: Endpoint) -> None:
        """Stop a process without closing anything."""
        who.is_paused = who.is_alive

    def resume(self, who: Endpoint) -> None:
        """Resume a paused process and perform its backlog."""
        who.is_paused = False
        backlog, who.backlog = who.backlog, []
        for action, args in backlog:
            self.perform(who, action, *args)  # one of them may pause or kill it again


def _ignore(message: Any) -> None:
    """Ignore a message."""


def _nothing() -> None:
    """Ignore a close."""
