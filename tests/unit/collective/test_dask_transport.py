"""Links between real Dask servers in one process: what they refuse, and how they end."""

from __future__ import annotations

import asyncio
import logging
import os

import pytest
from distributed import Scheduler, Worker

from elasticml.collective import dask_transport
from elasticml.collective.dask_transport import transport_of
from elasticml.collective.frames import Frame, Kind
from elasticml.collective.segmentation import PIECE_BYTES
from elasticml.collective.socket_link import SocketLink
from elasticml.collective.transport import LinkClosedError
from elasticml.errors import ConfigError, RemoteProtocolError
from tests.unit.collective.test_transports import fresh, opened, pair, servers

pytestmark = pytest.mark.asyncio


async def close_worker(there, near, far) -> None:
    await there.workers[0].close()


async def close_scheduler(there, near, far) -> None:
    await there.scheduler.close()


async def abort_comm(there, near, far) -> None:
    far.comm.abort()


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
@pytest.mark.parametrize("end", [close_worker, close_scheduler, abort_comm])
async def test_the_end_of_a_server_or_of_its_comm_ends_a_link_that_is_read_or_not(scheme, end):
    async with servers(scheme) as there:
        near, far = await pair(there)
        reader, other = (far, near) if end is close_worker else (near, far)
        waiting = asyncio.create_task(reader.receive(fresh))
        await asyncio.sleep(0)
        await end(there, near, far)
        with pytest.raises(LinkClosedError):
            await waiting
        await other.closed.wait()


async def test_foreign_bytes_and_messages_are_protocol_errors_and_close_the_link():
    async with servers() as there:
        near, far = await pair(there)
        near.socket.sendall(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")
        with pytest.raises(RemoteProtocolError, match="another version"):
            await far.receive(fresh)
        assert far.closed.is_set()
    async with servers("inproc") as there:
        near, far = await pair(there, "auto")
        await near.comm.write({"op": "identity"})
        with pytest.raises(RemoteProtocolError, match="wanted a frame"):
            await far.receive(fresh)
        assert far.closed.is_set()


@pytest.mark.parametrize(
    ("scheme", "choice", "message"),
    [
        ("inproc", "stream", "'stream' needs a byte stream.*transport: auto"),
        ("inproc", "shm", "'shm' needs a byte stream"),
        ("tcp", "carrier pigeon", "'carrier pigeon'"),
    ],
)
async def test_a_transport_that_is_not_there_is_a_config_error(scheme, choice, message):
    async with servers(scheme) as there:
        with pytest.raises(ConfigError, match=message):
            await pair(there, choice)


async def test_servers_without_elasticml_or_a_listener_and_dead_ones_refuse(monkeypatch):
    monkeypatch.setattr(dask_transport, "CONNECT_S_MAX", 0.5)
    async with servers() as there:
        transport, address = transport_of(there.workers[0]), there.scheduler.address
        with pytest.raises(LinkClosedError, match="runs no elasticml"):
            await transport.connect(address, {"job": "j"})
        transport_of(there.scheduler)
        with pytest.raises(LinkClosedError, match="no listener"):
            await transport.connect(address, {"job": "j"})
        dead = there.workers[1].address
        await there.workers[1].close()
        with pytest.raises(LinkClosedError, match=dead):
            await transport.connect(dead, {"job": "j"})


async def test_silent_server_times_out(monkeypatch):
    monkeypatch.setattr(dask_transport, "CONNECT_S_MAX", 0.1)
    given_up = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        given_up.set()

    async with servers() as there:
        silent = await asyncio.start_server(say_nothing, "127.0.0.1")
        host, port = silent.sockets[0].getsockname()
        with pytest.raises(LinkClosedError, match=str(port)):
            await transport_of(there.workers[0]).connect(f"tcp://{host}:{port}", {"job": "j"})
        await given_up.wait()
        silent.close()


@pytest.mark.parametrize("choice", ["stream", "comm"])
@pytest.mark.parametrize(
    ("host", "pieces"), [("127.0.0.1", None), ("127.0.0.2", PIECE_BYTES)], ids=["same", "other"]
)
async def test_long_vectors_are_segmented_between_hosts_and_not_within_one(choice, host, pieces):
    async with (
        Scheduler(dashboard=False, port=0, host="127.0.0.1") as scheduler,
        Worker(scheduler.address, nthreads=1, dashboard=False, host=host) as worker,
    ):
        ends = await opened(transport_of(scheduler), transport_of(worker), transport=choice)
        assert [end.piece_bytes for end in ends] == [pieces, pieces]


async def test_processes_that_cannot_share_memory_use_streams_and_say_why_once(caplog):
    async with servers() as there:
        transport_of(there.scheduler).pool.stop("there is no memory to share")
        with caplog.at_level(logging.INFO, logger=dask_transport.__name__):
            kinds = [type((await pair(there, "auto"))[0]) for _ in range(2)]
        assert kinds == [SocketLink, SocketLink]
        values = [r.getMessage() for r in caplog.records if r.name == dask_transport.__name__]
        here, there_ = sorted("there is no memory to share" in value for value in values)
        assert (here, there_) == (False, True)  # the peer is not told why
        with pytest.raises(ConfigError, match=r"its log says why; use transport: auto"):
            await pair(there, "shm")


@pytest.mark.parametrize("is_probe_there", [True, False])
async def test_sharing_ends_only_when_the_peers_memory_cannot_be_read_at_all(is_probe_there):
    async with servers() as there:
        near, far = await pair(there, "shm")
        pools = [transport_of(server).pool for server in (there.workers[0], there.scheduler)]
        vector = pools[0].take(8 * 47_028)
        shut = [pools[0].lease_of(memoryview(vector)).slot.fd]
        if not is_probe_there:
            shut.append(pools[0].offer()["fd"])
        await near.send(Frame(kind=Kind.PARTIAL, prefix={}, payload=memoryview(vector)))
        # The slots are closed, and their numbers given to other files, before the frame is read.
        with open(os.devnull) as other:
            for fd in shut:
                os.dup2(other.fileno(), fd)
        with pytest.raises(LinkClosedError, match="wanted user"):
            await far.receive(fresh)
        assert (pools[1].closed_because == "") == is_probe_there
