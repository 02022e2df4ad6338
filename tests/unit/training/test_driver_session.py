"""Whether a job has converged."""

from typing import Any

import pytest

from elasticml.algorithms.base import Model
from elasticml.control.driver_settings import DriverSettings
from elasticml.training.driver_session import has_converged


@pytest.mark.parametrize(
    ("model", "settings", "expected"),
    [
        ({"gap": 9e-7}, {"gap_target": 1e-6}, True),
        ({"gap": 2e-6}, {"gap_target": 1e-6}, False),
        ({"gap": None}, {"gap_target": 1e-6}, False),
        ({"objective": 0.5}, {"objective_target": 0.5}, True),
        ({"objective": None}, {"objective_target": 0.5}, False),
        ({"converged": True}, {}, True),
        ({"gap": 1e-9, "objective": 0.1}, {}, False),
    ],
)
def test_a_job_has_converged_if_the_trainer_says_so_or_its_target_is_reached(
    model: dict[str, Any], settings: dict[str, Any], expected: bool
) -> None:
    made = Model(**{"arrays": {}, "converged": False, "reason": "stopped as asked", **model})
    assert has_converged(made, DriverSettings(**settings)) == expected
