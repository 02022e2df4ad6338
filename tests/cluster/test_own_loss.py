"""Jobs with a user's loss or penalty on real processes: their optimum is scipy's, and certified."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
import yaml
from distributed import Client
from sklearn.exceptions import ConvergenceWarning

import elasticml as em
from tests.log_cosh import LOG_COSH, LogCosh
from tests.own_penalties import BY_NUMPY, ROUNDED, Silent
from tests.reference import Reference
from tests.run_command import end_run, start_run

pytestmark = pytest.mark.cluster

L2 = 1e-2


def drawn() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 6))
    return X, X @ rng.normal(size=6) + rng.standard_t(2, size=2000) + 0.3


def test_a_job_file_names_a_loss_of_its_folder_and_a_worker_is_killed(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "log_cosh.py"
    (tmp_path / "mine.py").write_text(source.read_text())
    X, y = drawn()
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    job = {
        "data": {"format": "npz", "path": "rows.npz", "chunk_size": 100},
        "algorithm": {
            "name": "cocoa",
            "loss": "mine:LogCosh",
            "l2": L2,
            "scale": "none",
            "tolerance": 1e-9,
        },
        "cluster": {"workers": 2},
        "faults": [{"round": 2, "lose": 1, "how": "kill"}, {"round": 5, "return": 1}],
        "stop": {"rounds": 200},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    code, out, err = end_run(start_run(tmp_path, "job.yaml", "--out", "run", "--json"))
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert (summary["lost"], summary["converged"]) == (1, True)
    least = Reference(X=X, y=y, loss=LOG_COSH, l2=L2, has_intercept=True, constant=1.0).least
    assert summary["objective"] == pytest.approx(least, rel=1e-8)
    assert 0.0 <= summary["objective"] - least + 1e-12 <= summary["gap"] + 2e-12
    model = em.load_model(tmp_path / "run")
    np.testing.assert_array_equal(model.predict(X[:3]), model.decision_function(X[:3]))


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with em.LocalCluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


@pytest.mark.parametrize(
    ("loss", "by"),
    [
        (LogCosh, "rows"),
        pytest.param("tests.log_cosh:LogCosh", "columns", marks=pytest.mark.slow),
    ],
)
def test_a_loss_by_its_path_or_class_is_certified(client: Client, loss, by: str) -> None:
    X, y = drawn()
    settings: dict = {"l2": L2, "intercept": False, "tolerance": 1e-10}
    algorithm = (
        em.BatchGradient(loss=loss, scale="none", penalise="raw", **settings)
        if by == "rows"
        else em.PrimalCoCoA(loss=loss, l1=0.0, **settings)
    )
    result = em.Job(algorithm, em.from_arrays(X, y, by=by)).run(client)
    least = Reference(X=X, y=y, loss=LOG_COSH, l2=L2).least
    assert result.summary["objective"] == pytest.approx(least, rel=1e-8)
    assert 0.0 <= result.summary["gap"] <= 1e-9
    np.testing.assert_array_equal(
        result.model.predict(X[:3]), result.model.decision_function(X[:3])
    )


def test_a_job_with_a_penalty_survives_a_killed_worker_and_says_if_it_has_no_gap() -> None:
    X, y = drawn()
    data = em.from_arrays(X, y, by="columns")
    faults = [{"round": 2, "lose": 1, "how": "kill"}, {"round": 5, "return": 1}]
    with em.LocalCluster(2) as cluster, Client(cluster, set_as_default=False) as client:
        algorithm = em.PrimalCoCoA(penalty=ROUNDED, tolerance=1e-10)
        result = em.Job(algorithm, data, faults=faults).run(client)
        with pytest.warns(ConvergenceWarning, match="Silent has no method conjugate"):
            silent = em.Job(em.PrimalCoCoA(penalty=Silent), data).run(client)
    given = {"X": X, "y": y, "loss": "squared", "has_intercept": True}
    least = Reference(**given, penalty=BY_NUMPY[ROUNDED]).least
    assert (result.summary["lost"], result.summary["converged"]) == (1, True)
    assert result.summary["objective"] == pytest.approx(least, rel=1e-8)
    assert 0.0 <= result.summary["gap"] <= 1e-10
    least = Reference(**given, penalty=BY_NUMPY["tests.own_penalties:Silent"]).least
    assert silent.summary["objective"] == pytest.approx(least, rel=1e-8)
    assert (silent.summary["gap"], silent.summary["converged"]) == (None, False)
