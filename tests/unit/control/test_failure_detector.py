"""Members that owe data are asked after a silence, and declared lost when they stay silent."""

from __future__ import annotations

from elasticml.control.failure_detector import LivenessProbe
from elasticml.ids import MemberId

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
