"""Three endpoints in a row whose links share memory, for tests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from elasticml.collective.frames import Frame, Header, Kind
from elasticml.collective.shared_memory import SlotPool
from elasticml.collective.shared_memory_link import SharedLink
from tests.socket_pair import SocketTransport

#: Values of a vector.
N = 512


@dataclass
class Line:
    """Endpoints a, b, c; links from a to b and from b to c."""

    network: dict[str, SocketTransport] = field(default_factory=dict)
    ends: dict[str, SharedLink] = field(default_factory=dict)

    def pool(self, name: str):
        return self.network[name].pool


async def line() -> Line:
    there = Line()
    for name in "abc":
        SocketTransport(name, there.network, SlotPool(bytes_min=8))
        # Each has a further link, so that its slots outlive those that a test closes.
        there.pool(name).link_opened()
    for near, far in ("ab", "bc"):
        opened = asyncio.get_running_loop().create_future()

        async def on_link(link, opened=opened) -> None:
            opened.set_result(link)

        there.network[far].listen(on_link)
        there.ends[near + far] = await there.network[near].connect(far, {})
        there.ends[far + near] = await opened
    return there


def fresh(header: Header, prefix) -> memoryview:
    return np.empty(header.payload_bytes // 8).data.cast("B")


def framed(vector: np.ndarray, exchange: int = 1) -> Frame:
    return Frame(kind=Kind.MODEL, exchange=exchange, prefix={}, payload=memoryview(vector))


async def send(there: Line, way: str, vector: np.ndarray, exchange: int = 1) -> np.ndarray:
    """Send a vector along a link; return what arrives at the other end."""
    await there.ends[way].send(framed(vector, exchange))
    frame = await there.ends[way[::-1]].receive(fresh)
    return frame.payload.obj


async def return_loans(there: Line, way: str) -> None:
    """Let the peer's next frame return the loans that it has dropped."""
    await there.ends[way[::-1]].send(Frame(kind=Kind.CONTROL, prefix={"n": 1}))
    assert (await there.ends[way].receive(fresh)).prefix == {"n": 1}


def filled(there: Line, name: str, value: float) -> np.ndarray:
    vector = there.pool(name).take(8 * N)
    vector[:] = value
    return vector


def is_lent(array: np.ndarray) -> bool:
    return not array.flags.writeable
