"""Who owns and who holds a chunk: balancing by speed, reshuffling, and second holders."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from elasticml.control.policy import Discard, MemberView, Move, Replicate, View
from elasticml.ids import ChunkInfo
from elasticml.policies.background_shuffle import GlobalShuffle
from elasticml.policies.load_balancing import assign_greedily, seconds_per_row
from elasticml.policies.rebalance import Rebalance
from elasticml.policies.replication import ChunkReplication
from elasticml.policies.reshuffle import Redeal
from elasticml.policies.straggler import Straggler
from tests.policy_world import FakeChunks, PolicyWorld, chunk, member


def world_of(*policies, members: int = 4, n_chunks: int = 64, cost=None, **more) -> PolicyWorld:
    """Members of equal speed but for ``cost``."""
    costs = dict.fromkeys(range(members), 1.0) | (cost or {})
    return PolicyWorld(list(policies), costs, n_chunks=n_chunks, **more)


def moved(world: PolicyWorld) -> list[int]:
    """Return how many chunks each suggestion moves or copies."""
    return [len(s.targets) for _, s in world.suggestions if isinstance(s, Move | Replicate)]


# --- seconds per example, as balancing policies see them ------------------------------------------

EVEN = (1, 1, 1)


@pytest.mark.parametrize(
    ("times", "costs"),
    [
        ([EVEN, EVEN, (1.5, 1.6, 1.4)], [1, 1, 1.5]),
        # On a loaded host equal members seemed up to three times as fast as one another.
        ([EVEN, EVEN, (0.5, 3.0, 1.2, 0.9)], [1, 1, 1]),
        # One quick round: with two members the slow one was taken for normal, and its load stayed.
        ([(1, 1, 1, 1), (1.5, 1.1, 1.6, 1.5)], [1, 1.5]),
        # A member without measurement counts as the median.
        ([(2.0,), (2.0,), ()], [2, 2, 2]),
        ([(), ()], [1, 1]),
        # A newcomer is compared in the rounds that it took part in.
        ([(4, 4, 4, 1, 1), (2, 2)], [1, 2]),
        # Every other round computes a certificate, too; the slow member's load stayed as it was.
        ([(1, 3, 1, 3, 1, 3, 1), (1.2, 3.6, 1.2, 3.6, 1.2, 3.6, 1.2)], [1, 1.2]),
    ],
)
def test_a_member_is_slow_if_it_is_slower_every_time(times, costs):
    seen = [
        MemberView(id=member(k), host="a", rows=10, seconds_per_row=t) for k, t in enumerate(times)
    ]
    found = [*seconds_per_row(seen, 4).values()]
    assert [c / found[0] for c in found] == pytest.approx([c / costs[0] for c in costs])


# --- balancing by speed ---------------------------------------------------------------------------


@pytest.mark.parametrize("members", [2, 4, 8])
def test_imbalance_of_one_member_half_as_slow_again_falls_below_a_tenth_in_ten_rounds(members):
    world = world_of(Rebalance(), members=members, n_chunks=64 * members, cost={0: 1.5})
    imbalance = world.play(11)
    assert imbalance[0] > 1.1
    assert max(imbalance[10:]) < 1.1


def test_nothing_moves_for_less_than_a_chunk_or_for_noise():
    world = world_of(Rebalance(), members=3, n_chunks=9, cost={0: 1.2})
    world.play(10)
    assert world.suggestions == []
    world = world_of(Rebalance(tolerance=0.1), n_chunks=256)
    for round in range(20):
        noise = {slot: 1 + 0.05 * ((7 * round + 3 * slot) % 5 - 2) / 2 for slot in range(4)}
        world.cost.update(noise)
        world.play(1)
    assert world.suggestions == []


def test_member_that_holds_the_body_comes_first():
    world = world_of(Rebalance(), members=3, n_chunks=60, cost={0: 4.0}, holders=2)
    world.chunks.held = {c: {m, member(2)} for c, m in world.chunks.owners.items()}
    world.play(8)
    assert set(world.suggestions[0][1].targets.values()) == {member(2)}
    assert world.imbalance < 1.1


def with_straggler(*policies, cost: float = 8.0) -> PolicyWorld:
    world = world_of(*policies, n_chunks=256)
    world.play(3)
    world.cost[1] = cost
    return world


@pytest.mark.parametrize(
    ("world", "slot", "n_left"),
    [
        (world_of(Rebalance(), members=2, n_chunks=8, cost={0: 10.0}), 0, 1),
        (world_of(Rebalance(), members=2, n_chunks=8, cost={0: 50.0}), 0, 0),
        (with_straggler(Straggler(), cost=150.0), 1, 1),
        (with_straggler(Straggler(), cost=1e6), 1, 0),
        (world_of(Redeal(), members=2, n_chunks=6, cost={1: 100.0}, holders=2), 1, 1),
    ],
)
def test_a_member_is_emptied_only_if_one_chunk_takes_it_three_times_as_long(world, slot, n_left):
    world.play(20)
    assert len(world.chunks.of(member(slot))) == n_left


def test_straggler_gives_at_once_all_chunks_beyond_the_median_time():
    world = with_straggler(Straggler())
    world.play(2)
    assert world.suggestions == []
    world.play(1)
    # The others take 64 chunks' time, in which the straggler does 8.
    assert [len(world.chunks.of(member(s))) for s in range(4)] == [83, 8, 83, 82]
    world.play(10)
    assert len(world.suggestions) == 1


def test_one_slow_round_or_a_member_below_the_factor_is_no_straggler():
    world = with_straggler(Straggler())
    world.play(1)
    world.cost[1] = 1.0
    world.play(5)
    assert world.suggestions == []
    world = world_of(Straggler(factor=3.0), members=3, n_chunks=63, cost={1: 2.9})
    world.play(6)
    assert world.suggestions == []


# --- reshuffling ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "n_chunks", "cost", "n_moves"),
    [
        (8, 512, 1.0, 10),
        (2, 2048, 1.0, 10),
        # Moving the states of 3,000 of 6,000 chunks took a hundred times as long as a round, and
        # members prepare all their chunks again: 8 rounds' moves are made together.
        (2, 2048, 2e-7, 2),
    ],
)
def test_about_half_of_the_drawn_chunks_change_owner_and_no_body_travels(
    members, n_chunks, cost, n_moves
):
    costs = dict.fromkeys(range(members), cost)
    world = world_of(Redeal(), n_chunks=n_chunks, cost=costs, members=members, holders=2)
    imbalance = world.play(16 if n_moves == 2 else 11)
    drawn = 8 * 2 * 64 if n_moves == 2 else n_chunks
    # The members are not measured before the first round.
    shares = [n / drawn for n in moved(world)[-n_moves:]]
    assert len(shares) == n_moves
    assert all(0.35 < share < 0.65 for share in shares)
    assert (world.moved_bodies, max(imbalance) <= 1 + 1 / 64 + 1e-9) == (0, True)


def test_share_limits_what_is_drawn_and_may_be_tuned():
    world = world_of(Redeal(share=0.25), holders=2)
    world.play(10)
    assert 0 < max(moved(world)) <= 16
    world = world_of(Redeal(share=0), holders=2)
    world.play(3)
    assert world.suggestions == []
    world.tuned["redeal_share"] = 0.5
    world.play(1)
    assert isinstance(world.suggestions[0][1], Move)


def test_with_one_holder_bodies_move_as_many_as_the_share_or_a_tenth_of_a_round_allows():
    world = world_of(Redeal(share=0.1), n_chunks=200)
    assert max(world.play(20)) <= 1 + 1 / 50 + 1e-9
    assert world.moved_bodies == 20 * 20
    assert all(len(holders) == 1 for holders in world.chunks.held.values())
    # A round takes 0.5 s; a tenth of it sends all of 50 kB at 1 MB/s, so a quarter is the limit.
    for cost, n_moved in ((1e-4, 50), (1e-5, 20)):
        world = world_of(Redeal(), n_chunks=200, cost=dict.fromkeys(range(4), cost))
        world.play(2)
        assert world.moved_bodies == n_moved


@pytest.mark.parametrize("policy", [Redeal(), GlobalShuffle(share=1.0)])
def test_nothing_is_reshuffled_while_a_job_waits(policy):
    world = world_of(holders=2)
    world.play(2)
    view = world.view()
    assert policy.suggest(view)
    assert policy.suggest(replace(view, round=view.round + 1)) == []


@pytest.mark.parametrize(("seconds", "to"), [([0.0, 1.5, 1.0], 2), ([0.0, 1.5, 1.1], 0)])
def test_a_chunk_goes_to_its_first_holder_unless_that_delays_it_by_more_than_its_time(seconds, to):
    load = {member(k): s for k, s in enumerate(seconds)}
    chunks = held({0: [1, 2]}, 3).chunks
    assert assign_greedily([chunk(0)], chunks, load, dict.fromkeys(load, 1.0)) == {
        chunk(0): member(to)
    }


# --- background shuffle: bodies move slowly to random other holders -------------------------------


def test_about_the_configured_share_of_chunks_is_copied_and_pairs_of_holders_change():
    world = world_of(GlobalShuffle(share=0.1), Redeal(), members=8, n_chunks=256, holders=2)
    before = {c: set(holders) for c, holders in world.chunks.held.items()}
    world.play(60)
    copied = [len(s.targets) for _, s in world.suggestions if isinstance(s, Replicate)]
    # A quarter of the draws hit a member that has the chunk already.
    assert 0.6 * 25.6 < sum(copied) / 60 < 25.6
    assert max(copied) < 2 * 25.6
    after = world.chunks.held
    assert sum(before[c] == after[c] for c in before) < 0.15 * 256
    assert {len(holders) for holders in after.values()} <= {2, 3}
    assert world.imbalance < 1.1
    # The world refuses to discard chunks of their owners.
    assert any(isinstance(suggestion, Discard) for _, suggestion in world.suggestions)
    assert world.moved_bodies == 0


def test_with_one_holder_owners_follow_the_copies_and_members_stay_level():
    world = world_of(GlobalShuffle(share=0.1), n_chunks=256)
    before = dict(world.chunks.owners)
    imbalance = world.play(60)
    assert sum(world.chunks.owners[c] != before[c] for c in before) > 0.25 * 256
    assert max(imbalance) < 1.05
    assert world.moved_bodies == 0


def test_what_is_being_copied_or_is_everywhere_is_not_copied():
    policy, view = GlobalShuffle(share=1.0), world_of().view()
    first = policy.suggest(view)[0]
    assert isinstance(first, Replicate)
    assert policy.suggest(replace(view, copying=first.targets)) == []
    world = world_of(GlobalShuffle(share=1.0), members=2, n_chunks=16, holders=2)
    world.play(5)
    assert world.suggestions == []


# --- replication: one second holder, on another host, balanced, within memory ---------------------


def held(slots_of: dict[int, list[int]], n: int, hosts: str = "", **more) -> View:
    """Chunks of 100 bytes with their holders, the owner first, among ``n`` members."""
    infos = {chunk(k): ChunkInfo(id=chunk(k), rows=1, nbytes=100) for k in slots_of}
    owners = {chunk(k): member(slots[0]) for k, slots in slots_of.items()}
    chunks = FakeChunks(infos, owners, {chunk(k): {*map(member, s)} for k, s in slots_of.items()})
    memory = {name: more.pop(name, None) for name in ("limit_bytes", "memory_bytes")}
    working = tuple(
        MemberView(
            id=member(k),
            host=hosts[k] if hosts else "h",
            rows=len(chunks.of(member(k))),
            held_bytes=100 * len(chunks.held_by(member(k))),
            **memory,
        )
        for k in range(n)
    )
    common = {"now_s": 0.0, "round": 1, "groups": (), "spares": (), "holders": 2}
    return View(**common | {"working": working, "chunks": chunks} | more)


def suggested(view: View, policy=None) -> tuple[dict[int, int], list[tuple[int, list[int]]]]:
    """Return the new holder of each chunk, and the chunks that members are to drop."""
    copies, drops = {}, []
    for s in (policy or ChunkReplication()).suggest(view):
        if isinstance(s, Replicate):
            copies |= {c.ordinal: m.slot for c, m in s.targets.items()}
        else:
            drops.append((s.member.slot, [c.ordinal for c in s.chunks]))
    return copies, drops


def test_every_chunk_gets_a_second_holder_elsewhere_and_loads_are_balanced():
    copies, _ = suggested(held({k: [k % 8] for k in range(400)}, 8))
    assert len(copies) == 400
    assert all(copies[k] != k % 8 for k in copies)
    assert max(Counter(copies.values()).values()) <= 1.25 * 50
    # The chunks of one member are spread over all others.
    assert {m for k, m in copies.items() if k % 8 == 0} == set(range(1, 8))
    hosts = "xxyy"
    copies, _ = suggested(held({k: [k % 4] for k in range(40)}, 4, hosts))
    assert all(hosts[copies[k]] != hosts[k % 4] for k in range(40))


FOUR = {k: [0] for k in range(4)}


@pytest.mark.parametrize(
    ("view", "holders", "drops"),
    [
        # A copy on the owner's host is replaced by one elsewhere.
        (held({0: [0, 1]}, 3, "xxy"), [2], []),
        (held({0: [0, 1, 2]}, 3, "xxy"), [], [(1, [0])]),
        # Nothing is copied where there is no memory, nor to disk.
        (held(FOUR, 2, limit_bytes=200), [1, 1], []),
        (held(FOUR, 2, limit_bytes=10_000, memory_bytes=200), [1, 1], []),
        # What is being copied is not requested again.
        (held({0: [0]}, 3, copying={chunk(0): member(1)}), [], []),
        (held({0: [0]}, 3, holders=1), [], []),
        (held({0: [0]}, 1), [], []),
    ],
)
def test_copies_are_made_and_dropped_as_hosts_and_memory_allow(view, holders, drops):
    copies, dropped = suggested(view)
    assert (list(copies.values()), dropped) == (holders, drops)
