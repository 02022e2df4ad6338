"""A job's demand: how many members pay, and what closing each worker costs."""

from __future__ import annotations

import pytest

from elasticml.control.demand import closing_costs, desired_members, required_members
from elasticml.control.driver_settings import DriverSettings
from elasticml.control.job_state import JobState
from elasticml.control.policy import Request, Retire
from elasticml.policies.gap_per_container_second import GapPerContainerSecond
from elasticml.protocol.events import Arrived, MembersRefused
from tests.pure_world import PureWorld
from tests.unit.control.test_policy_engine import A, FixedPolicy, finish, world


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
    state = JobState(DriverSettings(start_members=2), stage="training")
    for slot in range(3):
        event = Arrived(arrival=slot, address=f"w{slot}", host="h", pid=slot, threads=1, slot=slot)
        state.membership.admit(event, 0.0)
    assert desired_members(state) == 3


def test_requests_and_retirements_change_the_demand_and_refusals_take_it_back():
    made = world(Request(count=2, why="slow"), members_max=5)
    state = made.driver.state
    while state.members_worth is None:
        assert made.step(0)
    assert (required_members(state), desired_members(state), state.requested) == (4, 4, 2)
    made.driver.handle(MembersRefused(count=2, reason="full"), 9.0)
    assert (required_members(state), state.requested) == (2, 0)
    finish(made)
    assert desired_members(state) == 0
    made = world(Retire(members=(A,), why="dear"), n=3)
    while made.driver.state.members_worth is None:
        assert made.step(0)
    assert desired_members(made.driver.state) == 2


def test_a_policy_that_scales_out_begins_with_the_members_of_the_start():
    settings = DriverSettings(start_members=2, members_max=8)
    made = PureWorld(settings, policies=[GapPerContainerSecond(objective="seconds")])
    assert desired_members(made.driver.state) == 2
    assert desired_members(PureWorld(settings, policies=[FixedPolicy()]).driver.state) == 8


def test_members_that_leave_are_closed_first_then_those_with_the_fewest_bytes():
    made = world(n=3)
    while not any(r.event == "RoundEnded" for r in made.story):
        assert made.step(0)
    state = made.driver.state
    leaver = max(closing_costs(state), key=lambda address: closing_costs(state)[address])
    made.mark(leaver, 20.0, negotiable=False)
    costs = closing_costs(state)
    assert min(costs, key=lambda address: costs[address]) == leaver
    ledger, members = state.ledger, state.membership
    staying = sorted(costs.keys() - {leaver}, key=lambda address: costs[address])
    rows = [ledger.rows_of(members.at(address).id) for address in staying]
    assert rows == sorted(rows)
