"""A virtual network: connections with latency, bandwidth, in-order delivery, and deaths.

A message leaves when its sender's uplink is free, takes its bytes over the bandwidth, and arrives a
latency later when the receiver's downlink has taken it in; so a driver with many children is as
slow as its own link. What a killed process had handed to the network whole still arrives; then its
peers learn that the connection is closed, as after ``kill -9``. A paused process takes in nothing
and closes nothing; it catches up when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from elasticml.sim.virtual_clock import Clock

#: From this size on a message takes its receiver's downlink, too.
LARGE_BYTES = 4096
_CLOSED = object()


class Endpoint:
    """One virtual process on the network.

    Parameters
    ----------
    address : str
    """

    __slots__ = (
        "address",
        "backlog",
        "died_s",
        "downlink_free_s",
        "is_alive",
        "is_paused",
        "ports",
        "uplink_free_s",
    )

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_alive = True
        self.is_paused = False
        #: When it died: what had not left by then never arrives.
        self.died_s = float("inf")
        self.uplink_free_s = 0.0
        self.downlink_free_s = 0.0
        self.ports: dict[Port, None] = {}
        #: What it will do when it goes on.
        self.backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []


class Port:
    """One end of a connection; ``on_message`` and ``on_closed`` are set by who holds it."""

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
        #: Large messages on their way to this end, and when the last message has arrived here.
        self.large_in_flight = 0
        self.last_arrival_s = 0.0

    def send(self, message: Any, nbytes: int) -> None:
        """Send a message; it is lost without a word when either end has died by then."""
        if self.is_open:
            self.network.carry(self.owner, self.peer, message, nbytes)

    def close(self) -> None:
        """Close this end; the other one learns of it after what was sent before."""
        if self.is_open:
            self.shut()
            self.network.carry(self.owner, self.peer, _CLOSED, 0)

    def shut(self) -> None:
        """Take nothing in any more."""
        self.is_open = False
        self.owner.ports.pop(self, None)

    def take(self, message: Any) -> None:
        """Take in what has arrived."""
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
        From a process's death to the moment at which its peers see their connections closed.
    """

    def __init__(self, clock: Clock, latency_s: float, bandwidth: float, detect_s: float) -> None:
        self.clock = clock
        self.latency_s = latency_s
        self.bandwidth = bandwidth
        self.detect_s = detect_s
        self.sent_bytes = 0

    def connect(self, a: Endpoint, b: Endpoint) -> tuple[Port, Port]:
        """Open a connection between two living endpoints; the handshake is the caller's time."""
        one, two = Port(a, self), Port(b, self)
        one.peer, two.peer = two, one
        a.ports[one] = None
        b.ports[two] = None
        return one, two

    def carry(self, sender: Endpoint, to: Port, message: Any, nbytes: int) -> None:
        """Send a message on its way."""
        self.sent_bytes += nbytes
        seconds = nbytes / self.bandwidth
        now_s, free_s = self.clock.now_s, sender.uplink_free_s
        begins_s = now_s if now_s > free_s else free_s
        left_s = sender.uplink_free_s = begins_s + seconds
        if nbytes < LARGE_BYTES and not to.large_in_flight:
            to.last_arrival_s = max(left_s + self.latency_s, to.last_arrival_s)
            self.clock.at(to.last_arrival_s, self._arrive, sender, left_s, to, message)
            return
        # The downlink is taken when the first byte is there, not in the order of sending.
        to.large_in_flight += 1
        first_s = begins_s + self.latency_s
        self.clock.at(first_s, self._receive, sender, left_s, to, message, seconds)

    def _receive(
        self, sender: Endpoint, left_s: float, to: Port, message: Any, seconds: float
    ) -> None:
        receiver, now_s = to.owner, self.clock.now_s
        free_s = receiver.downlink_free_s
        free_s = receiver.downlink_free_s = (now_s if now_s > free_s else free_s) + seconds
        to.last_arrival_s = max(free_s, left_s + self.latency_s, to.last_arrival_s)
        self.clock.at(to.last_arrival_s, self._arrive_large, sender, left_s, to, message)

    def _arrive_large(self, sender: Endpoint, left_s: float, to: Port, message: Any) -> None:
        to.large_in_flight -= 1
        self._arrive(sender, left_s, to, message)

    def _arrive(self, sender: Endpoint, left_s: float, to: Port, message: Any) -> None:
        if left_s > sender.died_s:
            return
        who = to.owner
        if who.is_paused:
            who.backlog.append((to.take, (message,)))
        elif who.is_alive and to.is_open:
            if message is _CLOSED:
                to.take(message)
            else:
                to.on_message(message)

    def perform(self, who: Endpoint, action: Callable[..., None], *args: Any) -> None:
        """Do something at an endpoint: now, when it goes on, or never when it is dead."""
        if who.is_paused:
            who.backlog.append((action, args))
        elif who.is_alive:
            action(*args)

    def kill(self, who: Endpoint) -> None:
        """End a process without a word."""
        if not who.is_alive:
            return
        who.is_alive = who.is_paused = False
        who.died_s = self.clock.now_s
        who.backlog.clear()
        for port in list(who.ports):
            port.shut()
            self.clock.after(self.detect_s, self._detect, port.peer)

    def _detect(self, port: Port) -> None:
        """Let an end learn that the other one has died, after what still comes from it."""
        if port.large_in_flight:
            self.clock.after(self.detect_s, self._detect, port)
            return
        t_s = max(self.clock.now_s, port.last_arrival_s)
        self.clock.at(t_s, self.perform, port.owner, port.take, _CLOSED)

    def pause(self, who: Endpoint) -> None:
        """Stop a process without closing anything."""
        who.is_paused = who.is_alive

    def resume(self, who: Endpoint) -> None:
        """Let a paused process go on, and catch up."""
        who.is_paused = False
        backlog, who.backlog = who.backlog, []
        for action, args in backlog:
            self.perform(who, action, *args)  # one of them may stop or end it again


def _ignore(message: Any) -> None:
    """Take a message that nobody waits for."""


def _nothing() -> None:
    """Take note of a close that concerns nobody."""
