"""Decisions of a member: its place in the tree, its links, its chunks, its notices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticml.control import effects as fx
from elasticml.control.member_machine import BURST_S, HELD_MODELS_MAX, RECONNECTS_MAX, Member
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


def test_first_order_makes_it_attach():
    attach = Attach(parent=PARENT, address="w0", generation=Generation(1), has_model=ExchangeId(0))
    assert Member(ME).handle(rewire(1), 0.0) == [attach]


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


def test_model_of_an_earlier_tree_is_computed_at_once():
    member = placed()
    member.handle(rewire(2), 0.0)
    assert member.handle(model(1, generation=1), 0.0) == [Compute(exchange=ExchangeId(1))]


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


def test_a_drivers_event_at_a_member_is_a_protocol_error():
    with pytest.raises(LocalProtocolError, match="cannot handle Ticked"):
        placed().handle(ev.Ticked(), 0.0)


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


def test_parent_is_notified_of_its_child_when_the_link_is_open():
    linked = ev.PeerLinked(peer=PARENT, generation=Generation(1))
    attached = ev.Attached(child=ME, generation=Generation(1), has_model=ExchangeId(0))
    assert placed().handle(linked, 0.0) == [fx.Tell(to=PARENT, event=attached)]


def test_unreachable_parent_is_retried_and_then_reported():
    member, failed = placed(), fx.ConnectFailed(peer=PARENT)
    down = ev.LinkDown(cause="1.1", member=ME, peer=PARENT)
    answers = [member.handle(failed, 0.0) for _ in range(RECONNECTS_MAX)]
    assert [type(command) for (command,) in answers[:-1]] == [Attach] * (RECONNECTS_MAX - 1)
    assert answers[-1] == [fx.Report(event=down)]
    assert member.handle(fx.ParentLost(peer=PARENT), 0.0) == [fx.Report(event=down)]


def test_unreachable_former_parent_is_ignored():
    assert placed().handle(fx.ConnectFailed(peer=CHILD), 0.0) == []


def test_link_to_a_former_parent_is_no_link_to_the_parent():
    member = placed()
    assert member.handle(ev.PeerLinked(peer=CHILD, generation=Generation(1)), 0.0) == []
    member.handle(model(1, generation=1), 0.0)
    assert member.handle(ev.Computed(exchange=ExchangeId(1)), 0.0) == []


def test_second_copy_of_a_model_is_not_accepted():
    member = placed()
    assert member.takes_model(ExchangeId(1))
    member.handle(model(1, generation=1), 0.0)
    member.handle(model(2, generation=2), 0.0)  # held
    taken = [member.takes_model(ExchangeId(exchange)) for exchange in (1, 2, 3)]
    assert taken == [False, False, True]


# --- anchors ----------------------------------------------------------------------------------


def anchor(sender: MemberId | None) -> cmd.SendAnchor:
    return cmd.SendAnchor(member=ME, exchange=ExchangeId(1), sender=sender)


def test_anchors_are_sent_as_long_as_they_are_kept():
    member = placed([CHILD])
    lost = ev.AnchorArrived(member=ME, exchange=ExchangeId(1), sender=None, handle=None)
    assert member.handle(anchor(None), 0.0) == [fx.Report(event=lost)]
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
    own = fx.SendKept(exchange=ExchangeId(1), sender=None, handle=None)
    childs = fx.SendKept(exchange=ExchangeId(1), sender=CHILD, handle=7)
    assert [member.handle(anchor(who), 0.0) for who in (None, CHILD)] == [[own], [childs]]


# --- chunks -----------------------------------------------------------------------------------

GIVER = MemberId(2, 1)
A, B, C = (ChunkId("s", 0, k) for k in range(3))


def came(order: int, *chunks: ChunkId, states: bool = True, **more) -> fx.ChunksArrived:
    known = frozenset(chunks) if states else frozenset()
    return fx.ChunksArrived(source=GIVER, order=order, chunks=chunks, states=known, **more)


def stored(member: Member, arrival: fx.ChunksArrived) -> tuple[list[ChunkId], list[ev.Event]]:
    """Return the chunks whose states a member accepts from a transfer, and its reports."""
    assert member.handle(arrival, 0.0) == [fx.StoreChunks(arrival=arrival)]
    commands = member.handle(fx.ChunksStored(arrival=arrival), 0.0)
    taken = [c for s in commands if isinstance(s, fx.SetStates) for c in s.chunks]
    return taken, [c.event for c in commands if isinstance(c, fx.Report)]


def own(*chunks: ChunkId) -> cmd.Own:
    return cmd.Own(member=ME, generation=Generation(1), chunks=chunks)


def test_state_of_an_owned_chunk_is_not_accepted():
    member = Member(ME, {A, B})
    member.handle(own(A), 0.0)
    taken, (report,) = stored(member, came(4, A, B))
    assert taken == [B]
    assert report.chunks == (A, B)
    member.handle(cmd.DropChunks(member=ME, chunks=(A,)), 0.0)
    assert stored(member, came(5, A))[0] == [A]


def test_state_of_an_older_order_is_not_accepted():
    member = Member(ME, {A, B})
    assert stored(member, came(8, A))[0] == [A]
    assert stored(member, came(7, A, B))[0] == [B]
    assert stored(member, came(9, A, B))[0] == [A, B]


def test_complete_parts_of_a_broken_transfer_count():
    taken, (report,) = stored(Member(ME, {A, C}), came(4, A, B, C, missing=frozenset({B, C})))
    assert (taken, report.chunks, report.order) == ([A], (A,), 4)


def test_state_without_a_body_is_no_move():
    taken, (failed, loaded) = stored(Member(ME, {A}), came(4, A, B))
    assert (taken, loaded.chunks) == ([A], (A,))
    assert (failed.member, failed.target, failed.chunks) == (GIVER, ME, (B,))


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


def test_drop_is_performed_before_it_is_reported():
    drop = cmd.DropChunks(member=ME, chunks=(A,))
    dropped = ev.ChunksDropped(member=ME, chunks=(A,))
    assert Member(ME, {A}).handle(drop, 0.0) == [drop, fx.Report(event=dropped)]


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


def gives(order: int) -> cmd.GiveChunks:
    return cmd.GiveChunks(member=ME, target=GIVER, address="w", chunks=(A,), order=order)


def copy_all(member: Member, order: cmd.CopyChunks, now_s: float) -> float:
    """Let all bodies of an order leave as soon as they may; return when the last one leaves."""
    commands = member.handle(order, now_s)
    while commands:
        (command,) = commands
        if isinstance(command, fx.After):
            now_s += command.seconds
            commands = member.handle(fx.TimeUp(), now_s)
        else:
            commands = member.handle(fx.CopySent(order=order.order), now_s)
    return now_s


@pytest.mark.parametrize("start_s", [0.0, 50.0])
def test_bodies_are_copied_at_the_rate_of_their_order_after_a_burst(start_s):
    member = Member(ME)
    copy_all(member, copies(1, 3), 0.0)
    seconds = copy_all(member, copies(2, 10), start_s + 1.0) - start_s - 1.0
    assert seconds == pytest.approx(9 * NBYTES / RATE - BURST_S)


def test_no_copy_starts_while_the_member_sends_or_receives_a_move():
    member = Member(ME)
    for event in (gives(1), fx.MoveArriving(source=GIVER, order=2)):
        member.handle(event, 0.0)
    waiting = copies(3, 1)
    assert member.handle(waiting, 0.0) == []
    assert member.handle(fx.GiveSent(order=1), 0.0) == []
    store, copy = member.handle(came(2, A), 0.0)
    assert isinstance(store, fx.StoreChunks)
    assert copy == fx.SendCopy(order=waiting, k=0)


def test_move_that_failed_delays_no_copy():
    member, waiting = Member(ME), copies(2, 1)
    member.handle(gives(1), 0.0)
    member.handle(waiting, 0.0)
    failed = fx.SendFailed(target=GIVER, chunks=(A,), order=1, reason="closed")
    report, copy = member.handle(failed, 0.0)
    assert isinstance(report, fx.Report)
    assert copy == fx.SendCopy(order=waiting, k=0)


def test_one_body_at_a_time_is_copied_to_a_target_and_another_one_does_not_wait():
    member = Member(ME)
    first, second, other = copies(1, 2), copies(2, 1), copies(3, 1, target=CHILD)
    sent = [member.handle(order, 0.0) for order in (first, second)]
    assert sent == [[fx.SendCopy(order=first, k=0)], []]
    assert member.handle(other, 0.2) == [fx.SendCopy(order=other, k=0)]
    assert member.handle(fx.CopySent(order=1), 0.3) == [fx.SendCopy(order=first, k=1)]
    assert member.handle(fx.CopySent(order=1), 0.4) == [fx.SendCopy(order=second, k=0)]


def test_order_that_failed_is_not_continued():
    member = Member(ME)
    member.handle(copies(1, 5), 0.0)
    failed = fx.SendFailed(target=GIVER, chunks=(A,), order=1, reason="closed")
    assert [type(c) for c in member.handle(failed, 9.0)] == [fx.Report]
    assert member.handle(fx.TimeUp(), 9.0) == []


# --- asynchronous jobs ------------------------------------------------------------------------


def peers(*came: MemberId, begun: bool = True) -> cmd.Peers:
    return cmd.Peers(member=ME, came=came, addresses=("w",) * len(came), begun=begun)


def test_newcomer_with_chunks_and_peers_requests_a_state_once():
    member = Member(ME, {A})
    orders = [peers(ME), peers(CHILD), own(A), peers(GIVER)]
    requests = [fx.AskPeers() in member.handle(order, 0.0) for order in orders]
    assert requests == [False, False, True, False]


def test_members_with_a_state_or_from_the_start_request_none():
    member = Member(ME, {A})
    for order in (own(A), peers(CHILD, begun=False)):
        assert member.handle(order, 0.0) == [order]
    assert member.handle(fx.StateLacking(), 0.0) == [fx.AskPeers()]
    other = Member(ME, {A})
    for event in (own(A), fx.StateBegun(), peers(CHILD)):
        assert fx.AskPeers() not in other.handle(event, 0.0)
    assert other.handle(fx.StateLacking(), 0.0) == []


def test_a_whole_list_of_peers_replaces_the_former_one():
    member = Member(ME)
    member.handle(peers(CHILD, GIVER), 0.0)
    member.handle(replace(peers(ME), gone=(CHILD,)), 0.0)
    assert member.peers.keys() == {ME, GIVER}
    member.handle(replace(peers(CHILD), is_full=True), 0.0)
    assert member.peers.keys() == {CHILD}


# --- notices ----------------------------------------------------------------------------------


def test_notice_is_reported_and_may_be_withdrawn():
    member = Member(ME)
    noticed = ev.Noticed(member=ME, grace_s=5.0, reason="preempted")
    assert member.handle(noticed, 0.0) == [fx.Report(event=noticed)]
    assert member.is_leaving
    member.handle(ev.NoticeWithdrawn(member=ME), 0.0)
    assert not member.is_leaving
