"""Blocks are read once, by one member each, and the first round waits for all chunks."""

from __future__ import annotations

from elasticml.control.chunk_transfers import ChunkCopies, ChunkMoves
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.initial_placement import BlockLoading, InitialPlacement
from elasticml.control.job_state import JobState
from elasticml.control.policy_engine import PolicyEngine
from elasticml.control.round_scheduler import RoundScheduler
from elasticml.control.rounds import Rounds
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.protocol.commands import Command, LoadChunks, MergeFacts, ReadBlocks, StartTrainer
from elasticml.protocol.events import Arrived, BlockRead, ChunksLoaded, FactsFixed, Ready

A, B = (MemberId(slot, 1) for slot in range(2))


def loading(n_blocks: int) -> BlockLoading:
    state = JobState(settings=DriverSettings(n_blocks=n_blocks))
    for slot in range(2):
        state.membership.admit(
            Arrived(arrival=0, address=f"w{slot}", host="h", pid=slot, threads=1), 0.0
        )
    return BlockLoading(state)


def orders(commands: list[Command]) -> dict[MemberId, tuple[int, ...]]:
    return {c.member: c.blocks for c in commands if isinstance(c, ReadBlocks)}


def read(member: MemberId, block: int) -> BlockRead:
    chunk = ChunkInfo(id=ChunkId("s", block, 0), rows=10, nbytes=1)
    return BlockRead(member=member, block=block, chunks=(chunk,))


def test_a_block_belongs_to_its_reader_and_another_one_that_read_it_holds_a_copy():
    made = loading(2)
    assert orders(made.start(survey=False)) == {A: (0,), B: (1,)}
    ledger = made.state.ledger
    assert made.read(read(B, 0)) == []
    assert (made.awaited(), ledger.info) == ({A, B}, {})
    assert made.read(read(A, 0)) == []
    assert made.read(read(A, 0)) == []  # a report that comes again
    chunk = ChunkId("s", 0, 0)
    assert (ledger.owner(chunk), ledger.holders[chunk]) == (A, {A, B})
    (merge,) = made.read(read(B, 1))
    assert isinstance(merge, MergeFacts)
    assert ledger.total_rows == 20


def test_blocks_of_a_lost_reader_are_read_by_another():
    made = loading(3)
    assert orders(made.start(survey=False)) == {A: (0, 2), B: (1,)}
    made.read(read(A, 0))
    made.state.membership.remove(A)
    assert orders(made.lost(A)) == {B: (2,)}
    assert made.awaited() == {B}
    # What the lost member has sent before does not count.
    assert made.read(read(A, 2)) == []
    assert made.awaited() == {B}


def test_a_survey_adds_no_chunks():
    made = loading(1)
    made.start(survey=True)
    (merge,) = made.read(read(A, 0))
    assert isinstance(merge, MergeFacts)
    assert merge.survey
    assert made.state.ledger.info == {}


def test_a_survey_that_asks_for_another_one_is_repeated_before_blocks_are_read():
    made = placement()
    again = made.facts_fixed(FactsFixed(cause="blocks", survey=True, surveys_again=True))
    assert {(c.survey, made.state.stage) for c in again} == {(True, "surveying")}
    read = made.facts_fixed(FactsFixed(cause="blocks", survey=True))
    assert {(c.survey, made.state.stage) for c in read} == {(False, "reading")}


def placement() -> InitialPlacement:
    """A and B have read a chunk each, and all members can compute."""
    made = loading(2)
    made.start(survey=False)
    for member, block in ((A, 0), (B, 1)):
        made.read(read(member, block))
        made.state.membership.members[member].configured = True
    state, copies = made.state, ChunkCopies(made.state)
    state.stage = "dealing"
    moves, rounds = ChunkMoves(state, copies), Rounds(state)
    engine = PolicyEngine(state, moves, copies, rounds, rounds.history, ())
    scheduler = RoundScheduler(state, moves, rounds, engine, lambda member, now_s: [])
    return InitialPlacement(state, made, moves, rounds, scheduler)


def test_the_first_round_waits_for_owners_that_compile_their_kernels():
    made = placement()
    made.state.membership.members[B].configured = False
    assert made.dealt() == []
    assert made.unready() == {B}
    assert made.ready(Ready(member=B))[-1] == StartTrainer()
    assert made.state.stage == "training"


def test_the_first_round_waits_until_every_chunk_has_an_owner():
    made = placement()
    made.state.membership.remove(B)
    made.state.ledger.lose(B)
    chunk = ChunkId("s", 1, 0)
    assert made.dealt() == [LoadChunks(member=A, chunks=(chunk,))]
    assert made.dealt() == []
    made._mobility.loaded(ChunksLoaded(member=A, chunks=(chunk,)))
    assert made.dealt()[-1] == StartTrainer()


def test_chunks_that_do_not_arrive_stay_with_their_readers_and_the_first_round_begins():
    made, chunks = placement(), (ChunkId("s", 0, 0), ChunkId("s", 1, 0))
    hold_s, moves = made.state.settings.hold_s_max, made._mobility
    moves.move({chunks[0]: B, chunks[1]: A})
    (order,) = {move.order for chunk, move in moves.moves.items() if chunk == chunks[0]}
    assert made.ticked(0.0) == []
    moves.loaded(ChunksLoaded(member=B, chunks=chunks[:1], order=order))
    assert [made.ticked(at_s) for at_s in (hold_s, 2 * hold_s - 1.0)] == [[], []]
    assert made.ticked(2 * hold_s)[-1] == StartTrainer()
    assert [made.state.ledger.owner(chunk) for chunk in chunks] == [B, B]
