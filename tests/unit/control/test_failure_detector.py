"""Members that owe data are asked after a silence, and given up when they are mute."""

from __future__ import annotations

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.failure_detector import LinkMonitor, LivenessProbe
from elasticml.control.job_state import JobState
from elasticml.ids import MemberId
from elasticml.protocol.events import Arrived

A, B, C = (MemberId(slot, 1) for slot in range(3))
LIVING = [A, B, C]


def watch(liveness: LivenessProbe, awaited, now_s: float) -> tuple[list[MemberId], list[MemberId]]:
    """Who is asked, and who is given up."""
    commands, mute = liveness.ticked(awaited, LIVING, now_s)
    return [c.member for c in commands], mute


def test_silent_member_is_asked_once_and_then_given_up():
    liveness = LivenessProbe(10.0)
    assert watch(liveness, [A], 0.0) == ([], [])
    assert watch(liveness, [A], 9.9) == ([], [])
    assert watch(liveness, [A], 10.0) == ([A], [])
    assert watch(liveness, [A], 19.9) == ([], [])
    assert watch(liveness, [A], 20.0) == ([], [A])


def test_answer_buys_another_term():
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


def test_member_that_could_not_be_reached_is_watched_until_it_answers():
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
    """B and C live below A."""
    state = JobState(settings=DriverSettings(status_s_max=2.0))
    for slot in range(3):
        state.membership.admit(
            Arrived(arrival=0, address=f"w{slot}", host="h", pid=slot, threads=1), 0.0
        )
    state.parents = {A: None, B: A, C: A}
    return LinkMonitor(state)


def test_broken_link_between_two_that_live_costs_the_child_its_place():
    links = reach()
    links.link_down(B, A, 1.0)
    assert links.unreachable(3.0) == []
    assert links.unreachable(3.1) == [B]


def test_child_that_knew_of_a_loss_before_the_driver_is_not_blamed():
    links = reach()
    links.link_down(B, A, 1.0)
    links.lost(A)
    assert links.unreachable(99.0) == []


def test_child_with_another_parent_since_is_not_blamed_even_if_the_first_comes_back():
    links = reach()
    links.link_down(B, A, 1.0)
    links._state.parents[B] = None
    assert links.unreachable(99.0) == []
    links._state.parents[B] = A
    assert links.unreachable(99.0) == []


def test_child_that_gets_its_parent_back_between_two_looks_at_the_clock_is_not_blamed():
    links = reach()
    links.link_down(B, A, 1.0)
    links._state.parents[B] = None
    links.relaid()
    links._state.parents[B] = A
    assert links.unreachable(99.0) == []


def test_report_about_the_dead_is_not_kept():
    links = reach()
    links._state.membership.remove(A)
    links.link_down(B, A, 1.0)
    assert links.unreachable(99.0) == []
