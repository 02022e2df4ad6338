"""A member that another cannot reach is asked for its status, and left alone when it answers."""

from __future__ import annotations

from elasticml.control.failure_detector import LivenessProbe
from elasticml.ids import MemberId

A, B = (MemberId(slot, 1) for slot in range(2))


def test_unreachable_member_is_asked_until_it_answers():
    liveness = LivenessProbe(10.0)
    liveness.suspect(B)
    asked = []
    for now_s in (0.0, 10.0, 50.0):
        commands, lost = liveness.ticked([], [A, B], now_s)
        asked.append([command.member for command in commands])
        assert lost == []
        if asked[-1]:
            liveness.heard(B)
    assert asked == [[], [B], []]
