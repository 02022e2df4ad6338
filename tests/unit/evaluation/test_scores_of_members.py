"""Scores that members compute of training and test rows, against scikit-learn on the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn import metrics as theirs

import elasticml as em
from elasticml.data.readers.arrays import from_arrays
from elasticml.errors import ConfigError, DataError
from elasticml.jobs.follow import follow
from elasticml.jobs.result import Result
from elasticml.jobs.simulated_job import SimulatedJob

RNG = np.random.default_rng(7)
N, D = 300, 6
X = RNG.normal(size=(N, D)) * (RNG.random((N, D)) < 0.7)
Z = X @ np.arange(1.0, D + 1)
NOISE = RNG.normal(size=N)
S = RNG.uniform(0.5, 2.0, N)
TWO = np.where(Z + 3.0 * NOISE > 2.0, 5.0, 2.0)
THREE = np.digitize(Z + 3.0 * NOISE, [-2.0, 4.0]) * 2.0
NUMBERS = Z + NOISE
COUNTS = RNG.poisson(np.exp(0.1 * Z)) * 1.0
TRAIN, TEST = slice(0, 200), slice(200, N)


def run(algorithm: Any, y: Any, *, x: Any = X, by: str = "rows", **options: Any) -> Result:
    """Play a job with test rows on three members in virtual time."""
    train, test = (from_arrays(x[at], y[at], S[at], by=by) for at in (TRAIN, TEST))
    return played(em.Job(algorithm, train, **{"test": test, "stop": em.Stop(rounds=9), **options}))


def played(job: em.Job) -> Result:
    return follow(SimulatedJob(job.record("scored", 3), job.source))


def classified(model: Any, x: Any, y: Any, s: Any) -> dict[str, float]:
    scores = {"accuracy": theirs.accuracy_score(y, model.predict(x), sample_weight=s)}
    if model.loss == "logistic":
        p = model.predict_proba(x)
        scores["neg_log_loss"] = -theirs.log_loss(y, p, sample_weight=s, labels=model.classes_)
    return scores


def ranked(model: Any, x: Any, y: Any, s: Any) -> dict[str, float]:
    z, positive = model.decision_function(x), y == model.classes_[-1]
    return {
        "roc_auc": theirs.roc_auc_score(positive, z, sample_weight=s),
        "average_precision": theirs.average_precision_score(positive, z, sample_weight=s),
    }


def regressed(model: Any, x: Any, y: Any, s: Any) -> dict[str, float]:
    p = model.predict(x)
    error = theirs.mean_squared_error(y, p, sample_weight=s)
    return {
        "r2": theirs.r2_score(y, p, sample_weight=s),
        "neg_root_mean_squared_error": -np.sqrt(error),
    }


CASES: list[tuple[Any, Any, str, Any]] = [
    (em.BatchGradient(intercept=True), TWO, "rows", classified),
    (em.BatchGradient(loss="squared_hinge", class_weight="balanced"), TWO, "rows", classified),
    (em.BatchGradient(intercept=True, scale="standard"), THREE, "rows", classified),
    (em.CoCoA(loss="logistic"), THREE, "rows", classified),
    (em.CoCoA(loss="hinge", scale="maxabs"), TWO, "rows", classified),
    (em.AsyncSGD("linear", loss="logistic", passes=2.0), TWO, "rows", classified),
    (em.PrimalCoCoA(loss="logistic", l1=1e-3), TWO, "columns", classified),
    (em.PrimalCoCoA(l1=1e-3, l2=1e-2), NUMBERS, "columns", regressed),
    (em.BatchGradient(loss="squared", intercept=True), NUMBERS, "rows", regressed),
    (em.BatchGradient(loss="poisson", intercept=True), COUNTS, "rows", regressed),
]


@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "y", "by", "expected"),
    CASES,
    ids=lambda one: f"{one.name} {one.loss}" if hasattr(one, "loss") else "",
)
def test_scores_of_both_data_are_scikit_learns(
    algorithm: Any, y: Any, by: str, expected: Any, as_sparse: bool
) -> None:
    result = run(algorithm, y, x=scipy.sparse.csr_array(X) if as_sparse else X, by=by)
    model: Any = result.model
    assert result.summary["train"] == pytest.approx(expected(model, X[TRAIN], y[TRAIN], S[TRAIN]))
    test = dict(result.summary["test"])
    if model.classes_ is not None and len(model.classes_) == 2:
        for name, score in ranked(model, X[TEST], y[TEST], S[TEST]).items():
            assert test.pop(name) == pytest.approx(score, abs=5e-3)
    assert test == pytest.approx(expected(model, X[TEST], y[TEST], S[TEST]))
    assert {k.removeprefix("test_") for k in result.history[-1] if k.startswith("test_")} == set(
        result.summary["test"]
    )


def test_test_rows_are_scored_in_the_first_round_and_those_that_the_job_evaluates() -> None:
    result = run(em.BatchGradient(l2=1e-3), TWO, evaluate={"every": 4, "rounds": [6]})
    scored = [row["round"] for row in result.history if row.get("test_accuracy") is not None]
    assert scored == [1, 4, 6, 8, 9]
    last = run(em.BatchGradient(l2=1e-3), TWO, evaluate={"every": 4}, stop=em.Stop(rounds=4))
    assert last.summary["test"]["accuracy"] == result.history[4]["test_accuracy"]
    none = run(em.BatchGradient(l2=1e-3), TWO, evaluate=False).summary
    assert (none["train"], none["test"], none["examples"]) == ({}, {}, 200)


def test_the_metrics_of_the_test_rows_can_be_chosen() -> None:
    algorithm = em.BatchGradient(l2=1e-3)
    chosen = ("f1", "tests.unit.evaluation.test_scores_of_members:surprise")
    result = run(algorithm, TWO, evaluate={"metric": chosen})
    model: Any = result.model
    score = theirs.f1_score(TWO[TEST], model.predict(X[TEST]), pos_label=5.0, sample_weight=S[TEST])
    assert result.summary["test"] == pytest.approx({chosen[0]: score, chosen[1]: 5.0})
    with pytest.raises(ConfigError, match=r"evaluate\.metric: got 'r2': it is for regression"):
        run(algorithm, TWO, evaluate={"metric": "r2"})


def surprise(targets: Any, predictions: Any, weights: Any) -> float:
    assert set(targets) <= {2.0, 5.0}
    return 5.0 * float(weights.sum())


def test_the_best_model_on_the_validation_rows_is_the_one_that_is_scored() -> None:
    result = run(em.BatchGradient(l2=1e-8), TWO, validate=em.Validate(share=0.3, patience=2))
    model: Any = result.model
    kept = result.summary["validation"]["round"]
    assert kept < result.history[-1]["round"]
    assert result.summary["test"]["accuracy"] == pytest.approx(
        theirs.accuracy_score(TWO[TEST], model.predict(X[TEST]), sample_weight=S[TEST])
    )
    assert result.summary["examples"] + result.summary["validation"]["rows"] == 200


def test_scores_of_a_job_that_loses_members_say_how_many_rows_they_are_of() -> None:
    faults = [{"round": 5, "lose": 1}]
    for absent in ("reload", "taylor"):
        result = run(em.BatchGradient(l2=1e-3), TWO, absent=absent, faults=faults, chunk_size=512)
        assert result.summary["lost"] == 1
        rows = result.history[-1].get("test_rows")
        assert (rows is None) == (absent == "reload")
    assert 0 < rows < 100
    assert 0 < result.history[-1]["train_rows"] < 200
    assert f"the test scores are of {rows} rows" in " ".join(result.summary["notes"])


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_a_label_that_training_did_not_have_ends_the_job_in_its_first_round(by: str) -> None:
    y = TWO.copy()
    y[TEST] = np.where(y[TEST] == 5.0, 3.0, 2.0)
    kind = em.PrimalCoCoA(loss="logistic", l1=1e-3) if by == "columns" else em.BatchGradient()
    with pytest.raises(DataError, match="the test rows have the label 3, wanted one of the 2"):
        run(kind, y, by=by)


def test_clusters_have_no_targets_to_score() -> None:
    with pytest.raises(ConfigError, match=r"data\.test: async_sgd finds clusters, which have no"):
        run(em.AsyncSGD("kmeans", k=3), TWO)


def test_predictions_of_an_own_algorithm_are_scored() -> None:
    own = em.ImportedAlgorithm(name="examples.huber:HUBER", step=0.1, delta=1.0)
    result = run(own, NUMBERS)
    error = X[TEST] @ result.arrays["w"] - NUMBERS[TEST]
    expected = -np.sqrt(np.average(error**2, weights=S[TEST]))
    assert result.summary["test"]["neg_root_mean_squared_error"] == pytest.approx(expected)
    assert result.summary["train"] == {}


def test_wider_test_rows_are_cut_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "train.svm").write_text("1 1:1 2:1\n-1 1:2 2:3\n1 1:1\n")
    (tmp_path / "test.svm").write_text("1 1:1 3:9\n-1 2:1\n")
    train, test = (em.read_svmlight(tmp_path / f"{name}.svm") for name in ("train", "test"))
    result = played(em.Job(em.BatchGradient(l2=1e-3), train, test=test, stop=em.Stop(rounds=3)))
    notes = " ".join(result.summary["notes"])
    assert 0.0 <= result.summary["test"]["accuracy"] <= 1.0
    assert "rows to score have up to 3 columns: those beyond the 2 of the model are" in notes


def test_test_rows_of_a_table_are_encoded_as_the_training_rows_are(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": Z, "city": np.where(NOISE > 0, "Rome", "Oslo"), "y": TWO})
    frame.iloc[TRAIN].to_csv(tmp_path / "train.csv", index=False)
    frame.iloc[TEST][["y", "city", "x"]].to_csv(tmp_path / "test.csv", index=False)
    train, test = (em.read_csv(tmp_path / f"{n}.csv", label="y") for n in ("train", "test"))
    result = played(em.Job(em.BatchGradient(), train, test=test, stop=em.Stop(rounds=9)))
    model: Any = result.model
    expected = theirs.accuracy_score(TWO[TEST], model.predict(frame.iloc[TEST]))
    assert result.summary["test"]["accuracy"] == pytest.approx(expected)


def test_a_class_of_one_row_is_a_warning() -> None:
    words = np.where(TWO == 5.0, "yes", "no").astype(object)
    words[7] = "yess"
    data = em.from_frame(pd.DataFrame({"x": Z, "late": words}), label="late")
    notes = played(em.Job(em.BatchGradient(), data, stop=em.Stop(rounds=2))).summary["notes"]
    text = "label 'yess' of column 'late' occurs in one row of 300: correct the data"
    assert text in " ".join(notes)


@pytest.mark.torch
@pytest.mark.parametrize("shape", [None, (D,)])
def test_test_rows_that_do_not_fit_a_network_are_refused_before_it_trains(shape: Any) -> None:
    pytest.importorskip("torch")
    algorithm = em.LocalSGD(model="tests.networks:linear", shape=shape)
    train = from_arrays(X, TWO)
    em.Job(algorithm, train, test=train).check_data()
    wide = from_arrays(np.hstack([X, X]), TWO)
    with pytest.raises(DataError, match=r"data\.test: .*rows have 12 columns, wanted 6"):
        em.Job(algorithm, train, test=wide).check_data()
    em.Job(em.BatchGradient(), train, test=wide).check_data()  # it says later what it left out


@pytest.mark.torch
def test_a_network_is_scored_on_both_data() -> None:
    pytest.importorskip("torch")
    algorithm = em.LocalSGD(model="tests.networks:linear", batch=8)
    result = run(algorithm, TWO, stop=em.Stop(epochs=2))
    model: Any = result.model
    for at, name in ((TRAIN, "train"), (TEST, "test")):
        expected = theirs.accuracy_score(TWO[at], model.predict(X[at]), sample_weight=S[at])
        assert result.summary[name]["accuracy"] == pytest.approx(expected)
