"""Bytes that the kernel has accepted and not sent."""

from __future__ import annotations

import socket

from elasticml.collective.socket_link import unsent_socket_bytes


def fill(near: socket.socket) -> int:
    """Send until the kernel accepts nothing more; return the accepted bytes."""
    near.setblocking(False)
    sent = 0
    while True:
        try:
            sent += near.send(bytes(65536))
        except BlockingIOError:
            return sent


def test_bytes_beyond_the_receivers_buffer_are_unsent_until_it_reads():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            assert unsent_socket_bytes(near.fileno()) == 0
            sent = fill(near)
            assert 0 < unsent_socket_bytes(near.fileno()) <= sent
            while sent:
                sent -= len(far.recv(65536))
            assert unsent_socket_bytes(near.fileno()) == 0


def test_a_file_that_is_no_socket_has_nothing_unsent(tmp_path):
    with (tmp_path / "file").open("w") as file:
        assert unsent_socket_bytes(file.fileno()) == 0
