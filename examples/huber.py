"""Robust linear regression with the Huber loss: an elastic algorithm in thirty lines."""

import numpy as np

from elasticml.algorithms.base import Algorithm, Exchange, Model, Resume, RoundEnd
from elasticml.algorithms.matrix import Matrix


def trainer(settings, facts, absent, resume=None):
    w = np.zeros(facts.n_columns) if resume is None else resume.arrays["w"]
    go_on = True
    while go_on:
        sums = yield Exchange(operation="slope", model={"w": w}, returns={"g": w.shape, "loss": ()})
        after = w - settings["step"] * sums.arrays["g"] / sums.examples
        go_on = yield RoundEnd(
            objective=float(sums.arrays["loss"]) / sums.examples,
            model={"w": w},
            next_model={"w": after},
            resume=Resume(arrays={"w": after}),
        )
        w = after
    return Model(arrays={"w": w}, converged=False, reason="all rounds done")


class Solver:
    """Sum loss and gradient over the chunks of this round."""

    def __init__(self, settings, facts):
        self.delta, self.d = settings["delta"], facts.n_columns

    def compute(self, work, chunks, parallel):
        """Return the sums; no chunks give zeros."""
        g, loss = np.zeros(self.d), 0.0
        for chunk in chunks:
            X = Matrix(chunk, self.d)
            residual = X @ work.model["w"] - chunk.labels
            clipped = np.clip(residual, -self.delta, self.delta)
            loss += clipped @ (residual - clipped / 2)
            g += clipped @ X
        return {"g": g, "loss": np.array(loss)}


def predict(settings, facts, arrays, chunk):
    return Matrix(chunk, facts.n_columns) @ arrays["w"]


HUBER = Algorithm(name="huber", trainer=trainer, solver=Solver, predict=predict, is_regression=True)
