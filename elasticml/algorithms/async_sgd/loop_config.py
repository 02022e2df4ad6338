"""The loop of an asynchronous SGD member, from the job's settings and the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from elasticml.algorithms.async_sgd.base import BatchController, LoopConfig, LoopRules, Problem
from elasticml.algorithms.async_sgd.batch_controllers import AdaptiveB, Fixed, LogPI
from elasticml.algorithms.async_sgd.kmeans import KMeans
from elasticml.algorithms.async_sgd.linear import Linear
from elasticml.algorithms.async_sgd.paper import PAPER_LOOP, RATE, Paper
from elasticml.algorithms.column_statistics import scales
from elasticml.algorithms.targets import offset_column, two_class_targets
from elasticml.data.source import DatasetStats
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.specification.algorithms import AsyncSGD

#: Capacity of a send queue that blocks when full: the paper's, and a short one for the log-PI
#: controller.
_PLACES_BLOCKING: Final = 16
_PLACES_AUTO: Final = 2
_DEFAULT_LOOP: Final = LoopRules(keeps_newest=True, fixed_share=0.1)
#: Default mini-batch sizes; a minimum for K-Means.
_BATCH_KMEANS: Final = 256
_BATCH_LINEAR: Final = 32


def make_problem(settings: AsyncSGD, facts: DatasetStats) -> Problem:
    """Return the problem's arithmetic for a data set.

    Raises
    ------
    ConfigError, DataError
        When the settings do not fit the data.
    """
    problem: KMeans | Linear
    if settings.problem == "linear":
        problem = Linear(
            loss=MarginLoss(settings.loss, settings.terms),
            targets=two_class_targets(settings, facts),
            columns=facts.n_columns,
            l2=settings.l2,
            intercept=settings.intercept,
            fixed=offset_column(settings, facts),
            rate=settings.rate,
            is_scaled=scales(settings.scale, facts),
        )
    else:
        assert settings.k is not None
        problem = KMeans(clusters=settings.k, columns=facts.n_columns, share=settings.share)
    if settings.mode != "paper":
        return problem
    return Paper(problem=problem, rate=RATE if settings.rate is None else settings.rate)


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


def make_loop(settings: AsyncSGD, facts: DatasetStats) -> LoopConfig:
    """Return the configuration of a member's loop.

    Raises
    ------
    ConfigError, DataError
        When the settings do not fit the data.
    """
    rules = PAPER_LOOP if settings.mode == "paper" else _DEFAULT_LOOP
    newest = rules.keeps_newest and settings.batch not in ("auto", "adaptive")
    places = settings.queue
    if places is None:
        places = 1 if newest else _PLACES_AUTO if settings.batch == "auto" else _PLACES_BLOCKING
    return LoopConfig(
        problem=make_problem(settings, facts),
        controller=_controller(settings, places, rules.fixed_share),
        batch=first_batch(settings),
        queue=places,
        newest=newest,
        slots=settings.slots,
        sends=0 if settings.batch == "inf" else settings.sends,
        passes=settings.passes,
        window=settings.window,
    )


def _controller(
    settings: AsyncSGD, places: int, fixed_share: float | None
) -> Callable[[], BatchController]:
    target = settings.queue_target
    if settings.batch == "auto":
        least = first_batch(settings) // 64 or 1
        return lambda: LogPI(
            target=0.5 if target is None else target,
            places=places,
            least=least,
            fixed_share=fixed_share,
        )
    if settings.batch == "adaptive":
        return lambda: AdaptiveB(
            target=1.0 if target is None else target, gamma=settings.gamma, places=places
        )
    return Fixed
