"""Predictions of chunks by models in the form in which users get them, and what they predict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from elasticml.algorithms.base import Algorithm, Arrays
from elasticml.algorithms.registry import algorithm
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.chunker import chunk_of
from elasticml.data.chunks.products import Forward, make_forward
from elasticml.data.chunks.rows import fit_columns, rows_of_chunk
from elasticml.data.dataset_stats import DatasetStats
from elasticml.errors import ConfigError, DataError, JobFailedError, fault_of
from elasticml.evaluation.metrics import Kind
from elasticml.objectives.links import class_scores, predictions
from elasticml.specification.algorithms import (
    ALGORITHMS,
    BatchGradient,
    LocalSGD,
    PrimalCoCoA,
    link_of,
    settings_from_section,
)


def settings_of(section: Mapping[str, Any]) -> Any:
    """Return the settings of a built-in algorithm's section of the job record."""
    kept = {key: value for key, value in section.items() if key != "warm_start"}
    return settings_from_section(ALGORITHMS[str(section["name"])], kept)


def is_classification(section: Mapping[str, Any]) -> bool:
    """Whether an algorithm's models classify, as far as its settings say."""
    is_imported = section.get("name") not in ALGORITHMS
    return not is_imported and bool(getattr(settings_of(section), "is_classification", False))


def has_probabilities(section: Mapping[str, Any]) -> bool:
    """Whether the models of a built-in algorithm give probabilities."""
    return settings_of(section).loss in ("logistic", "cross_entropy")


def owns_columns(section: Mapping[str, Any]) -> bool:
    """Whether members own columns, so that none has a whole row to score."""
    return str(section["name"]) == PrimalCoCoA.name


def check_predicts(own: Algorithm, path: str) -> None:
    """Raise a ConfigError if a user-defined algorithm cannot be scored on the data of a setting."""
    if own.predict is None:
        raise ConfigError(
            f"{path}: algorithm {own.name} has no predict, which scores need; give "
            "Algorithm(predict=...) a function"
        )


def row_length_error(length: int, expected: int | None) -> DataError:
    """Return the error for rows to score whose length is not that of a network's input."""
    return DataError(
        f"rows have {length} columns, wanted {expected} as the training data have; name data of "
        "the same shape"
    )


def kind_of(section: Mapping[str, Any], facts: DatasetStats) -> Kind:
    """Return what the models of a job predict."""
    name = str(section["name"])
    if ":" in name:
        own = algorithm(name)
        classes = () if own.is_regression or facts.classes is None else facts.classes
        return Kind(n_classes=len(classes), classes=classes)
    classifies, likely = is_classification(section), has_probabilities(section)
    if owns_columns(section):
        # The labels are among the targets, which members own as they own columns.
        return Kind(n_classes=2 * classifies, has_probabilities=likely)
    classes = (facts.classes or ()) if classifies else ()
    return Kind(n_classes=len(classes), has_probabilities=likely, classes=classes)


class Predictor:
    """Predicts the rows of chunks with one model after the other.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of the job record.
    facts : DatasetStats
        Statistics of the training data.
    """

    def __init__(self, section: Mapping[str, Any], facts: DatasetStats) -> None:
        self._section = dict(section)
        self._facts = facts
        self._own = algorithm(str(section["name"])) if ":" in str(section["name"]) else None
        self._network: Any = None
        self._loss = "" if self._own else str(getattr(settings_of(section), "loss", ""))
        self._link = link_of({**section, "loss": self._loss})
        #: (k, d), with one row for each of more than two classes.
        self._coef: F64 = np.zeros((1, 0))
        self._offsets: F64 = np.zeros(1)
        self._forwards: dict[Any, list[Forward]] = {}
        self._model: Arrays = {}

    def fill(self, model: Arrays) -> None:
        """Take a model."""
        self._model = model
        name = self._section["name"]
        if name == LocalSGD.name:
            if self._network is None:
                from elasticml.algorithms.local_sgd.network import Network

                self._network = Network(settings_from_section(LocalSGD, self._section), self._facts)
            self._network.fill_named(model)
        elif self._own is None:
            self._coef = np.ascontiguousarray(np.atleast_2d(model["coef"]), np.float64)
            self._offsets = np.array(np.ravel(model["intercept"]), np.float64)
            self._forwards.clear()

    @property
    def common(self) -> float:
        """What the margins of two classes have in common: a linear model's intercept, else 0."""
        is_one = self._own is None and self._network is None and len(self._offsets) == 1
        return float(self._offsets[0]) if is_one else 0.0

    def __call__(self, chunk: Chunk) -> F64:
        """Return the predictions of a chunk's rows, see :class:`.metrics.Scored`.

        Raises
        ------
        DataError
            When the rows do not have the length of a network's input.
        JobFailedError
            When a user's ``predict`` fails, or returns what it must not.
        """
        if self._own is not None:
            return self._own_predictions(chunk)
        if self._network is not None:
            return self._outputs(chunk)
        d = self._coef.shape[1]
        if chunk.layout.kind != "sequence" and chunk.layout.n_columns > d:
            # Columns that the training data do not have.
            known = fit_columns(rows_of_chunk(chunk), d, {})
            chunk = chunk_of(known, chunk.id, replace(chunk.layout, n_columns=d))
        layout = chunk.layout
        if layout not in self._forwards:
            self._forwards[layout] = [make_forward(layout, w) for w in self._coef]
        margins = np.empty((len(self._coef), chunk.n_rows))
        for forward, row in zip(self._forwards[layout], margins, strict=True):
            forward(chunk, row)
        margins += self._offsets[:, None]
        if len(margins) == 1:
            return predictions(self._link, margins[0])
        against = self._section["name"] != BatchGradient.name
        return class_scores(self._loss, margins.T, one_against_rest=against)

    def _outputs(self, chunk: Chunk) -> F64:
        network, d = self._network, self._facts.n_columns
        if chunk.layout.n_columns != d:
            raise row_length_error(chunk.layout.n_columns, d)
        out = network.predicted(network.rows_of(chunk).clone(), self._model)
        if network.classes is None:
            return np.asarray(out.reshape(chunk.n_rows))
        return np.asarray(out[:, : len(network.classes)])

    def _own_predictions(self, chunk: Chunk) -> F64:
        own = self._own
        assert own is not None and own.predict is not None
        settings = {key: value for key, value in self._section.items() if key != "name"}
        try:
            out = np.asarray(own.predict(settings, self._facts, self._model, chunk), np.float64)
        except Exception as error:
            raise fault_of(error, f"{own.name}.predict") from error
        if out.shape[:1] != (chunk.n_rows,) or out.ndim > 2:
            raise JobFailedError(
                f"{own.name}.predict returned an array of shape {out.shape}, wanted "
                f"({chunk.n_rows},) or ({chunk.n_rows}, classes): one prediction per row"
            )
        return out
