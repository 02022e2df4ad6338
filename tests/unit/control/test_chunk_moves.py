"""Chunk moves: batches, acknowledgements, failures, restarted returns."""

from __future__ import annotations

import pytest

from elasticml.control.chunk_transfers import (
    ASSUMED_BYTES_PER_S,
    MOVE_PAUSE_S,
    ChunkCopies,
    ChunkMoves,
    MoveSpeed,
)
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.control.placement import MemoryBudget
from elasticml.control.policy import View
from elasticml.control.policy_engine import PolicyEngine
from elasticml.control.rounds import History, Rounds
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.policies.readmission import Reload, WholeGroup
from elasticml.protocol.commands import Command, DropChunks, LoadChunks, Record
from elasticml.protocol.events import Arrived, ChunksDropped, ChunksLoaded, MoveFailed

A, B, C = (MemberId(slot, 1) for slot in range(3))


def chunk(owner: int, k: int) -> ChunkId:
    return ChunkId("s", owner, k)


def chunk_moves(n_chunks: int = 2, holders: int = 1) -> ChunkMoves:
    """A and B have chunks; C is a spare member that is ready."""
    state = JobState(settings=DriverSettings(), holders=holders)
    for slot in range(3):
        record = state.membership.admit(
            Arrived(arrival=0, address=f"w{slot}", host="h", pid=slot, threads=1), 0.0
        )
        record.configured = True
        if slot < 2:
            state.membership.enter(record, "active")
            chunks = [ChunkInfo(id=chunk(slot, k), rows=10, nbytes=1) for k in range(n_chunks)]
            state.ledger.add(record.id, chunks)
    return ChunkMoves(state, ChunkCopies(state))


def policy_engine(moves: ChunkMoves, *policies) -> PolicyEngine:
    state, history = moves.state, History(moves.state)
    return PolicyEngine(
        state, moves, moves.chunk_copies, Rounds(state), history, policies or (WholeGroup(),)
    )


def readmit(moves: ChunkMoves, now_s: float, *policies) -> list[Command]:
    return [
        c
        for c in policy_engine(moves, *policies).readmit(now_s)
        if not (isinstance(c, Record) and c.record.event == "PolicyDecided")
    ]


def view(moves: ChunkMoves, now_s: float) -> View:
    return policy_engine(moves)._views.view(now_s)


def loaded(
    member: MemberId, *chunks: ChunkId, source: MemberId | None = None, order: int | None = None
) -> ChunksLoaded:
    return ChunksLoaded(member=member, chunks=chunks, source=source, nbytes=5, order=order)


def lose(moves: ChunkMoves, member: MemberId, *, sealed: bool = True) -> None:
    moves.state.membership.remove(member)
    moves.state.ledger.lose(member)
    moves.lost(member)
    if sealed:
        moves.state.ledger.report(frozenset())
        moves.state.ledger.seal()


def test_failed_move_leaves_the_chunk_and_pauses_moves():
    moves = chunk_moves()
    moves.move({chunk(0, 0): C})
    failed = MoveFailed(member=A, target=C, chunks=(chunk(0, 0),), reason="closed", order=1)
    assert [entry.record.event for entry in moves.failed(failed, 5.0)] == ["MoveFailed"]
    assert (moves.moves, moves.next_move_s) == ({}, 5.0 + MOVE_PAUSE_S)
    assert moves.state.ledger.owner(chunk(0, 0)) == A


def test_reports_about_an_earlier_order_leave_a_move_as_it_is():
    moves = chunk_moves()
    moves.move({chunk(0, 0): C})
    moves.abandon_moves()
    moves.move({chunk(0, 0): C})
    failed = MoveFailed(member=A, target=C, chunks=(chunk(0, 0),), reason="closed", order=1)
    moves.failed(failed, 5.0)
    moves.loaded(loaded(C, chunk(0, 0), source=A, order=1))
    assert (moves.moves[chunk(0, 0)].order, moves.next_move_s) == (2, 0.0)
    assert moves.state.ledger.owner(chunk(0, 0)) == A
    moves.loaded(loaded(C, chunk(0, 0), source=A, order=2))
    assert moves.state.ledger.owner(chunk(0, 0)) == C


def test_chunk_that_a_member_was_told_to_drop_is_not_there_though_it_reports_it():
    # The report was sent before the order arrived.
    moves = chunk_moves()
    moves.state.ledger.hold(C, [chunk(0, 0)])
    assert moves.drop(C, [chunk(0, 0)]) == [DropChunks(member=C, chunks=(chunk(0, 0),))]
    moves.loaded(loaded(C, chunk(0, 0)))
    assert not moves.state.ledger.holds(C, chunk(0, 0))
    moves.dropped(ChunksDropped(member=C, chunks=(chunk(0, 0),)))
    moves.loaded(loaded(C, chunk(0, 0)))
    assert moves.state.ledger.holds(C, chunk(0, 0))


def test_the_last_copy_of_an_absent_chunk_is_not_dropped():
    moves = chunk_moves()
    moves.state.ledger.hold(C, [chunk(0, 0)])
    lose(moves, A)
    assert moves.drop(C, [chunk(0, 0)]) == []
    assert moves.state.ledger.holds(C, chunk(0, 0))


def test_time_that_moves_share_counts_once():
    speed = MoveSpeed()
    assert speed.bytes_per_s("h") == ASSUMED_BYTES_PER_S
    for now_s in (10.0, 10.0, 11.0):
        speed.moved("h", 1000, 4.0, now_s)
    # 4 s, then nothing more, then 1 s; earlier moves weigh less at each new one.
    nbytes, seconds = 0.9 * (0.9 * 1000 + 1000) + 1000, 0.9 * 0.9 * 4.0 + 1.0
    assert speed.bytes_per_s("h") == pytest.approx(nbytes / seconds)
    assert speed.bytes_per_s("another") == speed.bytes_per_s("h")


def test_members_drop_copies_to_make_room_for_returning_chunks():
    moves = chunk_moves()
    state, own = moves.state, [chunk(0, k) for k in range(2)]
    state.ledger.hold(C, own)
    state.membership.members[C].limit_bytes = 3
    moves.chunk_copies.waiting[chunk(0, 1)] = C
    lose(moves, B)
    _, drop, order = readmit(moves, 10.0)
    assert drop == DropChunks(member=C, chunks=(chunk(0, 0),))
    assert order == LoadChunks(member=C, chunks=(chunk(1, 0), chunk(1, 1)))
    assert moves.chunk_copies.waiting == {}


def test_chunks_are_reread_where_there_is_memory_for_them():
    moves = chunk_moves(n_chunks=4)
    # A has four chunks, and the newcomer with the fewest examples room for one.
    limited(moves, a=6, c=1)
    lose(moves, B, sealed=False)
    value = {order.member: order.chunks for order in moves.reread()}
    assert value[C] == (chunk(1, 0), chunk(1, 3))  # the last one fits nowhere
    assert value[A] == (chunk(1, 1), chunk(1, 2))
    assert moves.bytes_to() == {A: 2, C: 2}


def test_the_number_of_rereading_members_is_limited():
    # All members lost, half of the chunks sealed, as many newcomers: each of them took a chunk of
    # the open half, and none was left to restore the sealed one.
    moves = chunk_moves()
    membership = moves.state.membership
    membership.enter(membership.members[A], "leaving")
    moves.state.membership.admit(
        Arrived(arrival=0, address="w3", host="h", pid=3, threads=1), 0.0
    ).configured = True
    lose(moves, B, sealed=False)
    assert moves.reread(readers_max=1) == [LoadChunks(member=C, chunks=(chunk(1, 0), chunk(1, 1)))]


def limited(moves: ChunkMoves, **limits: int) -> None:
    for member, limit in limits.items():
        moves.state.membership.members[{"a": A, "b": B, "c": C}[member]].limit_bytes = limit


def test_group_is_not_sent_where_it_does_not_fit_which_is_reported_once():
    # The member had no room for it, and the job failed.
    moves = chunk_moves(n_chunks=3)
    lose(moves, B)
    limited(moves, a=5, c=2)
    request = policy_engine(moves, Reload())
    # Two of three fit the newcomer, and one more the active members.
    commands = request.readmit(0.0)
    assert [c.member for c in commands if isinstance(c, LoadChunks)] == [C, A]
    moves = chunk_moves(n_chunks=3)
    lose(moves, B)
    limited(moves, a=3, c=2)
    request = policy_engine(moves, Reload())
    (_, report) = request.readmit(0.0)
    assert (report.record.event, report.record.lacking_bytes) == ("GroupWithoutRoom", 1)
    assert request.readmit(1.0) == []
    assert (moves.returning, moves.loading) == ({}, {})
    limited(moves, c=3)
    assert [c.member for c in request.readmit(2.0) if isinstance(c, LoadChunks)] == [C]


def test_group_may_drop_copies_for_itself_but_not_the_last_of_another_absent_one():
    moves = chunk_moves(n_chunks=3)
    moves.state.ledger.hold(A, [chunk(1, 0)])
    moves.state.ledger.hold(C, [chunk(0, 0)])
    seen = view(moves, 0.0)
    rooms = MemoryBudget(seen.chunks, seen.coming)
    assert (rooms.left(A, 3), rooms.left(B, 3), rooms.left(C, 3)) == (0, 0, 3)
    lose(moves, B)
    assert rooms.left(A, 3) == -1
    # Once it is assigned to a holder, the others' copies are not needed.
    moves.state.ledger.hold(C, [chunk(1, 0)])
    assert MemoryBudget(seen.chunks, {chunk(1, 0): C}).left(A, 3) == 0


def test_active_members_in_the_view_are_a_tuple():
    # They were no longer a tuple, and user policies that concatenate or compare them failed.
    seen = view(chunk_moves(), 0.0)
    working, spares = seen.working, seen.spares
    members = tuple(working)
    assert [m.id for m in working + spares] == [A, B, C]
    assert [m.id for m in spares + working] == [C, A, B]
    assert (working + working, working == members, members == working) == (
        (*members, *members),
        True,
        True,
    )
    assert working != spares
    assert seen.working == view(chunk_moves(), 0.0).working
