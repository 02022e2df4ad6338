"""A run's own losses and returns, read from its story and simulated again."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.errors import ConfigError
from elasticml.report.story_to_faults import faults_from_story, initial_slots, measured_pace
from elasticml.story.records import records_from_json
from tests.sim.small_jobs import column, model, play, records_of
from tests.sim.test_scheduler_preemption import preempted


def again(result, **changes):
    """Simulate the events of a run again, by round, in another world."""
    faults = [dict(fault) for fault in faults_from_story(records_from_json(result.story)).faults]
    return play(
        {"latency_s": 1e-3, "jitter": 0.5, "seed": 99},
        faults=faults,
        stop={"rounds": result.summary["rounds"]},
        **changes,
    )


@pytest.mark.parametrize("exchange", [0, 1])
@pytest.mark.parametrize("phase", ["broadcast", "compute"])
def test_a_loss_is_placed_in_the_exchange_that_first_lacked_the_member(phase, exchange):
    loss = {"round": 4, "lose": [1, 4], "phase": phase, "exchange": exchange}
    result = play(faults=[loss, {"round": 9, "return": 2}])
    first, second = faults_from_story(records_from_json(result.story)).faults
    assert (first["round"], first["lose"], first["how"]) == (4, [1, 4], "kill")
    assert (first["phase"], first.get("exchange")) in {("broadcast", exchange), ("apply", None)}
    assert second == {"round": 9, "return": 2}


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5, 6])
@pytest.mark.parametrize("absent", ["taylor", "ignore", "reload"])
def test_random_kills_simulated_by_round_give_the_same_objective_in_every_round(absent, seed):
    # Kills come at any moment of any exchange; what matters is which sums lacked whose share.
    world = {
        "seed": seed,
        "jitter": 0.3,
        "preemption": {"rate": 80.0, "away": [0.004, 0.02], "spare": 3},
        "start_s": 0.001,
        "detect_s": 0.001,
    }
    result = play(world, absent=absent, stop={"rounds": 25})
    replayed = again(result, absent=absent)
    assert len(records_of(result, "MemberLost")) > 0
    lost = [[r["round"] for r in records_of(r_, "MemberLost")] for r_ in (result, replayed)]
    assert column(replayed, "absent_examples") == column(result, "absent_examples"), lost
    np.testing.assert_allclose(
        column(replayed, "objective"), column(result, "objective"), rtol=1e-9
    )


def test_without_its_losses_a_run_is_the_undisturbed_one():
    result = play(faults=[{"round": 4, "lose": 2}, {"round": 9, "return": 2}])
    assert model(play(faults=[])) != model(result)
    assert model(again(result)) == model(result)


def test_a_member_with_a_notice_leaves_with_notice_again():
    result = play(faults=[{"round": 5, "lose": [2], "how": "notice", "grace": 5.0}])
    (fault,) = faults_from_story(records_from_json(result.story)).faults
    assert (fault["how"], fault["round"], fault["lose"]) == ("notice", 5, [2])
    assert column(again(result), "members") == column(result, "members")


def test_round_times_are_those_that_the_story_measured():
    world = {"compute_s": {"gradient": 3e-5, "other": 1e-6}, "latency_s": 0.05}
    pace = measured_pace(records_from_json(play(world).story))
    assert pace["compute_s"]["gradient"] == pytest.approx(3e-5, rel=1e-2)
    assert pace["overhead_s"]["gradient"] == pytest.approx(4 * 0.05, abs=0.02)


def test_a_run_of_two_attempts_is_refused():
    story = [{"event": "JobResumed", "t": 0.0}]
    with pytest.raises(ConfigError, match="went on from a checkpoint"):
        faults_from_story(records_from_json(story))


def test_losses_while_data_were_loaded_are_named():
    result = play({"detect_s": 1e-7}, faults=[{"round": 0, "lose": [2], "phase": "load"}])
    past = faults_from_story(records_from_json(result.story))
    assert (past.faults, past.lost) == ((), 0)
    assert past.notes == ("1 lost while the data were loaded, and kept here",)


def test_a_member_emptied_before_its_end_leaves_with_notice_whatever_ended_it():
    told_to_end = play(faults=[{"round": 5, "lose": [2], "how": "terminate", "grace": 5.0}])
    value = preempted()
    for result, slot in ((told_to_end, 2), (value, 3)):
        first, *back = faults_from_story(records_from_json(result.story)).faults
        assert (first["how"], first["lose"]) == ("notice", [slot])
        assert [fault["return"] for fault in back] == [1] * len(back)
        assert set(column(again(result), "absent_examples")) == {0}


def test_newcomers_that_policies_requested_are_left_to_the_policies():
    story = [
        {"event": "RoundStarted", "t": 0.0, "round": 0, "rows": {"0": 5, "1": 5}},
        {"event": "MemberLost", "t": 1.0, "round": 1, "member": "1.1", "reason": "retired"},
        {"event": "PolicyDecided", "t": 2.0, "round": 2, "suggestion": "Request", "count": 1},
        *(
            {"event": event, "t": t, "round": t, "member": member}
            for t, member in ((3, "1.2"), (7, "2.1"))
            for event in ("MemberJoined", "MemberActive")
        ),
    ]
    past = faults_from_story(records_from_json(story))
    assert past.faults == ({"round": 7, "return": 1},)
    assert [note.split()[:2] for note in past.notes] == [["1", "newcomers"], ["1", "members"]]


def test_members_are_those_that_had_examples_in_the_first_round():
    assert initial_slots(records_from_json([{"event": "MemberJoined", "member": "0.1"}])) == 0
    assert initial_slots(records_from_json(play().story)) == 6
