"""Two ends of a link over a socket pair, without a Dask server: for tests of links alone."""

from __future__ import annotations

import socket

from elasticml.collective.socket_link import SocketLink


def socket_line() -> tuple[SocketLink, SocketLink]:
    """Make both ends of a link."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    return SocketLink(near, "far", {}), SocketLink(far, "near", {})
