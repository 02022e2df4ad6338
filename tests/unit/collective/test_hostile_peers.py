"""A hostile peer gets fixed words as its answer, no file, and no memory allocated for it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from distributed.comm import connect

from elasticml.collective import dask_transport
from elasticml.collective.dask_transport import APART, transport_of
from elasticml.collective.frames import (
    MAGIC,
    PREFIX_BYTES_MAX,
    VERSION,
    Frame,
    Header,
    Kind,
    check_payload,
    header_of,
    reading_prefix,
    unpack,
    vector_bytes,
)
from elasticml.collective.shared_memory import NoSharedMemoryError, check_offer, map_slot
from elasticml.collective.shared_memory_link import LOAN_FRAME_BYTES_MAX
from elasticml.collective.transport import LinkClosedError
from elasticml.errors import RemoteProtocolError
from elasticml.runtime.chunks.state_codec import decode_states, states_bytes
from tests.unit.collective.test_transports import fresh, pair, servers

SECRET = "-----BEGIN PRIVATE KEY-----"


def raw_header(kind: int, prefix_bytes: int = 0, payload_bytes: int = 0) -> bytes:
    return struct.pack("<4sBBHIIQQ", MAGIC, VERSION, kind, 0, 0, prefix_bytes, 0, payload_bytes)


def header(kind: Kind, nbytes: int, shared: bool = False) -> Header:
    return Header(kind, 3, 0, 0, 0, nbytes, shared)


# --- shared memory --------------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path: Path):
    """A private file of this user that is open in this process; yields its descriptor."""
    path = tmp_path / "key.pem"
    path.write_text(SECRET * 8)
    path.chmod(0o600)
    with path.open() as file:
        yield file.fileno()


def test_a_file_of_this_user_is_not_memory_of_a_peer(secret: int) -> None:
    offer = {"pid": os.getpid(), "fd": secret, "life": bytes(16).hex()}
    with pytest.raises(NoSharedMemoryError, match="is not memory of elasticml") as caught:
        check_offer(offer)
    assert "BEGIN" not in str(caught.value)


@pytest.mark.parametrize("sealed", [True, False])
def test_memory_that_is_not_sealed_is_not_read(sealed: bool) -> None:
    fd = os.memfd_create("elasticml", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, 4096 if not sealed else 0)
        with pytest.raises(NoSharedMemoryError, match="not sealed, or shorter"):
            map_slot(os.getpid(), fd)
    finally:
        os.close(fd)


def test_a_pipe_and_a_device_are_not_opened() -> None:
    ends = os.pipe()
    with open(os.devnull) as device:
        for fd in (*ends, device.fileno()):
            with pytest.raises(NoSharedMemoryError, match="wanted user"):
                map_slot(os.getpid(), fd)
    for fd in ends:
        os.close(fd)


@pytest.mark.parametrize(
    "offer",
    [
        7,
        {},
        {"pid": "1/../self", "fd": 3, "life": "0" * 32},
        {"pid": -1, "fd": 3, "life": "0" * 32},
        {"pid": 1, "fd": 3, "life": "no hex"},
        {"pid": 1, "fd": 3, "life": "0" * 31},
    ],
)
def test_an_offer_of_another_form_is_refused(offer: object) -> None:
    with pytest.raises(NoSharedMemoryError, match="the offer is not one of elasticml"):
        check_offer(offer)


@pytest.mark.asyncio
async def test_a_peer_is_told_nothing_about_the_file_it_points_to(secret: int, caplog) -> None:
    answers = []
    caplog.set_level(logging.INFO, dask_transport.__name__)
    async with servers() as there:
        transport_of(there.scheduler).listen(lambda link: asyncio.sleep(0))
        for fd in (secret, 10**6):
            offer = {"pid": os.getpid(), "fd": fd, "life": bytes(16).hex()}
            answers.append(await ask(there.scheduler.address, shared=offer))
    assert [(answer["shared"], answer["apart"]) for answer in answers] == [(None, APART)] * 2
    assert "is not memory of elasticml" in caplog.text  # the local log has the details
    assert "BEGIN" not in caplog.text


# --- the opening ----------------------------------------------------------------------------------


OPENING = {"op": "em_link", "hello": "{}", "transport": "stream", "protocol": VERSION}


async def ask(address: str, **changes: object) -> object:
    """Send an opening message; return the answer."""
    comm = await connect(address, timeout=5)
    try:
        await comm.write({**OPENING, **changes})
        return await asyncio.wait_for(comm.read(), 10)
    finally:
        comm.abort()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "changes",
    [
        {"hello": "[]"},
        {"hello": "no JSON"},
        {"hello": json.dumps({"a": "b" * 10**5})},
        {"hello": json.dumps({"job": {"a": 1}})},
        {"hello": None},
        {"hello": "[" * 4000},
        {"protocol": "x" * 10**4},
        {"protocol": 99},
        {"protocol": None, "comm": 1, "self": 2, "more": 3},
    ],
)
async def test_a_wrong_opening_is_answered_in_fixed_words(changes: dict[str, object]) -> None:
    async with servers() as there:
        transport_of(there.scheduler).listen(lambda link: asyncio.sleep(0))
        answer = await ask(there.scheduler.address, **changes)
    assert isinstance(answer, dict)
    assert list(answer) == ["refused"]
    assert "Traceback" not in str(answer)
    assert len(str(answer)) < 200


@pytest.mark.asyncio
async def test_links_without_a_first_frame_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(dask_transport, "UNPROVEN_MAX", 3)
    async with servers() as there:
        transport_of(there.scheduler).listen(lambda link: asyncio.sleep(0))
        comms = [await connect(there.scheduler.address, timeout=5) for _ in range(4)]
        for comm in comms:
            await comm.write(OPENING)
        answers = [await comm.read() for comm in comms]
        assert sorted("deaf" in answer for answer in answers) == [False, False, False, True]
        for comm in comms:
            comm.abort()


@pytest.mark.asyncio
async def test_a_silent_link_is_closed_after_seconds(monkeypatch) -> None:
    monkeypatch.setattr(dask_transport, "FIRST_FRAME_S_MAX", 0.0)
    async with servers() as there:
        transport_of(there.scheduler).listen(lambda link: asyncio.sleep(0))
        comm = await connect(there.scheduler.address, timeout=5)
        await comm.write({**OPENING, "transport": "comm"})
        assert (await comm.read())["transport"] == "comm"
        with pytest.raises(OSError):  # noqa: PT011
            await comm.read()


# --- frames ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(Kind))
def test_a_prefix_longer_than_its_kind_allows_is_refused(kind: Kind) -> None:
    limit = PREFIX_BYTES_MAX[kind]
    assert unpack(raw_header(kind, limit)).prefix_bytes == limit
    with pytest.raises(RemoteProtocolError, match=f"{kind.name} frame with a prefix of"):
        unpack(raw_header(kind, limit + 1))


def test_payloads_are_checked_against_what_is_expected() -> None:
    check_payload(header(Kind.PARTIAL, 80), Kind.PARTIAL, 80)
    check_payload(header(Kind.CHUNK, 80), Kind.CHUNK, None)
    for wrong in (
        header(Kind.PARTIAL, 88),
        header(Kind.MODEL, 80),
        header(Kind.PARTIAL, 80, shared=True),
    ):
        with pytest.raises(RemoteProtocolError, match="with a payload of"):
            check_payload(wrong, Kind.PARTIAL, 80)
    with pytest.raises(RemoteProtocolError, match="at most"):
        check_payload(header(Kind.CHUNK, 2**60), Kind.CHUNK, None)


@pytest.mark.parametrize("shapes", [None, 7, {"w": 3}, {"w": [-1]}, {"w": ["3"]}, {"w": [1.5]}])
def test_shapes_of_a_peer_are_whole_numbers(shapes: object) -> None:
    assert vector_bytes({"w": [2, 3], "b": []}) == 56
    with pytest.raises(RemoteProtocolError, match="shapes of arrays"):
        vector_bytes(shapes)


def test_a_prefix_that_is_no_header_is_the_peers_error() -> None:
    for prefix in ({}, {"generation": 1, "returns": 3}, {"returns": {"a": 3}}):
        with pytest.raises(RemoteProtocolError, match="the header of an exchange"):
            header_of(Frame(kind=Kind.MODEL, prefix=prefix))
    with pytest.raises(RemoteProtocolError, match="KeyError"), reading_prefix("it"):
        raise KeyError("x")


@pytest.mark.parametrize(
    "directory",
    [
        7,
        {},
        {"looks": [[["a", "O", [1]]]], "kinds": [0], "versions": [0]},
        {"looks": [[["a", "f8", [-1]]]], "kinds": [0], "versions": [0]},
        {"looks": [], "kinds": [0], "versions": [0]},
        {"looks": [[]], "kinds": [0, 0], "versions": [0]},
        {"looks": [[["a", "f8", [2**70]]]], "kinds": [-1], "versions": [0]},
    ],
)
def test_states_are_described_before_they_are_received(directory) -> None:
    with pytest.raises(RemoteProtocolError):
        states_bytes(directory)
    with pytest.raises(RemoteProtocolError):
        decode_states(directory, memoryview(b"12345678"))


@pytest.mark.asyncio
async def test_a_long_loan_is_refused_before_memory_is_taken() -> None:
    async with servers() as there:
        near, far = await pair(there, "shm")
        payload = memoryview(np.zeros(LOAN_FRAME_BYTES_MAX // 8 + 1))
        await near.inner.send(Frame(kind=Kind.RETURN, prefix={}, payload=payload, shared=True))
        with pytest.raises(RemoteProtocolError, match="sent a loan of"):
            await far.receive(fresh)
        with pytest.raises(LinkClosedError):
            await near.receive(fresh)
