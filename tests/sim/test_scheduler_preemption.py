"""Pre-emption like a capacity scheduler's: marks first, then containers are taken by force."""

from __future__ import annotations

from functools import cache
from typing import Any

from elasticml.sim.simulation import SimResult
from tests.sim.small_jobs import play, records_of

#: One member is slow, so that it owns less than the others and is emptied faster.
SLOW = {"slow": {3: 4.0}, "compute_s": 3e-3, "start_s": 0.1, "tick_s": 0.05}
ROUNDS = {"stop": {"rounds": 45}, "policies": [{"name": "rebalance"}]}


@cache
def preempted(**changes: Any) -> SimResult:
    """Request the container of slot 0, or others, in a job of 45 rounds."""
    entry = {"at": 4.0, "reclaim": [0], "grace": 2.0, "away": 3.0, **changes}
    return play({**SLOW, "trace": [entry]}, **ROUNDS)


def losses(result: SimResult) -> list[tuple[str, str, int]]:
    return [(r["member"], r["reason"], r["chunks"]) for r in records_of(result, "MemberLost")]


def moved_bytes(result: SimResult, source: str) -> int:
    """Return the bytes that a member gave away after the containers were requested."""
    since = records_of(result, "ContainersAsked")[0]["t"]
    moves = [r for r in records_of(result, "ChunksMoved") if r["t"] >= since]
    return sum(r["bytes"] for r in moves if r["source"] == source)


def test_negotiating_moves_less_than_giving_up_the_marked_one():
    negotiated, strict = preempted(), preempted(negotiable=False)
    assert losses(strict) == [("0.1", "preempted", 0)]
    assert records_of(strict, "ChunksAbsent") == []
    assert 0 < moved_bytes(negotiated, "3.1") < moved_bytes(strict, "0.1")


def test_a_retired_worker_is_emptied_at_once_and_a_notice_of_that_grace_is_put_off():
    strict = {"grace": 60.0, "negotiable": False}
    retired, noticed = preempted(reason="retired", **strict), preempted(**strict)
    assert losses(noticed) == []
    assert losses(retired) == [("0.1", "retired", 0)]
    assert records_of(retired, "ChunksAbsent") == []
    assert records_of(retired, "MemberLost")[0]["t"] < 4.0 + 0.1 * strict["grace"]


def test_late_exit_status_is_reported():
    result = preempted(negotiable=False, grace=0.01)
    (lost,) = records_of(result, "MemberLost")
    (ended,) = records_of(result, "ContainerEnded")
    assert (ended["member"], ended["reason"], ended["status"]) == ("0.1", "preempted", -102)
    assert ended["t"] >= lost["t"]
    assert lost["reason"] == "preempted"


def test_the_mark_of_a_member_that_died_is_lifted_when_it_expires():
    entry = {"at": 4.0, "reclaim": [0], "grace": 2.0, "away": 3.0}
    result = play({**SLOW, "trace": [entry, {"at": 4.2, "lose": [0]}]}, **ROUNDS)
    (lost,) = [r for r in records_of(result, "MemberLost") if r["member"] == "0.1"]
    lifted = [r["member"] for r in records_of(result, "ReclaimLifted") if r["t"] > lost["t"]]
    assert lifted == [None]
