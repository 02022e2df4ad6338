"""What a job minimises, as its algorithm's settings say it: for evaluating models afterwards."""

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
    """``sum_i s_i loss_i / sum_i s_i + l2/2 ||w||^2`` with ``w`` in trained coordinates."""

    loss: Loss
    l2: float
    targets: Targets
    scale: str
    intercept: bool
    #: Value of the intercept's own column; None where the intercept is not penalised.
    constant: float | None = None

    def columns(self, n_columns: int) -> Columns:
        """Return the map to trained coordinates of columns that are not scaled."""
        return Columns(n_columns=n_columns, intercept=self.intercept, constant=self.constant or 1.0)

    def penalty(self, model: Arrays, columns: Columns) -> float:
        """Return ``l2/2 ||w||^2`` of a model as users know it."""
        w = columns.trained(model["coef"].reshape(-1), float(model["intercept"][0]))
        if self.constant is None:
            w = w[: columns.n_columns]
        return 0.5 * self.l2 * float(w @ w)


def objective_of(algorithm: Mapping[str, Any], facts: DataFacts) -> Objective:
    """Read what a job minimises from the ``algorithm`` section of its record.

    Raises
    ------
    ConfigError, DataError
        When a setting is wrong, or does not fit the data; so for algorithms of one's own.
    """
    if algorithm.get("name") == "cocoa":
        ours = read_cocoa({k: v for k, v in algorithm.items() if k != "warm_start"})
        return Objective(
            loss=ours.loss.loss,
            l2=ours.l2,
            targets=targets_for(ours, facts),
            scale=ours.scale,
            intercept=ours.intercept,
            constant=ours.intercept_scaling,
        )
    if algorithm.get("name") == "async_sgd":
        free = read_async_sgd({k: v for k, v in algorithm.items() if k != "warm_start"})
        return Objective(
            loss=loss_named(free.loss),
            l2=free.l2,
            targets=targets_for(free, facts),
            scale="none",
            intercept=free.intercept,
        )
    settings = read_batch_gradient(algorithm)
    return Objective(
        loss=settings.loss,
        l2=settings.l2,
        targets=targets_for(settings, facts),
        scale=settings.scale,
        intercept=settings.intercept,
    )
