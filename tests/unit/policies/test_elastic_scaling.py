"""Elastic scaling: leaving members are emptied if time allows, newcomers get an equal share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from elasticml.control.policy import MemberView, View
from elasticml.ids import ChunkId, MemberId
from elasticml.policies.elastic_scaling import ElasticScaling

A, B, C, D = (MemberId(slot, 1) for slot in range(4))
#: Moves that hold no round up.
FAST = {"move_bytes_per_s": 1e6}


class Book:
    """Chunks of one example and 100 bytes; owners and further holders."""

    def __init__(self, owned: Mapping[MemberId, int], copies=()) -> None:
        self.owned = {m: tuple(ChunkId("s", m.slot, k) for k in range(n)) for m, n in owned.items()}
        self.copies = dict(copies)

    def of(self, member):
        return self.owned.get(member, ())

    def held_by(self, member):
        copies = {c for c, m in self.copies.items() if m == member}
        return frozenset(self.of(member)) | copies

    def holders(self, chunk):
        return frozenset(m for m in (A, B, C, D) if chunk in self.held_by(m))

    def owner(self, chunk):
        return next((m for m in self.owned if chunk in self.owned[m]), None)

    def rows(self, chunk):
        return 1

    def nbytes(self, chunk):
        return 100


def member(book: Book, id: MemberId, **changes) -> MemberView:
    return MemberView(id=id, host="h", rows=len(book.of(id)), **changes)


def view(book: Book, working=(), spares=(), leaving=(), **changes) -> View:
    return View(
        **{
            "now_s": 0.0,
            "round": 3,
            "groups": (),
            "working": tuple(member(book, m) for m in working),
            "spares": tuple(member(book, m) for m in spares),
            "leaving": tuple(member(book, m, stage="leaving", deadline_s=s) for m, s in leaving),
            "chunks": book,
            "move_bytes_per_s": 100.0,
            **changes,
        }
    )


def moved(seen: View) -> dict[ChunkId, MemberId]:
    result = ElasticScaling().suggest(seen)
    return dict(result[0].targets) if result else {}


def test_leavers_chunks_go_to_the_remaining_members_in_turn():
    book = Book({A: 4, B: 2, C: 2})
    assert Counter(moved(view(book, [B, C], leaving=[(A, 100.0)])).values()) == {B: 2, C: 2}


def test_as_many_chunks_are_moved_as_fit_half_of_the_grace_period():
    book = Book({A: 9, B: 1})
    assert len(moved(view(book, [B], leaving=[(A, 6.0)]))) == 3


def test_chunks_with_a_copy_elsewhere_go_there_at_once():
    book = Book({A: 3, B: 1, C: 1}, {ChunkId("s", 0, k): C for k in range(3)})
    assert moved(view(book, [B, C], leaving=[(A, 0.1)])) == {c: C for c in book.of(A)}


def test_leaver_without_a_deadline_gives_all_its_chunks():
    book = Book({A: 9, B: 1})
    assert len(moved(view(book, [B], leaving=[(A, None)]))) == 9


def test_newcomers_get_an_equal_share_drawn_from_all_members():
    book = Book({A: 6, B: 6})
    moves = moved(view(book, [A, B], [C, D], **FAST))
    assert Counter(moves.values()) == {C: 3, D: 3}
    assert Counter(c.block for c in moves) == {0: 3, 1: 3}
    draws = {frozenset(moved(view(book, [A, B], [C], seed=seed, **FAST))) for seed in range(20)}
    assert len(draws) > 10
    assert moved(view(book, [A, B], [C], **FAST)) == moved(view(book, [A, B], [C], **FAST))


def suggested(seen: View) -> list[tuple[str, frozenset[ChunkId]]]:
    """Return the kind and the chunks of each suggestion."""
    suggestions = ElasticScaling().suggest(seen)
    return [(type(s).__name__, frozenset(s.targets)) for s in suggestions]


def test_newcomer_gets_copies_before_it_becomes_the_owner_if_its_share_takes_long_to_send():
    # Four members waited while the bodies of a new one's share were sent.
    book = Book({A: 6, B: 6})
    ((kind, share),) = suggested(view(book, [A, B], [C], round=1))
    assert (kind, len(share)) == ("Replicate", 4)
    # While they are on their way, later rounds ask for nothing else.
    copying = dict.fromkeys(share, C)
    assert suggested(view(book, [A, B], [C], round=2, copying=copying)) == []
    some, rest = frozenset(sorted(share)[:2]), frozenset(sorted(share)[2:])
    book.copies = dict.fromkeys(some, C)
    coming = dict.fromkeys(rest, C)
    assert suggested(view(book, [A, B], [C], round=3, copying=coming)) == []
    # Copies that could not be sent are asked for again.
    ((kind, again),) = suggested(view(book, [A, B], [C], round=4))
    assert (kind, len(again)) == ("Replicate", 2)
    assert not again & some
    book.copies = dict.fromkeys(share, C)
    assert suggested(view(book, [A, B], [C], round=5)) == [("Move", share)]


def test_a_newcomer_that_is_ready_does_not_wait_for_the_copies_of_another():
    book = Book({A: 6, B: 6})
    book.copies = dict.fromkeys([*book.of(A)[:3], *book.of(B)[:3]], C)
    kinds = suggested(view(book, [A, B], [C, D]))
    assert [(kind, len(chunks)) for kind, chunks in kinds] == [("Move", 3), ("Replicate", 3)]


def test_a_share_that_fits_no_memory_is_moved_at_once():
    book = Book({A: 6, B: 6})
    small = View(
        now_s=0.0,
        round=1,
        groups=(),
        working=(member(book, A), member(book, B)),
        spares=(member(book, C, limit_bytes=1000, memory_bytes=399),),
        chunks=book,
        move_bytes_per_s=100.0,
    )
    assert [kind for kind, _ in suggested(small)] == ["Move"]


def test_newcomer_gets_back_chunks_that_it_still_holds():
    book = Book({A: 4}, {ChunkId("s", 0, 1): B, ChunkId("s", 0, 2): B})
    assert set(moved(view(book, [A], [B]))) == {ChunkId("s", 0, 1), ChunkId("s", 0, 2)}


def test_newcomers_wait_while_others_are_expected_or_examples_are_absent_or_on_the_move():
    book = Book({A: 6})
    for wait in ({"expected": 1}, {"absent_rows": 5}, {"moving": 1}):
        assert moved(view(book, [A], [B], **wait)) == {}


def test_spares_are_reserved_for_absent_chunks_while_there_are_others():
    book = Book({A: 2, B: 2})
    result = moved(view(book, [B], [C], [(A, None)], absent_rows=3))
    assert set(result.values()) == {B}
    assert set(moved(view(book, [], [C], [(A, None)], absent_rows=3)).values()) == {C}


def test_a_spare_that_was_slow_gets_one_chunk_now_and_then_until_it_is_fast():
    book = Book({A: 4, B: 3})
    steady = tuple(member(book, m, seconds_per_row=(1.0,)) for m in (A, B))

    def given(pace_s: float, round: int) -> Counter:
        slow = (member(book, C, seconds_per_row=(pace_s,)),)
        seen = view(book, working=(), round=round, **FAST)
        suggestions = ElasticScaling().suggest(replace(seen, working=steady, spares=slow))
        return Counter(m for one in suggestions for m in one.targets.values())

    assert [k for k in range(1, 900) if given(50.0, k)] == [400, 800]
    assert given(50.0, 400) == {C: 1}
    assert given(3.0, 1)[C] == 2
