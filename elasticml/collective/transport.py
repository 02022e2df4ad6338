"""What the collective asks of a network: open links, send frames in order, notice a dead peer.

Implementations: ``memory.py`` (one process, with gates, kills and pauses, for tests),
``dask_links.py`` (a Dask comm opens the link; ``stream`` reads and writes the bytes below it,
``comm`` sends Dask messages where there is no byte stream). ``shared_link.py`` lies on top of
another link, between processes of one host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.collective.frames import Frame, Header
from elasticml.errors import LocalProtocolError

#: Returns the buffer (exactly ``header.payload_bytes`` long) that a payload is read into.
Allocate = Callable[[Header, Mapping[str, Any]], memoryview]


class LinkClosedError(Exception):
    """The peer is gone or the link was closed; the one way a link reports a fault."""


class Direct(Protocol):
    """What a link can do where neither sending nor receiving need a task of their own."""

    def start(self, frame: Frame) -> asyncio.Future[None] | None:
        """Begin to send a frame; None where it is sent.

        Else what is returned is to be waited for before the next frame. Raises as ``Link.send``.
        """
        ...

    async def serve(self, allocate: Allocate, on_frame: Callable[[Frame], None]) -> None:
        """Hand over every frame in the very callback that finds it whole, until the link closes.

        In place of calling ``Link.receive`` again and again; raises as that does, and what
        ``on_frame`` raises.
        """
        ...


class Link(Protocol):
    """An ordered, reliable, two-way stream of frames to one peer."""

    #: What the opener said of itself: ``{"job": ..., "member": "3.1" | "driver", ...}``.
    hello: Mapping[str, Any]
    #: Address of the other end, for messages.
    peer: str
    #: Long vectors are cut into pieces of so many bytes on this link; None: they go whole.
    piece_bytes: int | None

    @property
    def direct(self) -> Direct | None:
        """This link where it is a direct one, else None."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Bytes of the frames sent so far."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were sent and have not left this host; 0 where nobody knows."""
        ...

    async def send(self, frame: Frame) -> None:
        """Write a frame whole; returns when its payload may be reused.

        One from ``Transport.lendable`` may not: it is dropped when it is done with, and nobody
        writes to it once it has been sent. Only one task sends on a link. Raises LinkClosedError.
        """
        ...

    async def receive(self, allocate: Allocate) -> Frame:
        """Read the next frame; its payload lies in the buffer that ``allocate`` gave.

        Or, read-only, in memory that the sender has lent: that is given back when the last view of
        it is dropped.

        Only one task receives on a link, and is never cancelled: closing the link ends it.
        Raises LinkClosedError, RemoteProtocolError.
        """
        ...

    def close(self) -> None:
        """Close at once; both ends' pending calls raise LinkClosedError. Idempotent."""
        ...


#: Called for every link that a peer opens to us; owns the link from then on.
OnLink = Callable[[Link], Awaitable[None]]


class Transport(Protocol):
    """Opens links from this process, and hands over those that others open to it."""

    @property
    def address(self) -> str:
        """Address at which others reach this end."""
        ...

    async def connect(self, address: str, hello: Mapping[str, Any]) -> Link:
        """Open a link; raises LinkClosedError when nobody answers within the time-out."""
        ...

    def listen(self, on_link: OnLink) -> None:
        """Hand every link that is opened to us from now on to ``on_link``."""
        ...

    def lendable(self, nbytes: int) -> NDArray[np.float64] | None:
        """Return an array of ``nbytes`` that peers on this host can read where it is.

        Its values are undefined. None where there are no such peers, or no such memory: then any
        array does. From any thread.
        """
        ...

    def close(self) -> None:
        """Stop listening and close all links."""
        ...


def payload_buffer(
    allocate: Allocate, header: Header, prefix: Mapping[str, Any]
) -> memoryview | None:
    """Ask for the buffer of a payload, as flat bytes; None where the frame has no payload.

    Raises
    ------
    LocalProtocolError
        When ``allocate`` gave a buffer of another size, or one that cannot be written.
    """
    if header.payload_bytes == 0:
        return None
    buffer = allocate(header, prefix).cast("B")
    if buffer.nbytes != header.payload_bytes or buffer.readonly:
        raise LocalProtocolError(
            f"allocate gave {buffer.nbytes} bytes (readonly={buffer.readonly}) for a payload of "
            f"{header.payload_bytes} bytes, wanted a writable buffer of exactly that size"
        )
    return buffer
