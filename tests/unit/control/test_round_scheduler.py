"""Between rounds: destinations of the chunks of members with a notice."""

from __future__ import annotations

from elasticml.control.chunk_transfers import ChunkCopies, ChunkMoves
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.control.policy_engine import PolicyEngine
from elasticml.control.round_scheduler import RoundScheduler
from elasticml.control.rounds import History, Rounds
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.policies.elastic_scaling import ElasticScaling
from elasticml.policies.readmission import WholeGroup
from elasticml.protocol.commands import GiveChunks
from elasticml.protocol.events import Arrived


def boundary(stages: str, policies=()) -> RoundScheduler:
    """Members by slot: a(ctive) and l(eaving) ones have two chunks, s(pare) ones none."""
    state = JobState(settings=DriverSettings())
    for slot, letter in enumerate(stages):
        record = state.membership.admit(
            Arrived(arrival=0, address=f"w{slot}", host="h", pid=slot, threads=1), 0.0
        )
        record.configured = True
        if letter == "s":
            continue
        state.membership.enter(record, "active")
        chunks = [ChunkInfo(id=ChunkId("s", slot, k), rows=10, nbytes=1) for k in range(2)]
        state.ledger.add(record.id, chunks)
        if letter == "l":
            state.membership.enter(record, "leaving")
            record.deadline_s = 100.0
    chunk_copies, history = ChunkCopies(state), History(state)
    chunk_moves, rounds = ChunkMoves(state, chunk_copies), Rounds(state, history)
    policy_engine = PolicyEngine(
        state,
        chunk_moves,
        chunk_copies,
        rounds,
        history,
        policies or [WholeGroup(), ElasticScaling()],
    )
    return RoundScheduler(state, chunk_moves, rounds, policy_engine, lambda member, now_s: [])


def lose(made: RoundScheduler, slot: int) -> None:
    member = MemberId(slot, 1)
    made.state.membership.remove(member)
    made.state.ledger.lose(member)
    made.state.ledger.report(frozenset())
    made.state.ledger.seal()


def given(made: RoundScheduler) -> list[tuple[int, int, int]]:
    orders = [c for c in made.apply(0.0) if isinstance(c, GiveChunks)]
    return [(o.member.slot, o.target.slot, len(o.chunks)) for o in orders]


def test_leavers_chunks_go_to_survivors_in_turn():
    assert given(boundary("laa")) == [(0, 1, 1), (0, 2, 1)]


def test_leavers_chunks_go_to_their_replacements():
    assert given(boundary("las")) == [(0, 2, 2)]


def test_newcomers_take_the_chunks_when_all_members_leave():
    # Six members with a notice, six newcomers: only members with chunks were considered, so that
    # nothing was moved, and everything was absent when the notices expired.
    assert given(boundary("llss")) == [(0, 2, 1), (0, 3, 1), (1, 2, 1), (1, 3, 1)]


def test_spares_are_reserved_for_absent_chunks_while_there_are_survivors():
    made = boundary("laas", [ElasticScaling()])
    lose(made, 2)
    assert given(made) == [(0, 1, 2)]


def test_no_chunks_move_when_all_members_leave():
    assert given(boundary("ll")) == []


def test_a_leaver_to_which_chunks_are_on_their_way_is_not_released_yet():
    made, released = boundary("as"), []
    made._release = lambda member, now_s: released.append(member) or []
    leaver = MemberId(1, 1)
    made.chunk_moves.move({ChunkId("s", 0, 0): leaver})
    made.state.membership.enter(made.state.membership.members[leaver], "leaving")
    made.apply(0.0)
    assert released == []
    made.chunk_moves.abandon_moves()
    made.apply(0.0)
    assert released == [leaver]


def test_a_round_waits_for_moves_and_gives_them_up_when_they_take_too_long():
    made = boundary("as")
    made.chunk_moves.move({ChunkId("s", 0, 0): MemberId(1, 1)})
    hold_s = made.state.settings.hold_s_max
    assert made.held(5.0)
    assert made.held(5.0 + hold_s - 0.1)
    assert made.chunk_moves.moves
    assert not made.held(5.0 + hold_s)
    assert made.chunk_moves.moves == {}


def test_a_round_waits_for_chunks_that_are_read_again():
    made, lost = boundary("aa"), MemberId(1, 1)
    made.state.membership.remove(lost)
    made.state.ledger.lose(lost)
    assert not made.held(0.0)
    made.chunk_moves.reread()
    assert made.held(0.0)
