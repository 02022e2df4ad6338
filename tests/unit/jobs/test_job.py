"""A job before it starts: what it is given, what it refuses, and what it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from distributed import Client
from distributed.comm import CommClosedError

import elasticml as em
from elasticml.data.storage.filesystem import write_whole
from elasticml.errors import ConfigError, DataError, JobFailedError
from elasticml.job import resolve_holders
from elasticml.jobs.job_spec import policy_entries
from elasticml.jobs.warm_start import load_warm_start
from elasticml.models.model import LinearModel
from elasticml.policies.rebalance import Rebalance

X, Y = np.eye(4), np.array([0.0, 1.0, 0.0, 1.0])
DATA = em.from_arrays(X, Y)
KMEANS = em.AsyncSGD("kmeans", k=3)


@pytest.mark.parametrize(
    ("given", "got", "wanted"),
    [
        ("flights.csv", "'flights.csv'", r"em\.read_csv\('flights.csv', label=\.\.\.\)"),
        (Path("a.svm.gz"), "'a.svm.gz'", r"em\.read_svmlight\('a.svm.gz'\)"),
        (np.ones((2, 2)), "numpy.ndarray", r"em\.from_arrays\(X, y\)"),
        (em.CoCoA(), ".*CoCoA", r"em\.Job\(algorithm, data\), in this order"),
        (pandas.DataFrame({"a": ["x"]}), "pandas.*DataFrame", r"em\.from_frame"),
    ],
)
def test_data_that_are_no_source_are_refused_at_once(given, got, wanted) -> None:
    with pytest.raises(ConfigError, match=f"data: got {got}, wanted a source: {wanted}"):
        em.Job(em.CoCoA(), given)
    with pytest.raises(ConfigError, match=f"data.test: got {got}, wanted a source"):
        em.Job(em.CoCoA(), DATA, test=given)


def test_what_cannot_be_read_or_does_not_fit_is_found_before_anything_starts(tmp_path) -> None:
    path = tmp_path / "bad.svm"
    path.write_text("1 1:2 3:4\n-1 2:1\nfoo 1:2\n")
    columns = em.from_arrays(X, Y, by="columns")
    big = em.Job(em.BatchGradient(), DATA, chunk_size="700 MiB")
    big.check_memory(2 * 2**30)
    big.check_memory(None)
    for check, text in (
        (em.Job(em.CoCoA(), em.read_svmlight(path)).check_data, "bad.svm, line 3, column 1: label"),
        (em.Job(em.CoCoA(), DATA, test=em.read_svmlight("none.svm")).check_data, "none.svm"),
        (em.Job(em.CoCoA(), columns).check_data, "by columns, and cocoa works on rows; leave"),
        (em.Job(em.PrimalCoCoA(), DATA).check_data, "is by rows, and primal_cocoa works on"),
        (lambda: big.check_memory(2**30), "got 700.0 MiB, wanted at most 614.4 MiB"),
    ):
        with pytest.raises((ConfigError, DataError)) as caught:
            check()
        assert text in str(caught.value)


def test_a_scheduler_that_is_lost_while_a_job_is_submitted_is_one_line(monkeypatch) -> None:
    def closed(client, *rest):
        raise CommClosedError("in <TCP (closed)>")

    monkeypatch.setattr("elasticml.jobs.handle.prepare_scheduler", closed)
    with Client(n_workers=1, processes=False, dashboard_address=None) as client:
        with pytest.raises(JobFailedError, match="was lost before the job had started") as lost:
            em.Job(em.BatchGradient(), DATA).start(client)
        assert client.scheduler.address in str(lost.value)


@pytest.mark.parametrize(
    ("limits", "holders"),
    [([100, 100], 2), ([100, 99], 1), ([0, 1], 2), ([1000], None), ([50, 50, 50, 50], 2)],
)
def test_every_chunk_has_two_holders_if_everything_fits_twice(limits, holders) -> None:
    assert resolve_holders("auto", em.CoCoA(), 100, limits) == holders


class UserPolicy:
    """A user's own policy."""

    name = "own"

    def __init__(self, *, level: int = 3) -> None:
        self.level = level

    def suggest(self, view: Any) -> list[Any]:
        return []


class Forgetful(UserPolicy):
    def __init__(self, *, level: int = 3) -> None:
        pass


class Nameless:
    def suggest(self, view: Any) -> list[Any]:
        return []


def test_policies_are_objects_names_or_mappings_and_others_are_refused() -> None:
    entries = policy_entries([Rebalance(), "redeal", {"name": "knee"}, UserPolicy(level=5)])
    names = ["rebalance", "redeal", "knee", f"{__name__}:UserPolicy"]
    assert [entry["name"] for entry in entries] == names
    assert entries[-1]["level"] == 5
    for policy, text in (
        (Forgetful(), "no attribute 'level'; a policy has a name and keeps its settings"),
        (Nameless(), "no attribute 'name'; a policy has a name"),
        (f"{__name__}:Nameless", "Nameless' has no name for the story; give the"),
        (UserPolicy, "wanted a name or a mapping"),
    ):
        with pytest.raises(ConfigError, match=text):
            policy_entries([policy])


# --- warm starts ----------------------------------------------------------------------------------

MODEL = LinearModel({"coef": np.array([[1.0, 2.0]]), "intercept": np.array([3.0])}, None)
CENTRES = {"centres": np.eye(3, 2), "counts": np.ones(3), "member_centres": -np.eye(3, 2)}


@pytest.mark.parametrize(
    ("value", "algorithm", "wanted"),
    [
        (MODEL, em.CoCoA(), {"coef": [1.0, 2.0], "intercept": [3.0]}),
        (MODEL, em.AsyncSGD("linear"), {"coef": [1.0, 2.0], "intercept": [3.0]}),
        ({"coef": [[1.0, 2.0]], "more": 1}, em.CoCoA(), {"coef": [1.0, 2.0]}),
        (CENTRES, KMEANS, {"centres": np.eye(3, 2).tolist(), "counts": [1.0] * 3}),
    ],
)
def test_a_job_starts_from_a_model_or_its_arrays(value, algorithm, wanted) -> None:
    assert load_warm_start(value, algorithm) == wanted


def test_a_job_starts_from_a_former_runs_result(tmp_path) -> None:
    file, url = tmp_path / "model.npz", "memory://former/model.npz"
    np.savez(file, coef=[[1.0, 2.0]], classes=[0.0, 1.0])
    write_whole(url, file.read_bytes())
    for value in (tmp_path, str(file), url):
        assert load_warm_start(value, em.CoCoA()) == {"coef": [1.0, 2.0]}


@pytest.mark.parametrize(
    ("value", "algorithm", "text"),
    [
        ("/nowhere/model.npz", em.CoCoA(), "/nowhere/model.npz does not exist"),
        (__file__, em.CoCoA(), r"test_job\.py is not a model file"),
        ({"intercept": [1.0]}, em.CoCoA(), "no coef in what was given"),
        ({"coef": [float("nan")]}, em.CoCoA(), "coef is not finite"),
        (3, em.CoCoA(), "got 3; wanted a result's model"),
        ({"coef": [1.0]}, KMEANS, "no centres in what was given"),
        ({"coef": [1.0]}, em.BatchGradient(), "algorithm batch_gradient does not support it"),
    ],
)
def test_invalid_warm_starts_are_refused(value, algorithm, text) -> None:
    with pytest.raises(ConfigError, match=f"warm_start: .*{text}"):
        em.Job(algorithm, DATA, warm_start=value).record("j", 2)
