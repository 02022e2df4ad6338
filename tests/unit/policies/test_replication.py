"""Replication: one second holder for every chunk, on another host, balanced, within memory."""

from __future__ import annotations

from collections import Counter

from elasticml.control.policy import Discard, MemberView, Replicate, View
from elasticml.ids import ChunkId, MemberId
from elasticml.policies.replication import ChunkReplication


class Book:
    """Chunks of one example and 100 bytes: their holders, the owner first."""

    def __init__(self, holders: dict[int, list[int]]) -> None:
        self.there = {
            ChunkId("s", 0, k): [MemberId(m, 1) for m in members] for k, members in holders.items()
        }

    def of(self, member):
        return tuple(c for c, m in self.there.items() if m[:1] == [member])

    def held_by(self, member):
        return frozenset(c for c, m in self.there.items() if member in m)

    def holders(self, chunk):
        return frozenset(self.there[chunk])

    def owner(self, chunk):
        return self.there[chunk][0]

    def rows(self, chunk):
        return 1

    def nbytes(self, chunk):
        return 100


def view(
    book: Book, n: int, hosts=None, limit_bytes=None, holders=2, memory_bytes=None, **changes
) -> View:
    members = [MemberId(k, 1) for k in range(n)]
    return View(
        now_s=0.0,
        groups=(),
        spares=(),
        working=tuple(
            MemberView(
                id=m,
                host=hosts[m.slot] if hosts else "h",
                rows=len(book.of(m)),
                limit_bytes=limit_bytes,
                memory_bytes=memory_bytes,
                held_bytes=100 * len(book.held_by(m)),
            )
            for m in members
        ),
        chunks=book,
        holders=holders,
        **{"round": 1, **changes},
    )


def copies(found) -> dict[int, int]:
    return {
        c.ordinal: m.slot for s in found if isinstance(s, Replicate) for c, m in s.targets.items()
    }


def drops(found) -> list[tuple[int, list[int]]]:
    return [(s.member.slot, [c.ordinal for c in s.chunks]) for s in found if isinstance(s, Discard)]


def test_every_chunk_gets_a_second_holder_and_loads_are_balanced():
    n, n_chunks = 8, 400
    book = Book({k: [k % n] for k in range(n_chunks)})
    result = copies(ChunkReplication().suggest(view(book, n)))
    assert len(result) == n_chunks
    assert all(result[k] != k % n for k in result)
    per_member = Counter(result.values())
    assert max(per_member.values()) <= 1.25 * n_chunks / n
    # The chunks of one member are spread over all others.
    assert {m for k, m in result.items() if k % n == 0} == set(range(1, n))


def test_second_holder_is_on_another_host_where_there_is_one():
    book = Book({k: [k % 4] for k in range(40)})
    hosts = ["x", "x", "y", "y"]
    result = copies(ChunkReplication().suggest(view(book, 4, hosts)))
    assert all(hosts[result[k]] != hosts[k % 4] for k in range(40))


def test_copy_on_the_owners_host_is_replaced_by_one_elsewhere():
    book = Book({0: [0, 1]})
    seen = view(book, 3, ["x", "x", "y"])
    assert copies(ChunkReplication().suggest(seen)) == {0: 2}
    after = Book({0: [0, 1, 2]})
    assert drops(ChunkReplication().suggest(view(after, 3, ["x", "x", "y"]))) == [(1, [0])]


def test_nothing_is_copied_where_there_is_no_memory():
    book = Book({k: [0] for k in range(4)})
    assert len(copies(ChunkReplication().suggest(view(book, 2, limit_bytes=200)))) == 2


def test_no_copies_are_made_on_disk():
    book = Book({k: [0] for k in range(4)})
    seen = view(book, 2, limit_bytes=10_000, memory_bytes=200)
    assert len(copies(ChunkReplication().suggest(seen))) == 2


def test_owner_keeps_its_copy_when_there_are_too_many():
    result = ChunkReplication().suggest(view(Book({0: [2, 0, 1]}), 3))
    ((member, chunks),) = drops(result)
    assert member in (0, 1)
    assert chunks == [0]


def test_chunks_being_copied_are_not_requested_again():
    book = Book({0: [0]})
    seen = view(book, 3, copying={ChunkId("s", 0, 0): MemberId(1, 1)})
    assert ChunkReplication().suggest(seen) == []


def test_nothing_to_do_with_one_holder_or_one_member():
    book = Book({0: [0]})
    assert ChunkReplication().suggest(view(book, 3, holders=1)) == []
    assert ChunkReplication().suggest(view(book, 1)) == []


def test_satisfied_policy_runs_again_only_after_a_change():
    policy = ChunkReplication()
    assert policy.suggest(view(Book({0: [0, 1], 1: [1, 0]}), 2, changes=4)) == []
    assert copies(policy.suggest(view(Book({0: [0], 1: [1, 0]}), 2, changes=5))) == {0: 1}
