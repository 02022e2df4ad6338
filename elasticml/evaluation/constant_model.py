"""The loss of the best constant prediction, with which that of a model is compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from elasticml.algorithms.targets import targets_for
from elasticml.arrays import F64
from elasticml.data.dataset_stats import DatasetStats
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.objectives.multiclass import signs
from elasticml.specification.algorithms import (
    BatchGradient,
    CoCoA,
    LocalSGD,
    PrimalCoCoA,
    settings_from_section,
)

#: The largest margin of a constant in classification: its losses are zero to float64's precision.
_MARGIN_MAX = 40.0


def constant_loss(algorithm: Mapping[str, Any], facts: DatasetStats) -> float | None:
    """Return the mean training loss of the best constant; None if it is unknown.

    It follows from the numbers of rows of each label and the weights of classes. It is unknown
    where labels are continuous, or rows have weights or an offset.

    Parameters
    ----------
    algorithm : mapping
        The ``algorithm`` section of the job record.
    facts : DatasetStats
        Statistics of the training data.
    """
    if not facts.label_counts or facts.weight_sum != facts.n_rows or algorithm.get("offset"):
        return None
    labels = np.array(list(facts.label_counts), np.float64)
    counts = np.array(list(facts.label_counts.values()), np.float64)
    kinds: dict[str, Any] = {kind.name: kind for kind in (BatchGradient, CoCoA, PrimalCoCoA)}
    name = str(algorithm.get("name"))
    if name == LocalSGD.name and algorithm.get("loss", "cross_entropy") == "cross_entropy":
        return _entropy(counts)
    if name not in kinds:
        return None
    settings = settings_from_section(kinds[name], algorithm)
    made = targets_for(settings, facts)
    weights, targets = made.weights(labels, counts), made.of(labels)
    assert weights is not None
    against = MarginLoss(settings.loss, settings.terms)
    if not made.numbered:
        return _least(against, targets, weights)
    if against.name == "logistic" and name == BatchGradient.name:
        return _entropy(weights)
    classes = range(len(made.numbered))
    return sum(_least(against, signs(targets, k), weights) for k in classes)


def _entropy(weights: F64) -> float:
    shares = weights[weights > 0.0] / weights.sum()
    return float(-(shares @ np.log(shares)))


def _least(loss: MarginLoss, targets: F64, weights: F64) -> float:
    """Return the least mean loss of margins that are the same for all rows."""

    def value(z: float) -> float:
        margins = np.full(targets.size, z)
        return loss.value_and_slope(margins, targets, weights, np.empty(targets.size))

    low, high = -_MARGIN_MAX, _MARGIN_MAX
    if not loss.is_classification:
        low, high = float(targets.min()), float(targets.max())
        if loss.link == "log":
            mean = float(targets @ weights / weights.sum())
            low = high = float(np.log(mean)) if mean > 0.0 else -_MARGIN_MAX
    found = minimize_scalar(value, bounds=(low, high), method="bounded", options={"xatol": 1e-9})
    least = min(found.fun, value(low), value(high))  # the minimum may be at a bound
    return float(least / weights.sum())
