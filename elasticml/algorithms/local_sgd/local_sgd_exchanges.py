"""The exchanges of local SGD: the arrays sent and reduced, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from elasticml.algorithms.base import Exchange, Scalar
from elasticml.arrays import F64

Require = Literal["any", "everybody"]

#: Operations.
SURVEY: Final = "survey"
TRAIN: Final = "train"
EVALUATE: Final = "evaluate"

#: Indices of a round's sums: samples, their losses, samples left in the epoch, samples computed on
#: CUDA, and members without the frozen parameters.
SAMPLES, LOSSES, LEFT, ON_CUDA, LACKING = range(5)


def survey_exchange(starts: F64) -> Exchange:
    """Return the exchange for each chunk's number of training examples, and the values' moments.

    The moments are the number of values, their sum, and the sum of their squares.
    """
    return Exchange(
        operation=SURVEY,
        model={"starts": starts},
        returns={"rows": (int(starts[-1]),), "moments": (3,)},
        require="everybody",
    )


def train_exchange(
    model: Mapping[str, F64],
    parameters: Mapping[str, Scalar],
    *,
    require: Require = "any",
    seal: bool = False,
) -> Exchange:
    """Return the exchange in which every member takes its local steps.

    Down: ``weights``, ``momentum``, ``buffers``, the table of ``positions`` with its ``starts``,
    ``inputs`` (mean and standard deviation), and ``frozen`` parameters, empty if all members have
    them. Up: the first three, each times the member's number of samples; ``seen``, the samples
    taken from each chunk; and ``sums``.
    """
    kept = ("weights", "momentum", "buffers")
    returns = {name: model[name].shape for name in kept}
    return Exchange(
        operation=TRAIN,
        model=model,
        returns={**returns, "seen": model["positions"].shape, "sums": (LACKING + 1,)},
        parameters=parameters,
        require=require,
        seal=seal,
    )


def evaluate_exchange(model: Mapping[str, F64], *, seal: bool = False) -> Exchange:
    """Return the exchange in which every member evaluates its held-out examples.

    The scores are sums of the weight, the losses, and the weight of the correct examples.
    """
    down = {name: model[name] for name in ("weights", "buffers", "frozen", "inputs")}
    return Exchange(operation=EVALUATE, model=down, returns={"scores": (3,)}, seal=seal)
