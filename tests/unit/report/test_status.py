"""A job's status, computed from its story."""

import pytest

from elasticml.jobs.progress_bar import status_line, waiting_line
from elasticml.report.status import JobStatus

STARTED = {
    "t": 0.0,
    "event": "JobStarted",
    "name": "toy",
    "spec": {"stop": {"rounds": 10, "seconds": None}},
}


def ended(r, t, **more):
    return {
        "t": t,
        "event": "RoundEnded",
        "round": r,
        "objective": 0.5,
        "objective_kind": "exact",
        "members": 4,
        **more,
    }


def fold(*records):
    status = JobStatus(job="toy-1")
    for record in records:
        status = status.after(record)
    return status


def test_a_job_loads_until_its_first_round():
    status = fold(STARTED, {"t": 0.5, "event": "MemberActive"}, {"t": 0.6, "event": "MemberActive"})
    assert (status.state, status.members, status.round) == ("loading", 2, 0)
    assert status_line(status) == "toy: loading data on 2 members"


def test_a_running_job_has_its_round_and_estimated_end():
    status = fold(STARTED, ended(0, 2.0), ended(1, 3.0), ended(2, 4.0))
    assert (status.state, status.round, status.eta_s) == ("running", 3, 7.0)
    assert status_line(status) == "toy: round 3/10 | objective 0.5 | 4 members | 7.0 s to go"


def test_loading_does_not_count_towards_the_pace():
    assert fold(STARTED, ended(0, 60.0), ended(1, 61.0)).eta_s == 8.0


def test_the_nearer_limit_ends_the_job():
    started = {**STARTED, "spec": {"stop": {"rounds": 100, "seconds": 10.0}}}
    assert fold(started, ended(0, 1.0), ended(1, 2.0)).eta_s == 8.0


def test_a_job_without_a_limit_has_no_estimated_end():
    assert fold(STARTED, ended(0, 1.0)).eta_s is None


def test_absence_is_shown():
    row = ended(1, 3.0, objective_kind="estimated", members=2, absent_examples=50, stand_ins=1)
    assert status_line(fold(STARTED, ended(0, 2.0), row), "mine") == (
        "mine: round 2/10 | objective ~0.5 | 2 members | 50 examples absent | 1 stand-in"
        " | 8.0 s to go"
    )


def test_a_round_without_objective_keeps_the_last_one():
    assert fold(STARTED, ended(0, 1.0), ended(1, 2.0, objective=None)).objective == 0.5


def test_a_gap_is_shown_with_its_distance_to_the_target_in_powers_of_ten():
    started = {**STARTED, "spec": {"stop": {"rounds": 10, "gap": 1e-6}}}
    status = fold(started, ended(0, 1.0, gap=1.0), ended(1, 2.0, gap=1e-3))
    assert status_line(status).split(" | ")[2] == "gap 1.0e-03 of 1e-06 (50 %)"


def test_a_round_without_certificate_keeps_the_last_gap_and_a_bound_is_marked():
    status = fold(STARTED, ended(0, 1.0, gap=0.25, gap_is_bound=True), ended(1, 2.0, gap=None))
    assert status_line(status).split(" | ")[2] == "gap ≤2.5e-01"


def test_the_final_model_has_its_own_gap():
    final = {"t": 3.0, "event": "FinalModel", "gap": 1e-3, "objective": 0.4}
    status = fold(STARTED, ended(0, 1.0, gap=1.0), final)
    assert status_line(status).split(" | ")[1:3] == ["objective 0.4", "gap 1.0e-03"]


@pytest.mark.parametrize(
    ("gaps", "share"), [([], None), ([0.5], 0.0), ([0.5, 5e-7], 1.0), ([1.0, 2.0], 0.0)]
)
def test_the_progress_to_the_target_gap_is_a_fraction(gaps, share):
    started = {**STARTED, "spec": {"stop": {"rounds": 10, "gap": 1e-6}}}
    status = fold(started, *(ended(r, r + 1.0, gap=gap) for r, gap in enumerate(gaps)))
    assert status.gap_share == share


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_an_ended_job_shows_state_and_reason(state):
    last = {"t": 75.0, "event": "JobEnded", "state": state, "reason": "as asked"}
    status = fold(STARTED, ended(0, 1.0), last)
    assert (status.state, status.is_over, status.reason) == (state, True, "as asked")
    assert status_line(status).endswith(f"| {state} after 1:15: as asked")


def test_a_wait_is_shown_until_it_ends():
    waiting = {
        "t": 12.0,
        "event": "Waiting",
        "what": "members",
        "have": 0,
        "need": 2,
        "since_s": 2.0,
        "remedy": "no worker is connected",
    }
    status = fold(STARTED, waiting)
    assert status.waiting is not None
    assert waiting_line(status.waiting, status.seconds) == (
        "waiting for members for 0:10: 0 of 2; no worker is connected"
    )
    assert fold(STARTED, waiting, {"t": 13.0, "event": "WaitEnded"}).waiting is None
