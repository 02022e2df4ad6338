"""Readmission: when groups of absent chunks return, and to which members."""

from __future__ import annotations

import math
from dataclasses import replace

from elasticml.control.policy import GroupView, MemberView, View
from elasticml.ids import ChunkId, ChunkInfo, GroupId, MemberId
from elasticml.policies.readmission import Reload, WholeGroup, readmission_policy
from tests.policy_world import FakeChunks


def group(name: int, *slots: int, since_s: float = 0.0) -> GroupView:
    former = tuple(MemberId(slot, 1) for slot in slots)
    return GroupView(id=GroupId(name), former=former, rows=100, absent_since_s=since_s)


def seen(*slots: int, rows: int = 0) -> tuple[MemberView, ...]:
    return tuple(MemberView(id=MemberId(slot, 2), host="h", rows=rows) for slot in slots)


def view(groups=(), spares=(), working=(), now_s: float = 0.0) -> View:
    return View(now_s=now_s, round=5, groups=tuple(groups), spares=spares, working=working)


def readmitted(policy, seen_view: View) -> dict[int, list[int]]:
    return {r.group: [t.slot for t in r.targets] for r in policy.suggest(seen_view)}


def test_patience_ends():
    groups = [group(1, 3, 4, since_s=10.0)]
    assert readmitted(WholeGroup(patience_s=30), view(groups, seen(7), now_s=39.9)) == {}
    assert readmitted(WholeGroup(patience_s=30), view(groups, seen(7), now_s=40.0)) == {1: [7]}
    assert readmitted(WholeGroup(patience_s=math.inf), view(groups, seen(7), now_s=1e9)) == {}


def test_policy_follows_the_absent_setting():
    assert readmission_policy("reload") == ("reload", {})
    assert readmission_policy("auto") == ("whole_group", {"patience_s": 0.0, "alone_s": 0.0})
    assert readmission_policy("auto", is_paper=True) == ("whole_group", {})
    for absent in ("taylor", "ignore", "ignore_rescaled", "stall"):
        assert readmission_policy(absent) == ("whole_group", {})


def chunks_of_a_group(held_by: dict[int, int], survivors: dict[int, int]) -> FakeChunks:
    """Chunks 0 to 3 have vanished; some are still held by a slot. Survivors own others, of 10 B."""
    ids = [ChunkId("data", 0, k) for k in range(4 + sum(survivors.values()))]
    held: dict[ChunkId, set[MemberId]] = {c: set() for c in ids}
    for k, slot in held_by.items():
        held[ids[k]].add(MemberId(slot, 2))
    rest, owners = iter(ids[4:]), {}
    for slot, count in survivors.items():
        for _ in range(count):
            owners[next(rest)] = MemberId(slot, 2)
    infos = {c: ChunkInfo(id=c, rows=1, nbytes=10) for c in ids}
    return FakeChunks(infos=infos, owners=owners, held=held)


def group_of(seen_group: GroupView, chunks: FakeChunks, start: int, stop: int) -> GroupView:
    """Return the group of these chunks; its one former member owned them all."""
    ids = tuple(chunks.infos)[start:stop]
    return replace(seen_group, chunks=ids, shares=dict.fromkeys(seen_group.former, ids))


def unclaimed_group(limit_bytes: int = 1000, **facts: float) -> View:
    """Four chunks vanished at 10 s, of which slot 2 has a copy of one; three members survive."""
    chunks = chunks_of_a_group({3: 2}, {0: 5, 1: 6, 2: 6})
    lost = group_of(group(1, 8, since_s=10.0), chunks, 0, 4)
    rows = {0: 5, 1: 6, 2: 6}
    working = tuple(replace(seen(k, rows=n)[0], limit_bytes=limit_bytes) for k, n in rows.items())
    return replace(view([lost], (), working), chunks=chunks, start_members=4, **facts)


def slots_by_chunk(policy: WholeGroup, seen_view: View) -> list[int]:
    """Return the slots to which the four chunks go, in their order."""
    return [r.owners[c].slot for r in policy.suggest(seen_view) for c in seen_view.groups[0].chunks]


def test_group_that_no_member_claims_is_spread_over_the_active_members():
    # One node of a cluster was lost for good, and its examples were absent for ever.
    assert slots_by_chunk(WholeGroup(), unclaimed_group(now_s=69.9)) == []
    assert slots_by_chunk(WholeGroup(), unclaimed_group(now_s=70.0)) == [0, 0, 1, 2]
    assert slots_by_chunk(WholeGroup(alone_s=math.inf), unclaimed_group(now_s=1e9)) == []


def test_it_is_spread_sooner_when_as_many_members_work_as_at_the_start():
    # A cluster that had grown shrank again: no other member came, and the job waited for ever.
    seen_view = unclaimed_group(now_s=40.0)
    assert slots_by_chunk(WholeGroup(), seen_view) == []
    assert slots_by_chunk(WholeGroup(), replace(seen_view, start_members=3)) == [0, 0, 1, 2]
    assert slots_by_chunk(WholeGroup(), replace(seen_view, start_members=3, now_s=39.0)) == []


def test_it_waits_while_no_member_has_memory_for_it():
    assert slots_by_chunk(WholeGroup(), unclaimed_group(now_s=99.0, limit_bytes=70)) == [0, 0, 1, 2]
    assert slots_by_chunk(WholeGroup(), unclaimed_group(now_s=99.0, limit_bytes=60)) == []


def test_it_waits_while_its_memory_is_reserved_for_a_group_in_transit():
    # Two successive groups were assigned the same free memory, and the job failed.
    seen_view = unclaimed_group(now_s=99.0, limit_bytes=70)
    coming = ChunkId("data", 1, 0)
    chunks = seen_view.chunks
    chunks.infos[coming] = ChunkInfo(id=coming, rows=1, nbytes=10)
    assert slots_by_chunk(WholeGroup(), replace(seen_view, coming={coming: MemberId(1, 2)})) == []
    # The body that has arrived takes memory, too, until the group is back.
    chunks.held[coming] = {MemberId(1, 2)}
    assert slots_by_chunk(WholeGroup(), replace(seen_view, coming={coming: MemberId(1, 2)})) == []
    # A copy that can be dropped takes none.
    chunks.owners[coming] = MemberId(3, 2)
    assert slots_by_chunk(WholeGroup(), seen_view) == [0, 0, 1, 2]


def three_groups(**facts: float) -> View:
    """Slots 8, 9 and 10 have vanished, with 4, 3 and 1 chunks; slot 0, with 5 chunks, survives."""
    chunks = chunks_of_a_group({}, {0: 5, 1: 4})
    for chunk in list(chunks.infos)[-4:]:
        del chunks.owners[chunk]
    ids = list(chunks.infos)
    order = (0, 4), (9, 12), (12, 13)
    assert len(ids) == 13
    groups = [group_of(group(k, 7 + k), chunks, *order[k - 1]) for k in (1, 2, 3)]
    survivor = replace(seen(0, rows=5)[0], limit_bytes=80)
    return replace(view(groups, (), (survivor,)), chunks=chunks, now_s=99.0, **facts)


def test_group_that_does_not_fit_takes_no_memory_from_a_smaller_one():
    # The first chunks of the large group counted as assigned, and the small one was refused.
    result = WholeGroup(first_fitting=True).suggest(three_groups())
    assert [(r.group, set(r.owners.values())) for r in result] == [(2, {MemberId(0, 2)})]
    assert WholeGroup().suggest(three_groups()) == []


def test_newcomer_with_a_group_has_no_memory_for_the_next_one():
    # It counted as empty, got both groups, and the job failed.
    newcomer = replace(seen(7)[0], limit_bytes=50)
    first, *others = WholeGroup().suggest(three_groups(spares=(newcomer,)))
    assert (first.group, first.targets) == (1, (newcomer.id,))
    assert [[m.slot for m in r.owners.values()] for r in others] == [[7, 0, 0], [0]]


def test_newcomer_that_is_too_small_shares_a_group_with_active_members():
    newcomer = replace(seen(7)[0], limit_bytes=30)
    (first,) = WholeGroup().suggest(three_groups(spares=(newcomer,)))
    assert [m.slot for m in first.owners.values()] == [7, 7, 7, 0]
    assert WholeGroup(patience_s=1e3).suggest(three_groups(spares=(newcomer,))) == []


def test_chunks_wait_for_planned_newcomers():
    # Rounds of a second, faults by round: members planned for round 200 found nothing to take.
    seen_view = unclaimed_group(now_s=1e9)
    assert slots_by_chunk(WholeGroup(), replace(seen_view, planned=7)) == []
    assert slots_by_chunk(WholeGroup(), replace(seen_view, expected=7, start_members=3)) == []
    assert slots_by_chunk(WholeGroup(), seen_view) == [0, 0, 1, 2]
    # The first of them to arrive got the whole group.
    waiting = view([group(1, 3, 4)], seen(7), now_s=40.0)
    assert readmitted(WholeGroup(), replace(waiting, expected=1)) == {}
    assert readmitted(WholeGroup(), waiting) == {1: [7]}


def reload_slots(chunks: FakeChunks, limit_bytes: int) -> list[int]:
    """Return the slots to which the four chunks go, in their order."""
    lost = group_of(group(1, 8), chunks, 0, 4)
    working = tuple(replace(m, limit_bytes=limit_bytes, rows=5) for m in seen(0, 1))
    (result,) = Reload().suggest(replace(view([lost], (), working), chunks=chunks))
    if result.owners is None:
        return [t.slot for t in result.targets]
    assert sorted(result.owners) == list(lost.chunks)
    return [result.owners[c].slot for c in lost.chunks]


def test_reload_reads_only_chunks_that_no_member_has():
    result = reload_slots(chunks_of_a_group({0: 1, 2: 1, 3: 1}, {0: 5, 1: 5}), 1000)
    assert result == [1, 0, 1, 1]


def test_reload_spreads_a_group_over_all_survivors_in_stretches():
    assert reload_slots(chunks_of_a_group({}, {0: 5, 1: 5}), 1000) == [0, 0, 1, 1]
    assert reload_slots(chunks_of_a_group({}, {0: 5, 1: 5}), 70) == [0, 0, 1, 1]
    lost = group_of(group(1, 8), chunks := chunks_of_a_group({}, {0: 5, 1: 9, 2: 7}), 0, 4)
    working = tuple(replace(m, rows=rows) for m, rows in zip(seen(0, 1, 2), (5, 9, 7), strict=True))
    (result,) = Reload().suggest(replace(view([lost], (), working), chunks=chunks))
    # 5 + 3, 7 + 1 and 9 examples.
    assert [result.owners[c].slot for c in lost.chunks] == [0, 0, 0, 2]


def test_without_patience_a_group_is_shared_by_survivors_and_newcomers():
    policy, seen_view = WholeGroup(patience_s=0.0, alone_s=0.0), unclaimed_group(now_s=10.0)
    assert slots_by_chunk(policy, seen_view) == [0, 0, 1, 2]
    assert slots_by_chunk(policy, replace(seen_view, planned=1)) == []
    # One of two lost members is replaced: all members share what the other would have taken.
    former = (MemberId(8, 1), MemberId(9, 1))
    (lost,) = seen_view.groups
    shares = {former[0]: lost.chunks[:2], former[1]: lost.chunks[2:]}
    lost = replace(lost, former=former, shares=shares)
    with_newcomer = replace(seen_view, groups=(lost,), spares=seen(7))
    assert slots_by_chunk(policy, with_newcomer) == [7, 7, 7, 2]
    idle = tuple(replace(m, rows=0) for m in with_newcomer.working)
    assert slots_by_chunk(policy, replace(with_newcomer, working=idle)) == [0, 1, 7, 2]
