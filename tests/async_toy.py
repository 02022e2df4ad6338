"""An asynchronous toy algorithm with a known answer: the mean of all rows, by weighted averages.

A state holds every number twice. If the two differ in a received state, the receiver saw half of a
state: the job then fails.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from elasticml.algorithms.async_sgd.base import (
    Arrays,
    AsyncPlan,
    Batch,
    LoopConfig,
    Mail,
)
from elasticml.algorithms.async_sgd.trainer import free_running
from elasticml.algorithms.base import Exchange, Outcome
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.source import DatasetStats
from elasticml.errors import ElasticmlError


class TornError(ElasticmlError):
    """A received state differs from the one that was sent."""


class FixedBatch:
    """Keep the batch size."""

    def next(self, batch: int, fill: float) -> int:
        return batch


class MeanOfRows:
    """The mean of rows, each member's over the rows that it has seen."""

    def __init__(self, columns: int) -> None:
        self._d = columns

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {"w": (self._d,), "mass": (), "twin": (self._d,)}

    def begin(self, arrays: Mapping[str, Any]) -> Arrays:
        w = np.array(arrays["w"], np.float64)
        return {"w": w, "mass": np.array(arrays.get("mass", 0.0)), "twin": w.copy()}

    def step(self, state: Arrays, batch: Batch) -> None:
        for chunk, rows in batch.parts:
            state["mass"] += rows.size
            state["w"] += rows.size / state["mass"] * (chunk.values[rows].mean(axis=0) - state["w"])
        state["twin"][...] = state["w"]

    def merge(self, state: Arrays, mail: Mail) -> bool:
        theirs = mail.arrays
        if not np.array_equal(theirs["w"], theirs["twin"]):
            raise TornError(f"half of a state was merged: {theirs}")
        both = state["mass"] + theirs["mass"]
        if both > 0:
            state["w"] += theirs["mass"] / both * (theirs["w"] - state["w"])
        state["mass"] = np.array(0.5 * both)
        state["twin"][...] = state["w"]
        return True

    def message(self, state: Arrays, chance: np.random.Generator) -> Mail:
        return Mail(arrays={name: array.copy() for name, array in state.items()})

    def addends(self, state: Mapping[str, Any]) -> Arrays:
        mass = np.array(max(float(state["mass"]), 1e-12))
        return {"w": state["w"] * mass, "mass": mass, "twin": state["w"] * mass}

    def pooled(self, total: Mapping[str, Any], members: int) -> Arrays:
        w = total["w"] / float(total["mass"])
        return {"w": w, "mass": total["mass"] / members, "twin": w.copy()}

    def value(self, state: Mapping[str, Any], chunks: Sequence[Chunk]) -> float:
        return float(sum(((chunk.values - state["w"]) ** 2).sum() for chunk in chunks))


def plan(settings: Mapping[str, Any], facts: DatasetStats) -> AsyncPlan:
    """Make the toy's plan; settings as those of a loop, ``start`` and ``visits``."""
    problem = MeanOfRows(facts.n_columns)

    def start() -> Generator[Exchange, Outcome, Mapping[str, Any]]:
        return {"w": np.full(facts.n_columns, float(settings.get("start", 9.0)))}
        yield

    passes = settings.get("passes")
    return AsyncPlan(
        loop=LoopConfig(
            problem=problem,
            controller=FixedBatch,
            batch=int(settings.get("batch", 20)),
            queue=int(settings.get("queue", 1)),
            newest=bool(settings.get("newest", True)),
            slots=int(settings.get("slots", 1)),
            sends=int(settings.get("sends", 1)),
            passes=None if passes is None else float(passes),
        ),
        start=start,
        visits_per_evaluation=float(settings.get("visits", 0.0)),
    )


ALGORITHM = free_running("async_toy", plan)
