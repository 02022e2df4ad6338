"""Batch-size controllers as pure functions of their readings."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.base import QueueStatus
from elasticml.algorithms.async_sgd.batch_controllers import AdaptiveB, Fixed, LogPI
from examples.papers.support.nic_model import GIGABIT, Costs, critical_batch, replay


def told(messages, places):
    return QueueStatus(fill=messages / places, examples=0, seconds=0.0)


def followed(controller, batch, readings, places=16):
    batches = []
    for messages in readings:
        batch = controller.next(batch, told(messages, places))
        batches.append(batch)
    return batches


def test_adaptive_b_is_integral_control_on_the_second_last_reading():
    """Delta_q = q_opt - q2: the present length cancels, and the history shifts by one each step."""
    batches = followed(AdaptiveB(target=4.0, gamma=10.0), 1000, [8, 8, 0, 0, 0, 0])
    # q2 before each step: 0, 0, 8, 8, 0, 0.
    changes = np.diff([1000, *batches]).tolist()
    assert changes == [-40, -40, 40, 40, -40, -40]


def test_adaptive_b_stays_within_its_bounds():
    batches = followed(AdaptiveB(target=16.0, gamma=1e6, least=5, most=500), 100, [0] * 3)
    assert batches == [5, 5, 5]
    batches = followed(AdaptiveB(target=0.0, gamma=1e6, least=5, most=500), 100, [9] * 4)
    assert batches == [100, 100, 500, 500]


def test_small_relative_steps_of_a_small_batch_add_up():
    """With rounding at every step, a batch of 10 would never grow by 2.5 %."""
    batches = followed(LogPI(target=0.5, gain=0.05, places=2), 10, [1] * 60, places=2)
    assert batches[-1] > 30


# --- on a Gigabit-Ethernet link, in virtual time -------------------------------------------------


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


def test_one_slot_uses_the_whole_link_and_never_waits():
    costs = Costs(link=GIGABIT, seconds_per_sample=5.1e-6, message_bytes=40_064)
    run = replay(costs, Fixed, batch=300, places=1, seconds=2.0, newest=True)
    assert run.link_use >= 0.98
    assert run.stalled_s == 0.0
    assert run.queue_max <= 1
