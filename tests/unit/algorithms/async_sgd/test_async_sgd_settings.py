"""Settings of asynchronous SGD: one-line errors, and the worker loop that they configure."""

from __future__ import annotations

import math

import numpy as np
import pytest

from elasticml.algorithms.async_sgd.batch_controllers import AdaptiveB, Fixed
from elasticml.algorithms.async_sgd.build_plan import plan
from elasticml.algorithms.async_sgd.kmeans import KMeans
from elasticml.algorithms.async_sgd.paper import Paper
from elasticml.data.chunks.body import Layout
from elasticml.data.dataset_stats import DatasetStats
from elasticml.specification.algorithms import AsyncSGD

FACTS = DatasetStats(
    n_rows=1000,
    n_columns=7,
    classes=(0.0, 1.0),
    label_counts={0.0: 500, 1.0: 500},
    layout=Layout(kind="dense", dtype="float64", n_columns=7),
    weight_sum=1000.0,
    n_blocks=1,
)


def loop_of(*problem, **given):
    return plan(AsyncSGD(*problem, **given).section(), FACTS).loop


def test_the_default_is_a_fixed_batch_and_one_slot_for_the_newest_state():
    loop = loop_of("kmeans", k=100)
    assert loop.problem == KMeans(clusters=100, columns=7)
    assert (loop.batch, loop.queue, loop.newest, loop.sends) == (300, 1, True, 1)
    assert isinstance(loop.controller(), Fixed)
    assert loop_of("kmeans", k=5).batch == 256
    assert loop_of("linear").batch == 32


def test_the_papers_controller_keeps_a_deep_queue_and_moves_by_a_twentieth():
    loop = loop_of("kmeans", k=4, mode="paper", batch="adaptive")
    assert loop.problem == Paper(problem=KMeans(clusters=4, columns=7), rate=0.05)
    assert (loop.queue, loop.newest) == (16, False)
    assert isinstance(loop.controller(), AdaptiveB)
    assert loop.controller() is not loop.controller()


@pytest.mark.parametrize("batch", ["inf", math.inf])
def test_an_infinite_batch_sends_nothing(batch):
    """SimuParallelSGD: steps go on, it is the communication interval that is infinite."""
    loop = loop_of("kmeans", k=4, batch=batch)
    assert (loop.sends, loop.batch) == (0, 256)


def begun(section):
    result = plan({"k": 2, **section}, FACTS)
    with pytest.raises(StopIteration) as end:
        next(result.start())
    return result.loop.problem.begin(end.value.value)


def test_a_warm_start_is_used_without_asking_the_members():
    state = begun({"warm_start": {"centres": np.eye(2, 7).tolist(), "counts": [3, 4]}})
    assert state["counts"].tolist() == [3.0, 4.0]
    linear = {"problem": "linear", "k": None, "intercept": True}
    state = begun({**linear, "warm_start": {"coef": [[1.0] * 7], "intercept": [2.0]}})
    assert state["coef"].tolist() == [1.0] * 7 + [2.0]
