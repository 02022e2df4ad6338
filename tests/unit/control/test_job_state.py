"""What members learn of the tree and of their chunks."""

from __future__ import annotations

from elasticml.control import job_state
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.protocol.commands import Command, Own, Rewire
from elasticml.protocol.events import Arrived

A, B, C = (MemberId(slot, 1) for slot in range(3))


def chain() -> JobState:
    """A below the root, B below A, C below B, each with a chunk."""
    state = JobState(settings=DriverSettings(topology="tree", fan_out=1))
    add(state, 3)
    return state


def add(state: JobState, n: int) -> None:
    """Add active members, each with a chunk."""
    for slot in range(n):
        record = state.membership.admit(
            Arrived(arrival=0, address=f"w{slot}", host="h", pid=slot, threads=1), 0.0
        )
        state.membership.enter(record, "active")
        state.ledger.add(record.id, [ChunkInfo(id=ChunkId("s", 0, slot), rows=1, nbytes=1)])


def owned(commands: list[Command]) -> dict[MemberId, int]:
    return {c.member: len(c.chunks) for c in commands if isinstance(c, Own)}


def places(commands: list[Command]) -> dict[MemberId, tuple[object, ...]]:
    orders = [c for c in commands if isinstance(c, Rewire)]
    return {o.member: (o.parent, o.parent_address, o.children, o.generation) for o in orders}


def test_members_are_informed_of_their_chunks_when_those_change():
    state = chain()
    assert owned(state.relayout()) == {A: 1, B: 1, C: 1}
    state.stale_layout = True
    assert owned(state.relayout()) == {}
    (chunk,) = state.ledger.chunks_of(A)
    state.ledger.hold(B, [chunk])
    state.ledger.move(chunk, B)
    state.stale_layout = True
    assert owned(state.relayout()) == {A: 0, B: 2}


def test_leaving_members_are_leaves_of_the_tree():
    state = chain()
    state.membership.enter(state.membership.members[A], "leaving")
    state.relayout()
    assert state.parents == {B: None, C: B, A: C}


def test_marked_members_get_chunks_only_if_there_is_no_other():
    state = chain()
    for member, others in ((A, [B, C]), (B, [C]), (C, [A, B, C])):
        state.membership.members[member].is_marked = True
        assert state.recipients() == others


def test_in_a_large_tree_only_members_near_a_change_are_told_of_it(monkeypatch):
    monkeypatch.setattr(job_state, "LAID_OUT_ANEW_MAX", 3)
    state = JobState(settings=DriverSettings(topology="tree", fan_out=2))
    add(state, 14)
    assert (len(places(state.relayout())), state.moved) == (14, None)
    state.rewired.clear()  # an exchange starts
    state.membership.remove(MemberId(5, 1))
    state.ledger.lose(MemberId(5, 1))
    state.stale_layout = True
    assert {m.slot for m in places(state.heal(MemberId(5, 1)))} == {1, 12, 13}
    # The last member takes the place, below member 1 and above member 12.
    told = places(state.relayout())
    assert {m.slot for m in told} == {1, 12, 13}
    assert told.keys() == {m for m in state.parents if m.bit & state.moved}
    # A member whose chunks have changed gets an order, too: it must know them before it computes.
    state.rewired.clear()
    (chunk,) = state.ledger.chunks_of(MemberId(3, 1))
    state.ledger.hold(MemberId(9, 1), [chunk])
    state.ledger.move(chunk, MemberId(9, 1))
    state.stale_layout = True
    commands = state.relayout()
    assert places(commands).keys() == {MemberId(3, 1), MemberId(9, 1)}
    assert owned(commands) == {MemberId(3, 1): 0, MemberId(9, 1): 2}
