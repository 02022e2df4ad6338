"""Asynchronous SGD as a job's algorithm: its record, and refused settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import elasticml as em
from elasticml.errors import ConfigError

DATA = em.from_arrays(np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 2.0)
KMEANS = em.AsyncSGD("kmeans", k=3, report_every=0.5)


def record(algorithm: Any = KMEANS, **changes: Any) -> dict[str, Any]:
    return em.Job(algorithm, DATA, **changes).record("j", 2)


def test_of_the_algorithms_only_it_is_not_deterministic():
    kinds = (KMEANS, em.BatchGradient(), em.CoCoA())
    assert [record(kind)["deterministic"] for kind in kinds] == [False, True, True]


def test_a_job_file_may_select_it(tmp_path):
    job = em.Job.from_sections(
        {
            "data": {"format": "synthetic_splice", "rows": 100},
            "algorithm": {"name": "async_sgd", "problem": "linear", "loss": "squared"},
            "stop": {"seconds": 5},
        },
        folder=tmp_path,
        name="free",
    )
    assert job.algorithm.section()["report_every"] == 1.0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"absent": "taylor"}, "absent: got 'taylor', which algorithm async_sgd cannot follow"),
        ({"stop": em.Stop(seconds=1, gap=0.1)}, "stop.gap: async_sgd certifies no duality gap"),
        ({"policies": ["rebalance"]}, r"policies\[0\]: rebalance relieves members that others"),
        ({"policies": ["knee"]}, r"policies\[0\]: knee decides by the duality gap"),
        ({"warm_start": {"coef": [1.0]}}, "warm_start: no centres in what was given"),
    ],
)
def test_settings_without_meaning_for_it_are_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        record(**changes)


def test_it_starts_from_its_former_result():
    centres = np.arange(6.0).reshape(3, 2)
    value = {"centres": centres, "counts": np.ones(3), "member_centres": -centres}
    assert record(warm_start=value)["algorithm"]["warm_start"] == {
        "centres": centres.tolist(),
        "counts": [1.0, 1.0, 1.0],
    }


def test_it_starts_from_a_linear_model():
    linear = em.AsyncSGD("linear", loss="squared")
    made = record(linear, warm_start={"coef": [[1.0, 2.0]], "intercept": [0.5]})
    assert made["algorithm"]["warm_start"] == {"coef": [1.0, 2.0], "intercept": [0.5]}
