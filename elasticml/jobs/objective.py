"""The objective of a linear job, from its algorithm's settings, for evaluating models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticml.algorithms.async_sgd.settings import read_settings as read_async_sgd
from elasticml.algorithms.base import Arrays
from elasticml.algorithms.batch_gradient.settings import read_settings as read_batch_gradient
from elasticml.algorithms.cocoa.settings import read_settings as read_cocoa
from elasticml.algorithms.scaling import Columns
from elasticml.algorithms.targets import Targets, targets_for
from elasticml.data.facts import DataFacts
from elasticml.objectives.losses import Loss, loss_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """``sum_i s_i loss_i / sum_i s_i + l2/2 ||w||^2`` with ``w`` in scaled coordinates."""

    loss: Loss
    l2: float
    targets: Targets
    scale: str
    intercept: bool
    #: Value of the intercept's column; None if the intercept is not penalised.
    constant: float | None = None

    def columns(self, n_columns: int) -> Columns:
        """Return the map to scaled coordinates for columns that are not scaled."""
        return Columns(n_columns=n_columns, intercept=self.intercept, constant=self.constant or 1.0)

    def penalty(self, model: Arrays, columns: Columns) -> float:
        """Return ``l2/2 ||w||^2`` of a model in original coordinates."""
        w = columns.trained(model["coef"].reshape(-1), float(model["intercept"][0]))
        if self.constant is None:
            w = w[: columns.n_columns]
        return 0.5 * self.l2 * float(w @ w)


def objective_of(algorithm: Mapping[str, Any], facts: DataFacts) -> Objective:
    """Return the objective for the ``algorithm`` section of a job record.

    Raises
    ------
    ConfigError, DataError
        When a setting is invalid or does not fit the data, or the algorithm is user-defined.
    """
    if algorithm.get("name") == "cocoa":
        cocoa = read_cocoa({k: v for k, v in algorithm.items() if k != "warm_start"})
        return Objective(
            loss=cocoa.loss.loss,
            l2=cocoa.l2,
            targets=targets_for(cocoa, facts),
            scale=cocoa.scale,
            intercept=cocoa.intercept,
            constant=cocoa.intercept_scaling,
        )
    if algorithm.get("name") == "async_sgd":
        async_sgd = read_async_sgd({k: v for k, v in algorithm.items() if k != "warm_start"})
        return Objective(
            loss=loss_named(async_sgd.loss),
            l2=async_sgd.l2,
            targets=targets_for(async_sgd, facts),
            scale="none",
            intercept=async_sgd.intercept,
        )
    settings = read_batch_gradient(algorithm)
    return Objective(
        loss=settings.loss,
        l2=settings.l2,
        targets=targets_for(settings, facts),
        scale=settings.scale,
        intercept=settings.intercept,
    )
