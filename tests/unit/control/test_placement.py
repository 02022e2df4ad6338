"""Placement of chunks: equal stretches, no chunk twice, no needless move."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticml.control.placement import (
    UNEVEN_MAX,
    contiguous,
    evened,
    fitting,
    scattered,
    to_emptiest,
    to_newcomers,
)
from elasticml.ids import ChunkId, ChunkInfo, MemberId

ROWS = st.lists(st.integers(0, 50), max_size=40)


def members(n: int) -> list[MemberId]:
    return [MemberId(slot, 1) for slot in range(n)]


def chunks(rows) -> list[ChunkInfo]:
    return [ChunkInfo(id=ChunkId("s", 0, k), rows=n, nbytes=8 * n) for k, n in enumerate(rows)]


@given(ROWS, st.integers(1, 8))
def test_stretches_are_contiguous_and_nearly_equal(rows, n):
    placement = contiguous(chunks(rows), members(n))
    order = [placement[c.id] for c in chunks(rows)]
    assert order == sorted(order)
    share = sum(rows) / n
    per_member = Counter({m: 0 for m in members(n)})
    for chunk in chunks(rows):
        per_member[placement[chunk.id]] += chunk.rows
    assert all(abs(k - share) <= max(rows, default=0) for k in per_member.values())


@given(ROWS, st.integers(1, 6), st.randoms(use_true_random=False))
def test_chunks_stay_with_their_readers_unless_those_differ_much(rows, n, random):
    some, gone = chunks(rows), MemberId(99, 1)
    owners = {c.id: random.choice([*members(n), gone, None]) for c in some}
    placement = evened(some, owners, members(n))
    assert placement.keys() == owners.keys()
    assert set(placement.values()) <= set(members(n))
    per_member = Counter({m: 0 for m in members(n)})
    for chunk in some:
        per_member[placement[chunk.id]] += chunk.rows
    mean, largest = sum(rows) / n, max(rows, default=0)
    spread = max(per_member.values()) - min(per_member.values())
    assert spread <= max(2 * UNEVEN_MAX * mean, largest)


@given(ROWS, st.lists(st.integers(0, 500), min_size=1, max_size=8))
def test_chunks_go_to_the_member_with_the_fewest_examples(rows, had):
    before = dict(zip(members(len(had)), had, strict=True))
    given_to = to_emptiest(chunks(rows), before)
    assert sorted(given_to) == [c.id for c in chunks(rows)]
    after = Counter(before)
    for chunk in chunks(rows):
        # A chunk without examples counts as one.
        after[given_to[chunk.id]] += max(chunk.rows, 1)
    lowest = min(after.values())
    # No receiver could have been spared by a fair assignment.
    assert all(after[m] - max([*rows, 1]) <= lowest for m in set(given_to.values()))


@pytest.mark.parametrize("is_contiguous", [False, True])
@given(shares=st.lists(ROWS, min_size=1, max_size=5), n_new=st.integers(0, 3))
def test_newcomers_get_a_fair_share_and_no_giver_falls_below_its_own(shares, n_new, is_contiguous):
    old, new = members(len(shares)), members(len(shares) + n_new)[len(shares) :]
    owned = {}
    for member, rows in zip(old, shares, strict=True):
        owned[member] = [
            ChunkInfo(id=ChunkId("s", member.slot, k), rows=n, nbytes=1) for k, n in enumerate(rows)
        ]
    moves = to_newcomers(owned, new, is_contiguous=is_contiguous)
    assert set(moves.values()) <= set(new)
    rows_of = {m: sum(c.rows for c in held) for m, held in owned.items()}
    most = max(rows_of.values())
    for member, held in owned.items():
        rows_of[member] -= sum(c.rows for c in held if c.id in moves)
    for member in new:
        held = [c for h in owned.values() for c in h if moves.get(c.id) == member]
        rows_of[member] = sum(c.rows for c in held)
        assert rows_of[member] <= most
    assert sum(rows_of.values()) == sum(map(sum, shares))


def test_chunks_that_fit_a_notice_have_the_most_examples_for_their_bytes():
    small, dense, large = (
        ChunkInfo(id=ChunkId("s", 0, k), rows=rows, nbytes=nbytes)
        for k, (rows, nbytes) in enumerate([(1, 50), (90, 90), (80, 200)])
    )
    assert fitting([small, dense, large], 1.0, 150.0) == [dense, small]
    assert fitting([small, dense, large], 0.0, 150.0) == []
    assert fitting([small, dense, large], -3.0, 150.0) == []


def test_chunks_with_a_copy_fit_whatever_time_is_left():
    first, second = chunks([10, 10])
    assert fitting([first, second], 0.5, 0.0, {second.id}) == [second]
    assert fitting([first, second], 0.0, 1e9, {second.id}) == []


@given(ROWS, st.integers(1, 8), st.integers(0, 5))
def test_chunks_at_random_make_shares_as_even_as_stretches_of_the_file(rows, n, seed):
    placement = scattered(chunks(rows), members(n), seed)
    assert placement == scattered(list(reversed(chunks(rows))), members(n), seed)
    per_member = Counter({m: 0 for m in members(n)})
    for chunk in chunks(rows):
        per_member[placement[chunk.id]] += chunk.rows
    assert all(abs(k - sum(rows) / n) <= max(rows, default=0) for k in per_member.values())


def test_partitions_are_random_and_assigned_whole():
    made = chunks([1] * 40)
    apart = scattered(made, members(8), 3)
    joined = scattered(made, members(4), 3, partitions=8)
    assert joined == {c: members(4)[m.slot // 2] for c, m in apart.items()}
