"""Algorithms that break one rule each, for the tests of ``elasticml.testing``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from elasticml.algorithms.base import RoundEnd
from examples.huber import HUBER, Solver, trainer


class RemembersChunks(Solver):
    """Scales the gradient by the number of its own earlier computations."""

    calls = 0

    def compute(self, work, chunks, parallel):
        partial = super().compute(work, chunks, parallel)
        self.calls += 1
        return {**partial, "g": self.calls * partial["g"]}


class WrongShape(Solver):
    """Returns the loss as an array of one number."""

    def compute(self, work, chunks, parallel):
        partial = super().compute(work, chunks, parallel)
        return {**partial, "loss": partial["loss"].reshape(1)}


class ChangesModel(Solver):
    """Writes to the model, which members of one process share."""

    def compute(self, work, chunks, parallel):
        partial = super().compute(work, chunks, parallel)
        work.model["w"] += 1.0
        return partial


class NeedsChunks(Solver):
    """Fails without chunks."""

    def compute(self, work, chunks, parallel):
        if not chunks:
            raise ValueError("no rows")
        return super().compute(work, chunks, parallel)


class Divides(Solver):
    """Fails in its first computation."""

    def compute(self, work, chunks, parallel):
        return {"g": np.zeros(self.d), "loss": np.array(1 / int(work.model["w"].size < 0))}


def certifies_too_much(settings, facts, absent, resume=None):
    """Report a gap that is smaller than what the next rounds gain."""
    rounds, answer = trainer(settings, facts, absent, resume), None
    while True:
        try:
            asked = rounds.send(answer)
        except StopIteration as end:
            return end.value
        answer = yield replace(asked, gap=1e-6) if isinstance(asked, RoundEnd) else asked


def forgets_resume(settings, facts, absent, resume=None):
    """Accept resume, and start with zeros all the same."""
    return trainer(settings, facts, absent)


REMEMBERS = replace(HUBER, solver=RemembersChunks)
SHAPE = replace(HUBER, solver=WrongShape)
MODEL = replace(HUBER, solver=ChangesModel)
CHUNKS = replace(HUBER, solver=NeedsChunks)
DIVIDES = replace(HUBER, solver=Divides)
GAP = replace(HUBER, trainer=certifies_too_much)
RESUME = replace(HUBER, trainer=forgets_resume)
MUTE = replace(HUBER, predict=None)
