"""A virtual network with partitions, delays, lost packets and slow uplinks.

Connections are TCP: what is lost or cut off is sent again, so it arrives late and in order. A
connection of which one direction is cut breaks at both ends when what it sends is not acknowledged.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from elasticml.sim.network import Endpoint, Network, Port

#: A packet that is lost again waits twice as long, up to this many times.
_RETRANSMISSIONS_MAX = 5
#: Seconds without an acknowledgement after which a connection breaks (``TCP_USER_TIMEOUT``, as
#: ``distributed.comm.timeouts.tcp`` sets it).
_BREAKS_S = 30.0


@dataclass(eq=False, slots=True, kw_only=True)
class Disturbance:
    """What happens to the messages of some endpoints until a time."""

    endpoints: frozenset[Endpoint]
    until_s: float
    #: Messages between these endpoints and others arrive after the end.
    cuts: bool = False
    #: Disturbed are only the messages to these; by default those from and to any other.
    towards: frozenset[Endpoint] | None = None
    #: Longest delay of a message, in seconds.
    lag_s: float = 0.0
    #: Share of the messages whose packet is lost.
    loss: float = 0.0
    #: Divides the rate of the uplink.
    slowdown: float = 1.0


class DisturbedNetwork(Network):
    """A network with disturbances.

    Parameters
    ----------
    network : Network
        The world's undisturbed network, before the first connection.
    rng : Random
        Draws delays and losses.
    """

    def __init__(self, network: Network, rng: random.Random) -> None:
        super().__init__(network.clock, network.latency_s, network.bandwidth, network.detect_s)
        self._rng = rng
        self._active: list[Disturbance] = []

    def disturb(self, disturbance: Disturbance) -> None:
        """Begin a disturbance; it ends by itself."""
        self._active.append(disturbance)
        self.clock.at(disturbance.until_s, self._active.remove, disturbance)

    def carry(self, sender: Endpoint, to: Port, message: Any, nbytes: int) -> None:
        """Transmit a message, later and more slowly if its ends are disturbed."""
        if self._active:
            for one in self._active:
                if sender in one.endpoints and one.slowdown > 1.0:
                    nbytes = int(nbytes * one.slowdown)
                if one.towards and sender in one.endpoints and to.owner in one.towards:
                    self.clock.after(_BREAKS_S, self._break, one, to)
            delay_s = self._delay_s(sender, to.owner)
            if delay_s > 0.0:
                arrival_s = self.clock.now_s + self.latency_s + delay_s
                to.last_arrival_s = max(to.last_arrival_s, arrival_s)
        super().carry(sender, to, message, nbytes)

    def _delay_s(self, sender: Endpoint, receiver: Endpoint) -> float:
        """Return the delay of a message: until all cuts have ended, and the drawn delays."""
        now_s = self.clock.now_s
        held_s = drawn_s = 0.0
        for one in self._active:
            ends = (sender in one.endpoints) + (receiver in one.endpoints)
            if one.towards is not None:
                ends = int(sender in one.endpoints and receiver in one.towards)
            if ends == 0:
                continue
            if one.cuts and ends == 1:
                held_s = max(held_s, one.until_s - now_s)
            drawn_s += one.lag_s * self._rng.random() if one.lag_s else 0.0
            for tries in range(_RETRANSMISSIONS_MAX if one.loss else 0):
                if self._rng.random() >= one.loss:
                    break
                drawn_s += max(0.2, 4.0 * self.latency_s) * 2.0**tries
        return held_s + drawn_s

    def _break(self, disturbance: Disturbance, port: Port) -> None:
        """Close both ends of a connection that is still cut."""
        if disturbance in self._active and port.is_open:
            for end in (port, port.peer):
                end.shut()
                self.perform(end.owner, end.on_closed)

    def detect(self, port: Port) -> None:
        """Close an end whose peer has died; a partition delays this, too."""
        delay_s = self._delay_s(port.peer.owner, port.owner)
        port.last_arrival_s = max(port.last_arrival_s, self.clock.now_s + delay_s)
        super().detect(port)
