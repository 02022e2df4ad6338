"""Two ends of a link over a socket pair, without a Dask server: for tests of links alone."""

from __future__ import annotations

import socket
from typing import Any

from elasticml.collective.socket_link import SocketLink


class PlainStream:
    """The part of a tornado stream that a link uses."""

    def __init__(self, own: socket.socket) -> None:
        self.socket = own
        self.io_loop = self

    def remove_handler(self, descriptor: int) -> None:
        """Watch nothing."""

    def set_close_callback(self, callback: Any) -> None:
        """Do nothing: only ``abort`` closes it."""

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self.socket.fileno()


class PlainComm:
    """The part of a Dask comm that a link uses."""

    def __init__(self, own: socket.socket, peer_address: str) -> None:
        own.setblocking(False)
        self.stream = PlainStream(own)
        self.peer_address = peer_address

    def abort(self) -> None:
        """Close the socket."""
        self.stream.socket.close()


def socket_line() -> tuple[SocketLink, SocketLink]:
    """Make both ends of a link."""
    near, far = socket.socketpair()
    return SocketLink(PlainComm(near, "far"), {}), SocketLink(PlainComm(far, "near"), {})
