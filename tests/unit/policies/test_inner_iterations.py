"""Passes between two merges are chosen by the relative cost of merging."""

from __future__ import annotations

import json

import pytest

from elasticml.control.policy import Tune
from elasticml.errors import ConfigError
from elasticml.policies.inner_iterations import ChooseInnerIterations, CostModel
from elasticml.policies.registry import check_entries
from tests.policy_world import PolicyWorld

#: Two members of five chunks of 100 examples at 0.2 ms: a tenth of a second a pass.
COSTS = {0: 2e-4, 1: 2e-4}


def world_of(policy, model: CostModel, **settings) -> PolicyWorld:
    """Rounds with the cost and progress of the model."""
    of = lambda tuned: tuned.get("local_epochs", policy.start)  # noqa: E731
    return PolicyWorld(
        [policy],
        COSTS,
        n_chunks=10,
        brings=lambda members, gap, tuned: model.decades(of(tuned)),
        work=of,
        overhead_s=model.outer_s,
        **settings,
    )


def values(world: PolicyWorld) -> list[float]:
    return [suggestion.value for _, suggestion in world.suggestions if isinstance(suggestion, Tune)]


def fastest(policy, model: CostModel) -> float:
    return max(policy.choices, key=model.rate)


@pytest.mark.parametrize("outer_s", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("theta", [0.3, 0.8])
def test_the_fastest_value_is_found_and_kept(outer_s, theta):
    model = CostModel(outer_s=outer_s, inner_s=0.1, theta=theta, rho=0.5)
    policy = ChooseInnerIterations(hysteresis=1.02)
    world = world_of(policy, model)
    world.play(40)
    result = world.tuned.get("local_epochs", policy.start)
    assert model.rate(result) >= model.rate(fastest(policy, model)) / 1.02
    suggestion = len(world.suggestions)
    world.play(40)
    assert len(world.suggestions) == suggestion


def test_the_reported_gain_is_the_actual_gain():
    model = CostModel(outer_s=2.0, inner_s=0.1, theta=0.7, rho=0.6)
    world = world_of(ChooseInnerIterations(), model)
    world.play(40)
    last = next(suggestion for _, suggestion in reversed(world.suggestions))
    before = values(world)[-2]
    gain = model.rate(last.value) / model.rate(before)
    assert f"predicted to bring {gain:.3g} times the progress a second of {before:g}" in last.why
    assert last.why.startswith("a pass takes 0.1 s, the rest of a round 2 s: ")


def test_nothing_is_tried_where_merging_is_cheap():
    world = world_of(
        ChooseInnerIterations(), CostModel(outer_s=0.005, inner_s=0.1, theta=0.5, rho=0.5)
    )
    world.play(40)
    assert values(world) == []


def test_more_passes_without_gain_are_undone():
    world = world_of(
        ChooseInnerIterations(), CostModel(outer_s=0.3, inner_s=0.1, theta=0.0, rho=0.5)
    )
    world.play(60)
    assert values(world) == [4, 1]


def test_a_job_that_starts_below_all_candidates_reaches_one():
    model = CostModel(outer_s=2.0, inner_s=0.1, theta=0.7, rho=0.6)
    world = world_of(ChooseInnerIterations(start=0.2), model)
    world.play(60)
    assert values(world)[0] == 1
    assert (
        model.rate(world.tuned["local_epochs"]) >= model.rate(fastest(*world.policies, model)) / 1.1
    )


def test_progress_is_averaged_over_rounds_without_a_certificate():
    model = CostModel(outer_s=2.0, inner_s=0.1, theta=0.7, rho=0.6)
    world = world_of(ChooseInnerIterations(), model, gap_every=3)
    world.play(90)
    assert (
        model.rate(world.tuned["local_epochs"]) >= model.rate(fastest(*world.policies, model)) / 1.1
    )


def test_another_set_of_members_is_measured_again():
    model = CostModel(outer_s=2.0, inner_s=0.1, theta=0.7, rho=0.6)
    policy = ChooseInnerIterations()
    world = world_of(policy, model)
    world.play(20)
    assert len(policy.state()["observed"]) > 1
    world.cost[2] = 2e-4
    world._join(1)
    world.play(1)
    assert policy.state()["observed"] == []
    assert policy.state()["members"] == 3


def test_a_resumed_job_continues_the_search():
    model = CostModel(outer_s=2.0, inner_s=0.1, theta=0.7, rho=0.6)
    whole, first, second = (ChooseInnerIterations() for _ in range(3))
    unbroken, world = world_of(whole, model), world_of(first, model)
    unbroken.play(40)
    world.play(9)
    second.restore(json.loads(json.dumps(first.state())))
    world.policies = [second]
    world.play(31)
    assert world.suggestions == unbroken.suggestions


def test_settings_out_of_range_are_named():
    for choices in ([2, 1], [1, 1], [], 3):
        with pytest.raises(ConfigError, match=r"choices: got .*, wanted (rising numbers|a list)"):
            ChooseInnerIterations(choices=choices)
    with pytest.raises(ConfigError, match="hysteresis"):
        ChooseInnerIterations(hysteresis=0.5)


def test_two_policies_that_set_the_same_are_refused():
    with pytest.raises(ConfigError, match="both set local_epochs; leave one out"):
        check_entries(["inner_iterations", "tune_local_work"])
    check_entries(["inner_iterations", {"tune_local_work": "none"}])
