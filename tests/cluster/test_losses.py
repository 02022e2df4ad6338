"""Losses of jobs on real processes: three of four workers are killed in every job."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from distributed import Client

import elasticml as em
from tests.unit.algorithms.linear import test_classes_of_jobs as classes
from tests.unit.algorithms.linear.test_losses_of_jobs import CASES, L2, X

pytestmark = pytest.mark.cluster

MEMBERS = 4
#: The workers that are killed come back before the job may end.
FAULTS = [
    {"round": 1, "lose": 1, "how": "kill", "phase": "compute"},
    {"round": 2, "lose": 1, "how": "kill", "phase": "reduce"},
    {"round": 3, "lose": 1, "how": "kill", "phase": "compute"},
    {"round": 4, "return": 3},
]


@pytest.fixture(scope="module")
def client() -> Generator[Client]:
    with em.LocalCluster(MEMBERS) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def result_of_kills(client: Client, algorithm: Any, data: Any, name: str) -> em.Result:
    """Run a job to its end while three of its four members are killed and replaced."""
    job = em.Job(
        algorithm,
        data,
        name=name,
        stop=em.Stop(rounds=3000),
        faults=FAULTS,
        chunk_size="1 KiB",
    )
    handle = job.start(client)
    lost = [record for record in handle if record["event"] == "MemberLost"]
    result = handle.result()
    assert len(lost) == 3
    assert result.summary["converged"], result.summary
    return result


def distance(result: em.Result) -> float:
    """Bound the distance to the optimum: the objective is strongly convex."""
    gap = result.summary.get("gap") or 0.0
    return max(1e-6, (2.0 * gap / L2) ** 0.5)


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("huber", "cocoa"),
        ("quantile", "cocoa"),
        ("huber", "tron"),
        ("quantile", "lbfgs"),
        ("poisson", "lbfgs"),
        ("gamma", "tron"),
        ("tweedie", "lbfgs"),
    ],
)
def test_three_kills_do_not_change_the_optimum(client: Client, name: str, algorithm: Any) -> None:
    settings, y, reference = CASES[name]
    made: Any
    if algorithm == "cocoa":
        made = em.CoCoA(**settings, l2=L2, tolerance=1e-12, intercept=False, scale="none")
    else:
        made = em.BatchGradient(
            **settings, l2=L2, optimizer=algorithm, tolerance=1e-10, intercept=False, scale="none"
        )
    result = result_of_kills(client, made, em.from_arrays(X, y), f"{name}-{algorithm}")
    w, objective = reference()
    assert abs(result.summary["objective"] / objective - 1.0) < 1e-8
    np.testing.assert_allclose(result.arrays["coef"][0], w, atol=distance(result))
    if algorithm == "cocoa":
        assert 0.0 <= result.summary["gap"] <= 1e-12


@pytest.mark.parametrize(
    ("loss", "algorithm"),
    [
        ("logistic", "lbfgs"),
        ("logistic", "tron"),
        ("squared_hinge", "tron"),
        ("logistic", "cocoa"),
        ("hinge", "cocoa"),
    ],
)
def test_three_kills_do_not_change_the_optimum_of_several_classes(
    client: Client, loss: Any, algorithm: Any
) -> None:
    made: Any
    settings = {"loss": loss, "l2": L2, "class_weight": classes.WEIGHTS, "intercept": False}
    if algorithm == "cocoa":
        made = em.CoCoA(**settings, tolerance=1e-3 if loss == "hinge" else 4e-12, scale="none")
    else:
        made = em.BatchGradient(**settings, optimizer=algorithm, tolerance=1e-10, scale="none")
    data = em.from_arrays(classes.X, classes.Y, classes.S)
    result = result_of_kills(client, made, data, f"{loss}-{algorithm}-classes")
    if algorithm == "cocoa":
        assert 0.0 <= result.summary["gap"] <= made.tolerance
    if loss == "hinge":
        return
    if loss == "logistic" and algorithm != "cocoa":
        reference = classes.multinomial(fit_intercept=False)
        coef, objective = reference.coef_, classes.objective_of(reference)
    else:
        coef, objective = classes.each_against_rest(loss)
    assert abs(result.summary["objective"] / objective - 1.0) < 1e-8
    np.testing.assert_allclose(result.arrays["coef"], coef, atol=distance(result))
    margins = classes.X @ coef.T
    np.testing.assert_array_equal(
        result.model.predict(classes.X), classes.LABELS[margins.argmax(axis=1)]
    )


def test_three_kills_do_not_change_the_optimum_with_an_offset(client: Client) -> None:
    made = em.CoCoA(loss="logistic", l2=L2, offset=1, tolerance=1e-12, scale="none")
    signs = np.where(CASES["poisson"][1] > 1.0, 1.0, -1.0)
    result = result_of_kills(client, made, em.from_arrays(X, signs), "logistic-offset")
    here = em.LogisticRegression(C=1.0 / (L2 * len(X)), fit_intercept=False, tol=1e-13)
    here.fit(np.column_stack([X, np.ones(len(X))]), signs, offset=1)
    np.testing.assert_allclose(result.arrays["coef"], here.coef_[:, :-1], atol=distance(result))
    assert result.arrays["coef"][0, 1] == 1.0
    assert 0.0 <= result.summary["gap"] <= 1e-12


def test_poisson_regression_as_a_job_is_the_one_in_process(client: Client) -> None:
    y = CASES["poisson"][1]
    here = em.PoissonRegressor(alpha=L2, tol=1e-12).fit(X, y)
    there = em.PoissonRegressor(alpha=L2, tol=1e-12, client=client).fit(X, y)
    assert (here.solver_path_, there.solver_path_) == ("in-process", "job")
    np.testing.assert_allclose(there.coef_, here.coef_, atol=1e-6)
    assert 0.0 <= there.dual_gap_ <= 1e-10


def test_a_member_that_reads_a_label_out_of_the_domain_ends_the_job_with_the_reason(
    client: Client,
) -> None:
    y = np.linspace(-1.0, 3.0, 1500)  # too many distinct labels for the statistics
    job = em.Job(
        em.BatchGradient(loss="poisson", intercept=False, tolerance=0.0, scale="none"),
        em.from_arrays(y[:, None], y),
        name="negative",
    )
    with pytest.raises(em.ElasticmlError, match="loss: poisson found the label -1"):
        job.run(client)


def test_the_others_take_over_a_killed_members_examples_in_the_next_round(client: Client) -> None:
    """A stand-in took their place for as long as it took to replace the worker."""
    cluster, data = client.cluster, em.from_arrays(X, CASES["poisson"][1])
    settings, _, _ = CASES["poisson"]
    job = em.Job(
        em.BatchGradient(
            **settings, l2=L2, optimizer="gd", tolerance=0.0, intercept=False, scale="none"
        ),
        data,
        name="taken over",
        stop=em.Stop(rounds=10**6),
        chunk_size="1 KiB",
    )
    handle = job.start(client)
    records = iter(handle)
    next(record for record in records if record["event"] == "RoundEnded")
    cluster.lose([cluster.workers()[0].name])
    next(record for record in records if record["event"] == "ChunksAbsent")
    between = []
    for record in records:
        if record["event"] == "GroupReadmitted":
            break
        between.append(record["event"])
    assert between.count("RoundEnded") <= 1
    returned = next(record for record in records if record["event"] == "GroupReturned")
    assert len(returned["members"]) > 1
    rows = (record for record in records if record["event"] == "RoundEnded")
    next(rows)
    assert not next(rows).get("absent_examples")
    handle.cancel()
    cluster.bring_back(1)
