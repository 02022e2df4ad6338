"""Pre-emption: which member is released, which one stays, and what is reported."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from elasticml.control.chunk_transfers import ChunkCopies, ChunkMoves
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.control.preemption import PreemptionHandler, loss_bytes
from elasticml.control.rounds import Rounds
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.protocol import events as ev
from elasticml.protocol.commands import Command, Dismiss, Record
from elasticml.protocol.events import Arrived
from elasticml.protocol.notices import (
    ContainerEnded,
    ContainerMarked,
    MarkLifted,
    NodeChanged,
    Reason,
)
from tests.pure_world import PureWorld

GRACE_S = 10.0


class Scene:
    """Members by slot with chunks of a body of 100 bytes and one example each."""

    def __init__(self, chunks: list[int], members_min: int = 1) -> None:
        self.state = JobState(settings=DriverSettings(members_min=members_min))
        self.released: list[int] = []
        self.struck: list[tuple[int, str]] = []
        copies = ChunkCopies(self.state)
        self.preemption = PreemptionHandler(
            state=self.state,
            chunk_copies=copies,
            chunk_moves=ChunkMoves(self.state, copies),
            rounds=Rounds(self.state),
            release=self._release,
            strike=self._strike,
            notice=self._notice,
        )
        self.records: list[Record] = []
        for slot, count in enumerate(chunks):
            self.admit(slot, count)

    def admit(self, slot: int, count: int) -> None:
        record = self.state.membership.admit(
            Arrived(arrival=0, address=f"w{slot}", host="h", pid=slot, threads=1, slot=slot), 0.0
        )
        record.configured = True
        self.preemption.arrived(record, 0.0)
        if count:
            self.state.membership.enter(record, "active")
            ids = [ChunkId("s", slot, k) for k in range(count)]
            self.state.ledger.add(record.id, [ChunkInfo(id=c, rows=1, nbytes=100) for c in ids])

    def copy(self, slot: int, block: int, ordinal: int) -> None:
        """Let a member hold a copy of another's body."""
        self.state.ledger.hold(self.id(slot), [ChunkId("s", block, ordinal)])

    def id(self, slot: int) -> MemberId:
        return next(m for m in self.state.membership.members if m.slot == slot)

    def record(self, slot: int) -> Any:
        return self.state.membership.members[self.id(slot)]

    def _release(self, member: MemberId, now_s: float) -> list[Command]:
        self.released.append(member.slot)
        return self._strike(member, "retired", now_s)

    def _strike(self, member: MemberId, reason: str, now_s: float) -> list[Command]:
        record = self.state.membership.remove(member)
        if record is None:
            return []
        self.struck.append((member.slot, self.preemption.reason_of(record, reason)))
        self.state.ledger.lose(member)
        return self.preemption.lost(record, reason)

    def _notice(self, event: ev.Noticed, now_s: float) -> list[Command]:
        record = self.state.membership.members[event.member]
        self.state.membership.enter(record, "leaving")
        record.notice_reason = event.reason
        record.deadline_s = now_s + event.grace_s
        return self.preemption.noticed(record)

    def _note(self, commands: list[Command]) -> list[Command]:
        self.records += [c for c in commands if isinstance(c, Record)]
        return commands

    def mark(self, slot: int, now_s: float = 0.0, negotiable: bool = True, **more: Any) -> None:
        event = ContainerMarked(address=f"w{slot}", grace_s=GRACE_S, negotiable=negotiable, **more)
        self._note(self.preemption.marked(event, now_s))

    def lift(self, slot: int, why: Literal["withdrawn", "void"] = "withdrawn") -> None:
        self._note(self.preemption.lifted(MarkLifted(address=f"w{slot}", why=why), 1.0))

    def tick(self, now_s: float) -> None:
        self._note(self.preemption.ticked(now_s))

    def end(self, slot: int, reason: Reason) -> list[Command]:
        event = ContainerEnded(address=f"w{slot}", container="c", reason=reason, status=-102)
        return self._note(self.preemption.ended(event, 0.0))

    def node(self, state: str, *slots: int, grace_s: float = 60.0) -> list[Command]:
        addresses = tuple(f"w{slot}" for slot in slots)
        event = NodeChanged(node="n", state=state, grace_s=grace_s, addresses=addresses)
        return self._note(self.preemption.node(event, 0.0))

    def leaving(self) -> list[int]:
        return sorted(r.id.slot for r in self.state.membership.stage("leaving"))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [r.record.fields_json() for r in self.records if r.record.event == name]


def test_cost_counts_states_and_bodies_without_another_remaining_holder():
    scene = Scene([2, 1, 1])
    scene.copy(1, 0, 0)
    assert [loss_bytes(scene.state, scene.id(slot)) for slot in range(3)] == [116, 108, 108]
    scene.state.membership.enter(scene.record(1), "leaving")
    assert loss_bytes(scene.state, scene.id(0)) == 216


def test_spare_member_is_released_at_once_and_the_marked_one_stays():
    scene = Scene([2, 2, 0])
    scene.mark(0)
    assert (scene.released, scene.leaving()) == ([2], [])
    assert scene.struck == [(2, "released")]
    event_record = scene.events("Reclaimed")[0]
    assert (event_record["marked"], event_record["given"], event_record["grace_s"]) == (
        "0.1",
        "2.1",
        GRACE_S,
    )


def test_member_whose_bodies_others_have_is_released_for_the_marked_one():
    scene = Scene([2, 2, 2])
    for ordinal in range(2):
        scene.copy(0, 1, ordinal)
    scene.mark(2)
    assert scene.leaving() == [1]
    record = scene.record(1)
    assert (record.is_retiring, record.is_victim, record.deadline_s) == (True, True, None)
    assert scene.record(2).stage == "active"
    assert scene.events("Reclaimed")[0]["cost_bytes"] == 16


def test_among_equals_the_marked_one_itself_is_released_as_soon_as_it_is_empty():
    # On a real YARN three were marked, one was released for another and two waited for their end:
    # the one that was to survive was killed with one of the two.
    scene = Scene([2, 2, 2])
    scene.mark(1)
    assert scene.leaving() == [1]
    record = scene.record(1)
    assert (record.is_retiring, record.deadline_s) == (True, GRACE_S)


def test_a_mark_without_a_substitute_is_left_to_the_resource_manager():
    scene = Scene([2, 2, 2])
    scene.mark(1, negotiable=False)
    assert scene.leaving() == [1]
    record = scene.record(1)
    assert (record.is_retiring, record.deadline_s) == (False, GRACE_S)


def test_several_marks_release_the_cheapest_members():
    scene = Scene([4, 1, 3, 2])
    scene.mark(0)
    scene.mark(1)
    assert scene.leaving() == [1, 3]
    assert scene.record(0).stage == "active"


def test_member_that_a_policy_releases_substitutes_a_marked_one():
    scene = Scene([1, 2, 2])
    scene.state.membership.enter(scene.record(2), "leaving")
    scene.record(2).is_retiring = True
    scene.mark(0)
    assert scene.leaving() == [2]
    assert not scene.record(2).is_victim
    assert scene.events("Reclaimed")[0]["given"] == "2.1"


def test_releases_respect_the_minimum_of_members():
    scene = Scene([2, 1], members_min=2)
    scene.mark(0)
    assert scene.leaving() == []
    assert scene.events("Reclaimed")[0]["given"] is None
    scene.admit(2, 0)
    scene.tick(1.0)
    assert scene.released == [2]


def test_in_a_job_at_its_minimum_the_marked_member_leaves_when_its_time_is_near():
    scene = Scene([2, 1], members_min=2)
    scene.mark(0)
    scene.tick(GRACE_S / 2)
    assert scene.leaving() == [0]


def test_too_late_for_a_substitute_the_marked_one_leaves_and_the_other_stays():
    scene = Scene([2, 1, 2])
    scene.mark(0)
    assert scene.leaving() == [1]
    scene.tick(GRACE_S / 2)
    assert scene.leaving() == [0]
    assert (scene.record(1).stage, scene.record(1).is_retiring) == ("active", False)
    assert scene.record(0).deadline_s == GRACE_S
    (kept,) = scene.events("MemberKept")
    assert (kept["round"], kept["member"]) == (0, "1.1")


def test_a_strict_mark_is_a_notice():
    scene = Scene([2, 1])
    scene.mark(0, negotiable=False)
    assert scene.leaving() == [0]
    assert scene.events("MemberNoticed")[0]["reason"] == "preempted"


def test_withdrawn_mark_lets_the_substitute_stay():
    scene = Scene([2, 1, 2])
    scene.mark(0)
    scene.lift(0)
    assert scene.leaving() == []
    assert not scene.record(0).is_marked
    assert not scene.record(1).is_victim


def test_when_one_mark_is_withdrawn_the_costliest_substitute_stays():
    scene = Scene([4, 1, 3, 2])
    scene.mark(0)
    scene.mark(2)
    assert scene.leaving() == [1, 3]
    scene.lift(0)
    assert scene.leaving() == [1]
    scene.lift(2)
    assert scene.leaving() == []


def test_withdrawal_after_the_release_restores_nothing():
    scene = Scene([2, 2, 0])
    scene.mark(0)
    scene.lift(0)
    assert (scene.released, scene.leaving(), scene.preemption.assignments) == ([2], [], {})


def test_the_story_says_why_a_mark_was_lifted():
    scene = Scene([2, 2, 0])
    scene.mark(0)
    scene.lift(0, why="void")
    assert scene.events("ReclaimLifted")[0]["why"] == "void"


def test_repeated_mark_releases_no_further_member():
    scene = Scene([2, 1, 2])
    scene.mark(0)
    scene.mark(0, 1.0)
    assert scene.leaving() == [1]


def test_another_substitute_is_chosen_when_the_first_was_fenced_but_lives():
    scene = Scene([3, 1, 2])
    scene.mark(0)
    scene._strike(scene.id(1), "deadline", 0.0)
    scene.tick(1.0)
    assert scene.leaving() == [2]


def test_no_further_member_is_released_when_the_substitute_dies():
    scene = Scene([3, 1, 2])
    scene.mark(0)
    scene._strike(scene.id(1), "closed", 0.0)
    scene.tick(GRACE_S)
    assert scene.leaving() == []


def test_substitute_stays_when_the_marked_one_dies_first():
    scene = Scene([3, 1, 2])
    scene.mark(0)
    scene._strike(scene.id(0), "closed", 0.0)
    assert scene.leaving() == []
    assert scene.struck == [(0, "preempted")]


def test_substitute_stays_when_the_marked_one_announces_its_end():
    scene = Scene([3, 1, 2])
    scene.mark(0)
    notice = ev.Noticed(member=scene.id(0), grace_s=1.0, reason="terminated")
    scene._notice(notice, 2.0)
    assert scene.leaving() == [0]


def test_a_marked_scheduler_costs_the_cheapest_member_at_any_time():
    scene = Scene([2, 1], members_min=2)
    event = ContainerMarked(address="scheduler", grace_s=4.0, negotiable=True, essential=True)
    scene.preemption.marked(event, 0.0)
    assert scene.leaving() == [1]
    scene.tick(3.9)
    assert scene.leaving() == [1]


def test_a_container_without_a_member_costs_nothing():
    scene = Scene([2, 1])
    scene.mark(7)
    assert scene.leaving() == []
    scene.admit(7, 0)
    assert scene.record(7).is_marked


def test_loss_has_the_containers_reason_if_it_is_known_before():
    scene = Scene([2, 1])
    commands = scene.end(0, "memory")
    assert scene.struck == [(0, "memory")]
    assert [c.reason for c in commands if isinstance(c, Dismiss)] == ["released"]


def test_late_exit_status_is_reported_with_its_member():
    scene = Scene([2, 1])
    former = scene.id(0)
    scene._strike(former, "closed", 0.0)
    scene.end(0, "killed")
    event_record = scene.events("ContainerEnded")[0]
    assert (event_record["member"], event_record["reason"], event_record["status"]) == (
        str(former),
        "killed",
        -102,
    )
    assert scene.struck == [(0, "closed")]


def test_losses_detected_by_a_deadline_keep_their_reason():
    scene = Scene([2, 1, 1])
    scene.mark(0)
    scene._strike(scene.id(0), "deadline", 0.0)
    assert scene.struck == [(0, "deadline")]


def test_all_members_of_a_decommissioned_node_leave_or_stay_if_it_returns():
    scene = Scene([2, 1, 1])
    scene.node("decommissioning", 0, 2)
    assert scene.leaving() == [0, 2]
    scene.node("running", 0, 2)
    assert scene.leaving() == []


def test_another_victim_is_chosen_when_the_first_one_s_notice_is_withdrawn():
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
def test_the_earlier_of_two_deadlines_counts(grace_s, deadline_s):
    scene = Scene([2, 1])
    scene.node("decommissioning", 0, grace_s=grace_s)
    scene.mark(0, negotiable=False)
    assert scene.record(0).deadline_s == deadline_s


def test_members_of_a_lost_node_are_lost():
    scene = Scene([2, 1, 1])
    scene.node("lost", 0, 2)
    assert scene.struck == [(0, "node"), (2, "node")]


# --- the whole machine ----------------------------------------------------------------------------


def world(n: int = 3, **settings: Any) -> PureWorld:
    made = PureWorld(
        DriverSettings(**{"start_members": n, "n_blocks": 2, "topology": "star", **settings})
    )
    for _ in range(n):
        made.join()
    while not any(r.event == "RoundEnded" for r in made.story):
        assert made.step(0)
    return made


def events_of(made: PureWorld, event: str) -> list[dict[str, Any]]:
    return [r.fields_json() for r in made.story if r.event == event]


def test_substitute_is_emptied_and_its_container_released():
    made = world()
    members = made.driver.state.membership
    # The fullest one is marked: another one has less to send.
    fewest = min(members.members, key=lambda m: loss_bytes(made.driver.state, m))
    marked = next(r for r in members.members.values() if r.id != fewest)
    ledger = made.driver.state.ledger
    extra = sorted(ledger.owned[fewest])[0]
    ledger.hold(marked.id, [extra])
    made.workers[marked.address].held.add(extra)
    made.mark(marked.address, 60.0, negotiable=True)
    made.run(lambda k: 0)
    assert made.given_back == [fewest]
    lost = [(r["member"], r["reason"], r["chunks"]) for r in events_of(made, "MemberLost")]
    assert lost == [(str(fewest), "released", 0)]
    assert events_of(made, "ChunksAbsent") == []
    assert marked.address in made.workers


def test_marked_member_that_leaves_is_not_released_and_its_loss_is_a_pre_emption():
    made = world()
    name = sorted(made.workers)[0]
    made.mark(name, 20.0, negotiable=False)
    made.run(lambda k: 0)
    assert made.given_back == []
    assert [r["reason"] for r in events_of(made, "MemberLost")] == ["preempted"]
    assert events_of(made, "ChunksAbsent") == []


def test_retired_worker_is_emptied_and_its_member_counts_as_retired():
    made = world()
    name = sorted(made.workers)[0]
    made.mark(name, 60.0, negotiable=False, reason="retired")
    made.run(lambda k: 0)
    assert made.given_back == []  # Dask closes its worker
    (lost,) = events_of(made, "MemberLost")
    assert (lost["reason"], lost["chunks"]) == ("retired", 0)
    assert [r["reason"] for r in events_of(made, "MemberNoticed")] == ["retired"]


def test_a_worker_that_is_retired_while_it_joins_is_no_loss():
    made = world()
    name = made.join("late")
    made.mark(name, 60.0, negotiable=False, reason="retired")
    made.settle(lambda key: made.life(name).name in key)
    made.kill(name)
    made.run(lambda k: 0)
    lost = [r["reason"] for r in events_of(made, "MemberLost") if r["member"] == "3.1"]
    assert lost == ["retired"]


def test_loss_of_a_member_before_it_is_emptied_is_no_retirement():
    made = world()
    name = sorted(made.workers)[0]
    made.mark(name, 60.0, negotiable=False, reason="retired")
    made.kill(name)
    made.run(lambda k: 0)
    (lost,) = events_of(made, "MemberLost")
    assert lost["chunks"] > 0
    assert lost["reason"] != "retired"


def test_newcomer_on_a_marked_container_gets_nothing_until_the_mark_ends():
    made = world()
    made.mark("new", 60.0, negotiable=True)
    made.join("new")
    while len(events_of(made, "RoundEnded")) < 2:
        assert made.step(0)
    assert made.driver.state.ledger.rows_of(made.life("new").me) == 0
    made.lift("new")
    made.run(lambda k: 0)
    assert [r["member"] for r in events_of(made, "MemberActive")].count(
        str(made.life("new").id)
    ) == 1


def test_one_container_answers_one_mark():
    # A marked member was released for another one; its loss satisfied both marks, the substitute of
    # the first stayed, and the resource manager killed the other one.
    scene = Scene([4, 1, 1])
    scene.mark(0)
    scene.mark(2)
    assert scene.leaving() == [1, 2]
    scene._strike(scene.id(2), "retired", 1.0)
    assert scene.leaving() == [1]
    assignments = scene.preemption.assignments
    assert (assignments["w0"].is_met, assignments["w2"].is_met) == (False, True)
    scene._strike(scene.id(1), "retired", 1.0)
    assert assignments["w0"].is_met
    assert scene.record(0).stage == "active"


def test_a_killed_member_needs_no_substitute():
    scene = Scene([4, 1, 2])
    scene.mark(0)
    assert scene.leaving() == [1]
    scene.end(0, "preempted")
    assert scene.leaving() == []


@pytest.mark.parametrize(
    ("bytes_per_s", "round_s", "begin_s"),
    [(1e6, 0.0, 54.0), (54.0, 0.0, 36.0), (1e6, 20.0, 34.0)],
    ids=["at once", "slow moves", "long rounds"],
)
def test_a_drain_that_is_put_off_leaves_time_for_its_moves_and_the_round(
    bytes_per_s, round_s, begin_s
):
    scene = Scene([3, 3])  # 324 bytes: bodies and states
    rounds = scene.preemption._rounds
    rounds._durations.append(round_s)
    scene.preemption._chunk_moves.speed.moved("h", 1000 * int(bytes_per_s), 1000.0, 1000.0)
    mark = ContainerMarked(address="w0", grace_s=60.0, negotiable=False)
    scene.preemption.marked(mark, 0.0)
    for now_s in (1.0, begin_s - 0.5):
        rounds.round_started_s = now_s
        scene.preemption.ticked(now_s)
        assert scene.record(0).stage == "active"
    rounds.round_started_s = begin_s + 0.5
    scene.preemption.ticked(begin_s + 0.5)
    assert scene.record(0).stage == "leaving"
