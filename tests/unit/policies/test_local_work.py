"""How much a member computes between two merges: by the relative cost of merging, or by trials."""

from __future__ import annotations

import itertools
import json
import math

import pytest

from elasticml.policies.inner_iterations import ChooseInnerIterations, CostModel, Observed, fit
from elasticml.policies.tune_local_work import TuneLocalWork
from tests.policy_world import PolicyWorld

TRUE = CostModel(outer_s=0.9, inner_s=0.1, theta=0.6, rho=0.8)


def observed(inner: float, certificates_s: float = 0.0) -> Observed:
    return Observed(
        inner=inner,
        seconds=TRUE.seconds(inner) + certificates_s,
        computed_s=inner * TRUE.inner_s + certificates_s,
        decades=TRUE.decades(inner),
    )


# --- the model of costs and progress --------------------------------------------------------------


@pytest.mark.parametrize("inners", [(1, 4), (1, 2, 8), (2, 3, 4)])
@pytest.mark.parametrize("certificates_s", [0.0, 0.05])
def test_constants_are_fitted_from_two_values_or_more(inners, certificates_s):
    """A certificate costs the same for any number of passes."""
    result = fit([observed(inner, certificates_s) for inner in inners])
    assert result.outer_s == pytest.approx(TRUE.outer_s + certificates_s)
    for name in ("inner_s", "theta", "rho"):
        assert getattr(result, name) == pytest.approx(getattr(TRUE, name), rel=1e-6)


# --- passes chosen with the model -----------------------------------------------------------------


def modelled(policy, model: CostModel, most: float = math.inf, **more) -> PolicyWorld:
    """Rounds with the cost and progress of the model, of two members that take 0.1 s a pass."""
    passes = lambda tuned: min(tuned.get("local_epochs", policy.start), most)  # noqa: E731
    return PolicyWorld(
        [policy],
        {0: 2e-4, 1: 2e-4},
        n_chunks=10,
        brings=lambda members, gap, tuned: model.decades(passes(tuned)),
        work=passes,
        overhead_s=model.outer_s,
        **more,
    )


def values(world: PolicyWorld) -> list[float]:
    return [suggestion.value for _, suggestion in world.suggestions]


COSTLY = CostModel(outer_s=2.0, inner_s=0.1, theta=0.7, rho=0.6)


@pytest.mark.parametrize(
    ("model", "settings", "more"),
    [
        *(
            (
                CostModel(outer_s=outer_s, inner_s=0.1, theta=theta, rho=0.5),
                {"hysteresis": 1.02},
                {},
            )
            for outer_s in (0.3, 1.0, 5.0)
            for theta in (0.3, 0.8)
        ),
        (COSTLY, {"start": 0.2}, {}),
        # Progress is averaged over rounds without a certificate.
        (COSTLY, {}, {"gap_every": 3}),
    ],
)
def test_the_fastest_value_is_found_and_kept(model, settings, more):
    policy = ChooseInnerIterations(**settings)
    world = modelled(policy, model, **more)
    world.play(90)
    found = world.tuned.get("local_epochs", policy.start)
    best = max(policy.choices, key=model.rate)
    assert model.rate(found) >= model.rate(best) / settings.get("hysteresis", 1.1)
    n_decisions = len(world.suggestions)
    world.play(40)
    assert len(world.suggestions) == n_decisions


@pytest.mark.parametrize(("outer_s", "theta", "rho"), [(0.02, 0.1, 0.9), (0.3, 0.1, 0.3)])
def test_passes_that_end_early_count_with_the_time_that_they_take(outer_s, theta, rho):
    """A round makes two passes at most, as one whose members' problems are solved by then."""
    model = CostModel(outer_s=outer_s, inner_s=0.1, theta=theta, rho=rho)
    world = modelled(ChooseInnerIterations(), model, most=2.0)
    world.play(90)
    found = min(world.tuned.get("local_epochs", 1.0), 2.0)
    assert model.rate(found) >= max(map(model.rate, (1.0, 2.0))) / 1.1


@pytest.mark.parametrize(("outer_s", "theta", "expected"), [(0.005, 0.5, []), (0.3, 0.0, [4, 1])])
def test_nothing_is_tried_where_merging_is_cheap_and_what_gains_nothing_is_undone(
    outer_s, theta, expected
):
    model = CostModel(outer_s=outer_s, inner_s=0.1, theta=theta, rho=0.5)
    world = modelled(ChooseInnerIterations(), model)
    world.play(60)
    assert values(world) == expected


def test_a_resumed_job_continues_the_search():
    unbroken, world = (modelled(ChooseInnerIterations(), COSTLY) for _ in range(2))
    unbroken.play(40)
    world.play(9)
    second = ChooseInnerIterations()
    second.restore(json.loads(json.dumps(world.policies[0].state())))
    world.policies = [second]
    world.play(31)
    assert world.suggestions == unbroken.suggestions


# --- trials without a model -----------------------------------------------------------------------


def tried(policy, rate) -> PolicyWorld:
    """Rounds of one second in which this many local epochs gain ``rate`` decades."""
    brings = lambda members, gap, tuned: rate[tuned.get("local_epochs", policy.start)]  # noqa: E731
    return PolicyWorld([policy], {0: 1e-4, 1: 1e-4}, n_chunks=10, brings=brings, overhead_s=1.0)


FLAT = dict.fromkeys((1, 2, 4, 8), 0.1)


@pytest.mark.parametrize(
    ("settings", "rate", "rounds", "expected"),
    [
        ({}, {1: 0.1, 2: 0.2, 4: 0.4, 8: 0.1}, 30, [2, 4, 8, 4]),
        # What does not help is undone, and not retried for a while.
        ({"cool": 16}, FLAT, 24, [2, 1]),
        ({"cool": 16}, FLAT, 48, [2, 1, 2, 1]),
        ({"start": 4}, {1: 0.3, 2: 0.2, 4: 0.1, 8: 0.1}, 18, [8, 4, 2, 1]),
    ],
)
def test_local_work_stays_where_it_helps(settings, rate, rounds, expected):
    world = tried(TuneLocalWork(**settings), rate)
    world.play(rounds)
    assert values(world) == expected


def test_trials_become_rarer():
    world = tried(TuneLocalWork(cool=8), FLAT)
    world.play(300)
    rounds = [round for round, suggestion in world.suggestions if suggestion.value == 2]
    pauses = [b - a for a, b in itertools.pairwise(rounds)]
    assert len(pauses) >= 3
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]
