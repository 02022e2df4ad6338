"""Targets and weights of examples: signs or numbers of classes, each with its class weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from elasticml.arrays import F64
from elasticml.data.source import DatasetStats
from elasticml.errors import ConfigError, DataError, shown
from elasticml.objectives.links import check_targets
from elasticml.objectives.losses import Domain
from elasticml.specification.algorithms import AsyncSGD, BatchGradient, CoCoA, PrimalCoCoA


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """How labels and sample weights enter the loss; the same on every member."""

    #: The label whose target is +1, all others' being -1: of two the larger. None in regression,
    #: where labels are the targets, and where the targets are numbers of classes.
    positive: float | None
    #: The labels, ascending, where the targets are the numbers of classes; else empty.
    numbered: tuple[float, ...] = ()
    #: Weight of each label, by which sample weights are multiplied; empty for ones.
    of_class: Mapping[float, float] | None = None
    #: The loss and its domain, in which labels must be in regression.
    loss: str = "squared"
    domain: Domain = "any"

    def of(self, labels: F64) -> F64:
        """Return the targets; new, shape (n,).

        Raises
        ------
        DataError
            When a label is not in the domain of the loss.
        """
        if self.numbered:
            return np.searchsorted(np.array(self.numbered), labels).astype(np.float64)
        if self.positive is None:
            check_targets(self.loss, self.domain, labels)
            return labels.copy()
        return np.where(labels == self.positive, 1.0, -1.0)

    def weights(self, labels: F64, weights: F64 | None) -> F64 | None:
        """Return sample weights times class weights, new, shape (n,); None if all are one."""
        if not self.of_class:
            return None if weights is None else weights.copy()
        classes = np.array(list(self.of_class))
        places = np.minimum(np.searchsorted(classes, labels), classes.size - 1)
        each: F64 = np.array(list(self.of_class.values()))[places]
        return each if weights is None else each * weights


ClassWeight = Mapping[float | str, float] | Literal["balanced"] | None
LinearSettings = BatchGradient | CoCoA | PrimalCoCoA | AsyncSGD


def n_models(settings: LinearSettings, facts: DatasetStats) -> int:
    """Return the number of linear models of a job: one for each of more than two classes, else 1.

    Raises
    ------
    DataError
        When the loss is for classification, and the data have less than two labels or continuous
        ones.
    """
    if not settings.is_classification:
        return 1
    classes = _classes_of(settings, facts)
    return 1 if len(classes) == 2 else len(classes)


def offset_column(settings: BatchGradient | CoCoA | AsyncSGD, facts: DatasetStats) -> int | None:
    """Return the number of the offset's column among the encoded ones, or None.

    Raises
    ------
    ConfigError
        When there is no such column, its values are not numbers, or there are several classes.
    """
    offset = settings.offset
    if offset is None:
        return None

    def refused(got: str) -> ConfigError:
        return ConfigError(f"algorithm.offset is {offset!r}, {got}")

    if n_models(settings, facts) > 1:
        raise refused("wanted none with more than two classes: all would have the same one")
    if facts.layout.kind == "sequence":
        raise refused("wanted none for sequences, whose columns are n-grams")
    if facts.encoder is None:
        if isinstance(offset, str):
            raise refused("a name, but the data have none; give the column's number from 0")
        if offset >= facts.n_columns:
            raise refused(f"wanted a number below {facts.n_columns}, the columns of the data")
        return offset
    # Imported here: it loads pyarrow, which members of other data do not need.
    from elasticml.data.readers.tables import TableEncoder

    at, names = 0, []
    for column in TableEncoder.from_json(facts.encoder).columns:
        if column.name == str(offset):
            if column.kind != "number":
                raise refused(f"a column of kind {column.kind}, wanted one of numbers")
            return at
        names.append(column.name)
        at += column.width
    raise refused(f"wanted the name of a column: {', '.join(names[:8])}")


def targets_for(
    settings: LinearSettings, facts: DatasetStats, number: int | None = None
) -> Targets:
    """Determine the targets for a data set.

    Parameters
    ----------
    number : int, optional
        The number of the class whose target is +1, against the rest. By default, two classes have
        the targets -1 and +1, and more than two their numbers.

    Raises
    ------
    DataError
        When the loss is for classification, and the data have less than two labels or continuous
        ones; or the few distinct labels are not in the loss's domain.
    ConfigError
        When ``class_weight`` names labels that the data do not have.
    """
    if not settings.is_classification:
        domain = settings.terms.domain()
        check_targets(settings.loss, domain, np.array(facts.classes or ()))
        return Targets(positive=None, loss=settings.loss, domain=domain)
    classes = _classes_of(settings, facts)
    counts = {label: facts.label_counts[label] for label in classes}
    names = [_name_of(label, facts) for label in classes]
    of_class = class_weights(settings.class_weight, counts, names)
    if number is None and len(classes) > 2:
        return Targets(positive=None, numbered=classes, of_class=of_class)
    return Targets(positive=classes[-1 if number is None else number], of_class=of_class)


def check_labels(loss: object, facts: DatasetStats, *, is_classification: bool) -> None:
    """Check that the labels of a regression are numbers.

    Raises
    ------
    DataError
        When they are words, whose codes no regression is about.
    """
    encoder = facts.encoder
    is_of_words = encoder is not None and encoder["classes"] and not encoder.get("is_boolean")
    if is_classification or not is_of_words:
        return
    assert encoder is not None
    words = list(encoder["classes"])
    raise DataError(
        f"loss: {loss} found the words {', '.join(map(shown, words[:5]))}"
        f"{', ...' if len(words) > 5 else ''} in column {encoder['label']!r}, wanted "
        "numbers; use a loss for classes, such as logistic, or correct data.label"
    )


def two_class_targets(settings: LinearSettings, facts: DatasetStats) -> Targets:
    """Determine the targets for an algorithm that trains one model.

    Raises
    ------
    DataError, ConfigError
        As :func:`targets_for`, and when there are more than two classes.
    """
    check_labels(settings.loss, facts, is_classification=settings.is_classification)
    targets = targets_for(settings, facts)
    if targets.numbered:
        raise DataError(
            f"loss: {settings.loss} found {_listed(targets.numbered)}, wanted exactly 2 distinct "
            "labels; use algorithm batch_gradient or cocoa, or keep two classes in the data"
        )
    return targets


def _classes_of(settings: LinearSettings, facts: DatasetStats) -> tuple[float, ...]:
    classes = facts.classes
    if classes is None or len(classes) < 2:
        got = "continuous labels" if classes is None else _listed(classes)
        raise DataError(
            f"loss: {settings.loss} found {got}, wanted at least 2 distinct labels; add rows of "
            "another class, or use loss: squared for regression"
        )
    return classes


def class_weights(
    given: ClassWeight, counts: Mapping[float, int], names: Sequence[str]
) -> Mapping[float, float] | None:
    """Return the weight of each label, or None if all are one.

    Parameters
    ----------
    counts : mapping
        Rows of each label.
    names : sequence of str
        The labels as a job file names them.

    Raises
    ------
    ConfigError
        When ``given`` names another label.
    """
    if given is None:
        return None
    if given == "balanced":
        # The weight of a class without rows has no effect.
        n = sum(counts.values())
        weights = {k: n / (len(counts) * max(count, 1)) for k, count in counts.items()}
    else:
        # A word of digits is a number in a job file.
        of_name = {label_text(label): weight for label, weight in given.items()}
        unknown = [label for label in of_name if label not in names]
        if unknown:
            raise ConfigError(
                f"algorithm.class_weight names label {unknown[0]}, wanted labels among "
                f"{' and '.join(names[:5])}{', ...' if len(names) > 5 else ''}; correct it, and "
                "quote yes, no, on and off, which YAML reads as true and false"
            )
        weights = {label: of_name.get(name, 1.0) for label, name in zip(counts, names, strict=True)}
    return None if set(weights.values()) == {1.0} else weights


def label_text(label: float | str) -> str:
    """Return a label as a job file writes it."""
    return label if isinstance(label, str) else f"{label:.16g}"


def _name_of(label: float, facts: DatasetStats) -> str:
    """Return a label as a job file names it: its word if the data have words, else the number."""
    encoder = facts.encoder
    if encoder is None or encoder["classes"] is None or encoder.get("is_boolean"):
        return label_text(label)
    return str(encoder["classes"][int(label)])


def weight_of_all(facts: DatasetStats, targets: Targets) -> float:
    """Return the sum of sample weight times class weight over all examples.

    Exact with one kind of weight. With both, they are treated as independent until the first sum
    over all examples gives the exact number.
    """
    if not targets.of_class:
        return facts.weight_sum
    each = (count * targets.of_class[label] for label, count in facts.label_counts.items())
    return sum(each) / facts.n_rows * facts.weight_sum


def _listed(classes: tuple[float, ...]) -> str:
    shown = ", ".join(f"{label:g}" for label in classes[:5])
    more = ", ..." if len(classes) > 5 else ""
    return f"{len(classes)} distinct label{'s' * (len(classes) != 1)} ({shown}{more})"
