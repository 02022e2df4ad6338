"""Build the definition of an asynchronous SGD job from its settings."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.async_plan import AsyncPlan, Start
from elasticml.algorithms.async_sgd.base import Arrays
from elasticml.algorithms.async_sgd.linear import Linear, summable
from elasticml.algorithms.async_sgd.lloyd import lloyd
from elasticml.algorithms.async_sgd.loop_config import make_loop
from elasticml.algorithms.async_sgd.paper import Paper
from elasticml.algorithms.async_sgd.seeding import answer, start
from elasticml.algorithms.base import Arrays as Named
from elasticml.algorithms.base import Exchange, Outcome, Parallel, Work, operation_of
from elasticml.algorithms.column_statistics import fix_columns, operations
from elasticml.algorithms.initial_model import initial_model
from elasticml.algorithms.targets import offset_column, two_class_targets, weight_of_all
from elasticml.data.chunks.chunk import Chunk
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
    problem = loop.problem

    def result(state: Arrays) -> Mapping[str, Any]:
        if read.problem == "kmeans":
            return {name: state[name] for name in ("centres", "counts") if name in state}
        own = problem.problem if isinstance(problem, Paper) else problem
        assert isinstance(own, Linear)
        return own.columns_of(state).arrays(state.get("average", state["coef"]).copy())

    def polish(mean: Arrays) -> Start:
        return lloyd(mean["centres"], read.final_passes)

    return AsyncPlan(
        loop=loop,
        start=lambda: _start(read, initial, facts),
        answer=_statistics(facts) if read.problem == "linear" else answer,
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
    if settings.problem == "linear":
        return _linear_start(settings, initial, facts)
    if initial:
        return _given(initial)
    assert settings.k is not None
    return start(
        settings.start,
        clusters=settings.k,
        columns=facts.n_columns,
        n_rows=facts.n_rows,
        n_blocks=facts.n_blocks,
        seed=settings.random_seed,
        rows_each=settings.start_rows,
    )


def _linear_start(
    settings: AsyncSGD, initial: Mapping[str, NDArray[np.float64]], facts: DatasetStats
) -> Start:
    """Scale the columns, and start from a model in the units of the data, by default zero."""
    columns = yield from fix_columns(
        settings.scale, settings.intercept, facts, fixed=offset_column(settings, facts)
    )
    factor = np.ones(facts.n_columns) if columns.factor is None else columns.factor
    scaling = np.array([summable(factor), summable(columns.centre)])
    if columns.factor is not None:
        shift = None if columns.shift is None else scaling[1]
        columns = replace(columns, factor=scaling[0], shift=shift)
    intercept = initial.get("intercept", np.zeros(1))
    coef = columns.trained(initial["coef"], intercept) if initial else columns.start()
    return {"coef": coef, "scaling": scaling}


def _statistics(facts: DatasetStats) -> Callable[[Work, Sequence[Chunk], Parallel], Named]:
    """Return a function that computes a member's share of the columns' statistics."""

    def compute(work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Named:
        return operation_of(work, operations(facts))(work, chunks, parallel)

    return compute


def _given(
    arrays: Mapping[str, NDArray[np.float64]],
) -> Generator[Exchange, Outcome, Mapping[str, NDArray[np.float64]]]:
    """Return the arrays without an exchange."""
    yield from ()
    return arrays
