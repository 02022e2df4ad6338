"""The loop of an asynchronous SGD member, from the job's settings and the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from elasticml.algorithms.async_sgd.base import BatchController, LoopConfig, Problem
from elasticml.algorithms.async_sgd.batch_controllers import AdaptiveB, Fixed, LogPI
from elasticml.algorithms.async_sgd.kmeans import KMeans
from elasticml.algorithms.async_sgd.linear import Linear
from elasticml.algorithms.async_sgd.paper import PaperKMeans
from elasticml.algorithms.targets import targets_for
from elasticml.data.source import DatasetStats
from elasticml.objectives.losses import loss_named
from elasticml.specification.algorithms import AsyncSGD

#: Capacity of a send queue that blocks when full: the paper's, and a short one for the log-PI
#: controller.
_PLACES_PAPER: Final = 16
_PLACES_AUTO: Final = 2
#: Maximum share of fixed cost in an iteration with 'batch: auto'.
_FIXED_SHARE: Final = 0.1
#: Default mini-batch sizes; a minimum for K-Means.
_BATCH_KMEANS: Final = 256
_BATCH_LINEAR: Final = 32
_RATE_PAPER: Final = 0.05


def make_problem(settings: AsyncSGD, facts: DatasetStats) -> Problem:
    """Return the problem's arithmetic for a data set.

    Raises
    ------
    ConfigError, DataError
        When the settings do not fit the data.
    """
    columns = facts.n_columns
    if settings.problem == "linear":
        rate = settings.rate
        if rate is None and settings.mode == "paper":
            rate = _RATE_PAPER
        return Linear(
            loss=loss_named(settings.loss),
            targets=targets_for(settings, facts),
            columns=columns,
            l2=settings.l2,
            intercept=settings.intercept,
            rate=rate,
            mode="paper" if settings.mode == "paper" else "default",
        )
    assert settings.k is not None
    if settings.mode == "paper":
        rate = _RATE_PAPER if settings.rate is None else settings.rate
        return PaperKMeans(clusters=settings.k, columns=columns, rate=rate, share=settings.share)
    return KMeans(clusters=settings.k, columns=columns, share=settings.share)


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
    is_controlled = settings.batch in ("auto", "adaptive")
    newest = not is_controlled and settings.mode == "default"
    places = settings.queue
    if places is None:
        places = 1 if newest else _PLACES_AUTO if settings.batch == "auto" else _PLACES_PAPER
    return LoopConfig(
        problem=make_problem(settings, facts),
        controller=_controller(settings, places),
        batch=first_batch(settings),
        queue=places,
        newest=newest,
        slots=settings.slots,
        sends=0 if settings.batch == "inf" else settings.sends,
        passes=settings.passes,
        window=settings.window,
    )


def _controller(settings: AsyncSGD, places: int) -> Callable[[], BatchController]:
    target = settings.queue_target
    if settings.batch == "auto":
        least = first_batch(settings) // 64 or 1
        # In the paper's mode a controller follows the network only, as in the paper.
        share = None if settings.mode == "paper" else _FIXED_SHARE
        return lambda: LogPI(
            target=0.5 if target is None else target,
            places=places,
            least=least,
            fixed_share=share,
        )
    if settings.batch == "adaptive":
        return lambda: AdaptiveB(
            target=1.0 if target is None else target, gamma=settings.gamma, places=places
        )
    return Fixed
