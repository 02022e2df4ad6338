"""Batch-size controllers as pure functions of their readings, and on modelled networks."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.base import QueueStatus
from elasticml.algorithms.async_sgd.batch_controllers import (
    BATCH_MAX,
    SEEN_MIN,
    STRETCH,
    AdaptiveB,
    LogPI,
)
from examples.papers.support.nic_model import GIGABIT, INFINIBAND, Costs, critical_batch, replay


def followed(controller, batch, readings, places=16):
    batches = []
    for messages in readings:
        queue = QueueStatus(fill=messages / places, examples=0, seconds=0.0)
        batch = controller.next(batch, queue)
        batches.append(batch)
    return batches


def test_adaptive_b_is_integral_control_on_the_second_last_reading():
    """Delta_q = q_opt - q2: the present length cancels, and the history shifts by one each step."""
    batches = followed(AdaptiveB(target=4.0, gamma=10.0), 1000, [8, 8, 0, 0, 0, 0])
    # q2 before each step: 0, 0, 8, 8, 0, 0.
    changes = np.diff([1000, *batches]).tolist()
    assert changes == [-40, -40, 40, 40, -40, -40]


def test_adaptive_b_stays_within_its_bounds():
    batches = followed(AdaptiveB(target=16.0, gamma=1e6), 100, [0] * 3)
    assert batches == [1, 1, 1]
    batches = followed(AdaptiveB(target=0.0, gamma=1e7), 100, [9] * 4)
    assert batches == [100, 100, BATCH_MAX, BATCH_MAX]


def test_small_relative_steps_of_a_small_batch_add_up():
    """With rounding at every step, a batch of 10 would never grow by 2.5 %."""
    batches = followed(LogPI(target=0.5, places=2), 10, [1] * 60, places=2)
    assert batches[-1] > 30


# --- the fixed cost of a batch, learned from batches of known duration ---------------------------

#: Seconds of a batch, and of an example.
FIXED_S, EACH_S = 40e-6, 1e-6


def sizes_after(controller, turns):
    """Return the sizes after batches, each with its true duration.

    A turn says how many examples a batch has (none: as many as asked for), how full the queue is,
    and how long an example takes.
    """
    examples, seconds, batch, sizes = 0, 1.0, 4096, []
    for n, fill, each_s in turns:
        n = batch if n is None else n
        examples, seconds = examples + n, seconds + FIXED_S + each_s * n
        batch = controller.next(batch, QueueStatus(fill=fill, examples=examples, seconds=seconds))
        sizes.append(batch)
    return sizes


def test_log_pi_follows_a_member_that_becomes_slower_or_faster():
    for faster in (0.1, 10.0):
        turns = [(None, 0.0, EACH_S)] * 3 * STRETCH + [(None, 0.0, EACH_S / faster)] * 5 * STRETCH
        sizes = sizes_after(LogPI(fixed_share=0.1), turns)
        expected = 9 * FIXED_S / EACH_S
        # Occasionally it goes down for some batches, to measure smaller ones.
        assert np.median(sizes[2 * STRETCH : 3 * STRETCH]) == pytest.approx(expected, rel=0.01)
        assert np.median(sizes[-2 * STRETCH :]) == pytest.approx(faster * expected, rel=0.01)


def test_log_pi_respects_the_smallest_batch_and_follows_the_queue_above_it():
    turns = [(4096, 0.0, EACH_S)] * (SEEN_MIN + 1) + [(64, 0.0, EACH_S)] * 200
    turns += [(400, 0.5, EACH_S)] * 400
    free, bound = (sizes_after(LogPI(fixed_share=share), turns) for share in (None, 0.1))
    expected = round(9 * FIXED_S / EACH_S)
    assert min(free) < expected / 4
    assert min(bound[2 * SEEN_MIN :]) == expected
    assert bound[-1] > 4 * expected


def test_batches_that_waited_for_a_slot_are_ignored():
    turns = [(4096, 1.0, EACH_S)] * 40 + [(64, 1.0, EACH_S)] * 40 + [(64, 0.0, EACH_S)] * 400
    assert min(sizes_after(LogPI(fixed_share=0.1), turns)) < 9 * FIXED_S / EACH_S / 4


# --- on a network, in virtual time ---------------------------------------------------------------


@pytest.mark.parametrize(("share", "seconds", "rest"), [(1.0, 5.0, 2.0), (0.1, 6.0, 4.0)])
def test_log_pi_finds_the_critical_batch(share, seconds, rest):
    costs = Costs(link=GIGABIT.scaled(share), seconds_per_sample=5.1e-6, message_bytes=40_064)
    run = replay(costs, lambda: LogPI(places=2), batch=1000, places=2, seconds=seconds + rest)
    sizes = run.sizes_after(seconds)
    assert np.mean(sizes) == pytest.approx(critical_batch(costs), rel=0.1)
    assert np.std(sizes) / np.mean(sizes) <= 0.1


def test_adaptive_b_with_a_large_gamma_runs_into_a_limit_cycle():
    """Pins the paper's rule: with two readings of delay and a large gain it does not settle."""
    costs = Costs(link=GIGABIT, seconds_per_sample=5.1e-6, message_bytes=40_064)
    run = replay(costs, lambda: AdaptiveB(gamma=50.0), batch=1000, places=16, seconds=4.0)
    sizes = run.sizes_after(2.0)
    assert np.std(sizes) / np.mean(sizes) > 0.3


def test_without_a_network_limit_fixed_costs_take_little_time():
    costs = Costs(INFINIBAND, EACH_S, 9824, post_s=5e-6, batch_s=25e-6, merge_s=10e-6)
    assert critical_batch(costs) < 1
    run = replay(costs, lambda: LogPI(fixed_share=0.1), batch=1200, places=2, seconds=0.4)
    late = run.sizes_after(0.2)
    speed = late.sum() * EACH_S / (16 * 0.2)
    # The quickest batches have no merge: the time of merges adds to the tenth.
    assert speed > 0.86
