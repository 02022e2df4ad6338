"""An algorithm whose code raises what a file says: least squares by gradient descent.

``FILE-solver`` and ``FILE-trainer`` name a builtin exception. Who removes the file first raises it,
so one member does, or the trainer.
"""

from __future__ import annotations

import builtins
import os

import numpy as np

from elasticml.algorithms.base import Algorithm, Exchange, Model, Resume, RoundEnd
from elasticml.algorithms.matrix import Matrix

#: What each exception says, and what its constructor needs besides.
TEXT = "raised by a plan"
_ARGUMENTS = {
    "UnicodeDecodeError": ("utf-8", b"\xff", 0, 1, TEXT),
    "UnicodeEncodeError": ("utf-8", "\ud800", 0, 1, TEXT),
    "UnicodeTranslateError": ("\ud800", 0, 1, TEXT),
    "BaseExceptionGroup": (TEXT, [KeyboardInterrupt()]),
    "ExceptionGroup": (TEXT, [ValueError(TEXT)]),
}
#: All builtin exceptions, each once: IOError and EnvironmentError are OSError.
ERRORS = tuple(
    sorted(
        name
        for name, kind in vars(builtins).items()
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__name__ == name
    )
)


def raise_what(trigger: str) -> None:
    """Raise what a file names, if it exists and this process is the first to remove it."""
    try:
        with open(trigger) as file:
            name = file.read()
        os.unlink(trigger)
    except FileNotFoundError:
        return
    raise getattr(builtins, name)(*_ARGUMENTS.get(name, (TEXT,)))


def trainer(settings, facts, absent, resume=None):
    w = np.zeros(facts.n_columns) if resume is None else resume.arrays["w"]
    go_on = True
    while go_on:
        raise_what(f"{settings['trigger']}-trainer")
        sums = yield Exchange(operation="slope", model={"w": w}, returns={"g": w.shape, "loss": ()})
        after = w - settings["step"] * (sums.arrays["g"] / sums.examples + settings["l2"] * w)
        go_on = yield RoundEnd(
            objective=float(sums.arrays["loss"]) / sums.examples + settings["l2"] / 2 * w @ w,
            model={"coef": w},
            next_model={"coef": after},
            resume=Resume(arrays={"w": after}),
        )
        w = after
    return Model(arrays={"coef": w}, converged=False, reason="all rounds done")


class Solver:
    """Sum loss and gradient over the chunks of this round."""

    def __init__(self, settings, facts):
        self.trigger, self.d = settings["trigger"], facts.n_columns

    def compute(self, work, chunks, parallel):
        raise_what(f"{self.trigger}-solver")
        g, loss = np.zeros(self.d), 0.0
        for chunk in chunks:
            X = Matrix(chunk, self.d)
            residual = X @ work.model["w"] - chunk.labels
            loss += residual @ residual / 2
            g += residual @ X
        return {"g": g, "loss": np.array(loss)}


def predict(settings, facts, arrays, chunk):
    return Matrix(chunk, facts.n_columns) @ arrays["coef"]


ALGORITHM = Algorithm(
    name="raising", trainer=trainer, solver=Solver, predict=predict, is_regression=True
)
