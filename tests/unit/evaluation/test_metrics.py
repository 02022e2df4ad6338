"""Metrics by sums agree with scikit-learn's, whatever the members; others are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn import metrics as theirs
from sklearn.metrics import get_scorer

from elasticml.errors import ConfigError
from elasticml.evaluation.metrics import ROC_BINS, Kind, Metrics, Scored, check_metric

RNG = np.random.default_rng(0)
N = 400
WEIGHTS = RNG.random(N) + 0.1
TWO, FOUR, NUMBERS = RNG.integers(0, 2, N), RNG.integers(0, 4, N), RNG.normal(size=N)
MARGINS = 2.0 * TWO - 1.0 + 2.0 * RNG.normal(size=N)
SCORES = RNG.normal(size=(N, 4)) + np.eye(4)[FOUR]
MEANS = np.exp(NUMBERS)
COUNTS = RNG.poisson(MEANS).astype(float)
BINARY = Kind(n_classes=2, has_probabilities=True, classes=(0.0, 1.0))
MULTI = Kind(n_classes=4, has_probabilities=True, classes=(0.0, 1.0, 2.0, 3.0))
REGRESSION = Kind(n_classes=0)


class Predicted:
    """What scikit-learn's scorers take for a model: predictions, given as the rows."""

    def __init__(self, kind: Kind) -> None:
        self.classes_ = np.arange(kind.n_classes)
        self._estimator_type = "classifier" if kind.n_classes else "regressor"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(self._estimator_type, TargetTags(required=True))

    def predict(self, z: Any) -> Any:
        if self._estimator_type == "regressor":
            return z
        return z.argmax(axis=1) if z.ndim == 2 else (z > 0).astype(int)

    def predict_proba(self, z: Any) -> Any:
        z = z if z.ndim == 2 else np.column_stack([0.0 * z, z])
        return np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("kind", "targets", "predictions", "names"),
    [
        (
            BINARY,
            TWO,
            MARGINS,
            "accuracy balanced_accuracy precision recall f1 neg_log_loss neg_brier_score",
        ),
        (MULTI, FOUR, SCORES, "accuracy f1_macro recall_weighted neg_log_loss"),
        (
            REGRESSION,
            NUMBERS,
            NUMBERS + 0.3 * RNG.normal(size=N) + 0.1,
            "r2 explained_variance neg_mean_squared_error neg_root_mean_squared_error "
            "neg_mean_absolute_error",
        ),
        (REGRESSION, COUNTS, MEANS, "neg_mean_poisson_deviance"),
        (REGRESSION, COUNTS + 0.5, MEANS, "neg_mean_gamma_deviance"),
    ],
)
def test_scores_are_scikit_learns(kind: Kind, targets: Any, predictions: Any, names: str) -> None:
    model = Predicted(kind)
    wanted = {
        name: get_scorer(name)(model, predictions, targets, sample_weight=WEIGHTS)
        for name in names.split()
    }
    got = summed(Metrics(tuple(wanted), kind), targets, predictions)
    assert got == pytest.approx(wanted, rel=1e-12)


def summed(metrics: Metrics, targets: Any, predictions: Any) -> dict[str, float | None]:
    """Score rows in five parts, as members do."""
    total = np.zeros(metrics.n_sums)
    for part in np.array_split(np.arange(N), 5):
        total += metrics.sums(
            Scored(targets=targets[part], predictions=predictions[part], weights=WEIGHTS[part])
        )
    assert total[0] == N
    return metrics.scores(total)


def test_areas_under_the_curves_are_within_the_stated_deviation() -> None:
    metrics = Metrics(("roc_auc", "average_precision"), Kind(n_classes=2, classes=(0.0, 1.0)))
    sums = metrics.sums(Scored(targets=TWO, predictions=MARGINS, weights=WEIGHTS))
    scores: dict[str, Any] = metrics.scores(sums)
    negative, positive = sums[2:-1].reshape(2, ROC_BINS)
    bound = 0.5 * float(negative @ positive) / float(negative.sum() * positive.sum())
    exact = theirs.roc_auc_score(TWO, MARGINS, sample_weight=WEIGHTS)
    assert abs(scores["roc_auc"] - exact) <= bound + 1e-12
    assert bound < 0.01
    hits, misses = (np.append(0.0, np.cumsum(kind[::-1])) for kind in (positive, negative))
    last = np.maximum(hits[1:] + misses[:-1], 1e-300)
    first = np.maximum(hits[:-1] + misses[1:], 1e-300)
    spread = np.diff(hits) / hits[-1] @ (hits[1:] / last - hits[:-1] / first)
    exact = theirs.average_precision_score(TWO, MARGINS, sample_weight=WEIGHTS)
    assert abs(scores["average_precision"] - exact) <= min(spread, 2e-3)


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
def test_a_metric_that_does_not_fit_is_refused(name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=r"validate\.metric") as caught:
        check_metric(name, Kind(n_classes=2))
    assert why in str(caught.value)


def rows_within_one(targets: Any, predictions: Any, weights: Any) -> float:
    return float(weights @ (abs(predictions - targets) < 1.0))


def test_an_own_metric_is_a_function_of_sums() -> None:
    z = NUMBERS + RNG.normal(size=N)
    path = f"{__name__}:rows_within_one"
    share = WEIGHTS @ (abs(z - NUMBERS) < 1.0) / WEIGHTS.sum()
    assert summed(Metrics((path,), REGRESSION), NUMBERS, z) == {path: pytest.approx(share)}
