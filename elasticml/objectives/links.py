"""Links: how margins become predictions of a linear model. Imports nothing that compiles."""

from __future__ import annotations

import numpy as np

from elasticml.arrays import F64
from elasticml.errors import DataError
from elasticml.objectives.losses import Domain


def predictions(link: str | None, margins: F64) -> F64:
    """Return the predicted values of a regression model, (n,); ``margins`` unless the link is log.

    Error: ``exp`` overflows to infinity beyond a margin of 709.
    """
    if link != "log":
        return margins
    with np.errstate(over="ignore"):
        values: F64 = np.exp(margins)
    return values


def class_scores(loss: str | None, margins: F64, *, one_against_rest: bool) -> F64:
    """Return scores of more than two classes whose softmax gives the classes' probabilities.

    Parameters
    ----------
    margins : ndarray (n, classes)
    one_against_rest : bool
        The margins are of one logistic model for each class. The probabilities are then
        ``1 / (1 + exp(-z_k))`` divided by their sum, as scikit-learn's; the largest margin has the
        largest score. Otherwise, and for other losses, margins are returned.
    """
    if not one_against_rest or loss != "logistic":
        return margins
    logarithms: F64 = -np.logaddexp(0.0, -margins)
    return logarithms


def check_targets(loss: str, domain: Domain, labels: F64) -> None:
    """Check that labels are in the domain of a regression loss.

    Raises
    ------
    DataError
        When the domain has no negative labels and one is; or zero, if it has only positive ones.
    """
    if domain == "any" or labels.size == 0:
        return
    least = float(labels.min())
    if least < 0.0 or (domain == "positive" and least == 0.0):
        raise DataError(
            f"loss: {loss} found the label {least:g}, wanted {domain} ones; remove these rows, or "
            "use loss: squared or huber"
        )
