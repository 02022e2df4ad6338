"""Links over socket pairs, without a Dask server: for tests of links, and of what uses them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

from elasticml.collective.shared_memory import SlotPool
from elasticml.collective.shared_memory_link import SharedLink
from elasticml.collective.socket_link import SocketLink
from elasticml.collective.transport import Link, LinkClosedError, OnLink


class ForgottenSocket(socket.socket):
    """A socket that is closed when nothing refers to it any more, without a warning."""

    def __del__(self) -> None:
        """Close it."""
        self.close()


def socket_line(
    hello: Mapping[str, Any] | None = None, names: tuple[str, str] = ("near", "far")
) -> tuple[SocketLink, SocketLink]:
    """Make both ends of a link."""
    near, far = (ForgottenSocket(fileno=end.detach()) for end in socket.socketpair())
    near.setblocking(False)
    far.setblocking(False)
    return SocketLink(near, names[1], hello or {}), SocketLink(far, names[0], hello or {})


class SocketTransport:
    """A transport of this process; see ``transport.Transport``.

    Parameters
    ----------
    address : str
    others : dict of str to SocketTransport
        All transports of the process, by address.
    pool : SlotPool, optional
        Its slots, if links share memory.
    """

    def __init__(
        self, address: str, others: dict[str, SocketTransport], pool: SlotPool | None = None
    ) -> None:
        self.address = address
        self.pool = pool
        self._others = others
        self._on_link: OnLink | None = None
        self._links: list[Link] = []
        others[address] = self

    async def connect(self, address: str, hello: Mapping[str, Any]) -> Link:
        """Open a link."""
        there = self._others.get(address)
        if there is None or there._on_link is None:
            raise LinkClosedError(f"no process listens at {address}")
        ends = socket_line(hello, (self.address, address))
        near, far = self._made(ends[0]), there._made(ends[1])
        asyncio.get_running_loop().create_task(there._on_link(far))
        return near

    def _made(self, link: Link) -> Link:
        made = link if self.pool is None else SharedLink(link, self.pool)
        self._links.append(made)
        return made

    def listen(self, on_link: OnLink) -> None:
        """Pass every link that a peer opens to ``on_link``."""
        self._on_link = on_link

    def lendable(self, nbytes: int) -> Any:
        """Return an array in shared memory; None without it."""
        return None if self.pool is None else self.pool.take(nbytes)

    def close(self) -> None:
        """End: links close, and no process listens at the address any more."""
        del self._others[self.address]
        for link in self._links:
            link.close()
        if self.pool is not None:
            self.pool.close()
