"""Batch-size controllers as pure functions of their readings, and on modelled networks."""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.batch_controllers import BATCH_MAX, AdaptiveB, LogPI
from elasticml.algorithms.async_sgd.build_plan import make_loop
from elasticml.algorithms.async_sgd.kmeans import KMeans
from elasticml.specification.algorithms import AsyncSGD
from examples.papers.support.nic_model import GIGABIT, Costs, critical_batch, replay


def followed(controller, batch, readings, places=16):
    batches = []
    for messages in readings:
        batch = controller.next(batch, messages / places)
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


@pytest.mark.parametrize(("mode", "least"), [("default", 1024), ("paper", 16)])
def test_without_a_network_limit_batches_shrink_in_the_papers_mode_only(mode, least):
    settings = AsyncSGD("kmeans", k=3, batch="auto", mode=mode)
    loop = make_loop(settings, KMeans(clusters=3, columns=2))
    assert loop.batch == 1024
    assert followed(loop.controller(), loop.batch, [0] * 2000)[-1] == least
