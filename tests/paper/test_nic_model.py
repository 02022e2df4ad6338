"""Members on shared network cards, against arithmetic by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.batch_controllers import Fixed
from elasticml.algorithms.async_sgd.kmeans import KMeans
from elasticml.data.chunks.chunk import dense_chunk
from elasticml.ids import ChunkId
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


def test_a_state_takes_one_slot_for_any_number_of_recipients() -> None:
    costs = Costs(CARD, 1e-5, 1000, post_s=0.0)
    # Three members, two messages of 1 ms each in a batch of 8 ms.
    run = world(costs, n_members=3, batch=800, sends=2, places=1).prepare().run(samples=8000)
    assert run.posted == 3 * 10 * 2
    assert run.queue_max == 1
    assert run.stalled_s == 0.0
    assert run.link_use == pytest.approx(6 / 8, rel=0.1)
    # No more recipients than others exist, and none twice.
    pair = world(costs, n_members=2, batch=800, sends=5).prepare().run(samples=8000)
    assert pair.posted == 2 * 10


def test_an_infinite_mini_batch_is_a_whole_pass() -> None:
    rng = np.random.default_rng(0)
    chunks = [[dense_chunk(ChunkId("x", i, 0), np.zeros(40), rng.random((40, 2)))] for i in (0, 1)]
    run = world(
        Costs(CARD, 1e-3, 100),
        n_members=2,
        batch=math.inf,
        problem=KMeans(clusters=2, columns=2),
        start={"centres": np.eye(2)},
    )
    run.prepare(chunks).run(passes=1)
    assert [member.processed for member in run.members] == [40, 40]
