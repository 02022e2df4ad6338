"""No chunk is lost or counted twice while members report about moves and about dropped copies."""

from __future__ import annotations

from typing import Any

from elasticml.control.chunk_transfers import ChunkCopies, ChunkMoves
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.protocol.commands import DropChunks
from elasticml.protocol.events import ChunksDropped, ChunksLoaded, MoveFailed
from tests.sim.small_jobs import arrival

A, B = (MemberId(slot, 1) for slot in range(2))
CHUNK = ChunkId("s", 0, 0)


def chunk_moves() -> ChunkMoves:
    """A owns a chunk; B is there."""
    state = JobState(settings=DriverSettings(), holders=1)
    for slot in range(2):
        state.membership.admit(arrival(slot))
    state.ledger.add(A, [ChunkInfo(id=CHUNK, rows=10, nbytes=1)])
    return ChunkMoves(state, ChunkCopies(state))


def loaded(**more: Any) -> ChunksLoaded:
    return ChunksLoaded(member=B, chunks=(CHUNK,), **more)


def test_reports_about_an_earlier_order_leave_a_move_as_it_is():
    moves = chunk_moves()
    moves.move({CHUNK: B})
    moves.abandon_moves()
    moves.move({CHUNK: B})
    moves.failed(MoveFailed(member=A, target=B, chunks=(CHUNK,), reason="closed", order=1), 5.0)
    moves.loaded(loaded(source=A, order=1))
    assert (moves.moves[CHUNK].order, moves.next_move_s) == (2, 0.0)
    assert moves.state.ledger.owner(CHUNK) == A
    moves.loaded(loaded(source=A, order=2))
    assert moves.state.ledger.owner(CHUNK) == B


def test_a_report_that_was_sent_before_the_order_to_drop_a_copy_does_not_count():
    moves = chunk_moves()
    moves.loaded(loaded())
    assert moves.drop(B, [CHUNK]) == [DropChunks(member=B, chunks=(CHUNK,))]
    moves.loaded(loaded())
    assert not moves.state.ledger.holds(B, CHUNK)
    moves.dropped(ChunksDropped(member=B, chunks=(CHUNK,)))
    moves.loaded(loaded())
    assert moves.state.ledger.holds(B, CHUNK)


def test_the_last_copy_of_an_absent_chunk_is_not_dropped():
    moves = chunk_moves()
    moves.loaded(loaded())
    moves.state.ledger.lose(A)
    assert moves.drop(B, [CHUNK]) == []
    assert moves.state.ledger.holds(B, CHUNK)
