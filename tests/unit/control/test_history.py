"""The history of finished rounds that policies see."""

from __future__ import annotations

import random

import pytest

from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.control.rounds import ROUNDS_KEPT, History
from elasticml.ids import ChunkId, ChunkInfo, MemberId
from elasticml.protocol.events import Arrived
from elasticml.story.history import HistoryRow

A = MemberId(0, 1)


def history(rows: int = 10) -> History:
    state = JobState(settings=DriverSettings())
    record = state.membership.admit(
        Arrived(arrival=0, address="w", host="h", pid=0, threads=1), 0.0
    )
    state.membership.enter(record, "active")
    state.ledger.add(A, [ChunkInfo(id=ChunkId("s", 0, 0), rows=rows, nbytes=1)])
    return History(state)


def test_progress_is_that_of_the_model_at_the_end_of_a_round():
    made = history()
    row = {"objective": 3.0, "next_objective": 2.0, "gap": 1.0, "next_gap": 0.5}
    made.ended(HistoryRow({**row, "next_gap_is_bound": True}), 4.0)
    made.ended(HistoryRow({"objective": 2.0, "gap": 0.5}), 6.0)
    first, second = made.progress
    assert (first.seconds, first.objective, first.gap, first.gap_is_bound) == (4.0, 2.0, 0.5, True)
    assert (second.objective, second.gap, second.members) == (2.0, None, 1)


def test_a_policys_history_is_not_modified_later():
    made = history()
    made.ended(HistoryRow({"objective": 1.0}), 1.0)
    seen = made.progress
    made.ended(HistoryRow({"objective": 2.0}), 2.0)
    assert (len(seen), seen[-1].objective, [p.objective for p in seen[0:9]]) == (1, 1.0, [1.0])
    with pytest.raises(IndexError):
        seen[1]


def test_times_of_members_that_skip_rounds_are_those_of_their_own_last_rounds():
    """Compare with a list for each member, over rounds in which members are idle, lost or empty."""
    rng = random.Random(3)
    made, members, number = history(), {A: 10}, 1
    state, expected = made.state, {A: []}
    for k in range(200):
        if rng.random() < 0.3:
            arrived = Arrived(arrival=0, address=f"w{k}", host="h", pid=0, threads=1)
            record = state.membership.admit(arrived, 0.0)
            state.membership.enter(record, "active")
            rows, number = rng.choice((0, 5, 7)), number + 1
            info = ChunkInfo(id=ChunkId("s", number, 0), rows=rows, nbytes=1)
            state.ledger.add(record.id, [info])
            members[record.id], expected[record.id] = rows, []
        if len(members) > 4 and rng.random() < 0.3:
            lost = rng.choice(sorted(members))
            state.membership.remove(lost)
            state.ledger.lose(lost)
            made.lost(lost)
            del members[lost], expected[lost]
        for exchange in range(rng.choice((0, 1, 2))):
            some = {m: rng.random() for m in members if rng.random() < 0.9}
            made.computed(10 * k + exchange, some)
            for member, value in some.items():
                if members[member]:
                    series = expected[member]
                    if series and series[-1][0] == k:
                        value += series.pop()[1]
                    series.append((k, value))
        made.ended(HistoryRow({}), 1.0)
        for member, series in expected.items():
            values = tuple(value for _, value in series[-ROUNDS_KEPT:])
            assert made.seconds(member) == pytest.approx(values)
