"""Decisions of a member: its place in the tree, its links, its chunks, its notices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticml.control import effects as fx
from elasticml.control.member_machine import HELD_MODELS_MAX, RECONNECTS_MAX, Member
from elasticml.errors import LocalProtocolError, RemoteProtocolError
from elasticml.ids import ChunkId, ExchangeId, Generation, Mask, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Attach, Compute, ForwardModel, Rewire

ME, PARENT, CHILD = MemberId(1, 1), MemberId(0, 1), MemberId(3, 1)


def rewire(generation: int, children=()) -> Rewire:
    return Rewire(
        member=ME,
        generation=Generation(generation),
        parent=PARENT,
        parent_address="w0",
        children=tuple(children),
        done=ExchangeId(0),
    )


def model(exchange: int, generation: int) -> ev.ExchangeHeader[ev.Shape]:
    return ev.ExchangeHeader(
        exchange=ExchangeId(exchange), generation=Generation(generation), operation="sums"
    )


def placed(children=()) -> Member:
    member = Member(ME)
    member.handle(rewire(1, children), 0.0)
    return member


def test_model_of_a_later_tree_waits_for_its_order():
    member = placed()
    assert member.handle(model(1, generation=2), 0.0) == []
    assert member.handle(rewire(2), 0.0) == [Compute(exchange=ExchangeId(1))]


def test_model_of_a_later_tree_waits_only_at_members_whose_place_has_changed():
    for moved, begins in ((Mask(0), True), (Mask(~ME.bit & 0xFF), True), (ME.bit, False)):
        member = placed()
        arrived = replace(model(1, generation=2), moved=moved)
        assert bool(member.handle(arrived, 0.0)) == begins
        assert bool(member.handle(rewire(2), 0.0)) != begins


def test_held_models_are_computed_in_order_and_the_newest_counts():
    member = placed()
    member.handle(model(2, generation=2), 0.0)
    member.handle(model(1, generation=2), 0.0)
    commands = member.handle(rewire(2), 0.0)
    assert [c.exchange for c in commands if isinstance(c, Compute)] == [1, 2]


def test_models_held_are_bounded():
    member = placed()
    for k in range(HELD_MODELS_MAX):
        member.handle(model(k + 1, generation=9), 0.0)
    with pytest.raises(LocalProtocolError, match="early models"):
        member.handle(model(99, generation=9), 0.0)


def test_child_gets_the_model_when_it_attaches():
    member = placed([CHILD])
    member.handle(model(1, generation=1), 0.0)
    attached = ev.Attached(child=CHILD, generation=Generation(1), has_model=ExchangeId(0))
    assert member.handle(attached, 0.0) == [ForwardModel(exchange=ExchangeId(1), to=CHILD)]


def test_it_reports_its_progress():
    member = placed([CHILD])
    stages = [member.stage()]
    for event in (
        model(1, generation=1),
        ev.Computed(exchange=ExchangeId(1)),
        ev.PeerLinked(peer=PARENT, generation=Generation(1)),
        ev.PartialArrived(
            exchange=ExchangeId(1),
            sender=CHILD,
            contributors=Mask(CHILD.bit),
            order="3",
            handle=7,
        ),
    ):
        member.handle(event, 0.0)
        stages.append(member.stage())
    assert stages == [
        "waiting-for-model",
        "computing",
        "waiting-for-children",
        "waiting-for-children",
        "sent",
    ]


# --- links ------------------------------------------------------------------------------------


def test_the_driver_s_child_reports_to_it_and_needs_no_link():
    order = Rewire(
        member=ME,
        generation=Generation(1),
        parent=None,
        parent_address="",
        children=(),
        done=ExchangeId(0),
    )
    (report,) = Member(ME).handle(order, 0.0)
    attached = ev.Attached(child=ME, generation=Generation(1), has_model=ExchangeId(0))
    assert report == fx.Report(event=attached)


def test_unreachable_parent_is_retried_and_then_reported():
    member, failed = placed(), fx.ConnectFailed(peer=PARENT)
    down = ev.LinkDown(cause="1.1", member=ME, peer=PARENT)
    answers = [member.handle(failed, 0.0) for _ in range(RECONNECTS_MAX)]
    assert [type(command) for (command,) in answers[:-1]] == [Attach] * (RECONNECTS_MAX - 1)
    assert answers[-1] == [fx.Report(event=down)]
    assert member.handle(fx.ParentLost(peer=PARENT), 0.0) == [fx.Report(event=down)]


# --- chunks -----------------------------------------------------------------------------------

GIVER = MemberId(2, 1)
A, B, C = (ChunkId("s", 0, k) for k in range(3))


def came(order: int, *chunks: ChunkId, states: bool = True, **more) -> fx.ChunksArrived:
    known = frozenset(chunks) if states else frozenset()
    return fx.ChunksArrived(source=GIVER, order=order, chunks=chunks, states=known, **more)


def test_copies_without_room_are_given_up_and_moves_without_room_end_the_job():
    member, full = Member(ME), ValueError("full")
    copies = fx.StoreFailed(arrival=came(4, A, states=False), error=full)
    (report,) = member.handle(copies, 0.0)
    assert isinstance(report.event, ev.MoveFailed)
    assert (report.event.order, report.event.reason) == (4, "ValueError: full")
    moves = fx.StoreFailed(arrival=came(4, A), error=full)
    assert member.handle(moves, 0.0) == [fx.Fail(error=full)]


def test_a_move_that_breaks_the_protocol_stays_with_its_giver_and_copies_go_on():
    member, broken = Member(ME), RemoteProtocolError("11 bytes, wanted 10")
    member.handle(fx.MoveArriving(source=GIVER, order=4), 0.0)
    assert member.handle(copies(9, 1), 0.0) == []
    failed = fx.StoreFailed(arrival=came(4, A), error=broken)
    report, sending = member.handle(failed, 0.0)
    assert isinstance(report.event, ev.MoveFailed)
    assert isinstance(sending, fx.SendCopy)


def test_driver_is_notified_once_that_chunks_are_on_disk():
    member, event = Member(ME), ev.WentOutOfCore(member=ME, nbytes=9, limit_bytes=5)
    assert member.handle(event, 0.0) == [fx.Report(event=event)]
    assert member.handle(event, 0.0) == []


# --- copies -----------------------------------------------------------------------------------

RATE, NBYTES = 1000.0, 100


def copies(order: int, n: int, target: MemberId = GIVER) -> cmd.CopyChunks:
    return cmd.CopyChunks(
        member=ME,
        target=target,
        address="w",
        chunks=tuple(ChunkId("s", order, k) for k in range(n)),
        nbytes=(NBYTES,) * n,
        order=order,
        bytes_per_s=RATE,
    )
