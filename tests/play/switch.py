"""An Ethernet switch in user space, whose ports can be cut, delayed, slowed and made lossy.

Each host is a network namespace with a TAP device. This process forwards the frames. It needs no
support for traffic control in the kernel (``netem``), and disturbs TCP as networks do: late,
reordered and lost segments.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import selectors
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from tests.play.namespaces import address, inside, ip

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
#: Larger than Ethernet's 1500: fewer frames for this process to copy.
MTU: Final = 9000
#: A frame that would wait longer for a slow port is lost, as in a router with a short queue.
_QUEUE_S_MAX: Final = 0.2
_FRAME_BYTES_MAX: Final = 65536


@dataclass(slots=True)
class Port:
    """A host's link to the switch, in both directions."""

    descriptor: int
    #: Hosts in different groups do not reach each other.
    group: int = 0
    #: Hosts whose frames do not reach this one: a cut in one direction.
    deaf_to: frozenset[int] = frozenset()
    #: Each frame waits a random time up to this: later ones may overtake it.
    lag_s: float = 0.0
    #: Share of the frames that are lost.
    loss: float = 0.0
    bytes_per_s: float = float("inf")
    #: When the frames so far have passed a slow link; by the monotonic clock.
    free_s: float = 0.0


class Switch(threading.Thread):
    """Forwards frames between ports; a context manager, which closes them.

    Parameters
    ----------
    descriptors : sequence of int
        Of the ports. One read takes a frame, one write puts one; a read does not block. The sixth
        byte of a frame is the number of the port that it goes to, or the first byte is odd: to all.
    seed : int
        Of losses and delays.
    """

    def __init__(self, descriptors: Sequence[int], seed: int) -> None:
        super().__init__(daemon=True, name="switch")
        self.ports = [Port(descriptor) for descriptor in descriptors]
        #: Frames that were forwarded, and that were lost.
        self.forwarded = self.lost = 0
        self._rng = random.Random(seed)
        #: Frames under way: when they are due, a number, the port, the frame.
        self._late: list[tuple[float, int, int, bytes]] = []
        self._wake, self._woken = os.pipe()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._woken)
        self.join()
        for descriptor in (self._wake, *(port.descriptor for port in self.ports)):
            os.close(descriptor)

    def run(self) -> None:
        """Forward frames until the end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ, None)
            for k, port in enumerate(self.ports):
                selector.register(port.descriptor, selectors.EVENT_READ, k)
            while True:
                wait_s = None if not self._late else max(0.0, self._late[0][0] - time.monotonic())
                for key, _ in selector.select(wait_s):
                    if key.data is None:
                        return
                    self._take(key.data)
                now_s = time.monotonic()
                while self._late and self._late[0][0] <= now_s:
                    _, _, k, frame = heapq.heappop(self._late)
                    self._put(k, frame)

    def _take(self, source: int) -> None:
        """Read the frames that a host has sent."""
        port = self.ports[source]
        with contextlib.suppress(BlockingIOError):
            while True:
                frame = os.read(port.descriptor, _FRAME_BYTES_MAX)
                is_multicast = bool(frame[0] & 1)
                for k in range(len(self.ports)):
                    if k != source and (is_multicast or frame[5] == k):
                        self._forward(source, k, frame)

    def _forward(self, source: int, k: int, frame: bytes) -> None:
        rng, now_s, due_s = self._rng, time.monotonic(), 0.0
        sender, receiver = self.ports[source], self.ports[k]
        is_lost = sender.group != receiver.group or source in receiver.deaf_to
        for port in (sender, receiver):
            is_lost |= port.loss > 0.0 and rng.random() < port.loss
            if port.bytes_per_s < float("inf"):
                is_lost |= port.free_s > now_s + _QUEUE_S_MAX
                if not is_lost:
                    port.free_s = max(port.free_s, now_s) + len(frame) / port.bytes_per_s
                    due_s = max(due_s, port.free_s)
            if port.lag_s > 0.0:
                due_s = max(due_s, now_s) + rng.uniform(0.0, port.lag_s)
        if is_lost:
            self.lost += 1
            return
        self.forwarded += 1
        if due_s > now_s:
            heapq.heappush(self._late, (due_s, self.forwarded, k, frame))
        else:
            self._put(k, frame)

    def _put(self, k: int, frame: bytes) -> None:
        # A full device loses frames, as a network card does.
        with contextlib.suppress(OSError):
            os.write(self.ports[k].descriptor, frame)


def join(names: Sequence[str], seed: int) -> Switch:
    """Return a switch between namespaces.

    Each gets a device ``eth0`` with the address of its number, see
    :func:`tests.play.namespaces.address`.
    """
    return Switch([_tap(name, k) for k, name in enumerate(names)], seed)


def _tap(name: str, k: int) -> int:
    """Make a host's device; return the descriptor of its frames."""
    with inside(name):
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        request = struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI)
        fcntl.ioctl(descriptor, _TUNSETIFF, request)
    ip("-n", name, "link", "set", "eth0", "address", f"02:00:00:00:00:{k:02x}", "mtu", str(MTU))
    ip("-n", name, "addr", "add", f"{address(k)}/24", "dev", "eth0")
    ip("-n", name, "link", "set", "eth0", "up")
    return descriptor
