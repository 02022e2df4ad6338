"""Members that owe data are asked after a silence, and declared lost when they stay silent."""

from __future__ import annotations

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.failure_detector import LinkMonitor, LivenessProbe
from elasticml.control.job_state import JobState
from elasticml.ids import MemberId
from elasticml.protocol.events import Arrived

A, B, C = (MemberId(slot, 1) for slot in range(3))
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


def test_member_that_owes_nothing_any_more_is_left_alone():
    liveness = LivenessProbe(10.0)
    watch(liveness, [A], 0.0)
    watch(liveness, [], 5.0)
    assert watch(liveness, [A], 12.0) == ([], [])


def test_unreachable_member_is_watched_until_it_answers():
    liveness = LivenessProbe(10.0)
    liveness.suspect(B)
    watch(liveness, [], 0.0)
    assert watch(liveness, [], 10.0) == ([B], [])
    liveness.heard(B)
    assert watch(liveness, [], 50.0) == ([], [])


def test_dead_member_is_watched_no_longer():
    liveness = LivenessProbe(10.0)
    liveness.suspect(B)
    watch(liveness, [B], 0.0)
    commands, mute = liveness.ticked([B], [A], 99.0)
    assert (commands, mute) == ([], [])


def reach() -> LinkMonitor:
    """B and C are below A."""
    state = JobState(settings=DriverSettings(status_s_max=2.0))
    for slot in range(3):
        state.membership.admit(
            Arrived(arrival=0, address=f"w{slot}", host="h", pid=slot, threads=1), 0.0
        )
    state.parents = {A: None, B: A, C: A}
    return LinkMonitor(state)


def test_broken_link_between_two_living_members_fences_the_child():
    links = reach()
    links.link_down(B, A, 1.0)
    assert links.unreachable(3.0) == []
    assert links.unreachable(3.1) == [B]


def test_child_that_noticed_a_loss_before_the_driver_is_not_blamed():
    links = reach()
    links.link_down(B, A, 1.0)
    links.lost(A)
    assert links.unreachable(99.0) == []


def test_child_with_another_parent_since_is_not_blamed_even_if_the_first_returns():
    links = reach()
    links.link_down(B, A, 1.0)
    links._state.parents[B] = None
    assert links.unreachable(99.0) == []
    links._state.parents[B] = A
    assert links.unreachable(99.0) == []


def test_child_whose_parent_returns_between_two_ticks_is_not_blamed():
    links = reach()
    links.link_down(B, A, 1.0)
    links._state.parents[B] = None
    links.relaid()
    links._state.parents[B] = A
    assert links.unreachable(99.0) == []


def test_report_about_a_lost_member_is_not_kept():
    links = reach()
    links._state.membership.remove(A)
    links.link_down(B, A, 1.0)
    assert links.unreachable(99.0) == []
