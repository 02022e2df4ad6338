"""Frames are read whole from a socket, however their bytes arrive."""

from __future__ import annotations

import socket

import numpy as np
import pytest

from elasticml.collective.frames import Frame, Kind
from elasticml.collective.socket_link import AHEAD_BYTES, FrameReader

PAYLOADS = (0, 8, 80, AHEAD_BYTES - 32, AHEAD_BYTES, 5 * AHEAD_BYTES)


@pytest.fixture
def ends():
    near, far = socket.socketpair()
    far.setblocking(False)
    with near, far:
        yield near, far


def fresh(header, prefix) -> memoryview:
    return memoryview(bytearray(header.payload_bytes))


def frames() -> list[Frame]:
    rng = np.random.default_rng(0)
    made = []
    for exchange, nbytes in enumerate(PAYLOADS):
        for prefix in ({}, {"of": "3f"}, {"long": "x" * 3 * AHEAD_BYTES}):
            payload = memoryview(rng.bytes(nbytes)) if nbytes else None
            made.append(Frame(kind=Kind.PARTIAL, exchange=exchange, prefix=prefix, payload=payload))
    return made


def raw(frame: Frame) -> bytes:
    head, payload = frame.encode()
    return head + (b"" if payload is None else bytes(payload))


def content(frame: Frame):
    payload = b"" if frame.payload is None else bytes(frame.payload)
    return frame.kind, frame.exchange, frame.prefix, payload


@pytest.mark.parametrize("step", [1, 7, 31, 32, 33, 1000, AHEAD_BYTES, 10**9])
def test_frames_come_whole_and_in_order_however_their_bytes_arrive(ends, step):
    near, far = ends
    sent = frames() if step > 1 else frames()[:6]
    stream = b"".join(map(raw, sent))
    reader, received = FrameReader(far), []
    for start in range(0, len(stream), min(step, 2**16)):
        near.sendall(stream[start : start + min(step, 2**16)])
        while (frame := reader.next(fresh)) is not None:
            received.append(content(frame))
    assert received == [content(frame) for frame in sent]
    assert reader.received_bytes == len(stream)
    assert not reader.has_more


def test_closed_peer_is_reported_after_its_last_frame(ends):
    near, far = ends
    last = Frame(kind=Kind.CONTROL, prefix={"type": "bye"})
    near.sendall(raw(last) + raw(last)[:10])
    near.close()
    reader = FrameReader(far)
    assert content(reader.next(fresh)) == content(last)
    with pytest.raises(ConnectionResetError):
        reader.next(fresh)
