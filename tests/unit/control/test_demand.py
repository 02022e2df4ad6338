"""A job's demand: how many members pay, and what closing each worker costs."""

from __future__ import annotations

import pytest

from elasticml.control.demand import closing_costs, desired_members, required_members
from elasticml.control.driver import Driver
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.policies.gap_per_container_second import GapPerContainerSecond
from elasticml.policies.knee import ScaleInAtKnee
from elasticml.protocol.notices import ContainerMarked
from tests.sim.small_jobs import arrival, begun


@pytest.mark.parametrize(
    ("settings", "stage", "worth", "required", "desired"),
    [
        ({}, "gathering", None, 1, 1),
        ({"start_members": 3}, "gathering", None, 3, 3),
        ({"start_members": 3}, "training", None, 1, 3),
        ({"start_members": 3, "members_min": 2}, "training", None, 2, 3),
        ({"members_max": 8}, "gathering", None, 1, 8),
        ({"members_max": 8}, "training", 2, 2, 2),
        ({"members_max": 4, "members_min": 2}, "training", 9, 4, 4),
        ({"members_min": 2}, "training", 1, 2, 2),
        ({"start_members": 3, "members_max": 8}, "ended", None, 0, 0),
    ],
)
def test_demand_follows_the_settings_and_the_policies(settings, stage, worth, required, desired):
    state = JobState(DriverSettings(**settings), stage=stage)
    state.members_worth = worth
    assert (required_members(state), desired_members(state)) == (required, desired)


def test_a_job_without_a_maximum_keeps_the_members_that_came_by_themselves():
    driver = Driver(DriverSettings(start_members=2), ())
    for n in range(3):
        driver.handle(arrival(n), 0.0)
    assert desired_members(driver.state) == 3


def test_a_policy_that_scales_out_begins_with_the_members_of_the_start():
    settings = DriverSettings(start_members=2, members_max=8)
    scaling = Driver(settings, [GapPerContainerSecond(objective="seconds")])
    assert desired_members(scaling.state) == 2
    assert desired_members(Driver(settings, [ScaleInAtKnee()]).state) == 8


def test_members_that_leave_are_closed_first_then_those_with_the_fewest_bytes():
    simulation, driver = begun(members={"start": 4, "min": 1})
    state = driver.state
    before = closing_costs(state)
    leaver = max(before, key=lambda address: (before[address], address))
    driver.handle(ContainerMarked(address=leaver, grace_s=20.0), 1.0)
    costs = closing_costs(state)
    assert costs == {**before, leaver: 1}
    rows = {r.address: state.ledger.rows_of(r.id) for r in state.membership.members.values()}
    assert sorted(before, key=before.__getitem__) == sorted(before, key=rows.__getitem__)
    assert min(before.values()) > 1
    simulation.close()
