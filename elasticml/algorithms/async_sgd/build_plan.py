"""Build the definition of an asynchronous SGD job from its settings and the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from elasticml.algorithms.async_sgd.base import (
    Arrays,
    AsyncPlan,
    BatchController,
    LoopConfig,
    Start,
)
from elasticml.algorithms.async_sgd.batch_controllers import AdaptiveB, Fixed, LogPI
from elasticml.algorithms.async_sgd.kmeans import KMeans
from elasticml.algorithms.async_sgd.linear import Linear, summable
from elasticml.algorithms.async_sgd.lloyd import lloyd
from elasticml.algorithms.async_sgd.paper import RATE, Paper
from elasticml.algorithms.async_sgd.seeding import OPERATIONS, start
from elasticml.algorithms.column_statistics import fix_columns, operations, scales
from elasticml.algorithms.initial_model import initial_model
from elasticml.algorithms.targets import offset_column, two_class_targets, weight_of_all
from elasticml.arrays import F64
from elasticml.data.source import DatasetStats
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.specification.algorithms import AsyncSGD, settings_from_section

#: Capacity of a send queue that blocks when full: the paper's, and a short one for the log-PI
#: controller.
_PLACES_BLOCKING: Final = 16
_PLACES_AUTO: Final = 2
#: Default mini-batch sizes; a minimum for K-Means.
_BATCH_KMEANS: Final = 256
_BATCH_LINEAR: Final = 32


def plan(settings: Mapping[str, Any], facts: DatasetStats) -> AsyncPlan:
    """Return the job definition for an ``algorithm`` section.

    Raises
    ------
    ConfigError, DataError
        When the settings are invalid or do not fit the data.
    """
    read = settings_from_section(AsyncSGD, settings)
    initial = initial_model(settings)
    is_kmeans, problem = read.problem == "kmeans", _problem(read, facts)

    def result(state: Arrays) -> Mapping[str, Any]:
        if isinstance(problem, KMeans):
            return {name: state[name] for name in ("centres", "counts") if name in state}
        return problem.columns_of(state).arrays(state.get("average", state["coef"]).copy())

    return AsyncPlan(
        loop=make_loop(read, problem),
        start=lambda: (_centres if is_kmeans else _linear_start)(read, initial, facts),
        operations=OPERATIONS if is_kmeans else operations(facts),
        result=result,
        # The sum of the examples' weights, including class weights.
        weight=(
            float(facts.weight_sum)
            if is_kmeans
            else weight_of_all(facts, two_class_targets(read, facts))
        ),
        polish=(lambda mean: lloyd(mean["centres"], read.final_passes))
        if read.final_passes
        else None,
    )


def _problem(settings: AsyncSGD, facts: DatasetStats) -> KMeans | Linear:
    if settings.problem == "kmeans":
        assert settings.k is not None
        return KMeans(clusters=settings.k, columns=facts.n_columns, share=settings.share)
    return Linear(
        loss=MarginLoss(settings.loss, settings.terms),
        targets=two_class_targets(settings, facts),
        columns=facts.n_columns,
        l2=settings.l2,
        intercept=settings.intercept,
        fixed=offset_column(settings, facts),
        rate=settings.rate,
        is_scaled=scales(settings.scale, facts),
    )


def _centres(settings: AsyncSGD, initial: Mapping[str, F64], facts: DatasetStats) -> Start:
    """Return the initial centres of K-Means."""
    if initial:
        return initial
    assert settings.k is not None
    return (
        yield from start(
            settings.start,
            clusters=settings.k,
            columns=facts.n_columns,
            n_rows=facts.n_rows,
            n_blocks=facts.n_blocks,
            seed=settings.random_seed,
            rows_each=settings.start_rows,
        )
    )


def _linear_start(settings: AsyncSGD, initial: Mapping[str, F64], facts: DatasetStats) -> Start:
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


def first_batch(settings: AsyncSGD) -> int:
    """Return the size of the first mini-batch.

    A controlled size starts high: in a short run there is no time to drain a queue that was filled
    at the start.
    """
    if isinstance(settings.batch, int):
        return settings.batch
    if settings.batch_start is not None:
        return settings.batch_start
    if settings.problem == "linear":
        default = _BATCH_LINEAR
    else:
        default = max(3 * (settings.k or 1), _BATCH_KMEANS)
    return default if settings.batch in (None, "inf") else 4 * default


def make_loop(settings: AsyncSGD, problem: KMeans | Linear) -> LoopConfig:
    """Return the configuration of a member's loop."""
    is_paper, queue = settings.mode == "paper", settings.queue
    # In the paper a full send queue blocks; else a newer state replaces an unsent one.
    newest = not is_paper and settings.batch not in ("auto", "adaptive")
    if queue is None:
        queue = 1 if newest else _PLACES_AUTO if settings.batch == "auto" else _PLACES_BLOCKING
    rate = RATE if settings.rate is None else settings.rate
    return LoopConfig(
        problem=Paper(problem=problem, rate=rate) if is_paper else problem,
        controller=_controller(settings, queue),
        batch=first_batch(settings),
        queue=queue,
        newest=newest,
        slots=settings.slots,
        sends=0 if settings.batch == "inf" else settings.sends,
        passes=settings.passes,
        window=settings.window,
    )


def _controller(settings: AsyncSGD, places: int) -> Callable[[], BatchController]:
    target = settings.queue_target
    if settings.batch == "auto":
        # Below the first size iterations would soon consist of overhead. In ``mode: paper`` the
        # controller follows the network only.
        least = first_batch(settings) // (64 if settings.mode == "paper" else 1) or 1
        target = 0.5 if target is None else target
        return lambda: LogPI(target=target, places=places, least=least)
    if settings.batch == "adaptive":
        return lambda: AdaptiveB(
            target=1.0 if target is None else target, gamma=settings.gamma, places=places
        )
    return Fixed
