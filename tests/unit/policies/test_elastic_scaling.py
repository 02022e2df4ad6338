"""Elastic scaling: leaving members are emptied if time allows, newcomers get an equal share."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from elasticml.control.policy import MemberView, View
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.policies.elastic_scaling import ElasticScaling
from tests.policy_world import FakeChunks, member

A, B, C, D = (member(slot) for slot in range(4))
#: Moves that hold no round up.
FAST = {"move_bytes_per_s": 1e6}


def ids(owner: MemberId, *ordinals: int) -> list[ChunkId]:
    return [ChunkId("s", owner.slot, k) for k in ordinals]


def view(owned, working=(), spares=(), leaving=(), copies=(), **changes) -> View:
    """Chunks of one example and 100 bytes, a number of each member, and further holders of some."""
    owners = {c: m for m, n in owned.items() for c in ids(m, *range(n))}
    held = {c: {m} for c, m in owners.items()}
    for c, m in dict(copies).items():
        held[c].add(m)
    infos = {c: ChunkInfo(id=c, rows=1, nbytes=100) for c in owners}

    def seen(m: MemberId, **more) -> MemberView:
        return MemberView(id=m, host="h", rows=owned.get(m, 0), **more)

    common = {"now_s": 0.0, "round": 3, "groups": (), "move_bytes_per_s": 100.0}
    people = {
        "working": tuple(seen(m) for m in working),
        "spares": tuple(seen(m) for m in spares),
        "leaving": tuple(seen(m, stage="leaving", deadline_s=s) for m, s in leaving),
    }
    return View(**common | people | {"chunks": FakeChunks(infos, owners, held)} | changes)


def suggested(seen: View) -> list[tuple[str, dict[ChunkId, MemberId]]]:
    """Return the kind and the targets of each suggestion."""
    return [(type(s).__name__, dict(s.targets)) for s in ElasticScaling().suggest(seen)]


def moved(seen: View) -> dict[ChunkId, MemberId]:
    result = suggested(seen)
    return result[0][1] if result else {}


@pytest.mark.parametrize(
    ("seen", "given"),
    [
        # To the remaining members in turn.
        (view({A: 4, B: 2, C: 2}, [B, C], leaving=[(A, 100.0)]), {B: 2, C: 2}),
        # As many as fit half of the grace period, or all without a deadline.
        (view({A: 9, B: 1}, [B], leaving=[(A, 6.0)]), {B: 3}),
        (view({A: 9, B: 1}, [B], leaving=[(A, None)]), {B: 9}),
        # Chunks with a copy elsewhere go there at once.
        (
            view(
                {A: 3, B: 1, C: 1},
                [B, C],
                leaving=[(A, 0.1)],
                copies=dict.fromkeys(ids(A, 0, 1, 2), C),
            ),
            {C: 3},
        ),
        # Spares are reserved for absent chunks while there are others.
        (view({A: 2, B: 2}, [B], [C], [(A, None)], absent_rows=3), {B: 2}),
        (view({A: 2, B: 2}, [], [C], [(A, None)], absent_rows=3), {C: 2}),
        # Newcomers wait while others are expected, or examples are absent or on the move.
        (view({A: 6}, [A], [B], expected=1), {}),
        (view({A: 6}, [A], [B], absent_rows=5), {}),
        (view({A: 6}, [A], [B], moving=1), {}),
        (view({A: 6, B: 6}, [A, B], [C, D], **FAST), {C: 3, D: 3}),
    ],
)
def test_chunks_of_leavers_and_for_newcomers(seen, given):
    assert Counter(moved(seen).values()) == given


def test_newcomer_gets_copies_before_it_becomes_the_owner_if_its_share_takes_long_to_send():
    # Four members waited while the bodies of a new one's share were sent.
    def at(round: int, **more) -> list[tuple[str, dict[ChunkId, MemberId]]]:
        return suggested(view({A: 6, B: 6}, [A, B], [C], round=round, **more))

    ((kind, share),) = at(1)
    assert (kind, len(share)) == ("Replicate", 4)
    # While they are on their way, later rounds ask for nothing else.
    assert at(2, copying=share) == []
    some, rest = (dict.fromkeys(part, C) for part in (sorted(share)[:2], sorted(share)[2:]))
    assert at(3, copies=some, copying=rest) == []
    # Copies that could not be sent are asked for again.
    ((kind, again),) = at(4, copies=some)
    assert (kind, len(again), again.keys() & some.keys()) == ("Replicate", 2, set())
    assert at(5, copies=share) == [("Move", share)]


def test_a_newcomer_that_is_ready_does_not_wait_for_the_copies_of_another():
    copies = dict.fromkeys([*ids(A, 0, 1, 2), *ids(B, 0, 1, 2)], C)
    kinds = suggested(view({A: 6, B: 6}, [A, B], [C, D], copies=copies))
    assert [(kind, len(chunks)) for kind, chunks in kinds] == [("Move", 3), ("Replicate", 3)]


def test_a_share_that_fits_no_memory_is_moved_at_once():
    small = MemberView(id=C, host="h", rows=0, limit_bytes=1000, memory_bytes=399)
    seen = replace(view({A: 6, B: 6}, [A, B]), spares=(small,), round=1)
    assert [kind for kind, _ in suggested(seen)] == ["Move"]


def test_a_spare_that_was_slow_gets_one_chunk_now_and_then_until_it_is_fast():
    seen = view({A: 4, B: 3}, [A, B], [C], **FAST)
    steady = tuple(replace(m, seconds_per_row=(1.0,)) for m in seen.working)

    def given(pace_s: float, round: int) -> Counter:
        slow = tuple(replace(m, seconds_per_row=(pace_s,)) for m in seen.spares)
        there = replace(seen, working=steady, spares=slow, round=round)
        return Counter(m for _, targets in suggested(there) for m in targets.values())

    assert [k for k in range(1, 900) if given(50.0, k)] == [400, 800]
    assert given(50.0, 400) == {C: 1}
    assert given(3.0, 1)[C] == 2
