"""Build the definition of an asynchronous SGD job from its settings."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd import seeding
from elasticml.algorithms.async_sgd.async_plan import AsyncPlan, Start
from elasticml.algorithms.async_sgd.base import Arrays
from elasticml.algorithms.async_sgd.lloyd import lloyd
from elasticml.algorithms.async_sgd.loop_config import make_loop
from elasticml.algorithms.async_sgd.seeding_ops import answer
from elasticml.algorithms.base import Exchange, Outcome
from elasticml.algorithms.initial_model import initial_model
from elasticml.algorithms.targets import two_class_targets, weight_of_all
from elasticml.data.source import DatasetStats
from elasticml.specification.algorithms import AsyncSGD, settings_from_section


def plan(settings: Mapping[str, Any], facts: DatasetStats) -> AsyncPlan:
    """Return the job definition for an ``algorithm`` section.

    Raises
    ------
    ConfigError, DataError
        When the settings are invalid or do not fit the data.
    """
    read = settings_from_section(AsyncSGD, settings)
    initial = initial_model(settings)
    loop = make_loop(read, facts)

    def result(state: Arrays) -> Mapping[str, Any]:
        if read.problem == "kmeans":
            return {name: state[name] for name in ("centres", "counts") if name in state}
        coef = state.get("average", state["coef"])
        intercept = float(coef[-1]) if read.intercept else 0.0
        # (d,) -> (1, d), as in all linear models.
        return {"coef": coef[None, : facts.n_columns].copy(), "intercept": np.array([intercept])}

    def polish(mean: Arrays) -> Start:
        return lloyd(mean["centres"], read.final_passes)

    return AsyncPlan(
        loop=loop,
        start=lambda: _start(read, initial, facts),
        answer=answer,
        result=result,
        weight=_weight(read, facts),
        polish=polish if read.final_passes else None,
    )


def _weight(settings: AsyncSGD, facts: DatasetStats) -> float:
    """Return the sum of the examples' weights, including class weights."""
    if settings.problem == "kmeans":
        return float(facts.weight_sum)
    return weight_of_all(facts, two_class_targets(settings, facts))


def _start(
    settings: AsyncSGD, initial: Mapping[str, NDArray[np.float64]], facts: DatasetStats
) -> Start:
    if initial and settings.problem == "linear":
        intercept = initial.get("intercept", np.zeros(1))
        parts = [initial["coef"], intercept] if settings.intercept else [initial["coef"]]
        return _given({"coef": np.concatenate(parts)})
    if initial:
        return _given(initial)
    if settings.problem == "linear":
        return _given({"coef": np.zeros(facts.n_columns + settings.intercept)})
    assert settings.k is not None
    return seeding.start(
        settings.start,
        clusters=settings.k,
        columns=facts.n_columns,
        n_rows=facts.n_rows,
        n_blocks=facts.n_blocks,
        seed=settings.random_seed,
        rows_each=settings.start_rows,
    )


def _given(
    arrays: Mapping[str, NDArray[np.float64]],
) -> Generator[Exchange, Outcome, Mapping[str, NDArray[np.float64]]]:
    """Return the arrays without an exchange."""
    yield from ()
    return arrays
