"""Bodies copied in the background: batches, cancelled copies, reports."""

from __future__ import annotations

from dataclasses import replace

from elasticml.control.chunk_transfers import COPY_BATCH, COPY_PAUSE_S, ChunkCopies
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.protocol.commands import CopyChunks
from elasticml.protocol.events import Arrived, ChunksLoaded, MoveFailed

A, B, C = (MemberId(slot, 1) for slot in range(3))


def chunk(k: int) -> ChunkId:
    return ChunkId("s", 0, k)


def chunk_copies(n_chunks: int = 2) -> ChunkCopies:
    """A has all the chunks."""
    state = JobState(settings=DriverSettings(copy_bytes_per_s=9.0))
    for slot in range(3):
        state.membership.admit(
            Arrived(arrival=0, address=f"w{slot}", host="h", pid=slot, threads=1), 0.0
        )
    state.ledger.add(A, [ChunkInfo(id=chunk(k), rows=1, nbytes=1) for k in range(n_chunks)])
    return ChunkCopies(state)


def came(order: CopyChunks) -> ChunksLoaded:
    return ChunksLoaded(
        member=order.target, chunks=order.chunks, source=order.member, nbytes=3, order=order.order
    )


def hold(copies: ChunkCopies, event: ChunksLoaded) -> list:
    copies.state.ledger.hold(event.member, event.chunks)
    return copies.loaded(event)


def test_source_sends_one_batch_at_a_time():
    copies = chunk_copies(COPY_BATCH + 1)
    assert copies.accept({chunk(k): B for k in range(COPY_BATCH + 1)}, 0.0) == COPY_BATCH + 1
    (first,) = copies.pump()
    assert (first.member, first.target, len(first.chunks), first.bytes_per_s) == (
        A,
        B,
        COPY_BATCH,
        9.0,
    )
    assert copies.pump() == []
    report, second = hold(copies, came(first))
    assert (report.record.event, report.record.chunks) == ("ChunksCopied", COPY_BATCH)
    assert second.chunks == (chunk(COPY_BATCH),)
    assert second.order != first.order
    assert len(hold(copies, came(second))) == 1
    assert copies.targets() == {}


def test_new_holders_help_to_spread_a_copy():
    copies = chunk_copies(2)
    copies.state.ledger.hold(B, [chunk(1)])
    copies.accept({chunk(0): C, chunk(1): C}, 0.0)
    assert [(o.member, o.chunks) for o in copies.pump()] == [(A, (chunk(0),)), (B, (chunk(1),))]


def test_copy_is_made_neither_twice_nor_where_one_exists():
    copies = chunk_copies()
    copies.state.ledger.hold(B, [chunk(1)])
    assert copies.accept({chunk(0): B, chunk(1): B}, 0.0) == 1
    assert copies.accept({chunk(0): C}, 0.0) == 0
    copies.pump()
    assert copies.accept({chunk(0): C}, 0.0) == 0


def test_failed_copy_may_be_requested_again_after_a_while():
    copies = chunk_copies()
    copies.accept({chunk(0): B}, 5.0)
    (order,) = copies.pump()
    failed = MoveFailed(member=A, target=B, chunks=order.chunks, reason="x", order=order.order)
    assert copies.failed(replace(failed, order=order.order - 1), 6.0) == []
    assert copies.targets() == {chunk(0): B}
    assert copies.failed(failed, 6.0) == []
    assert copies.targets() == {}
    assert copies.accept({chunk(0): B}, 6.0) == 0
    assert copies.accept({chunk(0): B}, 6.0 + COPY_PAUSE_S) == 1


def test_copies_from_and_to_lost_members_are_forgotten():
    copies = chunk_copies(2)
    copies.accept({chunk(0): B, chunk(1): C}, 0.0)
    copies.pump()
    copies.lost(B)
    assert copies.targets() == {chunk(1): C}
    copies.lost(A)
    assert (copies.targets(), copies.awaited()) == ({}, set())


def test_bytes_in_transit_are_known():
    copies = chunk_copies(2)
    copies.accept({chunk(0): B, chunk(1): B}, 0.0)
    assert (copies.bytes_to(B), copies.bytes_to(C)) == (2, 0)
