"""Bounded waiting at the driver: which members are asked, fenced, or given more time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.exchange import ExchangeCoordinator
from elasticml.control.job_state import JobState
from elasticml.ids import ChunkId, ChunkInfo, ExchangeId, Generation, Mask, MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import AskStatus, Command, Forget, Gathered, Refuse
from elasticml.protocol.events import Arrived

A, B, C = (MemberId(slot, 1) for slot in range(3))
DEADLINE_S, STATUS_S = 10.0, 2.0


def request(operation: str = "sums", *, keep: bool = False) -> ev.ExchangeRequested:
    return ev.ExchangeRequested(
        header=ev.ExchangeHeader(operation=operation, keep=keep),
        phase="compute",
        require_everybody=False,
        seal=False,
    )


@pytest.fixture
def exchanges() -> ExchangeCoordinator:
    """Three members with a chunk of 10 examples each, in a star."""
    state = JobState(
        settings=DriverSettings(topology="star", deadline_s_min=DEADLINE_S, status_s_max=STATUS_S)
    )
    for slot in range(3):
        record = state.membership.admit(
            Arrived(arrival=0, address=f"w{slot}", host="h", pid=slot, threads=1), 0.0
        )
        state.membership.enter(record, "active")
        state.ledger.add(record.id, [ChunkInfo(id=ChunkId("s", 0, slot), rows=10, nbytes=1)])
    return ExchangeCoordinator(state)


def arrive(exchanges: ExchangeCoordinator, member: MemberId, now_s: float) -> None:
    """Deliver a member's partial to the root; the last one closes the exchange."""
    state = exchanges.state
    partial = ev.PartialArrived(
        exchange=state.last_exchange,
        sender=member,
        contributors=member.bit,
        order=str(member.slot),
        handle=10 * state.last_exchange + member.slot,
    )
    for command in state.root.partial(partial):
        assert isinstance(command, Gathered)
        exchanges.gathered(command, now_s)


def exchange(exchanges: ExchangeCoordinator, seconds: float, start_s: float = 0.0, **changes):
    exchanges.start(request(**changes), start_s)
    for member in (A, B, C):
        arrive(exchanges, member, start_s + seconds)
    return exchanges.deliver()[1]


def asked(commands) -> list[MemberId]:
    assert all(isinstance(c, AskStatus) for c in commands)
    return [c.member for c in commands]


def answer(exchanges: ExchangeCoordinator, member: MemberId, stage) -> None:
    exchanges.status_reported(
        ev.StatusReported(member=member, exchange=exchanges.state.last_exchange, stage=stage)
    )


def test_a_member_that_does_not_answer_is_stuck(exchanges):
    exchanges.start(request(), 0.0)
    exchanges.ticked(DEADLINE_S)
    answer(exchanges, A, "waiting-for-model")
    answer(exchanges, B, "waiting-for-children")
    assert exchanges.ticked(DEADLINE_S + STATUS_S - 0.1) == ([], [])
    assert exchanges.ticked(DEADLINE_S + STATUS_S) == ([], [C])


def test_computation_far_beyond_the_median_is_stuck(exchanges):
    exchange(exchanges, seconds=1.0)
    exchanges.start(request(), 0.0)
    exchanges.ticked(DEADLINE_S)
    for member, stage in ((A, "computing"), (B, "waiting-for-children"), (C, "sent")):
        answer(exchanges, member, stage)
    assert exchanges.ticked(DEADLINE_S + STATUS_S) == ([], [A])


def test_a_member_that_answers_gets_more_time_and_is_asked_again(exchanges):
    exchanges.start(request(), 0.0)
    exchanges.ticked(DEADLINE_S)
    for member in (A, B, C):
        answer(exchanges, member, "computing")
    exchanges.ticked(DEADLINE_S + STATUS_S)
    assert exchanges.ticked(2 * DEADLINE_S) == ([], [])
    commands, _ = exchanges.ticked(2 * DEADLINE_S + STATUS_S)
    assert asked(commands) == [A, B, C]
    # Its first answer does not count for the second question.
    assert exchanges.ticked(2 * (DEADLINE_S + STATUS_S)) == ([], [A, B, C])


def test_deadline_grows_with_the_operations_own_median(exchanges):
    exchange(exchanges, seconds=8.0)
    exchange(exchanges, seconds=0.1, operation="other")
    exchanges.start(request(), 100.0)
    assert exchanges.running.deadline_s == 100.0 + 5 * 8.0
    exchanges.start(request("other"), 100.0)
    assert exchanges.running.deadline_s == 100.0 + DEADLINE_S


def test_duration_of_a_disturbed_exchange_does_not_count(exchanges):
    exchanges.start(request(), 0.0)
    arrive(exchanges, A, 1.0)
    arrive(exchanges, B, 1.0)
    exchanges.lost(C)
    arrive(exchanges, C, 99.0)
    exchanges.deliver()
    assert exchanges.median_s("sums") is None


def test_share_of_a_member_lost_after_it_sent_is_not_missing(exchanges):
    exchanges.start(request(), 0.0)
    arrive(exchanges, A, 1.0)
    exchanges.state.ledger.lose(A)
    exchanges.lost(A)
    arrive(exchanges, B, 1.0)
    arrive(exchanges, C, 1.0)
    assert exchanges.missing() == []
    _, deliver = exchanges.deliver()
    assert (deliver.examples, deliver.absent_examples, deliver.opened) == (30, 0, None)


def lose_in_next(exchanges: ExchangeCoordinator, member: MemberId) -> None:
    """Begin an exchange and lose a member that has sent nothing; the others have."""
    state = exchanges.state
    exchanges.start(request(keep=True), 0.0)
    state.membership.remove(member)
    state.ledger.lose(member)
    exchanges.lost(member)
    del state.parents[member]
    for other in sorted(state.parents):
        arrive(exchanges, other, 1.0)
    state.generation = Generation(state.generation + 1)
    for command in state.rewire_root(sorted(state.parents)):
        if isinstance(command, Gathered):
            exchanges.gathered(command, 1.0)


def test_anchor_is_the_vanished_members_input_of_the_last_kept_exchange(exchanges):
    exchange(exchanges, seconds=1.0, keep=True)
    lose_in_next(exchanges, B)
    _, deliver = exchanges.deliver()
    assert deliver.anchor_exchange == ExchangeId(1)
    assert [(part.handle, part.sign) for part in deliver.anchor] == [(11, 1)]
    assert (deliver.examples, deliver.absent_examples) == (20, 10)
    assert deliver.opened is not None


def test_there_is_no_anchor_for_chunks_that_came_after_the_kept_exchange(exchanges):
    exchange(exchanges, seconds=1.0, keep=True)
    ledger = exchanges.state.ledger
    ledger.hold(B, [ChunkId("s", 0, 0)])
    ledger.move(ChunkId("s", 0, 0), B)
    lose_in_next(exchanges, B)
    assert exchanges.deliver()[1].anchor_exchange is None


def test_a_disturbed_exchange_is_no_anchor(exchanges):
    lose_in_next(exchanges, B)
    exchanges.deliver()
    exchanges.state.ledger.seal()
    lose_in_next(exchanges, C)
    assert exchanges.deliver()[1].anchor_exchange is None


def gather(exchanges: ExchangeCoordinator, *members: MemberId) -> list[Command]:
    """Deliver the sum of these members to the root, by A; return the commands at its end."""
    state = exchanges.state
    mask = Mask(sum(member.bit for member in members))
    partial = ev.PartialArrived(
        exchange=state.last_exchange, sender=A, contributors=mask, order="0", handle=1
    )
    (gathered,) = state.root.partial(partial)
    assert isinstance(gathered, Gathered)
    return exchanges.gathered(gathered, 1.0)


def term(member: MemberId, handle: int | None, *, sender=None, exchange: int = 1):
    return ev.AnchorArrived(
        member=member, exchange=ExchangeId(exchange), sender=sender, handle=handle
    )


@pytest.fixture
def fetching(exchanges) -> ExchangeCoordinator:
    """B, between A and C in a chain, was lost: A is asked for B's sum, and C for its own one."""
    state = exchanges.state
    state.settings = replace(state.settings, topology="tree", fan_out=1)
    exchanges.start(request(keep=True), 0.0)
    assert gather(exchanges, A, B, C) == []
    exchanges.deliver()
    exchanges.start(request(keep=True), 0.0)
    state.membership.remove(B)
    state.ledger.lose(B)
    exchanges.lost(B)
    state.heal(B)
    questions = gather(exchanges, A, C)
    assert [(q.member, q.exchange, q.sender) for q in questions] == [(A, 1, B), (C, 1, None)]
    assert not exchanges.deliverable(1.0)
    return exchanges


def test_anchor_in_a_tree_is_complete_when_all_terms_are_there(fetching):
    assert fetching.anchor_arrived(term(A, 7, sender=B)) == []
    assert not fetching.deliverable(1.0)
    assert fetching.anchor_arrived(term(C, 8)) == []
    assert fetching.deliverable(1.0)
    _, deliver = fetching.deliver()
    assert [(part.handle, part.sign, part.of) for part in deliver.anchor] == [
        (7, 1, B.bit | C.bit),
        (8, -1, C.bit),
    ]
    assert Forget(exchange=ExchangeId(2), handles=(7, 8)) in fetching.start(request(), 2.0)


def test_exchange_ends_without_an_anchor_when_a_term_is_late(fetching):
    fetching.anchor_arrived(term(A, 7, sender=B))
    assert not fetching.deliverable(1.0 + STATUS_S - 0.1)
    assert fetching.deliverable(1.0 + STATUS_S)
    assert fetching.deliver()[1].anchor_exchange is None
    assert fetching.anchor_arrived(term(C, 8)) == [
        Refuse(exchange=ExchangeId(1), sender=C, handle=8)
    ]


def test_exchange_ends_without_an_anchor_when_a_member_lacks_its_term(fetching):
    fetching.anchor_arrived(term(A, 7, sender=B))
    fetching.anchor_arrived(term(C, None))
    assert fetching.deliverable(1.0)
    assert fetching.deliver()[1].anchor_exchange is None


def test_term_of_another_exchange_or_sum_is_refused(fetching):
    for other in (term(A, 7, sender=B, exchange=3), term(A, 7), term(C, 7, sender=B)):
        refused = Refuse(exchange=other.exchange, sender=other.member, handle=7)
        assert fetching.anchor_arrived(other) == [refused]
    assert not fetching.deliverable(1.0)
