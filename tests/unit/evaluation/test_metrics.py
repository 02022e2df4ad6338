"""Metrics by sums agree with scikit-learn's, whatever the members; others are refused."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as theirs

from elasticml.errors import ConfigError
from elasticml.evaluation.metrics import ROC_BINS, Kind, Metrics, Scored, check_metric

RNG = np.random.default_rng(0)
N = 400
WEIGHTS = RNG.random(N) + 0.1


def summed(metrics: Metrics, rows: Scored) -> dict[str, float | None]:
    """Score rows in five parts, as members do."""
    total = np.zeros(metrics.n_sums)
    for part in np.array_split(np.arange(N), 5):
        total += metrics.sums(
            Scored(
                targets=rows.targets[part],
                predictions=rows.predictions[part],
                weights=rows.weights[part],
            )
        )
    assert total[0] == N
    return metrics.scores(total)


def test_scores_of_two_classes_are_scikit_learns():
    y = RNG.integers(0, 2, N)
    z = 2.0 * y - 1.0 + 2.0 * RNG.normal(size=N)
    p, hits, s = 1.0 / (1.0 + np.exp(-z)), (z > 0).astype(int), WEIGHTS
    wanted = {
        "accuracy": theirs.accuracy_score(y, hits, sample_weight=s),
        "balanced_accuracy": theirs.balanced_accuracy_score(y, hits, sample_weight=s),
        "precision": theirs.precision_score(y, hits, sample_weight=s),
        "recall": theirs.recall_score(y, hits, sample_weight=s),
        "f1": theirs.f1_score(y, hits, sample_weight=s),
        "neg_log_loss": -theirs.log_loss(y, p, sample_weight=s),
        "neg_brier_score": -theirs.brier_score_loss(y, p, sample_weight=s),
    }
    metrics = Metrics(tuple(wanted), Kind(n_classes=2, has_probabilities=True, classes=(0.0, 1.0)))
    got = summed(metrics, Scored(targets=y, predictions=z, weights=s))
    assert got == pytest.approx(wanted, rel=1e-12)


def test_areas_under_the_curves_are_within_the_stated_deviation():
    y = RNG.integers(0, 2, N)
    z = 2.0 * y - 1.0 + 2.0 * RNG.normal(size=N)
    metrics = Metrics(("roc_auc", "average_precision"), Kind(n_classes=2, classes=(0.0, 1.0)))
    sums = metrics.sums(Scored(targets=y, predictions=z, weights=WEIGHTS))
    scores = metrics.scores(sums)
    negative, positive = sums[2:-1].reshape(2, ROC_BINS)
    bound = 0.5 * float(negative @ positive) / float(negative.sum() * positive.sum())
    exact = theirs.roc_auc_score(y, z, sample_weight=WEIGHTS)
    assert scores["roc_auc"] is not None
    assert abs(scores["roc_auc"] - exact) <= bound + 1e-12
    assert bound < 0.01
    hits, misses = (np.append(0.0, np.cumsum(kind[::-1])) for kind in (positive, negative))
    last = np.maximum(hits[1:] + misses[:-1], 1e-300)
    first = np.maximum(hits[:-1] + misses[1:], 1e-300)
    spread = np.diff(hits) / hits[-1] @ (hits[1:] / last - hits[:-1] / first)
    exact = theirs.average_precision_score(y, z, sample_weight=WEIGHTS)
    assert scores["average_precision"] is not None
    assert abs(scores["average_precision"] - exact) <= spread
    assert abs(scores["average_precision"] - exact) < 2e-3


def test_scores_of_several_classes_are_scikit_learns():
    y = RNG.integers(0, 4, N)
    z = RNG.normal(size=(N, 4))
    z[np.arange(N), y] += 1.0
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    hits, s = z.argmax(axis=1), WEIGHTS
    wanted = {
        "accuracy": theirs.accuracy_score(y, hits, sample_weight=s),
        "f1_macro": theirs.f1_score(y, hits, sample_weight=s, average="macro"),
        "recall_weighted": theirs.recall_score(y, hits, sample_weight=s, average="weighted"),
        "neg_log_loss": -theirs.log_loss(y, p, sample_weight=s),
    }
    kind = Kind(n_classes=4, has_probabilities=True, classes=(0.0, 1.0, 2.0, 3.0))
    got = summed(Metrics(tuple(wanted), kind), Scored(targets=y, predictions=z, weights=s))
    assert got == pytest.approx(wanted, rel=1e-12)


def test_scores_of_regression_are_scikit_learns():
    y = RNG.normal(size=N)
    z, s = y + 0.3 * RNG.normal(size=N) + 0.1, WEIGHTS
    wanted = {
        "r2": theirs.r2_score(y, z, sample_weight=s),
        "explained_variance": theirs.explained_variance_score(y, z, sample_weight=s),
        "neg_mean_squared_error": -theirs.mean_squared_error(y, z, sample_weight=s),
        "neg_root_mean_squared_error": -theirs.root_mean_squared_error(y, z, sample_weight=s),
        "neg_mean_absolute_error": -theirs.mean_absolute_error(y, z, sample_weight=s),
    }
    metrics = Metrics(tuple(wanted), Kind(n_classes=0))
    got = summed(metrics, Scored(targets=y, predictions=z, weights=s))
    assert got == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("top_k_accuracy", "needs all rows at once, not sums over them; use accuracy"),
        ("neg_max_error", "needs all rows at once"),
        ("r2", "it is for regression"),
        ("log_loss", "did you mean neg_log_loss?"),
        ("neg_log_loss", "this loss gives none; use accuracy"),
    ],
)
def test_a_metric_that_does_not_fit_is_refused(name: str, why: str):
    with pytest.raises(ConfigError, match=r"validate\.metric") as caught:
        check_metric(name, Kind(n_classes=2))
    assert why in str(caught.value)


def rows_within_one(targets, predictions, weights):
    return float(weights @ (abs(predictions - targets) < 1.0))


def test_an_own_metric_is_a_function_of_sums():
    y = RNG.normal(size=N)
    z = y + RNG.normal(size=N)
    path = f"{__name__}:rows_within_one"
    got = summed(
        Metrics((path,), Kind(n_classes=0)), Scored(targets=y, predictions=z, weights=WEIGHTS)
    )
    share = WEIGHTS @ (abs(z - y) < 1.0) / WEIGHTS.sum()
    assert got == {path: pytest.approx(share)}


def test_deviances_are_scikit_learns():
    mean = np.exp(RNG.normal(size=N))
    y, s = RNG.poisson(mean).astype(float), WEIGHTS
    got = summed(
        Metrics(("neg_mean_poisson_deviance",), Kind(n_classes=0)),
        Scored(targets=y, predictions=mean, weights=s),
    )
    expected = -theirs.mean_poisson_deviance(y, mean, sample_weight=s)
    assert got == pytest.approx({"neg_mean_poisson_deviance": expected}, rel=1e-12)
    got = summed(
        Metrics(("neg_mean_gamma_deviance",), Kind(n_classes=0)),
        Scored(targets=y + 0.5, predictions=mean, weights=s),
    )
    expected = -theirs.mean_gamma_deviance(y + 0.5, mean, sample_weight=s)
    assert got == pytest.approx({"neg_mean_gamma_deviance": expected}, rel=1e-12)
