"""Bounded waiting at the driver: who is asked, who is fenced, who is given another term."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elasticml.control import events as ev
from elasticml.control.commands import AskStatus, Gathered
from elasticml.control.exchanging import Exchanging
from elasticml.control.settings import Settings
from elasticml.control.state import JobState
from elasticml.terms import ChunkId, ChunkInfo, ExchangeId, Generation, Mask, MemberId

A, B, C = (MemberId(slot, 1) for slot in range(3))
DEADLINE_S, STATUS_S = 10.0, 2.0


def request(operation: str = "sums", *, keep: bool = False) -> ev.ExchangeRequested:
    return ev.ExchangeRequested(
        operation=operation, phase="compute", keep=keep, require_everybody=False, seal=False
    )


@pytest.fixture
def exchanging() -> Exchanging:
    """Three members with a chunk of 10 examples each, in a star."""
    state = JobState(
        settings=Settings(topology="star", deadline_s_min=DEADLINE_S, status_s_max=STATUS_S)
    )
    for slot in range(3):
        record = state.membership.admit(
            address=f"w{slot}", host="h", pid=slot, threads=1, slot=None, now_s=0.0
        )
        state.membership.enter(record, "active")
        state.ledger.add(record.id, [ChunkInfo(id=ChunkId("s", 0, slot), rows=10, nbytes=1)])
    return Exchanging(state)


def arrive(exchanging: Exchanging, member: MemberId, now_s: float) -> None:
    """Let a member's partial come to the root; closes the exchange with the last one."""
    state = exchanging.state
    partial = ev.PartialArrived(
        exchange=state.last_exchange,
        sender=member,
        contributors=member.bit,
        order=str(member.slot),
        handle=10 * state.last_exchange + member.slot,
    )
    for command in state.root.partial(partial):
        assert isinstance(command, Gathered)
        exchanging.gathered(command, now_s)


def exchange(exchanging: Exchanging, seconds: float, start_s: float = 0.0, **changes):
    exchanging.start(request(**changes), start_s)
    for member in (A, B, C):
        arrive(exchanging, member, start_s + seconds)
    return exchanging.deliver()[1]


def asked(commands) -> list[MemberId]:
    assert all(isinstance(c, AskStatus) for c in commands)
    return [c.member for c in commands]


def answer(exchanging: Exchanging, member: MemberId, stage) -> None:
    exchanging.status_reported(
        ev.StatusTold(member=member, exchange=exchanging.state.last_exchange, stage=stage)
    )


def test_nobody_is_asked_before_the_deadline(exchanging):
    exchanging.start(request(), 0.0)
    assert exchanging.ticked(DEADLINE_S - 0.1) == ([], [])


def test_only_those_who_are_missing_are_asked(exchanging):
    exchanging.start(request(), 0.0)
    arrive(exchanging, B, 1.0)
    commands, stuck = exchanging.ticked(DEADLINE_S)
    assert (asked(commands), stuck) == ([A, C], [])


def test_whoever_does_not_answer_is_stuck(exchanging):
    exchanging.start(request(), 0.0)
    exchanging.ticked(DEADLINE_S)
    answer(exchanging, A, "waiting-for-model")
    answer(exchanging, B, "waiting-for-children")
    assert exchanging.ticked(DEADLINE_S + STATUS_S - 0.1) == ([], [])
    assert exchanging.ticked(DEADLINE_S + STATUS_S) == ([], [C])


def test_first_computation_of_an_operation_is_not_called_stuck(exchanging):
    exchanging.start(request(), 0.0)
    exchanging.ticked(DEADLINE_S)
    for member in (A, B, C):
        answer(exchanging, member, "computing")
    assert exchanging.ticked(DEADLINE_S + STATUS_S) == ([], [])


def test_computation_far_beyond_the_median_is_stuck(exchanging):
    exchange(exchanging, seconds=1.0)
    exchanging.start(request(), 0.0)
    exchanging.ticked(DEADLINE_S)
    for member, stage in ((A, "computing"), (B, "waiting-for-children"), (C, "sent")):
        answer(exchanging, member, stage)
    assert exchanging.ticked(DEADLINE_S + STATUS_S) == ([], [A])


def test_who_wants_stragglers_given_up_soon_has_them_given_up_soon(exchanging):
    exchanging.state.settings = replace(
        exchanging.state.settings, deadline_s_min=0.5, stuck_factor=2.0
    )
    exchange(exchanging, seconds=1.0)
    exchanging.start(request(), 10.0)
    assert asked(exchanging.ticked(12.0)[0]) == [A, B, C]
    for member, stage in ((A, "computing"), (B, "waiting-for-children"), (C, "sent")):
        answer(exchanging, member, stage)
    assert exchanging.ticked(12.5) == ([], [A])


def test_whoever_answered_gets_another_term_and_is_asked_again(exchanging):
    exchanging.start(request(), 0.0)
    exchanging.ticked(DEADLINE_S)
    for member in (A, B, C):
        answer(exchanging, member, "computing")
    exchanging.ticked(DEADLINE_S + STATUS_S)
    assert exchanging.ticked(2 * DEADLINE_S) == ([], [])
    commands, _ = exchanging.ticked(2 * DEADLINE_S + STATUS_S)
    assert asked(commands) == [A, B, C]


def test_answer_about_another_exchange_does_not_count(exchanging):
    exchanging.start(request(), 0.0)
    exchanging.ticked(DEADLINE_S)
    exchanging.status_reported(ev.StatusTold(member=A, exchange=ExchangeId(7), stage="computing"))
    assert A in exchanging.ticked(DEADLINE_S + STATUS_S)[1]


def test_deadline_grows_with_the_operations_own_median(exchanging):
    exchange(exchanging, seconds=8.0)
    exchange(exchanging, seconds=0.1, operation="other")
    exchanging.start(request(), 100.0)
    assert exchanging.running.deadline_s == 100.0 + 5 * 8.0
    exchanging.start(request("other"), 100.0)
    assert exchanging.running.deadline_s == 100.0 + DEADLINE_S


def test_duration_of_a_disturbed_exchange_does_not_count(exchanging):
    exchanging.start(request(), 0.0)
    arrive(exchanging, A, 1.0)
    arrive(exchanging, B, 1.0)
    exchanging.lost(C)
    arrive(exchanging, C, 99.0)
    exchanging.deliver()
    assert exchanging.median_s("sums") is None


def test_outcome_counts_the_examples_of_its_contributors(exchanging):
    deliver = exchange(exchanging, seconds=1.0)
    assert (deliver.examples, deliver.absent_examples, deliver.opened) == (30, 0, None)
    assert (deliver.contributors, deliver.order) == (Mask(0b111), "(0+1+2)")


def test_share_of_a_member_lost_after_it_sent_is_not_missing(exchanging):
    exchanging.start(request(), 0.0)
    arrive(exchanging, A, 1.0)
    exchanging.state.ledger.lose(A)
    exchanging.lost(A)
    arrive(exchanging, B, 1.0)
    arrive(exchanging, C, 1.0)
    _, deliver = exchanging.deliver()
    assert (deliver.examples, deliver.absent_examples, deliver.opened) == (30, 0, None)


def lose_in_next(exchanging: Exchanging, member: MemberId) -> None:
    """Begin an exchange and lose a member that has sent nothing; the others have."""
    state = exchanging.state
    exchanging.start(request(keep=True), 0.0)
    state.membership.remove(member)
    state.ledger.lose(member)
    exchanging.lost(member)
    del state.parents[member]
    for other in sorted(state.parents):
        arrive(exchanging, other, 1.0)
    state.generation = Generation(state.generation + 1)
    for command in state.rewire_root(sorted(state.parents)):
        if isinstance(command, Gathered):
            exchanging.gathered(command, 1.0)


def test_anchor_is_the_vanished_members_input_of_the_last_kept_exchange(exchanging):
    exchange(exchanging, seconds=1.0, keep=True)
    lose_in_next(exchanging, B)
    _, deliver = exchanging.deliver()
    assert deliver.anchor_exchange == ExchangeId(1)
    assert [(part.handle, part.sign) for part in deliver.anchor] == [(11, 1)]
    assert deliver.opened is not None


def test_there_is_no_anchor_for_chunks_that_came_after_the_kept_exchange(exchanging):
    exchange(exchanging, seconds=1.0, keep=True)
    ledger = exchanging.state.ledger
    ledger.hold(B, [ChunkId("s", 0, 0)])
    ledger.move(ChunkId("s", 0, 0), B)
    lose_in_next(exchanging, B)
    assert exchanging.deliver()[1].anchor_exchange is None


def test_there_is_no_anchor_without_a_kept_exchange(exchanging):
    exchange(exchanging, seconds=1.0, keep=False)
    lose_in_next(exchanging, B)
    assert exchanging.deliver()[1].anchor_exchange is None
