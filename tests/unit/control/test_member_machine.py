"""Decisions of a member: its place in the tree, its links, its chunks, its notices."""

from __future__ import annotations

import pytest

from elasticml.control import effects as fx
from elasticml.control.member_machine import HELD_MODELS_MAX, RECONNECTS_MAX, Member
from elasticml.errors import LocalProtocolError, RemoteProtocolError
from elasticml.ids import ChunkId, ExchangeId, Generation, MemberId
from elasticml.protocol import commands as cmd
from elasticml.protocol import events as ev

ME, PARENT = MemberId(1, 1), MemberId(0, 1)


def model(exchange: int) -> ev.ExchangeHeader[ev.Shape]:
    return ev.ExchangeHeader(
        exchange=ExchangeId(exchange), generation=Generation(9), operation="sums"
    )


def placed() -> Member:
    member = Member(ME)
    place = cmd.Rewire(
        member=ME,
        generation=Generation(1),
        parent=PARENT,
        parent_address="w0",
        children=(),
        done=ExchangeId(0),
    )
    member.handle(place, 0.0)
    return member


def test_models_held_are_bounded():
    member = placed()
    for k in range(HELD_MODELS_MAX):
        member.handle(model(k + 1), 0.0)
    with pytest.raises(LocalProtocolError, match="early models"):
        member.handle(model(99), 0.0)


# --- links ------------------------------------------------------------------------------------


def test_unreachable_parent_is_retried_and_then_reported():
    member, failed = placed(), fx.ConnectFailed(peer=PARENT)
    down = ev.LinkDown(cause="1.1", member=ME, peer=PARENT)
    answers = [member.handle(failed, 0.0) for _ in range(RECONNECTS_MAX)]
    assert [type(command) for (command,) in answers[:-1]] == [cmd.Attach] * (RECONNECTS_MAX - 1)
    assert answers[-1] == [fx.Report(event=down)]
    assert member.handle(fx.ParentLost(peer=PARENT), 0.0) == [fx.Report(event=down)]


# --- chunks -----------------------------------------------------------------------------------

GIVER = MemberId(2, 1)
A = ChunkId("s", 0, 0)


def came(order: int, *chunks: ChunkId, states: bool = True) -> fx.ChunksArrived:
    known = frozenset(chunks) if states else frozenset()
    return fx.ChunksArrived(source=GIVER, order=order, chunks=chunks, states=known)


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


def copies(order: int, n: int) -> cmd.CopyChunks:
    return cmd.CopyChunks(
        member=ME,
        target=GIVER,
        address="w",
        chunks=tuple(ChunkId("s", order, k) for k in range(n)),
        nbytes=(NBYTES,) * n,
        order=order,
        bytes_per_s=RATE,
    )
