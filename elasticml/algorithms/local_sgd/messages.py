"""The exchanges of local SGD: what goes down, what comes up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Exchange, Scalar

F64 = NDArray[np.float64]
Require = Literal["any", "everybody"]

#: Operations.
BLOCKS: Final = "blocks"
ORDINALS: Final = "ordinals"
SURVEY: Final = "survey"
TRAIN: Final = "train"
EVALUATE: Final = "evaluate"

#: Places in the sums of a round: samples, their losses, samples that the epoch has left there,
#: samples that were computed on CUDA, and members that lack what is frozen.
SAMPLES, LOSSES, LEFT, ON_CUDA, LACKING = range(5)
#: Places in the sums of an evaluation: weight, losses, correct ones.
WEIGHT, LOSS, CORRECT = range(3)
#: Places in the moments: values, their sum, the sum of their squares.
VALUES, FIRST, SECOND = range(3)


def blocks_exchange() -> Exchange:
    """Ask for the number of blocks; members know those of their own chunks."""
    return Exchange(
        operation=BLOCKS, model={}, returns={"blocks": ()}, reduce="max", require="everybody"
    )


def ordinals_exchange(n_blocks: int) -> Exchange:
    """Ask how many chunks each block has."""
    return Exchange(
        operation=ORDINALS,
        model={},
        returns={"chunks": (n_blocks,)},
        reduce="max",
        require="everybody",
    )


def survey_exchange(starts: F64) -> Exchange:
    """Ask how many examples of each chunk are trained on, and for the values' moments."""
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
    """Have every member take its local steps.

    Down go ``weights``, ``momentum``, ``buffers``, the table of ``positions`` and its ``starts``,
    and ``inputs`` (mean and standard deviation); and what is ``frozen``, or nothing where members
    have had it. Up come the first three, each times the member's samples, how many of each chunk
    were ``seen``, and ``sums``.
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
    """Have every member evaluate the examples of its chunks that are never trained on."""
    down = {name: model[name] for name in ("weights", "buffers", "frozen", "inputs")}
    return Exchange(operation=EVALUATE, model=down, returns={"scores": (3,)}, seal=seal)
