"""The cost model of batches: the fixed cost of a batch, learned from batches of known duration."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.base import QueueStatus
from elasticml.algorithms.async_sgd.batch_controllers import (
    SEEN_MIN,
    STRETCH,
    LogPI,
)
from examples.papers.support.nic_model import INFINIBAND, Costs, critical_batch, replay

#: Seconds of a batch, and of an example.
FIXED_S, EACH_S = 40e-6, 1e-6


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
