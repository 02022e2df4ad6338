"""Links: how a margin becomes the prediction of a linear model. Imports nothing that compiles."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from elasticml.arrays import F64
from elasticml.errors import DataError

Link = Literal["identity", "log", "logit", "sign"]

#: The link of each loss of a linear model, by its name in a job file. "log": the prediction is
#: ``exp(z)``; "logit" and "sign": a class, with probabilities for the former.
LINKS: Final[dict[str, Link]] = {
    "logistic": "logit",
    "squared": "identity",
    "smoothed_hinge": "sign",
    "squared_hinge": "sign",
    "hinge": "sign",
    "huber": "identity",
    "quantile": "identity",
    "poisson": "log",
    "gamma": "log",
    "tweedie": "log",
}

#: Power of the loss ``tweedie`` if none is given.
TWEEDIE_POWER: Final = 1.5


def predictions(loss: str | None, margins: F64) -> F64:
    """Return the predicted values of a regression model, (n,); ``margins`` unless the link is log.

    Error: ``exp`` overflows to infinity beyond a margin of 709.
    """
    if LINKS.get(str(loss)) != "log":
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


def check_targets(loss: str, labels: F64) -> None:
    """Check that labels are in the domain of a regression loss.

    Raises
    ------
    DataError
        When the link is log and a label is negative; or zero, with loss gamma.
    """
    if LINKS.get(loss) != "log" or labels.size == 0:
        return
    least = float(labels.min())
    if least < 0.0 or (loss == "gamma" and least == 0.0):
        kind = "positive" if loss == "gamma" else "nonnegative"
        raise DataError(
            f"loss: {loss} found the label {least:g}, wanted {kind} ones; remove these rows, or "
            "use loss: squared or huber"
        )
