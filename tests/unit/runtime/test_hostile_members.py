"""A member speaks for itself, with what members send: anything else fences it alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from elasticml.collective.frames import Frame, Kind
from elasticml.collective.transport import Link, LinkClosedError
from elasticml.ids import ChunkId, ExchangeId, Generation, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.protocol.codec import encode
from elasticml.sim.virtual_links import VirtualTransport
from elasticml.sim.virtual_process import VirtualProcess
from tests.sim.small_jobs import VirtualJob, toy_job

#: The root and an inner node have a child each: three members are enough.
SMALL = toy_job(
    algorithm={"name": "tests.toy:ALGORITHM", "rounds": 12}, members={"start": 3, "min": 1}
)
OTHER = MemberId(1, 1)
TWICE = {"kind": "DataError", "message": "damaged", "fields": {"message": "twice"}}


def control(event: ev.Event | cmd.Command, **extras: Any) -> Callable[[MemberId], Frame]:
    return lambda me: Frame(kind=Kind.CONTROL, prefix={**encode(event), **extras})


def own(kind: str, **fields: Any) -> Callable[[MemberId], Frame]:
    """A message in the member's own name."""
    body = {"type": kind, **fields}
    return lambda me: Frame(kind=Kind.CONTROL, prefix={"member": str(me), **body})


def partial(prefix: Mapping[str, Any], exchange: int = 0) -> Callable[[MemberId], Frame]:
    array = np.zeros(1)
    right = {"order": "x", "compute_s": {}, "sent": {}, "done": {}}
    return lambda me: Frame(
        kind=Kind.PARTIAL,
        exchange=exchange,
        prefix={**right, "of": hex(me.bit), **prefix},
        payload=array.data.cast("B"),
    )


UNKNOWN = ChunkId("s", 0, 999)
ABOUT_ANOTHER = {
    "a loss": ev.Lost(member=OTHER, reason="x"),
    "a notice": ev.Noticed(member=OTHER, grace_s=1.0, reason="x"),
    "the trainer's end": ev.TrainerFinished(converged=True, reason="x", objective=None),
    "a tick": ev.Ticked(),
    "a lost worker": ev.WorkerGone(address="w1"),
    "a failure": ev.Failed(reason="x", member=OTHER),
    "a status": ev.StatusReported(member=OTHER, exchange=ExchangeId(1), stage="sent"),
    "an attachment": ev.Attached(child=OTHER, generation=Generation(1), has_model=ExchangeId(0)),
    "chunks": ev.ChunksLoaded(member=OTHER, chunks=()),
    "a failed move": ev.MoveFailed(member=OTHER, target=MemberId(0, 1), chunks=(), reason="x"),
    "a linked peer": ev.PeerLinked(peer=OTHER, generation=Generation(1)),
    "an order": cmd.Dismiss(member=OTHER, reason="x"),
}
MALFORMED = {
    "chunks that do not exist": own("ChunksLoaded", chunks=[str(UNKNOWN)]),
    "a block that does not exist": own("BlockRead", block=99, chunks=[], summary=None),
    "chunks of another block": own("BlockRead", block=0, chunks=[["s/1/0", 1, 8]], summary=None),
    "rows below zero": own("BlockRead", block=0, chunks=[["s/0/0", -1, 8]], summary=None),
    "text for seconds": own("Noticed", grace_s="soon", reason="x"),
    "seconds without end": own("Noticed", grace_s=float("inf"), reason="x"),
    "a number for text": own("Noticed", grace_s=1.0, reason=7),
    "no stage": own("StatusReported", exchange=1, stage="idle"),
    "an error of two messages": own("Failed", reason="x", error=TWICE),
    "an error that is none": own("Failed", reason="x", error=7),
    "a partial without array": own(
        "PartialArrived", exchange=1, contributors=1, order="", handle=1
    ),
    "an anchor without array": own("AnchorArrived", exchange=1, sender=None, handle=1),
    "a partial of others": partial({"of": "0x3"}),
    "a partial of no member": partial({"of": "0x0"}),
    "a partial below zero": partial({"of": "-0x1"}),
    "an order of numbers": partial({"order": 7}),
    "seconds of text": partial({"compute_s": {"1.1": "x"}}),
    "bytes of text": partial({"sent": {"1": "x"}}),
    "computations of text": partial({"done": [7]}),
    "an empty partial": lambda me: Frame(
        kind=Kind.PARTIAL, exchange=1, prefix={"of": hex(me.bit), "order": "x"}
    ),
}
FRAMES = {name: control(event) for name, event in ABOUT_ANOTHER.items()} | MALFORMED


def running(record: dict[str, Any] = SMALL) -> VirtualJob:
    job = VirtualJob(record)
    return job.until(lambda: len(job.rows) > 1)


@pytest.mark.parametrize("what", FRAMES)
def test_what_a_member_may_not_say_fences_it_alone(what: str) -> None:
    job = running()
    liar = job.world.workers.serving()[2]
    me = liar.me
    assert me is not None
    frame = FRAMES[what](me)
    if frame.kind == Kind.PARTIAL:
        exchanges = job.agent.machine.exchanges
        job.until(lambda: exchanges.running is not None)
        frame = Frame(
            kind=frame.kind,
            exchange=exchanges.running.id,
            prefix=frame.prefix,
            payload=frame.payload,
        )
    job.world.loop.after(0.0, liar.process.enter, liar.agent.driver.send, frame)
    job.end()
    assert job.agent.state == "done", job.agent.error
    lost = job.events("MemberLost")
    assert [record["member"] for record in lost] == [str(me)], what
    assert lost[0]["reason"] not in ("closed", "x")


class Liar:
    """A process that tells the driver that it has arrived, and notes when its link is closed."""

    def __init__(self, job: VirtualJob, **fields: Any) -> None:
        workers = job.world.workers
        body = {"type": "Arrive", "host": "here", "pid": 7, "threads": 1, "nodes": [1], **fields}
        process = VirtualProcess(job.world.environment, "sim://9", "here")
        workers.processes["sim://9"] = process
        transport = VirtualTransport(process, workers.processes, None)
        self.is_closed = False

        async def lie(link: Link) -> None:
            await link.send(Frame(kind=Kind.CONTROL, prefix=body))
            try:
                while True:
                    await link.receive(lambda header, prefix: bytearray(header.payload_bytes))
            except LinkClosedError:
                self.is_closed = True

        process.enter(transport.listen, lie)
        job.world.loop.after(0.0, job.world.driver.invite, "sim://9")


def test_a_worker_arrives_where_the_driver_has_reached_it() -> None:
    """A worker that named another's address took that member's place."""
    job = running()
    membership = job.agent.machine.state.membership
    before = membership.at("sim://1")
    Liar(job, address="sim://1")
    job.until(lambda: membership.at("sim://9") is not None)
    assert membership.at("sim://1") is before


@pytest.mark.parametrize(
    "wrong", [{"slot": -1}, {"slot": 2**40}, {"threads": 0}, {"cpu": 7}, {"limit_bytes": "much"}]
)
def test_an_arrival_that_does_not_fit_closes_its_link(wrong: dict[str, Any]) -> None:
    job = running()
    liar = Liar(job, **wrong)
    job.until(lambda: liar.is_closed).end()
    assert job.agent.state == "done"
    assert len(job.events("MemberJoined")) == 3
