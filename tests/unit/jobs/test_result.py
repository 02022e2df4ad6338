"""A job's result, assembled from the scheduler's records."""

import json

import numpy as np
import pytest
import scipy.sparse

from elasticml.data.readers.arrays import from_arrays
from elasticml.data.source import merge_summaries
from elasticml.errors import ConfigError, DataError, error_to_dict
from elasticml.evaluation.constant_model import constant_loss
from elasticml.jobs.result import History, Result, make_result
from elasticml.jobs.rpc import read_outcome, unwrap_reply
from elasticml.specification.algorithms import CoCoA

X = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
Y = np.array([1.0, 0.0, 0.0, 1.0])
RECORD = {"algorithm": {"name": "batch_gradient", "l2": 0.0}, "members": {"start": 2}}


def wire(*coef):
    data = np.array([coef]).tobytes()
    return {
        "coef": {"shape": [1, len(coef)], "data": data},
        "intercept": {"shape": [1], "data": np.zeros(1).tobytes()},
    }


def answer(**changes):
    source = from_arrays(X, Y)
    facts = merge_summaries([source.survey(0)])
    return {
        "arrays": wire(1.0, -1.0),
        "snapshots": {0: wire(0.0, 0.0)},
        "history": [{"round": 0, "objective": 0.7}, {"round": 1, "objective": None}],
        "summary": {"name": "toy", "objective": None, "objective_missing_because": "gone"},
        "facts": facts.to_json(),
        "state": "done",
        "error": None,
        **changes,
    }


def result_of(reply, job=RECORD):
    outcome = read_outcome(reply)
    return make_result(outcome, job=job, story=(), run_dir=None), outcome


def test_an_answer_becomes_a_model_a_page_and_a_short_text(tmp_path):
    result, _ = result_of(answer(), job={"name": "toy", **RECORD})
    assert result.model.coef_.tolist() == [[1.0, -1.0]]
    assert result.model.classes_.tolist() == [0.0, 1.0]
    for rows in (X, scipy.sparse.csr_matrix(X)):
        assert result.model.predict(rows).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert "toy" in result.report(tmp_path / "page.html").read_text()
    assert len(repr(result)) < 300
    assert repr(result).startswith("<Result of toy: 0 rounds (no end); model LinearModel(")
    assert repr(CoCoA(l2=0.1)) == "CoCoA(l2=0.1)"
    assert repr(from_arrays(X, Y)) == "ArraySource(4 rows, 2 columns, 96 B)"
    assert result_of(answer(arrays={}, history=[]))[0].model is None
    # A failed job's answer is not an error of the request.
    reply = answer(state="failed", error=error_to_dict(DataError("line 3: no number")))
    assert unwrap_reply(reply) is reply
    assert result_of(reply)[0].summary["error"] == "line 3: no number"


@pytest.mark.parametrize(
    ("objective", "train", "loss", "warning"),
    [
        (0.8, {"neg_log_loss": -1.36}, "logistic", "the training loss 1.36 is not below 0.693147"),
        (67.75, {}, "squared", "the training objective 67.75 is not below 0.125, the loss of the"),
        (0.7, {"neg_log_loss": -0.7}, "logistic", "the training loss 0.7 is not below 0.693147,"),
        (1.0, {}, "squared_hinge", "the training objective 1 is not below 1, the loss of the be"),
        (0.8, {"neg_log_loss": -0.6}, "logistic", None),
        (None, {}, "squared_hinge", None),
    ],
)
def test_predictions_that_lose_to_a_constant_are_a_note(objective, train, loss, warning):
    record = {**RECORD, "algorithm": {**RECORD["algorithm"], "loss": loss}}
    summary = {"name": "toy", "objective": objective, "train": train}
    notes = result_of(answer(summary=summary), job=record)[0].summary["notes"]
    assert [note[: len(warning or "")] for note in notes] == ([warning] if warning else [])


def test_the_best_constant_of_each_kind_of_loss():
    def least(y, **section):
        facts = merge_summaries([from_arrays(np.zeros((len(y), 1)), y).survey(0)])
        return constant_loss({"name": "batch_gradient", "l2": 1.0, **section}, facts)

    rare = np.array([1.0] + 19 * [-1.0])
    entropy = -(0.05 * np.log(0.05) + 0.95 * np.log(0.95))
    assert least(rare, loss="logistic") == pytest.approx(entropy)
    assert least(rare, loss="logistic", class_weight="balanced") == pytest.approx(np.log(2.0))
    assert least(rare, name="cocoa", loss="hinge") == pytest.approx(0.1)
    assert least(rare, loss="squared_hinge") == pytest.approx(4 * 0.05 * 0.95)
    three = np.array([0.0, 0.0, 1.0, 2.0])
    assert least(three, loss="logistic") == pytest.approx(1.5 * np.log(2.0))
    assert least(three, name="cocoa", loss="hinge") == pytest.approx(2 * (0.5 + 0.25 + 0.25))
    assert least(three, loss="squared") == pytest.approx(three.var() / 2)
    counts = np.array([1.0, 1.0, 4.0])
    assert least(counts, loss="poisson") == pytest.approx((counts @ np.log(counts / 2)) / 3)
    assert least(np.arange(1e4) + 0.5, loss="squared") is None


def test_a_saved_result_is_read_back_whole(tmp_path):
    spec = {"name": "toy", "algorithm": RECORD["algorithm"]}
    story = [
        {"t": 0.0, "event": "JobStarted", "round": 0, "name": "toy", "spec": spec},
        {"t": 0.5, "event": "RoundEnded", "round": 0, "objective": 1 / 3, "gap_is_bound": False},
    ]
    outcome = read_outcome(answer())
    result = make_result(outcome, job={"name": "toy", **RECORD}, story=story, run_dir=None)
    result.history[0] |= {"objective": 1 / 3, "gap_is_bound": True, "objective_kind": "exact"}
    saved = result.save(tmp_path / "run")
    again = Result.load(saved)
    present = [{k: v for k, v in row.items() if v is not None} for row in result.history]
    assert again.history == present
    assert list(again.story) == story
    assert again.job == dict(result.job)
    assert again.model.predict(X).tolist() == result.model.predict(X).tolist()
    assert {k: a.tolist() for k, a in again.arrays.items()} == {
        k: a.tolist() for k, a in result.arrays.items()
    }
    added = {"run_dir", "story"}
    assert {k: v for k, v in again.summary.items() if k not in added} == result.summary
    assert (saved / "report.html").exists()
    assert again.save(saved) == saved  # it is there already
    assert Result.load(again.save(tmp_path / "copy")).story == again.story


def test_a_result_of_a_later_version_and_a_folder_without_one_are_refused(tmp_path):
    result, _ = result_of(answer(), job={"name": "toy", **RECORD})
    run = result.save(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"format_version": 2}))
    with pytest.raises(DataError, match="has version 2 of the format of runs, wanted 1 or less"):
        Result.load(run)
    with pytest.raises(ConfigError, match="holds no result, no run"):
        Result.load(tmp_path)
    (run / "summary.json").unlink()
    with pytest.raises(ConfigError, match="the run in it has not ended"):
        Result.load(run)


def test_a_history_is_rows_and_a_table():
    rows = [{"kind": "a", "members": 2, "test_auroc": 0.5, "round": 0, "gap": 1.0}, {"round": 1}]
    history = History(rows)
    table = history.to_frame()
    assert list(table.columns) == ["round", "gap", "test_auroc", "members", "kind"]
    assert (history, table["round"].tolist()) == (rows, [0, 1])
    assert "<table" in history._repr_html_()
