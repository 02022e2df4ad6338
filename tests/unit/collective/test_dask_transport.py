"""Links between real Dask servers in one process: streams, messages, TLS, and their faults."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass

import numpy as np
import pytest
from distributed import Scheduler, Worker
from distributed.comm import connect
from distributed.security import Security

from elasticml.collective import dask_transport
from elasticml.collective.comm_link import MessageChannel, StreamChannel
from elasticml.collective.dask_transport import DaskTransport, has_stream, transport_of
from elasticml.collective.frames import Frame, Header, Kind
from elasticml.collective.segmentation import PIECE_BYTES
from elasticml.collective.shared_memory_link import SharedLink
from elasticml.collective.socket_link import SocketLink
from elasticml.collective.transport import LinkClosedError
from elasticml.errors import ConfigError, LocalProtocolError, RemoteProtocolError

pytestmark = pytest.mark.asyncio

#: How a link is opened and what results: scheme, configured choice, kind of link.
WAYS = [
    pytest.param("tcp", "stream", SocketLink, id="tcp-socket"),
    pytest.param("tcp", "auto", SharedLink, id="tcp-shm"),
    pytest.param("tls", "shm", SharedLink, id="tls-shm"),
    pytest.param("tls", "stream", StreamChannel, id="tls-stream"),
    pytest.param("tcp", "comm", MessageChannel, id="tcp-comm"),
    pytest.param("tls", "comm", MessageChannel, id="tls-comm"),
    pytest.param("inproc", "auto", MessageChannel, id="inproc-comm"),
]


@dataclass(frozen=True, slots=True)
class Servers:
    """A scheduler and two workers of one process."""

    scheduler: Scheduler
    workers: list[Worker]


@contextlib.asynccontextmanager
async def servers(scheme: str = "tcp"):
    """Start a scheduler and two workers over the given scheme, and stop them."""
    security = Security.temporary() if scheme == "tls" else Security()
    if scheme == "inproc":
        place = {"protocol": "inproc"}
    else:
        place = {"protocol": scheme, "host": "127.0.0.1"}
    common = {"dashboard_address": None, "security": security} | place
    async with Scheduler(dashboard=False, port=0, **common) as scheduler:
        del common["dashboard_address"]
        async with contextlib.AsyncExitStack() as stack:
            workers = [
                await stack.enter_async_context(
                    Worker(scheduler.address, nthreads=1, dashboard=False, **common)
                )
                for _ in range(2)
            ]
            yield Servers(scheduler, workers)


async def pair(there: Servers, choice: str = "stream"):
    """Open a link from the first worker to the scheduler; return both ends."""
    accepted: asyncio.Future = asyncio.get_running_loop().create_future()

    async def on_link(link) -> None:
        accepted.set_result(link)

    transport_of(there.scheduler).listen(on_link)
    near = await transport_of(there.workers[0]).connect(
        there.scheduler.address, {"job": "j", "member": "1.0", "transport": choice}
    )
    return near, await accepted


def fresh(header: Header, prefix) -> memoryview:
    return memoryview(bytearray(header.payload_bytes))


def control(**prefix) -> Frame:
    return Frame(kind=Kind.CONTROL, prefix=prefix)


@pytest.mark.parametrize(("scheme", "choice", "kind"), WAYS)
async def test_frames_of_any_size_arrive_whole_and_in_order(scheme, choice, kind):
    rng = np.random.default_rng(0)
    vectors = [rng.random(n) for n in (1, 1_000, 47_028, 1_000_000)]
    async with servers(scheme) as there:
        near, far = await pair(there, choice)
        assert [type(getattr(link, "channel", link)) for link in (near, far)] == [kind, kind]
        for up, down in ((near, far), (far, near)):
            received = []

            async def receive(link=down, received=received) -> None:
                for exchange, vector in enumerate(vectors):
                    frame = await link.receive(fresh)
                    assert frame.prefix == {"size": vector.size}
                    assert (frame.kind, frame.exchange) == (Kind.PARTIAL, exchange)
                    received.append(np.frombuffer(frame.payload, "f8"))
                received.append(await link.receive(fresh))

            reader = asyncio.create_task(receive())
            for exchange, vector in enumerate(vectors):
                buffer = vector.copy()
                await up.send(
                    Frame(
                        kind=Kind.PARTIAL,
                        exchange=exchange,
                        prefix={"size": vector.size},
                        payload=memoryview(buffer),
                    )
                )
                # The sender may reuse its buffer as soon as send returns.
                buffer[:] = -1
            await up.send(control())
            await reader

            for vector, arrived in zip(vectors, received, strict=False):
                np.testing.assert_array_equal(vector, arrived)
            assert (received[-1].prefix, received[-1].payload) == ({}, None)
            assert up.sent_bytes == down.received_bytes > 8 * 1_048_029


@pytest.mark.parametrize(("scheme", "choice", "kind"), WAYS)
async def test_payload_is_read_into_the_given_buffer(scheme, choice, kind):
    async with servers(scheme) as there:
        near, far = await pair(there, choice)
        model, buffer = np.arange(1_000.0), np.zeros(1_000)
        await near.send(Frame(kind=Kind.MODEL, prefix={"v": 1}, payload=memoryview(model)))

        frame = await far.receive(lambda header, prefix: memoryview(buffer))

        np.testing.assert_array_equal(buffer, model)
        assert frame.payload.obj is buffer


@pytest.mark.parametrize(("scheme", "choice", "kind"), WAYS)
async def test_both_ends_know_the_hello_of_the_opener(scheme, choice, kind):
    async with servers(scheme) as there:
        near, far = await pair(there, choice)

        assert near.hello == far.hello == {"job": "j", "member": "1.0", "transport": choice}
        assert near.peer == there.scheduler.address


@pytest.mark.parametrize("closer", ["opener", "accepter"])
@pytest.mark.parametrize(("scheme", "choice", "kind"), WAYS)
async def test_close_raises_in_waiting_calls_at_both_ends(scheme, choice, kind, closer):
    async with servers(scheme) as there:
        near, far = await pair(there, choice)
        waiting = [asyncio.create_task(link.receive(fresh)) for link in (near, far)]
        await asyncio.sleep(0)

        (near if closer == "opener" else far).close()

        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [LinkClosedError, LinkClosedError]
        for link in (near, far):
            assert link.closed.is_set()
            with pytest.raises(LinkClosedError):
                await link.send(control())
            with pytest.raises(LinkClosedError):
                await link.receive(fresh)


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
async def test_stream_notices_a_lost_peer_without_a_reader(scheme):
    async with servers(scheme) as there:
        near, far = await pair(there)

        near.close()

        await far.closed.wait()


@pytest.mark.parametrize(("scheme", "choice", "kind"), WAYS)
async def test_closing_server_closes_its_links(scheme, choice, kind):
    async with servers(scheme) as there:
        near, far = await pair(there, choice)
        waiting = asyncio.create_task(far.receive(fresh))

        await there.workers[0].close()

        with pytest.raises(LinkClosedError):
            await waiting
        assert near.closed.is_set()


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
async def test_comm_aborted_by_its_server_closes_the_link(scheme):
    async with servers(scheme) as there:
        near, far = await pair(there)
        waiting = [asyncio.create_task(link.receive(fresh)) for link in (near, far)]
        await asyncio.sleep(0)

        far._comm.abort()

        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [LinkClosedError, LinkClosedError]


@pytest.mark.parametrize(("scheme", "choice", "kind"), WAYS)
async def test_frames_sent_as_soon_as_the_link_is_open_arrive(scheme, choice, kind):
    async def on_link(link) -> None:
        await link.send(control(member=link.hello["member"]))
        await link.send(await link.receive(fresh))

    async with servers(scheme) as there:
        transport_of(there.scheduler).listen(on_link)
        for member in range(5):
            hello = {"member": member, "transport": choice}
            link = await transport_of(there.workers[0]).connect(there.scheduler.address, hello)
            await link.send(control(echo=member))

            assert (await link.receive(fresh)).prefix == {"member": member}
            assert (await link.receive(fresh)).prefix == {"echo": member}
            link.close()


async def test_two_tasks_on_one_end_are_a_local_protocol_error():
    async with servers() as there:
        near, far = await pair(there)
        waiting = asyncio.create_task(far.receive(fresh))
        payload = memoryview(bytes(64 * 2**20))
        sending = asyncio.create_task(far.send(Frame(kind=Kind.CHUNK, prefix={}, payload=payload)))
        await asyncio.sleep(0)

        with pytest.raises(LocalProtocolError, match="two tasks receive"):
            await far.receive(fresh)
        with pytest.raises(LocalProtocolError, match="two tasks send"):
            await far.send(control())

        near.close()
        outcomes = await asyncio.gather(waiting, sending, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [LinkClosedError, LinkClosedError]


async def test_closing_scheduler_closes_the_links_it_accepted():
    async with servers() as there:
        near, far = await pair(there)
        waiting = asyncio.create_task(near.receive(fresh))

        await there.scheduler.close()

        with pytest.raises(LinkClosedError):
            await waiting
        assert far.closed.is_set()


async def test_sender_that_waits_for_buffer_space_learns_of_a_lost_peer():
    async with servers() as there:
        near, far = await pair(there)
        payload = memoryview(bytes(64 * 2**20))
        sender = asyncio.create_task(near.send(Frame(kind=Kind.CHUNK, prefix={}, payload=payload)))
        # The other side does not read; the kernel's buffers take less than that.
        await asyncio.sleep(0)
        assert not sender.done()

        far.close()

        with pytest.raises(LinkClosedError):
            await sender


async def test_foreign_bytes_are_a_protocol_error_and_close_the_link():
    async with servers() as there:
        near, far = await pair(there)
        near._socket.sendall(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n")

        with pytest.raises(RemoteProtocolError, match="another version"):
            await far.receive(fresh)
        assert far.closed.is_set()


async def test_foreign_message_is_a_protocol_error_and_closes_the_link():
    async with servers("inproc") as there:
        near, far = await pair(there, "auto")
        await near._comm.write({"op": "identity"})

        with pytest.raises(RemoteProtocolError, match="wanted a frame"):
            await far.receive(fresh)
        assert far.closed.is_set()


@pytest.mark.parametrize(("scheme", "choice", "kind"), WAYS)
async def test_buffer_of_the_wrong_size_is_a_local_protocol_error(scheme, choice, kind):
    async with servers(scheme) as there:
        near, far = await pair(there, choice)
        await near.send(Frame(kind=Kind.MODEL, prefix={}, payload=memoryview(bytes(8))))

        with pytest.raises(LocalProtocolError, match="8 bytes"):
            await far.receive(lambda header, prefix: memoryview(bytearray(9)))
        assert far.closed.is_set()


async def test_tcp_comm_still_has_a_stream_that_we_may_use():
    async with servers() as there:
        comm = await connect(there.scheduler.address, deserialize=False)

        assert has_stream(comm)
        assert {"read_into", "write", "set_close_callback"} <= set(dir(comm.stream))
        comm.abort()


async def test_required_stream_that_is_not_available_is_a_config_error():
    async with servers("inproc") as there:
        with pytest.raises(ConfigError, match="transport: auto"):
            await pair(there, "stream")


async def test_unknown_choice_is_a_config_error():
    async with servers() as there:
        with pytest.raises(ConfigError, match="'carrier pigeon'"):
            await pair(there, "carrier pigeon")


async def test_server_without_elasticml_refuses():
    async with servers() as there:
        with pytest.raises(LinkClosedError, match="runs no elasticml"):
            await transport_of(there.workers[0]).connect(there.scheduler.address, {"job": "j"})


async def test_server_without_a_listener_refuses():
    async with servers() as there:
        transport_of(there.scheduler)

        with pytest.raises(LinkClosedError, match="no listener"):
            await transport_of(there.workers[0]).connect(there.scheduler.address, {"job": "j"})


async def test_another_version_of_the_protocol_is_named(monkeypatch):
    async with servers() as there:
        transport_of(there.scheduler).listen(lambda link: asyncio.sleep(0))
        comm = await connect(there.scheduler.address)
        opening = {
            "op": dask_transport.HANDLER,
            "hello": "{}",
            "transport": "stream",
            "protocol": 99,
        }
        await comm.write(opening)

        assert "not 99" in (await comm.read())["refused"]
        comm.abort()


async def test_dead_server_times_out(monkeypatch):
    monkeypatch.setattr(dask_transport, "CONNECT_S_MAX", 0.1)
    async with servers() as there:
        address = there.workers[1].address
        await there.workers[1].close()

        with pytest.raises(LinkClosedError, match=address):
            await transport_of(there.workers[0]).connect(address, {"job": "j"})


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


async def test_one_transport_per_server_until_it_is_closed():
    async with servers() as there:
        first = transport_of(there.scheduler)
        assert transport_of(there.scheduler) is first
        assert transport_of(there.workers[0]) is not first

        first.close()

        assert transport_of(there.scheduler) is not first
        with pytest.raises(LinkClosedError):
            await first.connect(there.workers[0].address, {})


async def test_jobs_share_the_listener_and_workers_reach_each_other():
    async with servers() as there:
        greeted: dict[str, DaskTransport] = {}

        async def on_link(link) -> None:
            greeted[link.hello["job"]] = link
            await link.send(control(job=link.hello["job"]))

        transport_of(there.workers[1]).listen(on_link)
        transport = transport_of(there.workers[0])
        links = [await transport.connect(there.workers[1].address, {"job": job}) for job in "ab"]

        assert [(await link.receive(fresh)).prefix["job"] for link in links] == ["a", "b"]
        assert set(greeted) == {"a", "b"}


async def test_failing_listener_loses_its_link():
    async def on_link(link) -> None:
        raise RuntimeError("a fault of the listener")

    async with servers() as there:
        transport_of(there.scheduler).listen(on_link)
        link = await transport_of(there.workers[0]).connect(there.scheduler.address, {"job": "j"})

        with pytest.raises(LinkClosedError):
            await link.receive(fresh)


async def test_cancelled_receive_closes_the_link():
    async with servers() as there:
        near, far = await pair(there)
        waiting = asyncio.create_task(far.receive(fresh))
        await asyncio.sleep(0)

        waiting.cancel()

        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(LinkClosedError):
            await near.receive(fresh)


@pytest.mark.parametrize("choice", ["stream", "comm"])
@pytest.mark.parametrize(
    ("host", "pieces"), [("127.0.0.1", None), ("127.0.0.2", PIECE_BYTES)], ids=["same", "other"]
)
async def test_long_vectors_are_segmented_between_hosts_and_not_within_one(choice, host, pieces):
    async with (
        Scheduler(dashboard=False, port=0, host="127.0.0.1") as scheduler,
        Worker(scheduler.address, nthreads=1, dashboard=False, host=host) as worker,
    ):
        accepted: asyncio.Future = asyncio.get_running_loop().create_future()

        async def on_link(link) -> None:
            accepted.set_result(link)

        transport_of(worker).listen(on_link)
        near = await transport_of(scheduler).connect(worker.address, {"transport": choice})
        assert (near.piece_bytes, (await accepted).piece_bytes) == (pieces, pieces)


async def test_processes_that_cannot_share_memory_use_streams_and_say_why_once(caplog):
    async with servers() as there:
        transport_of(there.scheduler)._pool.stop("there is no memory to share")
        with caplog.at_level(logging.INFO, logger=dask_transport.__name__):
            kinds = [type((await pair(there, "auto"))[0]) for _ in range(2)]
        assert kinds == [SocketLink, SocketLink]
        values = [r.getMessage() for r in caplog.records if r.name == dask_transport.__name__]
        here, there_ = sorted("there is no memory to share" in value for value in values)
        assert (here, there_) == (False, True)  # the peer is not told why
        with pytest.raises(ConfigError, match=r"its log says why; use transport: auto"):
            await pair(there, "shm")


async def test_required_shared_memory_without_a_stream_is_a_config_error():
    async with servers("inproc") as there:
        with pytest.raises(ConfigError, match="'shm' needs a byte stream"):
            await pair(there, "shm")


@pytest.mark.parametrize("is_probe_there", [True, False])
async def test_sharing_ends_only_when_the_peers_memory_cannot_be_read_at_all(is_probe_there):
    async with servers() as there:
        near, far = await pair(there, "shm")
        pools = [transport_of(server)._pool for server in (there.workers[0], there.scheduler)]
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


async def test_link_that_breaks_while_opening_lends_no_vectors(monkeypatch):
    async def break_off(link, frame) -> None:
        raise LinkClosedError("the peer is gone")

    async with servers() as there:
        transport_of(there.scheduler).listen(lambda link: asyncio.sleep(0))
        monkeypatch.setattr(SocketLink, "send", break_off)
        transport = transport_of(there.workers[0])
        with pytest.raises(LinkClosedError, match="the peer is gone"):
            await transport.connect(there.scheduler.address, {"job": "j"})
        assert transport.lendable(8 * 47_028) is None


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
async def test_vector_in_a_slot_is_not_copied_under_tls_either(scheme):
    async with servers(scheme) as there:
        near, far = await pair(there, "auto")
        vector = transport_of(there.workers[0]).lendable(8 * 47_028)
        vector[:] = 7.0
        await near.send(Frame(kind=Kind.PARTIAL, prefix={}, payload=memoryview(vector)))
        arrived = (await far.receive(fresh)).payload.obj
        assert not arrived.flags.writeable
        vector[5] = 8.0  # visible there: it is the same memory
        assert arrived[5] == 8.0
        near.close()
        far.close()
