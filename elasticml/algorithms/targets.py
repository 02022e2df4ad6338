"""Targets and weights of examples: two classes become -1 and +1, each with its class weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from elasticml.arrays import F64
from elasticml.data.source import DatasetStats
from elasticml.errors import ConfigError, DataError
from elasticml.objectives.links import check_targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """How labels and sample weights enter the loss; the same on every member."""

    #: The larger of the two labels; None in regression, where labels are the targets.
    positive: float | None
    negative_weight: float = 1.0
    positive_weight: float = 1.0
    #: The loss, whose domain labels must be in, in regression.
    loss: str = "squared"

    def of(self, labels: F64) -> F64:
        """Return the targets; new, shape (n,).

        Raises
        ------
        DataError
            When a label is not in the domain of the loss.
        """
        if self.positive is None:
            check_targets(self.loss, labels)
            return labels.copy()
        return np.where(labels == self.positive, 1.0, -1.0)

    def weights(self, labels: F64, weights: F64 | None) -> F64 | None:
        """Return sample weights times class weights, new, shape (n,); None if all are one."""
        if self.negative_weight == self.positive_weight == 1.0:
            return None if weights is None else weights.copy()
        of_class = np.where(labels == self.positive, self.positive_weight, self.negative_weight)
        return of_class if weights is None else of_class * weights


ClassWeight = Mapping[float, float] | Literal["balanced"] | None


class HasTargets(Protocol):
    """Settings from which targets can be determined: the loss and the class weights."""

    @property
    def loss(self) -> str:
        """Name of the loss in a job file."""
        ...

    @property
    def is_classification(self) -> bool:
        """Whether targets are -1 and +1."""
        ...

    @property
    def class_weight(self) -> ClassWeight:
        """The job's class weights."""
        ...


def targets_for(settings: HasTargets, facts: DatasetStats) -> Targets:
    """Determine the targets for a data set.

    Raises
    ------
    DataError
        When the loss is for classification and the data do not have exactly two labels, or the few
        distinct labels are not in the loss's domain.
    ConfigError
        When ``class_weight`` names labels that the data do not have.
    """
    if not settings.is_classification:
        check_targets(settings.loss, np.array(facts.classes or ()))
        return Targets(positive=None, loss=settings.loss)
    classes = facts.classes
    if classes is None or len(classes) != 2:
        got = "continuous labels" if classes is None else _listed(classes)
        raise DataError(
            f"loss: {settings.loss} found {got}, wanted exactly 2 distinct labels; keep two "
            "classes in the data, or use loss: squared for regression",
            labels=None if classes is None else list(classes),
        )
    negative, positive = classes
    counts = facts.label_counts
    if settings.class_weight is None:
        return Targets(positive=positive)
    if settings.class_weight == "balanced":
        return Targets(
            positive=positive,
            negative_weight=facts.n_rows / (2.0 * counts[negative]),
            positive_weight=facts.n_rows / (2.0 * counts[positive]),
        )
    unknown = sorted(set(settings.class_weight) - set(classes))
    if unknown:
        raise ConfigError(
            f"algorithm.class_weight names label {unknown[0]:g}, wanted labels among {negative:g} "
            f"and {positive:g}; correct it",
            key="algorithm.class_weight",
        )
    return Targets(
        positive=positive,
        negative_weight=settings.class_weight.get(negative, 1.0),
        positive_weight=settings.class_weight.get(positive, 1.0),
    )


def weight_of_all(facts: DatasetStats, targets: Targets) -> float:
    """Return the sum of sample weight times class weight over all examples.

    Exact with one kind of weight. With both, they are treated as independent until the first sum
    over all examples gives the exact number.
    """
    if targets.positive is None:
        return facts.weight_sum
    each = (
        count * (targets.positive_weight if label == targets.positive else targets.negative_weight)
        for label, count in facts.label_counts.items()
    )
    return sum(each) / facts.n_rows * facts.weight_sum


def _listed(classes: tuple[float, ...]) -> str:
    shown = ", ".join(f"{label:g}" for label in classes[:5])
    more = ", ..." if len(classes) > 5 else ""
    return f"{len(classes)} distinct label{'s' * (len(classes) != 1)} ({shown}{more})"
