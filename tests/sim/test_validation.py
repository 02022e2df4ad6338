"""Validation while training, in virtual worlds: kills, returns, the end of the job, checkpoints."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from scipy.special import log_softmax

import elasticml as em
from elasticml.data.readers.arrays import from_arrays
from elasticml.data.scored_rows import held_out_rows, with_scored_rows
from elasticml.errors import ConfigError
from elasticml.ids import is_trained
from elasticml.models.loading import model_of_job
from elasticml.sim.simulation import SimResult, Simulation, simulate
from tests.sim import small_jobs
from tests.sim.small_jobs import column, record

RNG = np.random.default_rng(11)
N, D = 240, 40
X = RNG.normal(size=(N, D))
Y = np.sign(X[:, 0] + 1.5 * RNG.normal(size=N))
SHARE = with_scored_rows(from_arrays(X, Y), share=0.3, seed=0, validation=None)
RULES = {"metric": ["neg_log_loss", "accuracy"], "every": 1, "patience": 0, "min_delta": 0.0}
#: Overfits: 168 rows, 40 noisy columns and nearly no penalty.
ALGORITHM = {"name": "batch_gradient", "l2": 1e-8, "optimizer": "lbfgs"}


def play(source: Any = SHARE, world: Any = None, **changes: Any) -> SimResult:
    return small_jobs.play(world, source, **{"algorithm": ALGORITHM, "validate": RULES, **changes})


@cache
def undisturbed() -> SimResult:
    return play()


def held_rows(source: Any) -> tuple[Any, Any]:
    read = [source.read(block.index, 768, 6)[0] for block in source.blocks()]
    held = [chunk for chunks in read for chunk in chunks if not is_trained(chunk.id)]
    return np.concatenate([c.values for c in held]), np.concatenate([c.labels for c in held])


def neg_log_loss(arrays: Any, source: Any) -> float:
    x, y = held_rows(source)
    z = x @ arrays["coef"].ravel() + float(np.ravel(arrays["intercept"])[0])
    return -float(np.logaddexp(0.0, -y * z).mean())


def test_every_model_is_scored_in_the_first_exchange_of_the_next_round():
    result = undisturbed()
    scores = column(result, "validation_neg_log_loss")
    assert scores[0] is None
    assert None not in scores[1:]
    first = next(number for number in range(1, 5) if number in result.snapshots)
    expected = neg_log_loss(result.snapshots[first], SHARE)
    assert scores[first] == pytest.approx(expected, rel=1e-12)
    plain = simulate(record(algorithm=ALGORITHM), from_arrays(X, Y))
    operations = {r["operation"] for r in result.story if r["event"] == "ExchangeEnded"}
    known = {r["operation"] for r in plain.story if r["event"] == "ExchangeEnded"}
    assert operations == known | {"score"}  # the final model alone


@pytest.mark.parametrize("scale", ["none", "auto"])
def test_held_out_rows_are_not_trained_on(scale: str):
    algorithm = {**ALGORITHM, "intercept": True, "scale": scale}
    x, y = held_rows(SHARE)
    is_held = (X[:, None, 0] == x[None, :, 0]).any(axis=1)
    alone = simulate(record(algorithm=algorithm), from_arrays(X[~is_held], Y[~is_held]))
    result = play(algorithm=algorithm)
    assert result.summary["examples"] == N - y.size
    np.testing.assert_allclose(
        column(result, "objective")[:8], column(alone, "objective")[:8], rtol=1e-9
    )


def test_the_job_ends_when_the_score_does_not_improve_and_returns_the_best_model():
    full = column(undisturbed(), "validation_neg_log_loss")
    result = play(validate={**RULES, "patience": 3})
    assert "unconverged" not in result.summary
    scores = column(result, "validation_neg_log_loss")
    assert scores == full[: len(scores)]
    assert len(scores) < len(full)
    best = max(score for score in scores if score is not None)
    at = scores.index(best)
    assert len(scores) == at + 4
    assert result.summary["validation"]["round"] == at
    assert (
        result.summary["validation"]["score"] == best == result.rows[-1]["validation_neg_log_loss"]
    )
    assert neg_log_loss(result.arrays, SHARE) == pytest.approx(best, rel=1e-12)
    assert "validation neg_log_loss has not improved in 3 scores" in result.summary["stopped_by"]
    assert result.summary["objective"] == column(result, "objective")[at]


def test_a_score_is_withheld_while_validation_rows_are_absent():
    faults = [{"round": 4, "lose": 2, "phase": "compute"}, {"round": 9, "return": 2}]
    result = play(faults=faults)
    total = result.summary["validation"]["rows"]
    rows = column(result, "validation_rows")
    scores = column(result, "validation_neg_log_loss")
    others = column(undisturbed(), "validation_neg_log_loss")
    assert scores[:4] == pytest.approx(others[:4], nan_ok=True)
    assert scores[4:9] == [None] * 5
    assert all(n < total for n in rows[4:9])
    assert None not in scores[10:]
    assert set(rows[10:]) == {total}
    assert result.summary["validation"]["withheld"] >= 5


@pytest.mark.parametrize(("algorithm", "how"), [("batch_gradient", "kill"), ("cocoa", "notice")])
def test_reloaded_and_moved_validation_rows_are_the_same(algorithm: str, how: str):
    cocoa = {"name": "cocoa", "l2": 1e-3, "loss": "logistic"}
    section = ALGORITHM if algorithm == "batch_gradient" else cocoa
    faults = [{"round": 5, "lose": 2, "how": how, "grace": 5.0}]
    result = play(algorithm=section, absent="reload", faults=faults)
    total = result.summary["validation"]["rows"]
    rows = [row["validation_rows"] for row in result.rows[8:]]
    assert {n for n in rows if n is not None} == {total}
    score = result.rows[-1]["validation_neg_log_loss"]
    assert neg_log_loss(result.arrays, SHARE) == pytest.approx(score, rel=1e-9)


def test_another_source_validates_and_members_that_own_only_its_rows_may_be_lost():
    more = RNG.normal(size=(60, D))
    other = from_arrays(more, np.sign(more[:, 0]))
    source = with_scored_rows(from_arrays(X, Y), share=None, seed=0, validation=other)
    result = play(source, faults=[{"round": 3, "lose": 3}, {"round": 8, "return": 3}])
    assert result.summary["examples"] == N
    assert result.summary["validation"]["rows"] == 60
    score = result.rows[-1]["validation_neg_log_loss"]
    assert neg_log_loss(result.arrays, source) == pytest.approx(score, rel=1e-9)


def test_a_model_that_has_not_changed_is_not_scored_again():
    # Its model is that of the best certificate, and not every round has one.
    cocoa = {"name": "cocoa", "l2": 1e-3, "loss": "logistic", "gap_every": 4}
    result = play(algorithm=cocoa, absent="reload", validate={**RULES, "patience": 2})
    scores = [s for s in column(result, "validation_neg_log_loss") if s is not None]
    assert len(scores) == len(set(scores)) >= 2
    assert len(scores) < len(result.rows) / 2


def test_a_cancelled_job_returns_the_best_model():
    full = column(undisturbed(), "validation_neg_log_loss")
    simulation = Simulation(record(algorithm=ALGORITHM, validate=RULES), SHARE)
    for records in simulation.run():
        ended = [r for r in records if r["event"] == "RoundEnded"]
        if ended and ended[-1]["round"] >= len(full) - 4:
            simulation.cancel()
    result = simulation.result()
    assert result.state == "cancelled"
    scores = [score for score in column(result, "validation_neg_log_loss")[:-1] if score]
    kept = result.summary["validation"]
    assert kept["score"] == max(scores) > scores[-1]
    assert neg_log_loss(result.arrays, SHARE) == pytest.approx(kept["score"], rel=1e-12)
    assert result.summary["objective"] == column(result, "objective")[kept["round"]]


#: Steps that never end: the last model is one of many, and not the best.
ASYNC = {"name": "async_sgd", "problem": "linear", "batch": 8, "rate": 0.3, "report_every": 0.01}


def test_members_without_barriers_score_the_mean_of_each_report():
    faults = [{"round": 5, "lose": 2}, {"round": 9, "return": 2}]
    result = play(
        world={"compute_s": {"batch": 1e-4, "other": 1e-7}},
        algorithm=ASYNC,
        absent="reload",
        evaluate=None,
        stop={"rounds": 200},
        validate={**RULES, "patience": 6},
        faults=faults,
    )
    kept, rows = result.summary["validation"], result.rows[:-1]
    assert "validation neg_log_loss has not improved in 6 scores" in result.summary["stopped_by"]
    assert {row["validation_rows"] for row in rows if row["validation_neg_log_loss"]} == {
        kept["rows"]
    }
    scores = [row["validation_neg_log_loss"] for row in rows]
    assert kept["score"] == max(score for score in scores if score is not None)
    assert neg_log_loss(result.arrays, SHARE) == pytest.approx(kept["score"], rel=1e-9)
    # Validation rows are not trained on.
    assert result.summary["examples"] == N - kept["rows"]


def by_columns(loss: str, *, weighted: bool) -> Any:
    """Make data by columns, a share held out, and a function that scores a model on that share."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(160, 30)) * (rng.random((160, 30)) < 0.5)
    y = x[:, 0] - x[:, 1] + rng.normal(size=160)
    y = y if loss == "squared" else np.sign(y)
    weights = rng.integers(0, 3, 160).astype(float) if weighted else None
    train = from_arrays(scipy.sparse.csr_array(x), y, sample_weight=weights, by="columns")
    held = held_out_rows(2, 0, 160, 0.3)

    def score(arrays: Any) -> float:
        z = x[held] @ arrays["coef"].ravel() + float(arrays["intercept"][0])
        errors = (y[held] - z) ** 2 if loss == "squared" else np.logaddexp(0.0, -y[held] * z)
        return -float(np.average(errors, weights=None if weights is None else weights[held]))

    return with_scored_rows(train, share=0.3, seed=2, validation=None), score


@pytest.mark.parametrize(("loss", "weighted"), [("squared", True), ("logistic", False)])
def test_members_that_own_columns_score_whole_rows_together(loss: str, weighted: bool):
    source, score = by_columns(loss, weighted=weighted)
    section = {"name": "primal_cocoa", "loss": loss, "l1": 1e-4, "tolerance": 1e-9, "gather": False}
    metric = "neg_mean_squared_error" if loss == "squared" else "neg_log_loss"
    result = play(
        source,
        algorithm=section,
        absent="reload",
        evaluate=None,
        validate={**RULES, "metric": [metric], "patience": 3},
        faults=[{"round": 2, "lose": 2, "how": "kill"}, {"round": 4, "return": 2}],
    )
    kept, scores = result.summary["validation"], column(result, f"validation_{metric}")
    assert f"validation {metric} has not improved in 3 scores" in result.summary["stopped_by"]
    assert kept["score"] == max(s for s in scores if s is not None)
    assert kept["score"] == pytest.approx(score(result.arrays), rel=1e-9)
    assert kept["rows"] == held_out_rows(2, 0, 160, 0.3).sum()


def test_validation_data_by_columns_need_the_features_of_the_training_data():
    train, narrow = (from_arrays(np.ones((4, d)), np.ones(4), by="columns") for d in (3, 2))
    with pytest.raises(ConfigError, match=r"have 3 rows of features, .* the training data 4"):
        with_scored_rows(train, share=None, seed=0, validation=narrow)
    with pytest.raises(ConfigError, match="are by columns, the training data by rows"):
        with_scored_rows(from_arrays(X, Y), share=None, seed=0, validation=narrow)


@pytest.mark.torch
def test_a_network_is_scored_and_its_best_model_returned():
    pytest.importorskip("torch")
    section = {
        "name": "local_sgd",
        "model": "tests.networks:linear",
        "batch": 4,
        "local_steps": 8,
        "learning_rate": 0.5,
        "epochs": 8,
    }
    result = play(
        algorithm=section,
        absent="reload",
        stop={},
        validate={**RULES, "patience": 4},
        evaluate=None,
        faults=[{"round": 2, "lose": 2}, {"round": 4, "return": 2}],
    )
    kept = result.summary["validation"]
    scores = [s for s in column(result, "validation_neg_log_loss")[:-1] if s is not None]
    assert kept["score"] == max(scores)
    assert kept["scores"] >= 4
    x, y = held_rows(SHARE)
    model: Any = model_of_job(section, result.facts, result.arrays)
    logs = log_softmax(model.decision_function(x), axis=1)
    logs = logs[np.arange(y.size), np.searchsorted(model.classes_, y)]
    assert kept["score"] == pytest.approx(float(logs.mean()), rel=1e-4)


def test_held_out_rows_of_a_table_are_in_no_vocabulary(tmp_path: Path) -> None:
    n = 40
    held = held_out_rows(0, 0, n, 0.2)
    cells = [(1000 if held[i] else i % 7, "held" if held[i] else "ab"[i % 2]) for i in range(n)]
    rows = [f"{x},{c},{i % 2}" for i, (x, c) in enumerate(cells)]
    (tmp_path / "t.csv").write_text("\n".join(["x,c,y", *rows]) + "\n")
    job = em.Job(
        em.BatchGradient(),
        em.read_csv(tmp_path / "t.csv", label="y"),
        validate=0.2,
        stop=em.Stop(rounds=3),
        evaluate=False,
    )
    result = simulate(job.record("j", 2), job.source)
    assert result.facts is not None
    counts = result.facts.n_rows, result.facts.scored_rows["validation"]
    assert counts == (n - held.sum(), held.sum())
    assert result.facts.vocabularies == {"c": ("a", "b")}
    # What warns of columns that give the label away reads all rows.
    assert result.facts.moments["x"].sums[:2] == (n, sum(x for x, _ in cells))
