"""Scores of linear models over data by columns, against their objective by hand."""

import gc
import weakref

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from elasticml.data.readers.arrays import from_arrays
from elasticml.errors import DataError
from elasticml.evaluation.column_scorer import ColumnScorer
from elasticml.evaluation.evaluator import Evaluator
from tests.column_reference import ColumnReference, split_columns
from tests.serial_world import facts_of

RNG = np.random.default_rng(4)
X = RNG.normal(size=(30, 12))
Y = X[:, 0] + RNG.normal(size=30)
JUDGE = ColumnReference(X=X, y=Y, weights=RNG.uniform(0.5, 2.0, 30), l1=0.1, l2=0.2)
LABELS = np.where(Y > 0.0, 5.0, 2.0)
SORTED = ColumnReference(
    X=X, y=LABELS, loss="logistic", weights=JUDGE.weights, class_weight={5.0: 3.0}, l1=0.02, l2=0.1
)
MODELS = [{"coef": RNG.normal(size=(1, 12)), "intercept": RNG.normal(size=1)} for _ in range(3)]


class Batches:
    """A reader of batches that counts how many of them are alive when the next is requested."""

    n_threads = 1

    def __init__(self, parts):
        self._parts = parts
        self.held = []

    def batches(self, pool):
        options = []
        while self._parts:
            gc.collect()
            self.held.append(sum(one() is not None for one in options))
            options.append(weakref.ref(self._parts[0][0].body))
            yield self._parts.pop(0)


def scorer():
    return ColumnScorer({"name": "primal_cocoa", **JUDGE.settings}, _facts())


def _facts():
    return facts_of([chunk for part in JUDGE.parts(1) for chunk in part])


@pytest.mark.slow
def test_batches_are_summed_and_only_the_last_is_alive():
    reader = Batches(JUDGE.parts(6))
    scores = scorer().training(reader, MODELS)
    assert (len(reader.held), max(reader.held)) == (6, 1)
    for score, model in zip(scores, MODELS, strict=True):
        expected = JUDGE.objective(model["coef"][0], float(model["intercept"][0]))
        assert score.objective == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("columns", [5, 20])
def test_data_of_other_features_are_refused(columns):
    other = ColumnReference(X=RNG.normal(size=(9, columns)), y=np.arange(9.0))
    with pytest.raises(DataError, match=f"the data have {columns} columns, wanted 12"):
        scorer().test(Batches(other.parts(2)), MODELS)


def test_no_models_have_no_scores():
    source = from_arrays(X, Y, by="columns")
    evaluator = Evaluator({"name": "primal_cocoa", **JUDGE.settings}, _facts())
    assert evaluator.score_training(source, []) == []


def test_models_of_two_classes_are_scored_as_such():
    section = {"name": "primal_cocoa", **SORTED.settings, "class_weight": {"5.0": 3.0}}
    classes = np.array([2.0, 5.0])
    models = [{**model, "classes": classes} for model in MODELS]
    trained = ColumnScorer(section, _facts())
    scores = trained.training(Batches(SORTED.parts(4)), models)
    tested = trained.test(Batches(SORTED.parts(4)), models)
    for score, entry, model in zip(scores, tested, models, strict=True):
        coef, intercept = model["coef"][0], float(model["intercept"][0])
        assert score.objective == pytest.approx(SORTED.objective(coef, intercept), rel=1e-12)
        z, s = X @ coef + intercept, SORTED.weights
        right = (z > 0.0) == (LABELS == 5.0)
        assert score.metrics["accuracy"] == pytest.approx(float(s @ right / s.sum()))
        losses = np.logaddexp(0.0, -SORTED.targets * z)
        assert score.metrics["logloss"] == pytest.approx(float(s @ losses / s.sum()))
        ranks = roc_auc_score(LABELS == 5.0, z, sample_weight=s)
        assert entry.metrics["auroc"] == pytest.approx(ranks)
        assert "auroc" not in score.metrics
    with pytest.raises(DataError, match="test data have the label 3, wanted 2 or 5 as in"):
        trained.test(Batches(split_columns(X, LABELS + (LABELS == 2.0), None, 2, 2)), models)
