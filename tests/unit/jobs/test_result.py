"""A job's result, assembled from the scheduler's records."""

import numpy as np
import pytest
import scipy.sparse

from elasticml.data.readers.arrays import from_arrays
from elasticml.data.source import merge_summaries, source_from_spec
from elasticml.errors import ConfigError, DataError, error_to_dict
from elasticml.jobs.result import evaluate, make_result
from elasticml.jobs.rpc import read_outcome, unwrap_reply
from elasticml.models.model import LinearModel
from elasticml.protocol.job_record import job_record

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


def test_a_model_knows_its_classes_and_predicts_them():
    result, _ = result_of(answer())
    assert result.model.coef_.tolist() == [[1.0, -1.0]]
    assert result.model.classes_.tolist() == [0.0, 1.0]
    assert result.model.predict(X).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert result.model.predict(scipy.sparse.csr_matrix(X)).tolist() == [1.0, 0.0, 0.0, 1.0]


def test_a_regression_predicts_values():
    result, _ = result_of(answer(), job={"algorithm": {"loss": "squared"}})
    assert result.model.classes_ is None
    assert result.model.predict(X).tolist() == [1.0, -1.0, 0.0, 2.0]


def test_a_job_that_ended_before_its_first_round_has_no_model():
    assert result_of(answer(arrays={}, history=[]))[0].model is None


def test_evaluation_fills_history_and_summary():
    result, outcome = result_of(answer())
    source = from_arrays(X, Y)
    done = evaluate(result, outcome, record=job_record(RECORD), source=source, test=source)
    logloss = np.logaddexp(0.0, -np.array([1, 1, 0, 2])).mean()
    assert [row["objective_full"] for row in done.history] == pytest.approx([np.log(2.0), logloss])
    assert done.history[1]["test_auprc"] == 1.0
    assert done.summary["objective"] == pytest.approx(logloss)
    assert "objective_missing_because" not in done.summary
    assert (done.summary["train"]["accuracy"], done.summary["test"]["auroc"]) == (1.0, 1.0)
    assert result.history[0] == {"round": 0, "objective": 0.7}


@pytest.mark.parametrize(
    ("coef", "loss", "warning"),
    [
        ((-1.0, 1.0), "logistic", "the accuracy 0.2500 is below 0.5000, that of always predicting"),
        ((-9.0, 9.0), "squared", "the predictions are worse than the mean of the labels (r2 -"),
        ((1.0, -1.0), "logistic", None),
    ],
)
def test_predictions_that_lose_to_a_constant_are_a_note(coef, loss, warning):
    record = {**RECORD, "algorithm": {**RECORD["algorithm"], "loss": loss}}
    result, outcome = result_of(answer(arrays=wire(*coef)), job=record)
    source = from_arrays(X, Y)
    notes = evaluate(result, outcome, record=job_record(record), source=source, test=None).summary[
        "notes"
    ]
    assert [note[: len(warning or "")] for note in notes] == ([warning] if warning else [])


def test_data_that_cannot_be_read_here_are_a_note():
    result, outcome = result_of(answer())
    elsewhere = source_from_spec(from_arrays(X, Y).spec())
    done = evaluate(result, outcome, record=job_record(RECORD), source=elsewhere, test=None)
    assert "cannot be read again" in done.summary["not_evaluated"]
    assert done.summary["objective"] is None


def test_a_history_becomes_a_table():
    assert result_of(answer())[0].to_pandas()["round"].tolist() == [0, 1]


def test_a_result_without_directory_still_reports(tmp_path):
    result, _ = result_of(answer(), job={"name": "toy", **RECORD})
    page = result.report(tmp_path / "page.html")
    assert "toy" in page.read_text()


def test_an_error_in_an_answer_is_raised():
    with pytest.raises(ConfigError, match="no job"):
        unwrap_reply({"error": error_to_dict(ConfigError("no job 'x' here")), "done": True})


def test_a_failed_jobs_answer_is_not_an_error_of_the_request():
    reply = answer(state="failed", error=error_to_dict(DataError("line 3: no number")))
    assert unwrap_reply(reply) is reply
    assert result_of(reply)[0].summary["error"] == "line 3: no number"


def test_arrays_come_back_writable():
    arrays = read_outcome(answer()).arrays
    arrays["coef"][0, 0] = 5.0
    assert arrays["coef"].tolist() == [[5.0, -1.0]]


def test_margins_have_the_intercept():
    model = LinearModel({"coef": np.ones((1, 2)), "intercept": np.array([0.5])}, None)
    assert model.decision_function(X).tolist() == [1.5, 1.5, 2.5, 2.5]
