"""Test metrics of user-defined algorithms, from their ``predict`` and ``evaluate``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from elasticml.algorithms.base import Algorithm, Arrays
from elasticml.algorithms.registry import algorithm as algorithm_named
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.dataset_stats import DatasetStats
from elasticml.errors import ConfigError, DataError, JobFailedError, fault_of
from elasticml.evaluation.scoring import DataReader, Score, ranking


def check_can_score(algorithm: Algorithm) -> None:
    """Raise a ConfigError if a user-defined algorithm cannot be scored on test data."""
    if algorithm.predict is None and algorithm.evaluate is None:
        raise ConfigError(
            f"test data were given, but algorithm {algorithm.name} has neither predict nor "
            "evaluate, wanted one of them; give Algorithm(predict=...) a function, or leave the "
            "test data out",
            path="data.test",
        )


class ImportedScorer:
    """Scores models of a user-defined algorithm on test data.

    The metrics are those of ``evaluate``, means over the rows, and those of the predictions of
    ``predict``: accuracy, auroc and auprc for classes, rmse and r2 for numbers.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of the job record.
    facts : DatasetStats
        Statistics of the training data.

    Raises
    ------
    ConfigError
        When the algorithm cannot be imported here, or cannot be scored.
    """

    def __init__(self, section: Mapping[str, Any], facts: DatasetStats) -> None:
        settings = dict(section)
        self._algorithm = algorithm_named(settings.pop("name"))
        check_can_score(self._algorithm)
        self._settings = settings
        self._facts = facts

    def training(self, reader: DataReader, models: Sequence[Arrays]) -> list[Score]:
        """Return no metrics: the trainer computes the objective itself."""
        return [Score(objective=math.nan, metrics={}) for _ in models]

    def test(self, reader: DataReader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on test data.

        Raises
        ------
        DataError
            When there are no rows.
        JobFailedError
            When ``predict`` or ``evaluate`` fails, or returns what it must not.
        """
        sums: list[dict[str, float]] = [{} for _ in models]
        predictions: list[list[F64]] = [[] for _ in models]
        labels: list[F64] = []
        weights: list[F64] = []
        with ThreadPoolExecutor(1) as pool:
            for chunks in reader.batches(pool):
                for chunk in chunks:
                    labels.append(np.array(chunk.labels))
                    weights.append(
                        np.ones(chunk.n_rows) if chunk.weights is None else np.array(chunk.weights)
                    )
                    for model, total, outputs in zip(models, sums, predictions, strict=True):
                        self._add(chunk, model, total, outputs)
        if not labels:
            raise DataError("the data hold no examples; check the path and the format")
        y, s = np.concatenate(labels), np.concatenate(weights)
        scores = []
        for total, outputs in zip(sums, predictions, strict=True):
            metrics = {name: value / y.size for name, value in total.items()}
            if outputs:
                metrics |= self._metrics(np.concatenate(outputs), y, s)
            scores.append(Score(objective=math.nan, metrics=metrics))
        return scores

    def _add(
        self, chunk: Chunk, model: Arrays, total: dict[str, float], outputs: list[F64]
    ) -> None:
        own = self._algorithm
        arguments = (self._settings, self._facts, model, chunk)
        if own.evaluate is not None:
            for name, value in _called(own.evaluate, arguments, f"{own.name}.evaluate").items():
                total[name] = total.get(name, 0.0) + float(value)
        if own.predict is not None:
            output = np.asarray(_called(own.predict, arguments, f"{own.name}.predict"))
            if output.shape[:1] != (chunk.n_rows,) or output.ndim > 2:
                raise JobFailedError(
                    f"{own.name}.predict returned an array of shape {output.shape}, wanted "
                    f"({chunk.n_rows},) or ({chunk.n_rows}, classes): one prediction per row"
                )
            outputs.append(output.astype(np.float64))

    def _metrics(self, outputs: F64, y: F64, s: F64) -> dict[str, float]:
        classes = self._facts.classes
        if classes is None or self._algorithm.is_regression:
            errors = outputs.reshape(y.size) - y
            mean = float(s @ y / s.sum())
            variance = float(s @ (y - mean) ** 2)
            metrics = {"rmse": math.sqrt(float(s @ errors**2) / float(s.sum()))}
            return metrics | ({"r2": 1.0 - float(s @ errors**2) / variance} if variance else {})
        labels = np.array(classes)
        if outputs.ndim == 2:
            correct = labels[np.argmax(outputs, axis=1)] == y
            return {"accuracy": float(s @ correct / s.sum())}
        correct = labels[(outputs > 0.0).astype(int)] == y
        return {
            "accuracy": float(s @ correct / s.sum()),
            **ranking(y == labels[-1], outputs, s),
        }


def _called(function: Any, arguments: tuple[Any, ...], who: str) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise fault_of(error, who) from error
