"""Holders of a chunk, initial placement, and warm starts."""

from pathlib import Path

import numpy as np
import pandas
import pytest

import elasticml as em
from elasticml.errors import ConfigError
from elasticml.job import resolve_holders
from elasticml.jobs.job_spec import parse_cache, policy_entries
from elasticml.jobs.warm_start import load_warm_start
from elasticml.models.model import LinearModel
from elasticml.policies.rebalance import Rebalance
from elasticml.sim.simulation import simulate
from elasticml.specification.algorithms import CoCoA


@pytest.mark.parametrize(
    ("given", "got", "wanted"),
    [
        ("flights.csv", "'flights.csv'", r"em\.read_csv\('flights.csv', label=\.\.\.\)"),
        (Path("a.svm.gz"), "'a.svm.gz'", r"em\.read_svmlight\('a.svm.gz'\)"),
        (np.ones((2, 2)), "numpy.ndarray", r"em\.from_arrays\(X, y\)"),
        (CoCoA(), ".*CoCoA", r"em\.Job\(algorithm, data\), in this order"),
        (pandas.DataFrame({"a": ["x"]}), "pandas.*DataFrame", r"em\.from_frame"),
    ],
)
def test_data_that_are_no_source_are_refused_at_once(given, got, wanted):
    with pytest.raises(ConfigError, match=f"data: got {got}, wanted a source: {wanted}"):
        em.Job(CoCoA(), given)
    with pytest.raises(ConfigError, match=f"data.test: got {got}, wanted a source"):
        em.Job(CoCoA(), em.from_arrays(np.ones((2, 2)), [0, 1]), test=given)


@pytest.mark.parametrize(
    ("algorithm", "remedy", "followed"),
    [
        (
            em.BatchGradient(loss="smoothed_hinge"),
            "algorithm cocoa, or stop.objective",
            em.CoCoA(loss="smoothed_hinge", l2=1e-2),
        ),
        (
            em.BatchGradient(loss="poisson", l2=0.0),
            "algorithm batch_gradient with l2 above 0, or stop.objective",
            em.BatchGradient(loss="poisson", l2=1e-3),
        ),
        (
            em.BatchGradient(l2=0.0),
            "algorithm cocoa with l2 above 0, or stop.objective",
            em.CoCoA(loss="logistic", l2=1e-3),
        ),
        (
            em.AsyncSGD(problem="linear", loss="hinge", l2=1e-2),
            "algorithm cocoa, or stop.objective",
            em.CoCoA(loss="hinge", l2=1e-2),
        ),
        (em.AsyncSGD(k=2), "stop.objective", None),
    ],
)
def test_the_remedy_for_a_gap_that_no_job_certifies_works(algorithm, remedy, followed):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    data = em.from_arrays(X, (X @ [1.0, -1.0, 0.5] + rng.normal(size=80) > 0).astype(float))
    with pytest.raises(ConfigError) as caught:
        em.Job(algorithm, data, stop=em.Stop(gap=1e-3))
    assert str(caught.value).endswith(f" certifies no duality gap; use {remedy}")
    if followed is not None:
        job = em.Job(followed, data, stop=em.Stop(gap=1e-3, rounds=100), evaluate=False)
        assert simulate(job.record("j", 2), job.source).rows[-1]["gap"] <= 1e-3


@pytest.mark.parametrize(
    ("limits", "holders"),
    [([100, 100], 2), ([100, 99], 1), ([0, 1], 2), ([1000], None), ([50, 50, 50, 50], 2)],
)
def test_every_chunk_has_two_holders_if_everything_fits_twice(limits, holders):
    assert resolve_holders("auto", CoCoA(), 100, limits) == holders


def test_policies_are_given_as_objects_names_or_mappings():
    value = [Rebalance(), "redeal", {"name": "knee"}]
    assert [entry["name"] for entry in policy_entries(value)] == ["rebalance", "redeal", "knee"]


class UserPolicy:
    """A user's own policy."""

    name = "own"

    def __init__(self, *, level: int = 3) -> None:
        self.level = level

    def suggest(self, view):
        return []


class Forgetful(UserPolicy):
    def __init__(self, *, level: int = 3) -> None:
        pass


class Nameless:
    def suggest(self, view):
        return []


def test_a_users_policy_is_named_by_its_import_path():
    assert policy_entries([UserPolicy(level=5)]) == [{"name": f"{__name__}:UserPolicy", "level": 5}]


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Forgetful(), "no attribute 'level'; a policy has a name and keeps its settings"),
        (Nameless(), "no attribute 'name'; a policy has a name"),
        (f"{__name__}:Nameless", "Nameless' has no name for the story; give the"),
        (UserPolicy, "wanted a name or a mapping"),
        (5, "got 5, wanted a name or a mapping"),
    ],
)
def test_invalid_policies_are_refused(policy, text):
    with pytest.raises(ConfigError, match=text):
        policy_entries([policy])


MODEL = LinearModel({"coef": np.array([[1.0, 2.0]]), "intercept": np.array([3.0])}, None)


@pytest.mark.parametrize("value", [MODEL, {"coef": [[1.0, 2.0]], "intercept": 3.0, "more": 1}])
def test_a_job_starts_from_a_model_or_its_arrays(value):
    assert load_warm_start(value, CoCoA()) == {"coef": [1.0, 2.0], "intercept": [3.0]}


def test_a_job_starts_from_a_former_runs_result(tmp_path):
    np.savez(tmp_path / "model.npz", coef=[[1.0, 2.0]], classes=[0.0, 1.0])
    assert load_warm_start(tmp_path, CoCoA()) == {"coef": [1.0, 2.0]}
    assert load_warm_start(str(tmp_path / "model.npz"), CoCoA()) == {"coef": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("/nowhere/model.npz", "/nowhere/model.npz: does not exist"),
        (__file__, r"test_job_validation\.py: no model; wanted"),
        ({"intercept": [1.0]}, "no coef in what was given"),
        ({"coef": [float("nan")]}, "coef is not finite"),
        (3, "got 3; wanted a result's model"),
    ],
)
def test_invalid_warm_starts_are_refused(value, text):
    with pytest.raises(ConfigError, match=text):
        load_warm_start(value, CoCoA())


def test_the_cache_is_a_directory_or_a_boolean(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    assert [parse_cache(value) for value in (None, True, False)] == [None, None, False]
    assert (
        parse_cache("$SCRATCH/blocks")
        == parse_cache("blocks", tmp_path)
        == str(tmp_path / "blocks")
    )
    for wrong in (3, "", ["a"], "hdfs:///user/me/blocks"):
        with pytest.raises(ConfigError, match=r"data\.cache: got .*wanted true, false or a dir"):
            parse_cache(wrong)


def test_an_algorithm_on_rows_refuses_columns_and_the_other_way_round():
    X, y = np.eye(4), np.array([0.0, 1.0, 0.0, 1.0])
    with pytest.raises(ConfigError, match="arrays are by columns, and cocoa works on rows; leave"):
        em.Job(CoCoA(), em.from_arrays(X, y, by="columns")).check_data()
    with pytest.raises(ConfigError, match="format arrays is by rows, and primal_cocoa works on"):
        em.Job(em.PrimalCoCoA(), em.from_arrays(X, y)).check_data()
