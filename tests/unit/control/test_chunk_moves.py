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
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.protocol.commands import DropChunks
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
