"""Policies and their suggestions: each kind, void ones, conflicts, the story."""

from __future__ import annotations

import pytest

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.policy import (
    Discard,
    Move,
    Readmit,
    Replicate,
    Request,
    Retire,
    StandingPolicy,
    Tune,
)
from elasticml.errors import JobFailedError
from elasticml.ids import ChunkId, MemberId
from elasticml.policies.elastic_scaling import ElasticScaling
from elasticml.policies.readmission import Reload, WholeGroup
from elasticml.protocol.commands import DropChunks, GiveChunks, LoadChunks
from elasticml.protocol.events import ChunksDropped, MembersRefused, WentOutOfCore
from elasticml.story import records as story
from tests.pure_world import PureWorld

A, B, C = (MemberId(slot, 1) for slot in range(3))


class FixedPolicy:
    """Makes the given suggestions once, in the first round or another."""

    name = "says"

    def __init__(self, *suggestions, at: int = 1) -> None:
        self.suggestions = suggestions
        self.at = at
        self.views = []

    def suggest(self, view):
        self.views.append(view)
        return self.suggestions if view.round == self.at else ()


def chunk(block: int, k: int) -> ChunkId:
    return ChunkId("s", block, k)


def world(
    *suggestions, n: int = 2, rounds: int = 4, limit_bytes: int | None = None, **changes
) -> PureWorld:
    """A has block 0, B block 1; their chunks have 10, 11 and 12 examples."""
    settings = {"start_members": n, "n_blocks": 2, "topology": "star", **changes}
    made = PureWorld(
        DriverSettings(**settings),
        rounds=rounds,
        policies=[FixedPolicy(*suggestions)],
        limit_bytes=limit_bytes,
    )
    for _ in range(n):
        made.join()
    return made


def finish(made: PureWorld) -> PureWorld:
    made.run(lambda k: 0)
    assert made.ended.state == "done"
    made.check_stores()
    return made


def decided(made: PureWorld) -> list[tuple]:
    return [(r.policy, r.suggestion) for r in made.story if r.event == "PolicyDecided"]


def owners(made: PureWorld) -> dict[ChunkId, MemberId]:
    return dict(made.driver.state.ledger._owner)


def members_of(made: PureWorld) -> list[int]:
    return [bin(actual.deliver.contributors).count("1") for actual in made.delivered]


def test_round_waits_for_a_move_and_the_giver_drops_its_copy():
    made = world(Move(targets={chunk(0, 0): B}, why="because"))
    seen = []
    while made.ended is None:
        made.step(0)
        run = made.driver.exchanges.running
        if run is not None and made.driver.state.round == 1:
            seen.append((owners(made)[chunk(0, 0)], run.rows[B]))
    assert set(seen) == {(B, 43)}
    assert decided(made) == [("says", "Move")]
    assert made.driver.state.ledger.holders[chunk(0, 0)] == {B}


def test_giver_keeps_its_copy_with_two_holders_and_only_the_state_goes_back():
    made = world(Move(targets={chunk(0, 0): B}, why="there"), holders=2)
    back = FixedPolicy(Move(targets={chunk(0, 0): A}, why="and back"), at=2)
    made.driver.policy_engine.others += (back,)
    finish(made)
    value = [o for o in made.orders if isinstance(o, GiveChunks) and chunk(0, 0) in o.chunks]
    assert [(o.member, o.target, o.bodies) for o in value[-1:]] == [(B, A, ())]
    assert owners(made)[chunk(0, 0)] == A


def test_every_chunk_gets_two_holders_while_rounds_continue():
    made = finish(world(n=3, holders=2, rounds=6))
    holders = made.driver.state.ledger.holders
    assert {len(h) for h in holders.values()} == {2}
    assert ("replicas", "Replicate") in decided(made)


def test_surplus_copies_are_dropped():
    everything = {chunk(b, k): C for b in range(2) for k in range(3)}
    made = finish(world(Replicate(targets=everything, why="more"), n=3, holders=2, rounds=9))
    assert ("says", "Replicate") in decided(made)
    assert {len(h) for h in made.driver.state.ledger.holders.values()} == {2}


def test_a_copy_can_be_discarded_but_neither_the_last_one_nor_an_owned_one():
    first = Replicate(targets={chunk(0, 0): B}, why="copy")
    made = world(first, rounds=6)
    made.driver.policy_engine.others += (
        FixedPolicy(Discard(member=B, chunks=(chunk(0, 0), chunk(1, 0)), why="no"), at=3),
        FixedPolicy(Discard(member=A, chunks=(chunk(0, 0),), why="no"), at=3),
    )
    finish(made)
    assert decided(made) == [("says", "Replicate"), ("says", "Discard")]
    assert made.driver.state.ledger.holders[chunk(0, 0)] == {A}


def test_retired_member_is_emptied_and_released():
    made = finish(world(Retire(members=(B,), why="idle"), n=3))
    assert made.given_back == [B]
    assert B not in owners(made).values()
    assert {actual.deliver.absent_examples for actual in made.delivered} == {0}
    assert members_of(made) == [3, 2, 2, 2]


def test_retired_members_chunks_go_where_the_policy_says():
    targets = {chunk(0, 2): C, chunk(1, 0): C}
    made = world(Retire(members=(B,), why="idle", targets=targets), n=3)
    while made.driver.state.round < 2:
        assert made.step(0)
    assert {owners(made)[c] for c in targets} == {C}


def test_not_all_members_can_be_retired():
    made = finish(world(Retire(members=(A, B), why="all"), members_min=1))
    assert decided(made) == []
    assert made.given_back == []


def test_requested_members_are_counted_until_they_join_or_are_refused():
    made = world(Request(count=3, why="more"))
    while made.driver.state.requested == 0:
        assert made.step(0)
    assert made.requested == 3
    made.join()
    made.settle(lambda key: key[2] == "up")
    assert made.driver.state.requested == 2
    made.feed(MembersRefused(count=2, reason="no room"))
    assert made.driver.state.requested == 0


def test_tuned_settings_go_to_the_trainer_once_with_its_result():
    says = (Tune(name="sigma", value=2.0, why="a"), Tune(name="sigma", value=2.0, why="again"))
    made = finish(world(*says, rounds=9, rounds_max=4))
    assert made.tuned == [{"sigma": 2.0}, {}, {}, {}]
    assert decided(made) == [("says", "Tune")]
    (policy,) = made.driver.policy_engine.others
    assert [view.tuned for view in policy.views] == [{}, {}, {"sigma": 2.0}, {"sigma": 2.0}]


def test_policy_is_asked_once_a_round_and_sees_the_history():
    made = finish(world(rounds=9, rounds_max=4))
    (policy,) = made.driver.policy_engine.others
    assert [view.round for view in policy.views] == [0, 1, 2, 3]
    last = policy.views[-1]
    assert [p.round for p in last.history] == [0, 1, 2]
    assert [m.seconds for m in last.working] == [(1.0, 1.0, 1.0)] * 2
    assert last.working[0].seconds_per_row == (1 / 33,) * 3


@pytest.mark.parametrize(
    "suggestion",
    [
        Move(targets={chunk(0, 0): MemberId(9, 9)}, why="nobody"),
        Move(targets={chunk(7, 7): A}, why="nothing"),
        Move(targets={chunk(0, 0): A}, why="there already"),
        Replicate(targets={chunk(0, 0): A}, why="there already"),
        Discard(member=MemberId(9, 9), chunks=(chunk(0, 0),), why="nobody"),
        Retire(members=(MemberId(9, 9),), why="nobody"),
        Request(count=0, why="nothing"),
        Readmit(group=1, targets=(A,), why="no such group"),
    ],
    ids=lambda suggestion: f"{type(suggestion).__name__}: {suggestion.why}",
)
def test_void_suggestions_are_dropped_silently(suggestion):
    assert decided(finish(world(suggestion))) == []


def test_the_first_of_two_policies_gets_the_chunk():
    made = world(Move(targets={chunk(0, 0): B, chunk(0, 1): C}, why="first"), n=3)
    late = Move(targets={chunk(0, 0): C, chunk(0, 2): C}, why="second")
    made.driver.policy_engine.others += (FixedPolicy(late),)
    while made.driver.state.round < 2:
        assert made.step(0)
    assert owners(made)[chunk(0, 0)] == B


def test_policy_that_fails_ends_the_job_with_its_name():
    class Broken:
        name = "broken"

        def suggest(self, view):
            raise ZeroDivisionError("oops")

    made = PureWorld(DriverSettings(), policies=[Broken()])
    made.join()
    with pytest.raises(JobFailedError, match="policy broken failed: ZeroDivisionError: oops"):
        made.run(lambda k: 0)


def test_invalid_suggestion_ends_the_job_and_names_the_valid_ones():
    with pytest.raises(JobFailedError, match="policy says suggested 'more', wanted one of Readmit"):
        world("more").run(lambda k: 0)


def test_group_whose_copies_survivors_hold_returns_before_the_next_round():
    made = PureWorld(
        DriverSettings(start_members=3, n_blocks=2, topology="star", holders=2, absent="reload"),
        rounds=8,
    )
    names = [made.join() for _ in range(3)]
    ledger = made.driver.state.ledger
    while not ledger.holders or {len(h) for h in ledger.holders.values()} != {2}:
        assert made.step(0)
    while made.driver.exchanges.running is None:
        assert made.step(0)
    made.kill(names[1])
    finish(made)
    (readmitted,) = [r for r in made.story if r.event == "GroupReadmitted"]
    assert readmitted.why == "copies"
    loads = [o for o in made.orders if isinstance(o, LoadChunks)]
    assert {o.member for o in loads} <= {A, C}
    assert {actual.deliver.absent_examples for actual in made.delivered} == {0}


def test_moves_that_do_not_fit_wait_until_copies_are_dropped():
    made = world(n=3, holders=2, rounds=8)
    made.limit_bytes = None
    while made.driver.state.round < 6:
        assert made.step(0)
    state = made.driver.state
    chunk_moves, ledger = made.driver.chunk_moves, state.ledger
    target = next(m for m in state.living() if ledger.held[m] - ledger.owned[m])
    chunk_there = next(c for c in sorted(ledger.info) if not ledger.holds(target, c))
    state.membership.members[target].limit_bytes = ledger.held_bytes(target)
    (drop,) = chunk_moves.move({chunk_there: target})
    assert isinstance(drop, DropChunks)
    assert chunk_moves.move({chunk_there: target}) == []
    chunk_moves.dropped(ChunksDropped(member=target, chunks=drop.chunks))
    (give,) = chunk_moves.move({chunk_there: target})
    assert give.bodies == (chunk_there,)


def test_copies_do_not_go_where_there_is_no_memory():
    made = world(Replicate(targets={chunk(0, 0): B}, why="copy"), limit_bytes=300)
    assert decided(finish(made)) == []


def test_copies_do_not_go_to_a_members_disk():
    made = world(Replicate(targets={chunk(0, 0): B}, why="copy"))
    members = made.driver.state.membership.members
    while B not in members:
        assert made.step(0)
    members[B].memory_bytes = 10
    assert decided(finish(made)) == []


def test_the_story_reports_that_a_member_went_out_of_core():
    made = world()
    (report,) = made.driver.handle(WentOutOfCore(member=B, nbytes=99, limit_bytes=10), 1.0)
    assert report.record == story.WentOutOfCore(
        cause=report.cause, round=0, member="1.1", nbytes=99, limit_bytes=10
    )


def test_rules_that_are_always_active_are_standing_policies():
    for policy in (WholeGroup(), Reload(), ElasticScaling()):
        assert isinstance(policy, StandingPolicy)
    assert not isinstance(FixedPolicy(), StandingPolicy)


def test_no_more_members_are_requested_than_the_job_may_have():
    made = world(Request(count=3, why="more"), members_max=4)
    made.run(lambda k: 0)
    assert made.requested == 2
    decided = [r.count for r in made.story if r.event == "PolicyDecided"]
    assert 2 in decided


def test_job_with_its_maximum_of_members_requests_none():
    made = world(Request(count=3, why="more"), members_max=2)
    made.run(lambda k: 0)
    assert made.requested == 0
