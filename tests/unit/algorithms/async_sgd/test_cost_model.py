"""The cost model of batches: the fixed cost of a batch, learned from batches of known duration."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.base import QueueStatus
from elasticml.algorithms.async_sgd.batch_controllers import (
    GROWTH_MAX,
    SEEN_MIN,
    STRETCH,
    IterationCostModel,
    LogPI,
)
from examples.papers.support.nic_model import GIGABIT, INFINIBAND, Costs, critical_batch, replay

#: Seconds of a batch, and of an example.
FIXED_S, EACH_S = 40e-6, 1e-6


def seen(sizes, more_s=lambda k: 0.0) -> IterationCostModel:
    costs = IterationCostModel()
    for k, n in enumerate(sizes):
        costs.add(n, FIXED_S + EACH_S * n + more_s(k))
    return costs


def test_the_smallest_batch_keeps_fixed_costs_to_the_given_share():
    costs = seen([1000] * SEEN_MIN + [100] * SEEN_MIN)
    for share in (0.5, 0.1, 0.01):
        n = costs.least(share)
        assert pytest.approx(share) == FIXED_S / (FIXED_S + EACH_S * n)


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [500] * 99,
        # Sizes too close to each other; and one of them seen too rarely.
        [500] * SEEN_MIN + [1000] * SEEN_MIN,
        [100] * (SEEN_MIN - 1) + [1000] * SEEN_MIN,
    ],
)
def test_batches_of_one_size_give_no_estimate(sizes):
    assert seen(sizes).least(0.1) == 0.0


def test_delayed_batches_do_not_count_beside_quick_ones():
    held_up = seen([1000] * 40 + [100] * 40, more_s=lambda k: 5e-3 * (k % 8 != 3))
    assert held_up.least(0.1) == pytest.approx(9 * FIXED_S / EACH_S)


def test_batches_without_a_fixed_cost_have_no_smallest_size():
    costs = IterationCostModel()
    for n in [1000] * SEEN_MIN + [100] * SEEN_MIN:
        costs.add(n, EACH_S * n)
    assert costs.least(0.1) == pytest.approx(0.0, abs=1e-6)
    for _ in range(SEEN_MIN):
        # More examples in less time: no linear cost.
        costs.add(100_000, 1e-6)
    assert costs.least(0.1) == 0.0


@pytest.mark.parametrize("faster", [0.1, 10.0])
def test_old_batches_are_ignored_after_a_member_changed_speed(faster):
    costs = seen([1000] * SEEN_MIN + [100] * SEEN_MIN + [400] * STRETCH)
    before = costs.least(0.1)
    for n in [1000] * STRETCH + [100] * STRETCH:
        costs.add(n, FIXED_S + EACH_S / faster * n)
    assert before == pytest.approx(9 * FIXED_S / EACH_S)
    assert costs.least(0.1) == pytest.approx(faster * before)


def test_a_size_not_seen_for_long_is_not_compared():
    costs = seen([1000] * SEEN_MIN + [100] * 2 * STRETCH)
    assert costs.least(0.1) == 0.0


def test_the_smallest_batch_is_bounded():
    # Nearly all of it is fixed cost; a thousandth is not.
    costs = IterationCostModel()
    for n in [1000] * SEEN_MIN + [100] * SEEN_MIN:
        costs.add(n, 1.0 + 1e-6 * n)
    assert costs.least(0.1) == GROWTH_MAX * 1000


def test_log_pi_follows_a_member_that_becomes_slower_or_faster():
    for faster in (0.1, 10.0):
        controller = LogPI(fixed_share=0.1)
        examples, seconds, batch, sizes = 0, 1.0, 4096, []
        for turn in range(8 * STRETCH):
            each_s = EACH_S if turn < 3 * STRETCH else EACH_S / faster
            examples, seconds = examples + batch, seconds + FIXED_S + each_s * batch
            batch = controller.next(
                batch, QueueStatus(fill=0.0, examples=examples, seconds=seconds)
            )
            sizes.append(batch)
        expected = 9 * FIXED_S / EACH_S
        # Occasionally it goes down for some batches, to measure smaller ones.
        assert np.median(sizes[2 * STRETCH : 3 * STRETCH]) == pytest.approx(expected, rel=0.01)
        assert np.median(sizes[-2 * STRETCH :]) == pytest.approx(faster * expected, rel=0.01)


def sizes_after(controller, turns):
    """Return the sizes after batches of (examples, fill), each with its true duration."""
    examples, seconds, batch, sizes = 0, 1.0, 4096, []
    for n, fill in turns:
        examples, seconds = examples + n, seconds + FIXED_S + EACH_S * n
        batch = controller.next(batch, QueueStatus(fill=fill, examples=examples, seconds=seconds))
        sizes.append(batch)
    return sizes


def test_log_pi_respects_the_smallest_batch_and_follows_the_queue_above_it():
    turns = [(4096, 0.0)] * (SEEN_MIN + 1) + [(64, 0.0)] * 200 + [(400, 0.5)] * 400
    free, bound = (sizes_after(LogPI(fixed_share=share), turns) for share in (None, 0.1))
    expected = round(9 * FIXED_S / EACH_S)
    assert min(free) < expected / 4
    assert min(bound[2 * SEEN_MIN :]) == expected
    assert bound[-1] > 4 * expected


def test_batches_that_waited_for_a_slot_are_ignored():
    turns = [(4096, 1.0)] * 40 + [(64, 1.0)] * 40 + [(64, 0.0)] * 400
    assert min(sizes_after(LogPI(fixed_share=0.1), turns)) < 9 * FIXED_S / EACH_S / 4


@pytest.mark.parametrize("share", [None, 0.1])
def test_without_a_network_limit_fixed_costs_take_little_time(share):
    costs = Costs(INFINIBAND, EACH_S, 9824, post_s=5e-6, batch_s=25e-6, merge_s=10e-6)
    assert critical_batch(costs) < 1
    run = replay(costs, lambda: LogPI(fixed_share=share), batch=1200, places=2, seconds=0.4)
    late = run.sizes_after(0.2)
    speed = late.sum() * EACH_S / (16 * 0.2)
    # The quickest batches have no merge: the time of merges adds to the tenth.
    assert speed < 0.5 if share is None else speed > 0.86


def test_with_a_network_limit_the_critical_batch_stays():
    costs = Costs(GIGABIT, 5.1e-6, 40_064, post_s=5e-6, batch_s=25e-6, merge_s=10e-6)
    controller = lambda: LogPI(fixed_share=0.1)  # noqa: E731
    run = replay(costs, controller, batch=4000, places=2, seconds=6.0)
    assert np.mean(run.sizes_after(4.0)) == pytest.approx(critical_batch(costs), rel=0.1)
