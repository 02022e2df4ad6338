"""Swim-lanes of hand-written stories."""

import numpy as np
import pytest

from elasticml.report.lanes import KINDS, make_lanes, occupancy, paint
from elasticml.story.records import record_from_json, records_from_json


def story_of(*records):
    return records_from_json({"t": t, "event": event, **fields} for t, event, fields in records)


def spans(lanes, slot):
    return [(v.kind, v.start_s, v.end_s) for v in lanes.intervals[slot]]


def kind_at(lane, at):
    return next(kind for low, high, kind in lane if low <= at < high)


def test_member_loads_then_computes_and_waits_within_each_exchange():
    lanes = make_lanes(
        story_of(
            (1.0, "MemberJoined", {"member": "0.0"}),
            (2.0, "MemberActive", {"member": "0.0"}),
            (5.0, "ExchangeEnded", {"start_t": 3.0, "compute_s": {"0": 1.5}}),
        )
    )
    assert spans(lanes, 0) == [
        ("load", 1.0, 2.0),
        ("wait", 2.0, 3.0),
        ("compute", 3.0, 4.5),
        ("wait", 4.5, 5.0),
    ]


def test_slot_is_gone_between_a_loss_and_the_return_in_it():
    lanes = make_lanes(
        story_of(
            (0.0, "MemberJoined", {"member": "3.0"}),
            (0.0, "MemberActive", {"member": "3.0"}),
            (2.0, "MemberLost", {"member": "3.0", "reason": "killed"}),
            (5.0, "MemberJoined", {"member": "3.1"}),
            (6.0, "MemberActive", {"member": "3.1"}),
            (8.0, "JobEnded", {}),
        )
    )
    assert spans(lanes, 3) == [
        ("wait", 0.0, 2.0),
        ("gone", 2.0, 5.0),
        ("load", 5.0, 6.0),
        ("wait", 6.0, 8.0),
    ]
    assert [(m.kind, m.at_s) for m in lanes.marks] == [
        ("joined", 0.0),
        ("lost", 2.0),
        ("returned", 5.0),
    ]


def test_member_lost_for_good_is_gone_until_the_end():
    lanes = make_lanes(
        story_of(
            (0.0, "MemberJoined", {"member": "0.0"}),
            (0.0, "MemberActive", {"member": "0.0"}),
            (1.0, "MemberLost", {"member": "0.0"}),
            (1.5, "MemberLost", {"member": "0.0"}),
            (4.0, "JobEnded", {}),
        )
    )
    assert spans(lanes, 0)[-1] == ("gone", 1.0, 4.0)


def test_moving_chunks_shows_on_both_ends_and_never_while_gone():
    lanes = make_lanes(
        story_of(
            (0.0, "MemberJoined", {"member": "0.0"}),
            (0.0, "MemberActive", {"member": "0.0"}),
            (0.0, "MemberJoined", {"member": "1.0"}),
            (0.0, "MemberActive", {"member": "1.0"}),
            (2.0, "MemberLost", {"member": "0.0"}),
            (3.0, "ChunksMoved", {"source": "0.0", "target": "1.0", "seconds": 2.0}),
        )
    )
    assert spans(lanes, 0) == [("wait", 0.0, 1.0), ("move", 1.0, 2.0), ("gone", 2.0, 3.0)]
    assert spans(lanes, 1) == [("wait", 0.0, 1.0), ("move", 1.0, 3.0)]


def test_compute_longer_than_its_exchange_ends_with_it():
    lanes = make_lanes(story_of((2.0, "ExchangeEnded", {"start_t": 1.0, "compute_s": {"0": 9.0}})))
    assert spans(lanes, 0) == [("compute", 1.0, 2.0)]


def test_without_a_record_of_taking_part_loading_ends_with_the_first_work():
    lanes = make_lanes(
        story_of(
            (0.0, "MemberJoined", {"member": "0.0"}),
            (4.0, "ExchangeEnded", {"start_t": 3.0, "compute_s": {"0": 1.0}}),
        )
    )
    assert spans(lanes, 0) == [("load", 0.0, 3.0), ("compute", 3.0, 4.0)]


@pytest.mark.parametrize(
    "record",
    [
        {"event": "MemberJoined"},
        {"event": "MemberLost", "member": "7.0"},
        {"event": "MemberActive", "member": "no id"},
        {"event": "ChunksMoved", "source": None, "target": 3, "seconds": "long"},
        {"event": "ExchangeEnded", "compute_s": {"x": 1.0, "0": None}},
        {"event": "ExchangeEnded", "compute_s": [1.0]},
    ],
)
def test_odd_records_make_no_overlapping_interval(record):
    records = [
        *story_of((0.0, "MemberJoined", {"member": "0.0"})),
        record_from_json({"t": 1.0, **record}),
    ]
    lanes = make_lanes(records)
    assert spans(lanes, 0) == [("load", 0.0, 1.0)]


def test_empty_story_has_no_lane():
    assert make_lanes([]).slots == ()


def test_paint_lays_one_span_over_several_segments():
    lane = [(0.0, 2.0, "wait"), (2.0, 3.0, "gone"), (3.0, 6.0, "load")]
    assert paint(lane, [(1.0, 4.0), (5.0, 9.0)], "compute") == [
        (0.0, 1.0, "wait"),
        (1.0, 2.0, "compute"),
        (2.0, 3.0, "gone"),
        (3.0, 4.0, "compute"),
        (4.0, 5.0, "load"),
        (5.0, 6.0, "compute"),
    ]


def test_intervals_are_disjoint_and_ascending_for_random_spans():
    rng = np.random.default_rng(0)
    for _ in range(100):
        cuts = np.cumsum(rng.random(9))
        kinds = rng.choice(["wait", "gone", "load"], 8)
        lane = [(cuts[i], cuts[i + 1], kinds[i]) for i in range(8)]
        starts = np.sort(rng.random(12) * cuts[-1] * 1.2)
        top = [(s, s + rng.random()) for s in starts]
        painted = paint(lane, top, "compute")
        inside = [at for low, high, _ in painted for at in (low, high)]
        assert inside == sorted(inside)
        assert sum(high - low for low, high, _ in painted) == pytest.approx(cuts[-1] - cuts[0])
        # A second way to compute it: the state at random moments.
        for at in rng.uniform(cuts[0], cuts[-1], 40):
            below = kind_at(lane, at)
            busy = any(low <= at < high for low, high in top) and below != "gone"
            assert kind_at(painted, at) == ("compute" if busy else below)


def test_occupancy_gives_the_share_of_each_bin():
    lanes = make_lanes(
        story_of(
            (0.0, "MemberJoined", {"member": "0.0"}),
            (1.0, "MemberActive", {"member": "0.0"}),
            (3.0, "ExchangeEnded", {"start_t": 1.0, "compute_s": {"0": 0.5}}),
            (4.0, "MemberLost", {"member": "0.0"}),
            (6.0, "JobEnded", {}),
        )
    )
    shares = occupancy(lanes, np.array([0.0, 2.0, 4.0, 6.0]))
    expected = np.zeros((1, 3, 5))
    expected[0, 0] = [0.5, 0.25, 0.25, 0.0, 0.0]
    expected[0, 1, KINDS.index("wait")] = 1.0
    expected[0, 2, KINDS.index("gone")] = 1.0
    np.testing.assert_allclose(shares, expected, atol=1e-12)
