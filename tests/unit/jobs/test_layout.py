"""How many hold a chunk, how chunks are dealt, and what a job starts from."""

import numpy as np
import pytest

from elasticml.errors import ConfigError
from elasticml.jobs.algorithms import BatchGradient, CoCoA
from elasticml.jobs.layout import holders_of, placement_of, policy_entries
from elasticml.jobs.model import LinearModel
from elasticml.jobs.warm_start import warm_start_of
from elasticml.policies.rebalance import Rebalance


@pytest.mark.parametrize(
    ("limits", "holders"),
    [([100, 100], 2), ([100, 99], 1), ([0, 1], 2), ([1000], 1), ([50, 50, 50, 50], 2)],
)
def test_two_hold_each_chunk_where_everything_fits_twice(limits, holders):
    assert holders_of("auto", CoCoA(), 100, limits) == holders


def test_only_cocoa_makes_use_of_a_second_holder_by_itself():
    assert holders_of("auto", BatchGradient(), 1, [0, 0]) == 1
    assert holders_of(2, BatchGradient(), 1, [0, 0]) == 2


def test_cocoa_draws_the_members_of_its_chunks():
    assert placement_of("auto", CoCoA()) == "random"
    assert placement_of("auto", BatchGradient()) == "contiguous"
    assert placement_of("contiguous", CoCoA()) == "contiguous"


def test_policies_are_given_as_objects_names_or_mappings():
    given = [Rebalance(), "redeal", {"name": "knee"}]
    assert [entry["name"] for entry in policy_entries(given)] == ["rebalance", "redeal", "knee"]


MODEL = LinearModel({"coef": np.array([[1.0, 2.0]]), "intercept": np.array([3.0])}, None)


@pytest.mark.parametrize("given", [MODEL, {"coef": [[1.0, 2.0]], "intercept": 3.0, "more": 1}])
def test_a_job_starts_from_a_model_or_its_arrays(given):
    assert warm_start_of(given, CoCoA()) == {"coef": [1.0, 2.0], "intercept": [3.0]}


def test_a_job_starts_from_what_a_run_has_left(tmp_path):
    np.savez(tmp_path / "model.npz", coef=[[1.0, 2.0]], classes=[0.0, 1.0])
    assert warm_start_of(tmp_path, CoCoA()) == {"coef": [1.0, 2.0]}
    assert warm_start_of(str(tmp_path / "model.npz"), CoCoA()) == {"coef": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("/nowhere/model.npz", "/nowhere/model.npz: does not exist"),
        (__file__, "no model"),
        ({"intercept": [1.0]}, "no coef in what was given"),
        ({"coef": [float("nan")]}, "coef is not finite"),
        (3, "got 3; wanted a result's model"),
    ],
)
def test_what_is_no_model_is_said(given, text):
    with pytest.raises(ConfigError, match=text):
        warm_start_of(given, CoCoA())
