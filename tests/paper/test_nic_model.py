"""Members on shared network cards, against arithmetic by hand."""

from __future__ import annotations

import pytest

from elasticml.algorithms.async_sgd.batch_controllers import Fixed
from examples.papers.support.nic_model import Costs, Link, World, critical_batch

#: Four members to a card; a message takes 1 ms on it.
CARD = Link(1e6, 1e-4, members=4)


def world(costs: Costs, *, n_members: int = 4, batch: float = 10, **more: object) -> World:
    return World(costs=costs, n_members=n_members, controller=Fixed, batch=batch, **more)


def test_merging_and_posting_a_message_take_time() -> None:
    costs = Costs(Link(1e12, 0.0), 1e-6, 1000, post_s=3e-6, batch_s=0.0, merge_s=7e-6)
    run = world(costs, n_members=2, batch=100).prepare().run(samples=1000)
    turns_s = 10 * (100e-6 + 3e-6)
    assert run.merged > 0
    # Each member merges at most once per batch, and no other time is spent.
    assert turns_s < run.now <= turns_s + 10 * 7e-6 + 1e-8
    assert run.stalled_s == 0.0


def test_below_the_critical_size_the_card_is_full_and_above_it_nobody_stalls() -> None:
    costs = Costs(CARD, 1e-5, 1000, post_s=1e-5, batch_s=5e-5, merge_s=0.0)
    # 4 messages of 1 ms each in a turn of b times 10 us and 60 us.
    assert critical_batch(costs) == pytest.approx((4e-3 - 6e-5) / 1e-5)
    small = world(costs, batch=40).prepare().run(samples=4000)
    assert small.link_use > 0.95
    # The last member has posted its last message when four queues of sixteen are not yet empty.
    assert small.now == pytest.approx((4 * 100 - 4 * 16) * 1e-3, rel=0.02)
    assert small.stalled_s > 0.5 * 4 * small.now
    large = world(costs, batch=800).prepare().run(samples=8000)
    assert large.stalled_s == 0.0
    assert large.link_use < 0.6
