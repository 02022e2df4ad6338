"""The amount of local work between two merges follows measured progress."""

from __future__ import annotations

import itertools

import pytest

from elasticml.control.policy import Tune
from elasticml.errors import ConfigError
from elasticml.policies.tune_local_work import TuneLocalWork
from tests.policy_world import PolicyWorld


def world_of(policy, rate) -> PolicyWorld:
    """Rounds of one second in which this many local epochs gain ``rate`` decades."""
    brings = lambda members, gap, tuned: rate[tuned.get("local_epochs", policy.start)]  # noqa: E731
    return PolicyWorld([policy], {0: 1e-4, 1: 1e-4}, n_chunks=10, brings=brings, overhead_s=1.0)


def values(world: PolicyWorld) -> list[float]:
    return [suggestion.value for _, suggestion in world.suggestions if isinstance(suggestion, Tune)]


def test_more_local_work_stays_while_it_helps():
    world = world_of(TuneLocalWork(), {1: 0.1, 2: 0.2, 4: 0.4, 8: 0.1})
    world.play(30)
    assert values(world) == [2, 4, 8, 4]


def test_local_work_that_does_not_help_is_undone_and_not_retried_for_a_while():
    world = world_of(TuneLocalWork(cool=16), {1: 0.1, 2: 0.1, 4: 0.1, 8: 0.1})
    world.play(24)
    assert values(world) == [2, 1]
    world.play(24)
    assert values(world) == [2, 1, 2, 1]


def test_less_local_work_is_tried_where_more_does_not_help():
    world = world_of(TuneLocalWork(start=4), {1: 0.3, 2: 0.2, 4: 0.1, 8: 0.1})
    world.play(18)
    assert values(world) == [8, 4, 2, 1]


def test_trials_become_rarer():
    world = world_of(TuneLocalWork(cool=8), dict.fromkeys((1, 2, 4, 8), 0.1))
    world.play(300)
    tried = [round for round, suggestion in world.suggestions if suggestion.value == 2]
    pauses = [b - a for a, b in itertools.pairwise(tried)]
    assert len(pauses) >= 3
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]


def test_the_reason_names_the_rates():
    world = world_of(TuneLocalWork(), {1: 0.1, 2: 0.1, 4: 0.1, 8: 0.1})
    world.play(10)
    assert [suggestion.why for _, suggestion in world.suggestions] == [
        "local_epochs 1 brings 0.0952 decades/s; trying 2",
        "local_epochs 2 brings 0.0952 decades/s, 1 brought 0.0952 and would bring 0.0952 "
        "by now: back",
    ]


def test_settings_out_of_range_are_named():
    for choices in ([2, 1], [1, 1]):
        with pytest.raises(ConfigError, match=r"choices: got .*, wanted (rising numbers|a list)"):
            TuneLocalWork(choices=choices)
    for choices in ([], 3):
        with pytest.raises(ConfigError, match=r"choices: got .*, wanted (rising numbers|a list)"):
            TuneLocalWork(choices=choices)
