"""Test data of a network: rows of another length are refused, before training if possible."""

from __future__ import annotations

import numpy as np
import pytest

import elasticml as em
from elasticml.data.source import merge_summaries
from elasticml.errors import DataError
from elasticml.evaluation.evaluator import Evaluator
from elasticml.jobs.result import evaluate, make_result
from elasticml.jobs.rpc import JobOutcome
from elasticml.protocol.job_record import job_record
from tests.unit.data.readers.test_images import write

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SECTION = {"name": "local_sgd", "model": "tests.networks:linear"}


def data(n_columns: int, value: float = 1.0):
    X = np.full((4, n_columns), value)
    return em.from_arrays(X, np.arange(4) % 2.0)


def evaluator() -> Evaluator:
    source = data(3)
    facts = merge_summaries([source.read(b.index, None, 1)[1] for b in source.blocks()])
    return Evaluator(SECTION, facts)


def model() -> dict[str, np.ndarray]:
    weight = {"weight": np.array([[0.0] * 3, [1.0] * 3]), "bias": np.zeros(2)}
    return {**weight, "input_mean": np.zeros(1), "input_std": np.ones(1)}


def test_rows_of_the_training_data_s_length_are_scored():
    (score,), notes = evaluator().score_test(data(3), [model()])
    assert (score.metrics["accuracy"], notes) == (0.5, ())


# The values cut off may be 0: it is another image all the same.
@pytest.mark.parametrize(
    ("test", "result"), [(data(2), "2"), (data(4), "more"), (data(4, 0.0), "more")]
)
def test_rows_of_another_length_are_refused(test, result):
    with pytest.raises(DataError, match=f"rows have {result} columns, wanted 3 as the training"):
        evaluator().score_test(test, [model()])


@pytest.mark.parametrize("shape", [None, (3,)])
def test_a_job_whose_test_rows_do_not_fit_is_refused_before_it_trains(shape):
    algorithm = em.LocalSGD(model="tests.networks:linear", shape=shape)
    em.Job(algorithm, data(3), test=data(3)).check_data()
    with pytest.raises(DataError, match=r"data\.test: .*rows have 5 columns, wanted 3"):
        em.Job(algorithm, data(3), test=data(5)).check_data()
    (info,) = data(5).blocks()
    assert info.columns == 5
    # A linear model reports later what it left out.
    em.Job(em.BatchGradient(), data(3), test=data(5)).check_data()


def pictures(folder, *dimensions: int):
    folder.mkdir()
    write(folder, "labels-idx1-ubyte", np.array([0, 1], np.uint8))
    result = np.ones((2, *dimensions), np.uint8)
    return em.read_images(write(folder, "images-idx3-ubyte", result))


@pytest.mark.parametrize("dimensions", [(2, 3), (3, 2)])
def test_images_whose_shape_has_changed_by_the_evaluation_are_refused(tmp_path, dimensions):
    # They were only checked before the job, and may have changed when it ends.
    train, test = pictures(tmp_path / "train", 2, 3), pictures(tmp_path / "test", *dimensions)
    facts = merge_summaries([train.read(b.index, None, 1)[1] for b in train.blocks()])
    arrays = {**model(), "weight": np.zeros((2, 6))}
    outcome = JobOutcome(
        state="done",
        arrays=arrays,
        snapshots={},
        history=[{"round": 0}],
        summary={"name": "toy"},
        facts=facts,
        error=None,
    )
    result = make_result(outcome, job={"algorithm": SECTION}, story=(), run_dir=None)
    record = job_record({"algorithm": SECTION})
    actual = evaluate(result, outcome, record=record, source=train, test=test)
    if dimensions == (2, 3):
        assert actual.summary["test"]["accuracy"] == 0.5
    else:
        assert actual.summary["test"] == {}
        assert "pictures have shape [1, 3, 2], wanted" in actual.summary["not_evaluated"]
