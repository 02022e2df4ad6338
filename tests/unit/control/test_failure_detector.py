"""Members that owe data are asked after a silence, and declared lost when they stay silent."""

from __future__ import annotations

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.failure_detector import LinkMonitor, LivenessProbe
from elasticml.control.job_state import JobState
from elasticml.control.tree_layout import children
from elasticml.ids import MemberId
from elasticml.protocol.commands import AskStatus, Rewire
from elasticml.protocol.events import Arrived

A, B, C, D = (MemberId(slot, 1) for slot in range(4))
LIVING = [A, B, C]


def watch(liveness: LivenessProbe, awaited, now_s: float) -> tuple[list[MemberId], list[MemberId]]:
    """Record which members are asked, and which are declared lost."""
    commands, mute = liveness.ticked(awaited, LIVING, now_s)
    return [c.member for c in commands], mute


def test_silent_member_is_asked_once_and_then_declared_lost():
    liveness = LivenessProbe(10.0)
    assert watch(liveness, [A], 0.0) == ([], [])
    assert watch(liveness, [A], 9.9) == ([], [])
    assert watch(liveness, [A], 10.0) == ([A], [])
    assert watch(liveness, [A], 19.9) == ([], [])
    assert watch(liveness, [A], 20.0) == ([], [A])


def test_an_answer_extends_the_deadline():
    liveness = LivenessProbe(10.0)
    watch(liveness, [A], 0.0)
    watch(liveness, [A], 10.0)
    liveness.heard(A)
    assert watch(liveness, [A], 20.0) == ([], [])
    assert watch(liveness, [A], 30.0) == ([A], [])


def test_unreachable_member_is_watched_until_it_answers():
    liveness = LivenessProbe(10.0)
    liveness.suspect(B)
    watch(liveness, [], 0.0)
    assert watch(liveness, [], 10.0) == ([B], [])
    liveness.heard(B)
    assert watch(liveness, [], 50.0) == ([], [])


def reach() -> LinkMonitor:
    """B and C are below A, and D is below B."""
    state = JobState(settings=DriverSettings(status_s_max=2.0))
    for slot in range(4):
        state.membership.admit(
            Arrived(arrival=0, address=f"w{slot}", host="h", pid=slot, threads=1), 0.0
        )
    lay(state, {A: None, B: A, C: A, D: B})
    return LinkMonitor(state)


def lay(state: JobState, parents: dict[MemberId, MemberId | None]) -> None:
    state.parents, state.below = parents, children(parents)


def test_members_of_a_link_that_stays_down_are_parted_and_neither_is_blamed():
    links = reach()
    (ask,) = links.link_down(D, B, 1.0)
    assert (type(ask), ask.member) == (AskStatus, B)
    assert links.ticked(3.0) == ([], [])
    commands, unreachable = links.ticked(3.1)
    placed = {c.member: c.parent for c in commands if isinstance(c, Rewire)}
    assert (placed, unreachable) == ({A: None, B: A, D: A}, [])
    assert links._state.parents == {A: None, B: A, C: A, D: A}
    assert links.ticked(99.0) == ([], [])


def test_parted_members_are_apart_in_later_trees_until_one_is_lost():
    links = reach()
    links.link_down(D, B, 1.0)
    links.ticked(3.1)
    state = links._state
    for record in state.membership.members.values():
        state.membership.enter(record, "active")
    state.settings = DriverSettings(topology="tree", fan_out=1)
    state.relayout()
    assert state.parents == {A: None, B: A, C: B, D: C}
    state.membership.remove(C)
    links.lost(C)
    state.stale_layout = True
    state.relayout()
    assert state.parents == {A: None, B: A, D: A}
    links.lost(B)
    assert not any(state.cut.values())


def test_member_that_two_others_cannot_reach_is_blamed_once_it_has_answered_the_driver():
    links = reach()
    links.link_down(B, A, 1.0)
    links.link_down(C, A, 1.5)
    assert links.ticked(3.1) == ([], [])  # it may be stopped: then it is fenced for its silence
    links.heard(A)
    assert links.ticked(3.1) == ([], [A])


def test_member_that_another_one_could_not_reach_before_is_blamed_at_the_second_report():
    links = reach()
    links.link_down(B, A, 1.0)
    links.ticked(3.1)
    links.link_down(C, A, 5.0)
    links.heard(A)
    assert links.ticked(7.1) == ([], [A])


def test_member_that_cannot_reach_two_others_is_blamed_itself():
    links = reach()
    links.link_down(D, B, 1.0)
    links.ticked(3.1)
    links.link_down(D, A, 5.0)
    assert links.ticked(7.1) == ([], [D])


def test_child_whose_parent_returns_between_two_ticks_is_not_parted():
    links = reach()
    links.link_down(B, A, 1.0)
    lay(links._state, {A: None, B: None, C: A, D: B})
    links.relaid()
    lay(links._state, {A: None, B: A, C: A, D: B})
    assert links.ticked(99.0) == ([], [])
