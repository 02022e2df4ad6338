"""The driver's links: workers that answer late, and workers that cannot take part."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from elasticml.collective.frames import Frame, Kind
from elasticml.collective.transport import Link, LinkClosedError
from elasticml.errors import ElasticmlError
from elasticml.ids import MemberId
from elasticml.runtime.driver_links import DriverLinks, LinkHandlers
from tests.socket_pair import socket_line

pytestmark = pytest.mark.asyncio


class UnresponsiveTransport:
    """A transport whose peers do not answer the first calls."""

    address = "driver"

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.calls = 0
        self.links: list[Link] = []

    async def connect(self, address: str, hello: Mapping[str, Any]) -> Link:
        self.calls += 1
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        near, far = socket_line(hello)
        self.links.append(far)
        return near


class Pauses:
    """Records the waiting times, and waits for a turn of the loop or for ever."""

    def __init__(self, *, for_ever: bool = False) -> None:
        self.seconds: list[float] = []
        self.began = asyncio.Event()
        self.for_ever = for_ever

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.began.set()
        await (asyncio.Event().wait() if self.for_ever else asyncio.sleep(0))


def make_links(
    transport: UnresponsiveTransport, pauses: Pauses, refused: list[ElasticmlError]
) -> DriverLinks:
    return DriverLinks(
        transport,
        {"job": "j"},
        LinkHandlers(
            allocate=lambda header, prefix: memoryview(bytearray(header.payload_bytes)),
            frame=lambda member, frame: None,
            arrival=lambda arrival, message: None,
            lost=lambda member, reason: None,
            refused=refused.append,
        ),
        pauses,
    )


async def turns() -> None:
    for _ in range(300):
        await asyncio.sleep(0)


async def test_worker_that_does_not_answer_is_retried():
    # A worker stopped, or busy, for five seconds at the start of a job was never asked again: the
    # job waited for it for ever.
    closed = LinkClosedError("no answer")
    transport, pauses, refused = UnresponsiveTransport(closed, closed), Pauses(), []
    made = make_links(transport, pauses, refused)
    made.invite("w0")
    await turns()
    assert (transport.calls, len(transport.links)) == (3, 1)
    assert pauses.seconds == [0.1, 0.2]
    assert refused == []
    await made.close()


async def test_worker_that_has_ended_is_not_retried():
    transport, pauses = UnresponsiveTransport(LinkClosedError("no answer")), Pauses(for_ever=True)
    made = make_links(transport, pauses, [])
    made.invite("w0")
    await pauses.began.wait()
    made.uninvite("w0")
    made.uninvite("w0")
    await turns()
    assert transport.calls == 1
    made.invite("w0")  # another worker at its address
    await turns()
    assert transport.calls == 2
    await made.close()


async def test_links_that_were_closed_take_no_more_orders():
    # A scheduler that got SIGTERM while a job was loading closed the links, and its workers were
    # removed then: KeyError(Peer), in the handler of whatever message had come.
    transport = UnresponsiveTransport()
    made = make_links(transport, Pauses(), [])
    made.invite("w0")
    await turns()
    (link,) = transport.links
    await link.send(Frame(kind=Kind.CONTROL, prefix={"type": "Arrive"}))
    await turns()
    member = MemberId(0, 1)
    assert made.welcome(1, member)
    sent = made.sent_bytes()
    await made.close()
    assert made.sent_bytes() == sent
    made.tell(member, {"type": "Own"})
    made.retire(member, {"type": "Dismiss"})
    assert not made.welcome(2, member)


async def test_thousands_of_workers_are_connected_some_at_a_time(monkeypatch):
    # Of 10,000 that are connected at once, each would take longer than the timeout of a link.
    monkeypatch.setattr("elasticml.runtime.driver_links.CONNECTING_MAX", 4)
    transport, answers, begun = UnresponsiveTransport(), asyncio.Semaphore(0), []
    connect = transport.connect

    async def connect_late(address, hello):
        begun.append(address)
        await answers.acquire()
        return await connect(address, hello)

    monkeypatch.setattr(transport, "connect", connect_late)
    made = make_links(transport, Pauses(), [])
    for k in range(9):
        made.invite(f"w{k}")
    for answered in range(10):
        await turns()
        assert (len(transport.links), len(begun)) == (answered, min(4 + answered, 9))
        answers.release()
    await made.close()
