"""The evaluator against scikit-learn and sums by hand, for every way of reading the data."""

import numpy as np
import pytest
import scipy.sparse
from sklearn import metrics

from elasticml.data.readers.arrays import from_arrays
from elasticml.data.source import merge_summaries
from elasticml.errors import DataError
from elasticml.evaluation.evaluator import Evaluator

D = 7


def facts_of(source):
    return merge_summaries([source.survey(block.index) for block in source.blocks()])


def problem(seed, n=400, weights=False, regression=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D))
    y = X @ np.arange(D) + rng.normal(size=n)
    y = y if regression else np.where(y > 2.0, 1.0, 0.0)
    return X, y, rng.uniform(0.5, 2.0, n) if weights else None


def model(seed):
    rng = np.random.default_rng(seed)
    return {"coef": rng.normal(size=(1, D)), "intercept": rng.normal(size=1)}


def margins_of(arrays, X):
    return X @ arrays["coef"][0] + arrays["intercept"][0]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("as_sparse", [False, True])
def test_classification_scores_are_scikit_learns(weighted, as_sparse):
    X, y, s = problem(1, weights=weighted)
    arrays = model(2)
    source = from_arrays(scipy.sparse.csr_matrix(X) if as_sparse else X, y, s)
    evaluator = Evaluator({"name": "batch_gradient", "l2": 0.3}, facts_of(source), n_threads=2)
    scores, notes = evaluator.score_test(source, [arrays])
    z = margins_of(arrays, X)
    p = 1.0 / (1.0 + np.exp(-z))
    expected = {
        "accuracy": metrics.accuracy_score(y, z > 0, sample_weight=s),
        "logloss": metrics.log_loss(y, p, sample_weight=s),
        "auroc": metrics.roc_auc_score(y, z, sample_weight=s),
        "auprc": metrics.average_precision_score(y, z, sample_weight=s),
    }
    assert scores[0].metrics == pytest.approx(expected, rel=1e-12)
    penalty = 0.15 * float((arrays["coef"] ** 2).sum())
    assert scores[0].objective == pytest.approx(expected["logloss"] + penalty, rel=1e-12)
    assert notes == ()


def test_regression_scores_are_scikit_learns():
    X, y, s = problem(3, weights=True, regression=True)
    arrays = model(4)
    source = from_arrays(X, y, s)
    evaluator = Evaluator({"loss": "squared", "l2": 0.0}, facts_of(source))
    (score,) = evaluator.score_training(source, [arrays])
    z = margins_of(arrays, X)
    assert score.metrics == pytest.approx(
        {
            "rmse": np.sqrt(metrics.mean_squared_error(y, z, sample_weight=s)),
            "r2": metrics.r2_score(y, z, sample_weight=s),
        },
        rel=1e-12,
    )


@pytest.mark.parametrize("class_weight", ["balanced", {0.0: 1.0, 1.0: 5.0}])
def test_the_objective_weighs_samples_and_classes(class_weight):
    X, y, s = problem(5, weights=True)
    arrays = model(6)
    source = from_arrays(X, y, s)
    algorithm = {"loss": "squared_hinge", "l2": 0.1, "class_weight": class_weight}
    (score,) = Evaluator(algorithm, facts_of(source)).score_training(source, [arrays])
    if class_weight == "balanced":
        of = {label: y.size / (2.0 * np.sum(y == label)) for label in (0.0, 1.0)}
    else:
        of = class_weight
    both = s * np.where(y == 1.0, of[1.0], of[0.0])
    loss = np.maximum(0.0, 1.0 - np.where(y == 1.0, 1, -1) * margins_of(arrays, X)) ** 2
    expected = (both @ loss) / both.sum() + 0.05 * float((arrays["coef"] ** 2).sum())
    assert score.objective == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("scale", ["maxabs", "standard"])
def test_the_penalty_is_on_the_scaled_coefficients(scale):
    X, y, _ = problem(7)
    arrays = model(8)
    source = from_arrays(X, y)
    penalised = Evaluator({"l2": 2.0, "scale": scale}, facts_of(source))
    plain = Evaluator({"l2": 0.0, "scale": scale}, facts_of(source))
    difference = (
        penalised.score_training(source, [arrays])[0].objective
        - plain.score_training(source, [arrays])[0].objective
    )
    # Without an intercept nothing is centred.
    size = np.abs(X).max(axis=0) if scale == "maxabs" else np.sqrt((X**2).mean(axis=0))
    assert difference == pytest.approx(float(((arrays["coef"][0] * size) ** 2).sum()), rel=1e-9)


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_scaled_columns_and_counts_as_labels(loss):
    X, y, s = problem(10, weights=True, regression=True)
    y, arrays = np.abs(np.round(y)), {"coef": model(11)["coef"] / 10.0, "intercept": np.ones(1)}
    source = from_arrays(X, y, s)
    evaluator = Evaluator({"loss": loss, "l2": 0.0, "scale": "maxabs"}, facts_of(source))
    (score,) = evaluator.score_training(source, [arrays])
    z = margins_of(arrays, X)
    z = np.exp(z) if loss == "poisson" else z
    assert score.metrics["r2"] == pytest.approx(metrics.r2_score(y, z, sample_weight=s))
    if loss == "poisson":
        expected = metrics.d2_tweedie_score(y, z, sample_weight=s, power=1)
        assert score.metrics["d2"] == pytest.approx(expected, rel=1e-9)


def test_wider_test_data_are_cut_with_a_note(tmp_path):
    (tmp_path / "train.svm").write_text("1 1:1 2:1\n-1 1:2 2:3\n")
    (tmp_path / "test.svm").write_text("1 1:1 3:9\n-1 2:1\n")
    from elasticml.data.readers.svmlight import read_svmlight

    facts = facts_of(read_svmlight(str(tmp_path / "train.svm")))
    arrays = {"coef": np.array([[1.0, -1.0]]), "intercept": np.zeros(1)}
    evaluator = Evaluator({}, facts)
    scores, notes = evaluator.score_test(read_svmlight(str(tmp_path / "test.svm")), [arrays])
    assert scores[0].metrics["accuracy"] == 1.0
    assert len(notes) == 1
    assert notes[0].startswith("1 ")


def test_a_label_that_training_did_not_have_is_refused():
    X, y, _ = problem(10)
    source = from_arrays(X, y)
    strange = from_arrays(X, np.where(y == 1.0, 3.0, 0.0))
    with pytest.raises(DataError, match="test data have the label 3, wanted 0 or 1"):
        Evaluator({}, facts_of(source)).score_test(strange, [model(1)])


def test_test_data_without_any_weight_are_refused():
    X, y, _ = problem(10)
    weightless = from_arrays(X, y, np.zeros(y.size))
    with pytest.raises(DataError, match="weights of all examples are 0"):
        Evaluator({}, facts_of(from_arrays(X, y))).score_test(weightless, [model(1)])


def test_rankings_of_one_class_are_omitted():
    X, y, _ = problem(11)
    facts = facts_of(from_arrays(X, y))
    scores, _ = Evaluator({}, facts).score_test(from_arrays(X, np.ones(y.size)), [model(1)])
    assert set(scores[0].metrics) == {"accuracy", "logloss"}


@pytest.mark.parametrize("scale", ["none", "maxabs", "standard"])
@pytest.mark.parametrize("constant", [1.0, 4.0])
def test_the_objective_of_cocoa_penalises_its_intercept(scale, constant):
    X, y, s = problem(12, weights=True)
    shift, factor = {
        "none": (0.0, 1.0),
        "maxabs": (0.0, np.abs(X).max(axis=0)),
        "standard": (X.mean(axis=0), X.std(axis=0)),
    }[scale]
    w, b = np.arange(1.0, D + 1), 0.7  # trained coordinates: of columns (x - shift) / factor
    coef = w / factor
    arrays = {"coef": coef[None, :], "intercept": np.array([constant * b - (coef * shift).sum()])}
    section = {"name": "cocoa", "loss": "hinge", "l2": 0.3, "scale": scale, "intercept": True}
    evaluator = Evaluator(
        {**section, "intercept_scaling": constant}, facts_of(from_arrays(X, y, s))
    )
    (score,) = evaluator.score_training(from_arrays(X, y, s), [arrays])
    losses = np.maximum(0.0, 1.0 - np.where(y > 0, 1, -1) * margins_of(arrays, X))
    expected = float(s @ losses / s.sum() + 0.15 * (w @ w + b * b))
    assert score.objective == pytest.approx(expected, rel=1e-10)
    assert set(score.metrics) == {"accuracy"}
