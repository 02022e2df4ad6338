"""The transport interface: open links, send frames in order, detect a dead peer.

Implementations: ``dask_transport.py`` (opened as a Dask comm; frames use the byte stream below the
comm, or Dask messages if there is none) and ``sim/virtual_links.py`` (virtual time).
``shared_memory_link.py`` wraps another link between processes of one host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from elasticml.collective.frames import Frame, Header
from elasticml.errors import LocalProtocolError

#: Timeout of opening a link, in seconds.
CONNECT_S_MAX: Final = 5.0

#: Returns the buffer for a payload, exactly ``header.payload_bytes`` long.
Allocate = Callable[[Header, Mapping[str, Any]], memoryview]


class LinkClosedError(Exception):
    """The peer is gone or the link was closed; the only way in which a link reports a fault."""


class Direct(Protocol):
    """A link that sends and receives from event-loop callbacks, without tasks of its own."""

    def start(self, frame: Frame) -> asyncio.Future[None] | None:
        """Start to send a frame; None if it has been sent.

        Otherwise await the returned future before the next frame. Raises as ``Link.send``.
        """
        ...

    async def serve(self, allocate: Allocate, on_frame: Callable[[Frame], None]) -> None:
        """Call ``on_frame`` for every frame as soon as it is complete, until the link closes.

        Replaces repeated calls of ``Link.receive``; raises as that does, and what ``on_frame``
        raises.
        """
        ...


class Link(Protocol):
    """An ordered, reliable, two-way stream of frames to one peer."""

    #: The opener's greeting: ``{"job": ..., "member": "3.1" | "driver", ...}``.
    hello: Mapping[str, Any]
    #: Address of the other end, for messages.
    peer: str
    #: Length in bytes of the pieces into which long vectors are split; None: they are not.
    piece_bytes: int | None

    @property
    def direct(self) -> Direct | None:
        """This link if it supports ``Direct``, else None."""
        ...

    @property
    def sent_bytes(self) -> int:
        """Bytes of the frames sent so far."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes sent that have not left this host; 0 if unknown."""
        ...

    async def send(self, frame: Frame) -> None:
        """Write a whole frame; return when its payload may be reused.

        A payload from ``Transport.lendable`` must not be reused: do not write to it after sending,
        and drop it when done. Only one task may send on a link. Raises LinkClosedError.
        """
        ...

    async def receive(self, allocate: Allocate) -> Frame:
        """Read the next frame; its payload is in the buffer from ``allocate``.

        Alternatively the payload is a read-only view of memory lent by the sender, which is
        returned when the last view is dropped.

        Only one task may receive on a link, and it must not be cancelled: close the link instead.
        Raises LinkClosedError, RemoteProtocolError.
        """
        ...

    def close(self) -> None:
        """Close at once; pending calls at both ends raise LinkClosedError. Idempotent."""
        ...


#: Called with every link that a peer opens to this process; owns the link from then on.
OnLink = Callable[[Link], Awaitable[None]]


class Transport(Protocol):
    """Opens links from this process, and accepts links that peers open to it."""

    @property
    def address(self) -> str:
        """Address at which peers reach this process."""
        ...

    async def connect(self, address: str, hello: Mapping[str, Any]) -> Link:
        """Open a link; raises LinkClosedError when the peer does not answer in time."""
        ...

    def listen(self, on_link: OnLink) -> None:
        """Pass every link that a peer opens from now on to ``on_link``."""
        ...

    def lendable(self, nbytes: int) -> NDArray[np.float64] | None:
        """Return an uninitialized array of ``nbytes`` that peers on this host can read in place.

        None if there are no such peers or no such memory; an ordinary array serves then. Callable
        from any thread.
        """
        ...

    def close(self) -> None:
        """Stop listening and close all links."""
        ...


def payload_buffer(
    allocate: Allocate, header: Header, prefix: Mapping[str, Any]
) -> memoryview | None:
    """Return the buffer of a payload as flat bytes; None if the frame has no payload.

    Raises
    ------
    LocalProtocolError
        When ``allocate`` returns a buffer of another size, or a read-only one.
    """
    if header.payload_bytes == 0:
        return None
    buffer = allocate(header, prefix).cast("B")
    if buffer.nbytes != header.payload_bytes or buffer.readonly:
        raise LocalProtocolError(
            f"allocate returned {buffer.nbytes} bytes (readonly={buffer.readonly}) for a payload "
            f"of {header.payload_bytes} bytes, wanted a writable buffer of exactly that size"
        )
    return buffer
