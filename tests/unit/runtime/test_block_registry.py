"""The data at the driver: limits of the dataset statistics, and bodies that are no longer
needed.
"""

from __future__ import annotations

import numpy as np
import pytest

from elasticml.algorithms.registry import column_bytes
from elasticml.data.readers.arrays import chunks_in_memory, from_arrays
from elasticml.protocol import events as ev
from elasticml.protocol.job_record import job_record
from elasticml.runtime.block_registry import BlockRegistry, columns_that_fit
from elasticml.training.driver_session import DriverSession


def intake_and_desk(n_columns: int) -> tuple[BlockRegistry, DriverSession]:
    source = from_arrays(np.eye(4, n_columns), np.arange(4.0))
    chunks, summaries = chunks_in_memory(source, 1024, 1)
    bodies = {0: [(str(chunk.id), chunk.body) for chunk in chunks]}
    return BlockRegistry(bodies, summaries), DriverSession(job_record({"job": "j"}), source)


def test_more_columns_than_a_model_may_have_are_a_clear_error():
    # One index of 2,000,000,000 in a file exhausted the scheduler's memory.
    data, driver_session = intake_and_desk(5)
    driver_session.columns_max = 4
    event = driver_session.set_facts(data.summaries(), survey=False, now_s=0.0)
    assert isinstance(event, ev.Failed)
    assert "have 5 columns, wanted at most 4" in event.reason
    assert driver_session.facts is None


@pytest.mark.parametrize(
    ("driver", "members", "columns"),
    [
        (160, [], 1),
        (160, [(0, 1)], 1),
        (1600, [(64, 1)], 1),
        (160, [(6400, 1)], 1),
        (1600, [(640, 1), (320, 2)], 4),
        (1600, [(640, 1), (560, 4)], 5),
    ],
)
def test_the_smallest_memory_determines_how_many_columns_fit(driver, members, columns):
    assert columns_that_fit(driver, members) == columns


def test_an_optimizers_memory_per_column_counts():
    lbfgs = column_bytes({"name": "batch_gradient"})
    # Ten pairs, one more under construction, and all of them in a checkpoint.
    assert lbfgs == 2 * 8 * 22
    assert columns_that_fit(10 * (160 + lbfgs), [], lbfgs) == 10
    for section in (
        {"name": "batch_gradient", "optimizer": "gd"},
        {"name": "batch_gradient", "mode": "paper"},
        {"name": "cocoa"},
        {"name": "nowhere.to_be_found:ALGORITHM"},
    ):
        assert column_bytes(section) == 0


def test_a_member_that_takes_over_chunks_gets_only_these():
    source = from_arrays(np.ones((100, 4)), np.arange(100.0))
    chunks, summaries = chunks_in_memory(source, 1024, 1)
    ids = [str(chunk.id) for chunk in chunks]
    data = BlockRegistry({0: [(str(chunk.id), chunk.body) for chunk in chunks]}, summaries)
    expected = [chunks[2].id, chunks[0].id]
    sent = [frame.prefix["chunk"] for frame in data.frames({0}, only=expected)]
    assert (sent, len(ids) > 3) == ([ids[0], ids[2]], True)
