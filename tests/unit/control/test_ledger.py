"""Every chunk has one owner or is absent in one place, and returns with its group."""

from __future__ import annotations

import pytest

from elasticml.control.ledger import Ledger
from elasticml.errors import LocalProtocolError
from elasticml.ids import ChunkId, ChunkInfo, MemberId

A, B, C = MemberId(0, 1), MemberId(1, 1), MemberId(2, 1)
CHUNKS = [ChunkId("s", 0, k) for k in range(6)]
NO_MEMBERS: frozenset[MemberId] = frozenset()


def info(*numbers: int) -> list[ChunkInfo]:
    """Chunks of 10 examples more than their number."""
    return [ChunkInfo(id=CHUNKS[k], rows=10 + k, nbytes=8) for k in numbers]


def ledger() -> Ledger:
    """A has 0 and 1, B has 2 and 3, C has 4 and 5."""
    book = Ledger()
    for member, numbers in ((A, (0, 1)), (B, (2, 3)), (C, (4, 5))):
        book.add(member, info(*numbers))
    return book


def sealed(book: Ledger, *members: MemberId):
    for member in members:
        book.lose(member)
    book.report(NO_MEMBERS)
    return book.seal()


def test_chunk_moves_only_to_a_member_with_a_copy():
    book = ledger()
    with pytest.raises(LocalProtocolError, match="no copy"):
        book.move(CHUNKS[0], B)
    book.hold(B, [CHUNKS[0]])
    book.move(CHUNKS[0], B)
    assert book.owner(CHUNKS[0]) == B
    assert book.chunks_of(A) == (CHUNKS[1],)


def test_both_ends_of_a_move_have_another_version_of_their_set():
    book = ledger()
    before = dict(book.versions)
    book.hold(B, [CHUNKS[0]])
    book.move(CHUNKS[0], B)
    assert {m for m in before if book.versions[m] != before[m]} == {A, B}


def test_copies_of_another_job_are_skipped():
    book = ledger()
    book.hold(A, [ChunkId("other", 0, 0)])
    book.check([A, B, C])


def test_copy_of_a_chunk_that_is_read_later_is_lost_with_its_member():
    book = Ledger()
    book.hold(B, [CHUNKS[0]])
    book.hold(C, [CHUNKS[0]])
    book.lose(B)
    book.add(A, info(0))
    assert book.holders[CHUNKS[0]] == {A, C}
    book.check([A, C])


def test_chunks_of_a_lost_member_are_absent_and_without_holders():
    book = ledger()
    assert book.lose(A) == (CHUNKS[0], CHUNKS[1])
    assert book.owner(CHUNKS[0]) is None
    assert book.absent_rows() == 21
    assert book.holders[CHUNKS[0]] == set()
    book.check([B, C])


def test_same_missing_chunks_are_reported_under_the_same_name():
    book = ledger()
    book.lose(A)
    first, chunks = book.report(NO_MEMBERS)
    assert chunks == {CHUNKS[0], CHUNKS[1]}
    assert book.report(NO_MEMBERS) == (first, chunks)
    book.lose(B)
    second, _ = book.report(NO_MEMBERS)
    assert second != first


def test_seal_closes_reported_chunks_and_leaves_later_losses_open():
    book = ledger()
    book.lose(A)
    name, _ = book.report(NO_MEMBERS)
    book.lose(B)
    group = book.seal()
    assert (group.id, group.size, group.rows) == (name, 1, 21)
    assert group.shares == {A: (CHUNKS[0], CHUNKS[1])}
    assert book.open.keys() == {B}
    assert book.absent_rows() == 21 + 25
    assert book.seal() is None
    book.check([C])


def test_group_returns_whole_or_not_at_all():
    book = ledger()
    group = sealed(book, A, B)
    book.hold(C, group.chunks)
    with pytest.raises(LocalProtocolError, match="whole"):
        book.readmit(group.id, {CHUNKS[0]: C})
    book.readmit(group.id, dict.fromkeys(group.chunks, C))
    assert book.rows_of(C) == 75
    book.check([C])


def test_open_chunk_is_adopted_only_by_a_holder():
    book = ledger()
    book.lose(A)
    with pytest.raises(LocalProtocolError, match="adopted"):
        book.adopt(CHUNKS[0], B)
    with pytest.raises(LocalProtocolError, match="adopted"):
        book.adopt(CHUNKS[2], C)


def test_check_finds_a_chunk_in_two_places():
    book = ledger()
    book.open[A] = {CHUNKS[0]}
    with pytest.raises(LocalProtocolError, match="2 places"):
        book.check([A, B, C])
