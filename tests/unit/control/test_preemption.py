"""Pre-emption: which member is released, which one stays, and what is reported."""

from __future__ import annotations

from typing import Any

import pytest

from elasticml.control.driver import Driver
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.membership import MemberRecord
from elasticml.control.preemption import loss_bytes
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Command, Record, ReleaseContainers
from elasticml.protocol.notices import (
    ContainerEnded,
    ContainerMarked,
    MarkLifted,
    NodeChanged,
    Reason,
)
from tests.sim.small_jobs import arrival

GRACE_S = 10.0


class Scene:
    """A driver's machine; members by slot, with chunks of 100 bytes and one example each."""

    def __init__(self, chunks: list[int], members_min: int = 1) -> None:
        self.driver = Driver(DriverSettings(start_members=99, members_min=members_min), ())
        self.state = self.driver.state
        self.story: list[tuple[str, dict[str, Any]]] = []
        self.commands: list[Command] = []
        for slot, count in enumerate(chunks):
            self.join(slot, count)

    def join(self, slot: int, count: int = 0) -> None:
        self.handle(arrival(slot, slot=slot))
        record = self.record(slot)
        record.configured = True
        if count:
            self.state.membership.enter(record, "active")
            ids = [ChunkId("s", slot, k) for k in range(count)]
            self.state.ledger.add(record.id, [ChunkInfo(id=c, rows=1, nbytes=100) for c in ids])

    def copy(self, slot: int, block: int, ordinal: int) -> None:
        """Let a member hold a copy of another's body."""
        self.state.ledger.hold(self.record(slot).id, [ChunkId("s", block, ordinal)])

    def record(self, slot: int) -> MemberRecord:
        record = self.state.membership.at(f"w{slot}")
        assert record is not None
        return record

    def handle(self, event: ev.Event, now_s: float = 0.0) -> None:
        commands = self.driver.handle(event, now_s)
        self.commands += commands
        records = [c.record for c in commands if isinstance(c, Record)]
        self.story += [(r.event, r.fields_json()) for r in records]

    # --- what happens -----------------------------------------------------------------------------

    def mark(self, slot: int, now_s: float = 0.0, grace_s: float = GRACE_S) -> None:
        event = ContainerMarked(address=f"w{slot}", grace_s=grace_s, negotiable=True)
        self.handle(event, now_s)

    def take(self, slot: int, now_s: float = 0.0, grace_s: float = GRACE_S) -> None:
        """Mark a container for which no other one will do."""
        self.handle(ContainerMarked(address=f"w{slot}", grace_s=grace_s), now_s)

    def lift(self, slot: int, now_s: float = 1.0) -> None:
        self.handle(MarkLifted(address=f"w{slot}"), now_s)

    def tick(self, now_s: float) -> None:
        """Let time pass; a round has just begun."""
        self.driver.rounds.round_started_s = now_s
        self.handle(ev.Ticked(), now_s)

    def lose(self, slot: int, reason: str = "closed") -> None:
        self.handle(ev.Lost(member=self.record(slot).id, reason=reason))

    def fence(self, slot: int) -> None:
        self.lose(slot, "deadline")

    def notice(self, slot: int, grace_s: float = 1.0) -> None:
        member = self.record(slot).id
        self.handle(ev.Noticed(member=member, grace_s=grace_s, reason="terminated"), 2.0)

    def withdraw(self, slot: int) -> None:
        self.handle(ev.NoticeWithdrawn(member=self.record(slot).id), 3.0)

    def end(self, slot: int, reason: Reason = "preempted") -> None:
        self.handle(ContainerEnded(address=f"w{slot}", container="c", reason=reason, status=-102))

    def node(self, state: str, *slots: int, grace_s: float = 60.0) -> None:
        addresses = tuple(f"w{slot}" for slot in slots)
        self.handle(NodeChanged(node="n", state=state, grace_s=grace_s, addresses=addresses))

    # --- what is to be seen -----------------------------------------------------------------------

    def leaving(self) -> list[int]:
        return sorted(r.id.slot for r in self.state.membership.stage("leaving"))

    def lost(self) -> list[tuple[str, str]]:
        return [(fields["member"], fields["reason"]) for fields in self.events("MemberLost")]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.story if event == name]


def after(chunks: list[int], steps: str, members_min: int = 1) -> Scene:
    """Let things happen: each step is a method of a scene and its numbers."""
    scene = Scene(chunks, members_min)
    for step in steps.split(", "):
        what, *numbers = step.split()
        getattr(scene, what)(*(float(n) if "." in n else int(n) for n in numbers))
    return scene


def test_cost_counts_states_and_bodies_without_another_remaining_holder() -> None:
    scene = Scene([2, 1, 1])
    scene.copy(1, 0, 0)
    assert [loss_bytes(scene.state, scene.record(k).id) for k in range(3)] == [116, 108, 108]
    scene.state.membership.enter(scene.record(1), "leaving")
    assert loss_bytes(scene.state, scene.record(0).id) == 216


#: By what it shows: chunks of the members, what happens, and who is leaving then.
LEAVING: dict[str, tuple[list[int], str, list[int]]] = {
    "among equals the marked one itself is released": ([2, 2, 2], "mark 1", [1]),
    "a mark without a substitute is left to the resource manager": ([2, 2, 2], "take 1", [1]),
    "several marks release the cheapest members": ([4, 1, 3, 2], "mark 0, mark 1", [1, 3]),
    "too late for a substitute the marked one leaves": ([2, 1, 2], "mark 0, tick 5.0", [0]),
    "before that the substitute leaves": ([2, 1, 2], "mark 0, tick 4.9", [1]),
    "a withdrawn mark lets the substitute stay": ([2, 1, 2], "mark 0, lift 0", []),
    "when one mark is withdrawn the costliest substitute stays": (
        [4, 1, 3, 2],
        "mark 0, mark 2, lift 0",
        [1],
    ),
    "when both are all stay": ([4, 1, 3, 2], "mark 0, mark 2, lift 0, lift 2", []),
    "a repeated mark releases no further member": ([2, 1, 2], "mark 0, mark 0 1.0", [1]),
    "another is chosen when the first was fenced but lives": (
        [3, 1, 2],
        "mark 0, fence 1, tick 1.0",
        [2],
    ),
    "no further one is chosen when the substitute dies": (
        [3, 1, 2],
        "mark 0, lose 1, tick 10.0",
        [],
    ),
    "the substitute stays when the marked one dies first": ([3, 1, 2], "mark 0, lose 0", []),
    "the substitute stays when the marked one gives notice": ([3, 1, 2], "mark 0, notice 0", [0]),
    "a killed member needs no substitute": ([4, 1, 2], "mark 0, end 0", []),
    "a container without a member costs nothing": ([2, 1], "mark 7", []),
    # A marked member was released for another one; its loss satisfied both marks, the substitute
    # of the first stayed, and the resource manager killed the other one.
    "two marks need two containers": ([4, 1, 1], "mark 0, mark 2", [1, 2]),
    "one container answers one mark": ([4, 1, 1], "mark 0, mark 2, lose 2", [1]),
    "a victim leaves though its notice is withdrawn": (
        [2, 2, 2],
        "mark 1, notice 1, withdraw 1",
        [1],
    ),
    "an end that is put off stops the drain": ([2, 2, 2], "take 0, take 0 1.0 3600.0", []),
    "an end that is far is waited for": ([2, 2, 2], "take 0 0.0 120.0, tick 60.0", []),
    "and is no reason to leave once it is withdrawn": (
        [2, 2, 2],
        "take 0 0.0 120.0, tick 60.0, lift 0 61.0, tick 119.0",
        [],
    ),
}


@pytest.mark.parametrize("name", LEAVING)
def test_who_leaves_for_a_mark(name: str) -> None:
    chunks, steps, leaving = LEAVING[name]
    assert after(chunks, steps).leaving() == leaving


def test_a_spare_member_is_released_at_once_and_the_marked_one_stays() -> None:
    scene = after([2, 2, 0], "mark 0")
    assert (scene.leaving(), scene.lost()) == ([], [("2.1", "released")])
    assert [c.members for c in scene.commands if isinstance(c, ReleaseContainers)] == [
        (MemberId(2, 1),)
    ]
    (reclaimed,) = scene.events("Reclaimed")
    assert (reclaimed["marked"], reclaimed["given"], reclaimed["grace_s"]) == ("0.1", "2.1", 10.0)
    scene.lift(0)  # too late: nothing is restored
    assert (scene.leaving(), scene.lost()) == ([], [("2.1", "released")])


@pytest.mark.parametrize(("step", "is_retiring"), [("mark 1", True), ("take 1", False)])
def test_a_marked_member_without_substitute_has_until_its_end(step: str, is_retiring: bool) -> None:
    # On a real YARN three were marked, one was released for another and two waited for their end:
    # the one that was to survive was killed with one of the two.
    record = after([2, 2, 2], step).record(1)
    assert (record.is_retiring, record.deadline_s) == (is_retiring, GRACE_S)


def test_a_member_that_a_policy_releases_substitutes_a_marked_one() -> None:
    scene = Scene([1, 2, 2])
    scene.state.membership.enter(scene.record(2), "leaving")
    scene.record(2).is_retiring = True
    scene.mark(0)
    assert (scene.leaving(), scene.record(2).is_victim) == ([2], False)
    assert scene.events("Reclaimed")[0]["given"] == "2.1"


def test_releases_respect_the_minimum_of_members() -> None:
    scene = after([2, 1], "mark 0", members_min=2)
    assert scene.leaving() == []
    assert scene.events("Reclaimed")[0]["given"] is None
    assert after([2, 1], "mark 0, tick 5.0", members_min=2).leaving() == [0]
    scene.join(2)
    scene.tick(1.0)
    assert scene.lost() == [("2.1", "released")]


def test_a_marked_scheduler_costs_the_cheapest_member_at_any_time() -> None:
    scene = Scene([2, 1], members_min=2)
    mark = ContainerMarked(address="scheduler", grace_s=4.0, negotiable=True, essential=True)
    scene.handle(mark)
    scene.tick(3.9)
    assert scene.leaving() == [1]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ("mark 0, lose 0", "preempted"),
        ("mark 0, fence 0", "deadline"),
        ("notice 0, lose 0", "terminated"),
        ("end 0", "preempted"),
        ("lose 0, end 0", "closed"),
    ],
)
def test_a_loss_has_the_reason_of_its_container_if_that_is_known_before(
    steps: str, reason: str
) -> None:
    assert after([2, 1, 1], steps).lost()[0] == ("0.1", reason)


@pytest.mark.parametrize(("chunks", "reason"), [(2, "closed"), (0, "retired")])
def test_a_retired_worker_that_is_lost_before_it_is_empty_is_a_loss(
    chunks: int, reason: str
) -> None:
    """One that was joining, and had nothing to give away, is none."""
    scene = Scene([2, chunks])
    scene.handle(ContainerMarked(address="w1", grace_s=60.0, reason="retired"))
    if chunks:
        assert [fields["reason"] for fields in scene.events("MemberNoticed")] == ["retired"]
        scene.lose(1)
    assert scene.lost() == [("1.1", reason)]


def test_all_members_of_a_decommissioned_node_leave_or_stay_if_it_returns() -> None:
    scene = Scene([2, 1, 1])
    scene.node("decommissioning", 0, 2)
    assert scene.leaving() == [0, 2]
    scene.node("running", 0, 2)
    assert scene.leaving() == []
    scene.node("lost", 0, 2)
    assert scene.lost() == [("0.1", "node"), ("2.1", "node")]


def test_another_victim_is_chosen_when_the_first_one_s_notice_is_withdrawn() -> None:
    # It had been chosen because it left anyway; it stayed, undrained, until its container ended.
    scene = Scene([2, 1, 1])
    scene.node("decommissioning", 0)
    scene.mark(0)
    assert scene.leaving() == [0]
    scene.node("running", 0)
    assert scene.leaving() == []
    scene.tick(1.0)
    assert scene.leaving() == [2]


@pytest.mark.parametrize(("grace_s", "deadline_s"), [(60.0, GRACE_S), (3.0, 3.0)])
def test_the_earlier_of_two_deadlines_counts(grace_s: float, deadline_s: float) -> None:
    scene = Scene([2, 1])
    scene.node("decommissioning", 0, grace_s=grace_s)
    scene.take(0)
    assert scene.record(0).deadline_s == deadline_s


@pytest.mark.parametrize(
    ("moved_bytes_per_s", "begin_s"), [(1e6, 54.0), (54.0, 36.0)], ids=["at once", "slow moves"]
)
def test_a_drain_that_is_put_off_leaves_time_for_its_moves(
    moved_bytes_per_s: float, begin_s: float
) -> None:
    scene = Scene([3, 3])  # 324 bytes: bodies and states
    speed = scene.driver.chunk_moves.speed
    speed.moved("h", 1000 * int(moved_bytes_per_s), 1000.0, 1000.0)
    scene.take(0, 0.0, 60.0)
    assert scene.events("Reclaimed")[0]["given"] is None
    for now_s in (1.0, begin_s - 0.5):
        scene.tick(now_s)
        assert scene.leaving() == []
    scene.tick(begin_s + 0.5)
    assert scene.leaving() == [0]
