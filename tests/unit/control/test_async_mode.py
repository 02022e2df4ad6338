"""What members of an asynchronous job learn of their peers."""

from __future__ import annotations

from elasticml.control.async_mode import AsyncMode
from elasticml.control.chunk_transfers import ChunkCopies, ChunkMoves
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.control.policy_engine import PolicyEngine
from elasticml.control.round_scheduler import RoundScheduler
from elasticml.control.rounds import Rounds
from elasticml.ids import MemberId
from elasticml.protocol.commands import Peers
from elasticml.protocol.events import Arrived

A, B, C = (MemberId(slot, 1) for slot in range(3))


def join(state: JobState, slot: int) -> None:
    record = state.membership.admit(
        Arrived(arrival=0, address=f"w{slot}", host="h", pid=slot, threads=1), 0.0
    )
    state.membership.enter(record, "active")


def orders(made: AsyncMode) -> dict[MemberId, tuple[object, ...]]:
    commands = made.peers()
    assert all(isinstance(c, Peers) for c in commands)
    return {c.member: (c.came, c.addresses, c.gone, c.is_full) for c in commands}


def test_members_learn_once_who_comes_leaves_and_goes():
    state = JobState(settings=DriverSettings(report_every_s=1.0), stage="training")
    copies, rounds = ChunkCopies(state), Rounds(state)
    moves = ChunkMoves(state, copies)
    engine = PolicyEngine(state, moves, copies, rounds, rounds.history, ())
    scheduler = RoundScheduler(state, moves, rounds, engine, lambda member, now_s: [])
    made = AsyncMode(state, scheduler, moves, rounds)
    join(state, 0)
    join(state, 1)
    both = ((A, B), ("w0", "w1"), (), True)
    assert orders(made) == {A: both, B: both}
    assert orders(made) == {}
    join(state, 2)
    came = ((C,), ("w2",), (), False)
    everybody = ((A, B, C), ("w0", "w1", "w2"), (), True)
    assert orders(made) == {A: came, B: came, C: everybody}
    # A leaving member still sends, and receives no more.
    state.membership.enter(state.membership.members[B], "leaving")
    assert orders(made) == dict.fromkeys((A, B, C), ((), (), (B,), False))
    state.membership.remove(B)
    assert orders(made) == {}
