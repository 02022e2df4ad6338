"""The tasks that bring a member its partitions: what is bound to its worker, what is shared."""

from __future__ import annotations

import dask.array as da

from elasticml.data.readers.dask_collections import from_dask
from elasticml.runtime.partitions import closure, only_users


def graph_of(X, y):
    source = from_dask(X, y)
    return source.partition_graph()


def test_what_a_single_block_needs_is_its_own():
    X = da.random.default_rng(0).normal(size=(40, 3), chunks=(10, 3)) * 2.0
    graph = graph_of(X, da.ones(40, chunks=10))
    users = only_users(graph.tasks, graph.inputs)
    assert set(users.values()) == {0, 1, 2, 3}
    assert users.keys() == graph.tasks.keys()


def test_tasks_that_the_scheduler_has_are_not_submitted_again():
    X = da.ones((20, 3), chunks=(10, 3)) + 1.0
    graph = graph_of(X, da.ones(20, chunks=10))
    keys = graph.inputs[0]
    everything = closure(keys, graph.tasks, {})
    assert set(keys) <= set(everything) <= graph.tasks.keys()
    known = {keys[0]: object()}
    assert set(closure(keys, graph.tasks, known)) == set(closure(keys[1:], graph.tasks, {}))
