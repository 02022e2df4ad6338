"""Pre-emption as a capacity scheduler does it: marks first, and what is lacking is taken."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from elasticml.errors import ConfigError
from elasticml.sim.simulation import SimResult
from elasticml.sim.world_options import options_from_section
from tests.sim.scenes import column, play, told

#: One member is slow, so that it comes to own less than the others, and takes less to empty.
SLOW = {"slow": {3: 4.0}, "compute_s": 3e-3, "start_s": 0.1, "tick_s": 0.05}
ROUNDS = {"stop": {"rounds": 45}, "policies": [{"name": "rebalance"}]}


@cache
def preempted(**changes: Any) -> SimResult:
    """Ask for the container of slot 0, or others, in a job of 45 rounds."""
    entry = {"at": 4.0, "reclaim": [0], "grace": 2.0, "away": 3.0, **changes}
    return play({**SLOW, "trace": [entry]}, **ROUNDS)


def losses(result: SimResult) -> list[tuple[str, str, int]]:
    return [(r["member"], r["reason"], r["chunks"]) for r in told(result, "MemberLost")]


def moved_bytes(result: SimResult, source: str) -> int:
    """Bytes that a member gave away after the containers were asked for."""
    since = told(result, "ContainersAsked")[0]["t"]
    moves = [r for r in told(result, "ChunksMoved") if r["t"] >= since]
    return sum(r["bytes"] for r in moves if r["source"] == source)


def test_marked_member_lives_on_and_the_cheapest_goes_for_it():
    result = preempted()
    assert losses(result) == [("3.1", "released", 0)]
    assert told(result, "ChunksAbsent") == []
    assert set(column(result, "absent_examples")) == {0}
    assert set(column(result, "stand_ins")) == {0}


def test_negotiating_moves_less_than_giving_up_the_marked_one():
    negotiated, strict = preempted(), preempted(negotiable=False)
    assert losses(strict) == [("0.1", "preempted", 0)]
    assert told(strict, "ChunksAbsent") == []
    assert 0 < moved_bytes(negotiated, "3.1") < moved_bytes(strict, "0.1")


def test_no_round_is_lost_and_the_optimum_is_the_same():
    result, calm = preempted(), play(SLOW, **ROUNDS)
    assert [r["idle"] for r in told(result, "RoundEnded")] == [False] * 45
    np.testing.assert_allclose(result.arrays["coef"], calm.arrays["coef"], atol=1e-6)


def test_container_comes_back_when_the_other_queue_is_done_and_gets_chunks():
    result = preempted()
    (lost,) = told(result, "MemberLost")
    back = told(result, "MemberActive")[-1]
    assert back["t"] >= lost["t"] + 3.0
    assert back["examples"] > 0
    assert column(result, "members")[-1] == 6


def test_marked_one_is_taken_where_nobody_goes_in_time_and_was_emptied_before():
    # A round takes longer than half of the grace: the substitute is still in it.
    result = preempted(at=3.87, grace=0.3)
    assert [r["given"] for r in told(result, "Reclaimed")] == ["3.1", "0.1"]
    assert [r["member"] for r in told(result, "MemberKept")] == ["3.1"]
    assert losses(result) == [("0.1", "preempted", 0)]
    assert told(result, "ChunksAbsent") == []


def test_exit_status_that_is_known_late_is_told():
    result = preempted(negotiable=False, grace=0.01)
    (lost,) = told(result, "MemberLost")
    (ended,) = told(result, "ContainerEnded")
    assert (ended["member"], ended["reason"], ended["status"]) == ("0.1", "preempted", -102)
    assert ended["t"] >= lost["t"]
    assert lost["reason"] == "preempted"


def test_half_of_the_containers_are_asked_for_and_all_come_back():
    result = preempted(reclaim=3)
    gone = losses(result)
    assert len(gone) == 3
    assert {chunks for _, _, chunks in gone} == {0}
    assert min(column(result, "members")) == 3
    assert column(result, "members")[-1] == 6
    assert told(result, "ChunksAbsent") == []


def test_marks_that_are_void_leave_members_as_they_were():
    result = preempted()
    (lifted,) = told(result, "ReclaimLifted")
    assert lifted["member"] == "0.1"
    (asked,) = told(result, "Reclaimed")
    moves = [r for r in told(result, "ChunksMoved") if asked["t"] < r["t"] < lifted["t"]]
    assert moves
    assert "0.1" not in [r["target"] for r in moves]


def test_job_at_its_least_members_gives_nobody_and_is_taken_from():
    members = {"start": 6, "min": 6}
    entry = {"at": 4.0, "reclaim": [0], "grace": 2.0, "away": 3.0}
    result = play({**SLOW, "trace": [entry]}, **ROUNDS, members=members)
    assert [(m, reason) for m, reason, _ in losses(result)] == [("0.1", "preempted")]
    assert told(result, "ChunksAbsent") == []


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"at": 1, "reclaim": 0}, "reclaim"),
        ({"at": 1, "reclaim": [-1]}, "reclaim"),
        ({"at": 1, "reclaim": 1, "negotiable": "yes"}, "negotiable"),
        ({"at": 1, "reclaim": 1, "how": "kill"}, "how"),
    ],
)
def test_entries_that_make_no_sense_are_named(entry, named):
    with pytest.raises(ConfigError, match=rf"simulate\.trace\[0\]\.{named}"):
        options_from_section({"trace": [entry]})
