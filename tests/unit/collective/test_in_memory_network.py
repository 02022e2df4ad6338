"""The in-memory network: its faults behave as specified and are the same for a seed."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from elasticml.collective.frames import Frame, Header, Kind
from elasticml.collective.transport import Link, LinkClosedError
from elasticml.errors import LocalProtocolError
from tests.in_memory_network import IN_FLIGHT_MAX, FaultyNetwork

pytestmark = pytest.mark.asyncio


def fresh(header: Header, prefix) -> memoryview:
    return memoryview(bytearray(header.payload_bytes))


def control(**prefix) -> Frame:
    return Frame(kind=Kind.CONTROL, prefix=prefix)


async def pair(network: FaultyNetwork, source: str, target: str) -> tuple[Link, Link]:
    """Open a link and return both of its ends."""
    accepted: asyncio.Future[Link] = asyncio.get_running_loop().create_future()

    async def on_link(link: Link) -> None:
        accepted.set_result(link)

    network.endpoint(target).listen(on_link)
    near = await network.endpoint(source).connect(target, {"job": "j", "member": source})
    return near, await accepted


async def drain(link: Link) -> list[int]:
    """Return the exchange ids of all frames that arrive until the link closes."""
    seen = []
    while True:
        try:
            seen.append((await link.receive(fresh)).exchange)
        except LinkClosedError:
            return seen


async def settle() -> None:
    """Let every possible transfer happen."""
    for _ in range(200):
        await asyncio.sleep(0)


async def star(seed: int) -> list[str]:
    """Return the senders in the order in which the frames of four links arrived."""
    network = FaultyNetwork(seed)
    arrived: list[str] = []

    async def send(name: str) -> None:
        near, far = await pair(network, name, "root-" + name)

        async def read() -> None:
            for _ in range(5):
                frame = await far.receive(fresh)
                arrived.append(f"{far.peer}:{frame.exchange}")

        reader = asyncio.create_task(read())
        for exchange in range(5):
            await near.send(Frame(kind=Kind.PARTIAL, exchange=exchange, prefix={}))
        await reader

    await asyncio.gather(*(send(name) for name in "abcd"))
    assert len(network.deliveries) == 20
    return arrived


async def test_same_seed_gives_the_same_order_and_another_seed_another():
    first, again, other = await star(1), await star(1), await star(2)

    assert first == again
    assert first != other
    for name in "abcd":
        mine = [entry for entry in first if entry.startswith(name)]
        assert mine == [f"{name}:{exchange}" for exchange in range(5)]


async def test_frame_arrives_whole_in_the_given_buffer_and_is_a_copy():
    near, far = await pair(FaultyNetwork(), "1.0", "driver")
    model, buffer = np.arange(5.0), np.zeros(5)
    await near.send(
        Frame(kind=Kind.MODEL, exchange=7, piece=2, prefix={"a": [1]}, payload=memoryview(model))
    )
    model[:] = -1

    frame = await far.receive(lambda header, prefix: memoryview(buffer))

    assert buffer.tolist() == [0, 1, 2, 3, 4]
    assert (frame.kind, frame.exchange, frame.piece, frame.prefix) == (Kind.MODEL, 7, 2, {"a": [1]})
    assert near.sent_bytes == far.received_bytes == 32 + len(b'{"a":[1]}') + 40


async def test_both_ends_know_the_hello_of_the_opener():
    near, far = await pair(FaultyNetwork(), "1.0", "driver")

    assert near.hello == far.hello == {"job": "j", "member": "1.0"}
    assert (near.peer, far.peer) == ("driver", "1.0")


async def test_gate_stops_only_the_matching_frame_and_those_behind_it():
    network = FaultyNetwork()
    near, far = await pair(network, "1.0", "driver")
    other, other_far = await pair(network, "2.0", "driver")
    gate = network.gate(kind=Kind.PARTIAL, exchange=3, source="1.0")
    for exchange in (2, 3, 4):
        await near.send(Frame(kind=Kind.PARTIAL, exchange=exchange, prefix={}))
    assert (await far.receive(fresh)).exchange == 2

    reader = asyncio.create_task(far.receive(fresh))
    await gate.reached.wait()
    await other.send(Frame(kind=Kind.PARTIAL, exchange=3, prefix={}))
    assert (await other_far.receive(fresh)).exchange == 3
    await settle()
    assert not reader.done()

    gate.release()
    assert (await reader).exchange == 3
    assert (await far.receive(fresh)).exchange == 4


async def test_gate_can_ask_for_a_prefix():
    network = FaultyNetwork()
    near, far = await pair(network, "1.0", "driver")
    gate = network.gate(target="driver", where=lambda header, prefix: prefix.get("type") == "Done")
    await near.send(control(type="Ready"))
    await near.send(control(type="Done"))

    assert (await far.receive(fresh)).prefix == {"type": "Ready"}
    assert not gate.is_released
    reader = asyncio.create_task(far.receive(fresh))
    await gate.reached.wait()
    gate.release()

    assert (await reader).prefix == {"type": "Done"}


async def kill_with_ten_frames_in_flight(seed: int) -> list[int]:
    network = FaultyNetwork(seed)
    near, far = await pair(network, "1.0", "driver")
    for exchange in range(10):
        await near.send(Frame(kind=Kind.PARTIAL, exchange=exchange, prefix={}))
    network.kill("1.0")
    with pytest.raises(LinkClosedError):
        await far.send(control())
    arrived = await drain(far)
    assert network.n_dropped == 10 - len(arrived)
    return arrived


async def test_killed_peer_leaves_a_seeded_prefix_of_its_frames():
    outcomes = [await kill_with_ten_frames_in_flight(seed) for seed in range(20)]

    assert outcomes == [await kill_with_ten_frames_in_flight(seed) for seed in range(20)]
    assert all(arrived == list(range(len(arrived))) for arrived in outcomes)
    assert len({len(arrived) for arrived in outcomes}) > 5


async def test_kill_raises_in_waiting_calls_at_both_ends():
    network = FaultyNetwork()
    near, far = await pair(network, "1.0", "driver")
    waiting = [asyncio.create_task(link.receive(fresh)) for link in (near, far)]
    await settle()

    network.kill("1.0")

    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LinkClosedError, LinkClosedError]
    with pytest.raises(LinkClosedError):
        await near.send(control())
    with pytest.raises(LinkClosedError):
        await network.endpoint("driver").connect("1.0", {})


async def test_frame_at_a_gate_dies_with_its_sender():
    network = FaultyNetwork()
    near, far = await pair(network, "1.0", "driver")
    gate = network.gate(kind=Kind.PARTIAL)
    await near.send(Frame(kind=Kind.PARTIAL, exchange=1, prefix={}))
    reader = asyncio.create_task(drain(far))
    await gate.reached.wait()

    network.kill("1.0")

    assert await reader == []


async def test_same_address_may_return_after_a_kill():
    network = FaultyNetwork()
    await pair(network, "1.0", "driver")
    network.kill("1.0")

    near, far = await pair(network, "1.0", "driver")
    await near.send(control(type="Back"))

    assert (await far.receive(fresh)).prefix == {"type": "Back"}


async def test_closed_end_raises_and_so_does_the_other():
    near, far = await pair(FaultyNetwork(), "1.0", "driver")
    waiting = asyncio.create_task(far.receive(fresh))
    await settle()

    near.close()
    near.close()

    with pytest.raises(LinkClosedError):
        await waiting
    with pytest.raises(LinkClosedError):
        await far.receive(fresh)
    for link in (near, far):
        with pytest.raises(LinkClosedError):
            await link.send(control())
    with pytest.raises(LinkClosedError):
        await near.receive(fresh)


async def test_paused_peer_neither_moves_nor_closes():
    network = FaultyNetwork()
    near, far = await pair(network, "1.0", "driver")
    network.pause("1.0")
    await near.send(control(type="Late"))
    await far.send(control(type="Down"))
    readers = [asyncio.create_task(link.receive(fresh)) for link in (far, near)]
    opening = asyncio.create_task(network.endpoint("2.0").connect("1.0", {}))
    await settle()
    assert not any(task.done() for task in [*readers, opening])

    network.endpoint("1.0").listen(lambda link: asyncio.sleep(0))
    network.resume("1.0")

    frames = await asyncio.gather(*readers)
    assert [frame.prefix["type"] for frame in frames] == ["Late", "Down"]
    await opening


async def test_sender_waits_while_too_much_is_in_flight():
    network = FaultyNetwork()
    near, far = await pair(network, "1.0", "driver")

    async def send() -> None:
        for exchange in range(IN_FLIGHT_MAX + 1):
            await near.send(Frame(kind=Kind.CHUNK, exchange=exchange, prefix={}))

    sender = asyncio.create_task(send())
    await settle()
    assert not sender.done()
    with pytest.raises(LocalProtocolError):
        await near.send(control())

    await far.receive(fresh)

    await sender


async def test_waiting_sender_learns_of_a_kill():
    network = FaultyNetwork()
    near, _ = await pair(network, "1.0", "driver")

    async def send() -> None:
        while True:
            await near.send(control())

    sender = asyncio.create_task(send())
    await settle()

    network.kill("driver")

    with pytest.raises(LinkClosedError):
        await sender


async def test_unknown_address_and_missing_listener_refuse():
    network = FaultyNetwork()
    network.endpoint("deaf")

    for address in ("nowhere", "deaf"):
        with pytest.raises(LinkClosedError, match=address):
            await network.endpoint("driver").connect(address, {})


async def test_buffer_of_the_wrong_size_is_a_local_protocol_error():
    near, far = await pair(FaultyNetwork(), "1.0", "driver")
    await near.send(Frame(kind=Kind.MODEL, prefix={}, payload=memoryview(bytes(8))))

    with pytest.raises(LocalProtocolError, match="8 bytes"):
        await far.receive(lambda header, prefix: memoryview(bytearray(7)))


async def test_failing_listener_loses_its_link():
    network = FaultyNetwork()

    async def on_link(link: Link) -> None:
        raise RuntimeError("a fault of the listener")

    network.endpoint("driver").listen(on_link)
    near = await network.endpoint("1.0").connect("driver", {})

    with pytest.raises(LinkClosedError):
        await near.receive(fresh)
