"""Mean loss and metrics of networks over all data (local SGD)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from elasticml.algorithms.base import Arrays
from elasticml.algorithms.local_sgd.module_factory import INPUT_MEAN, INPUT_STD
from elasticml.algorithms.local_sgd.network import Network
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.rows import are_cropped
from elasticml.data.dataset_stats import DatasetStats
from elasticml.errors import DataError
from elasticml.evaluation.scoring import DataReader, Score, row_length_error
from elasticml.specification.algorithms import LocalSGD, settings_from_section


class NetworkScorer:
    """Scores the models of a ``local_sgd`` job.

    Parameters
    ----------
    algorithm : mapping
        The ``algorithm`` section of the job record.
    facts : DatasetStats
        Statistics of the training data.

    Raises
    ------
    ConfigError
        When PyTorch is not installed here, or the module cannot be created.
    """

    def __init__(self, algorithm: Mapping[str, Any], facts: DatasetStats) -> None:
        self._n_columns = facts.n_columns
        # Not the job's device, which this process may not have.
        settings = settings_from_section(LocalSGD, algorithm)
        self._network = Network(settings, facts, device="auto")

    def training(self, reader: DataReader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on all training data, including the holdout."""
        return self.test(reader, models)

    def test(self, reader: DataReader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on any data.

        All models are scored in one pass, since reading costs as much as a forward pass.

        Raises
        ------
        DataError
            When a label does not occur in the training data, or rows have another length.
        """
        sums = np.zeros((len(models), 3))
        moments = np.zeros(3)
        with ThreadPoolExecutor(reader.n_threads) as pool:
            for chunks in reader.batches(pool):
                self._check_width(chunks, reader)
                for at, model in enumerate(models):
                    self._network.fill_named(model)
                    inputs = np.append(model[INPUT_MEAN], model[INPUT_STD])
                    for chunk in chunks:
                        sums[at] += self._of(chunk, inputs)
                moments += np.sum([_moments(chunk) for chunk in chunks], axis=0)
        if not moments[0]:
            raise DataError("the data hold no weighted examples; check the path and the format")
        return [self._score(model_sums, moments) for model_sums in sums]

    def _check_width(self, chunks: Sequence[Chunk], reader: DataReader) -> None:
        """Reject rows that are longer or shorter than the network's input."""
        widths = {chunk.layout.n_columns for chunk in chunks}
        is_wide = are_cropped(reader.counts())
        if widths <= {self._n_columns} and not is_wide:
            return
        length = "more" if is_wide else str(min(widths - {self._n_columns}))
        raise row_length_error(length, self._n_columns)

    def _of(self, chunk: Chunk, inputs: Any) -> tuple[float, float, float]:
        scores = self._network.scores(*self._network.whole(chunk, inputs))
        return scores.weight, scores.loss, scores.correct

    def _score(self, sums: Any, moments: Any) -> Score:
        weight, loss, correct = sums.tolist()
        mean = loss / weight
        if self._network.classes is not None:
            metrics = {"accuracy": correct / weight}
            if self._network.loss_name == "cross_entropy":
                metrics["logloss"] = mean
            return Score(objective=mean, loss=mean, metrics=metrics)
        metrics = {}
        if self._network.loss_name == "mse":
            metrics["rmse"] = float(np.sqrt(mean))
            total, first, second = moments.tolist()
            spread = second / total - (first / total) ** 2
            if spread > 0.0:
                metrics["r2"] = 1.0 - mean / spread
        return Score(objective=mean, loss=mean, metrics=metrics)


def _moments(chunk: Chunk) -> Any:
    """Return the sums of the weights, weight * label, and weight * label^2."""
    labels = chunk.labels
    weights = np.ones(labels.size) if chunk.weights is None else chunk.weights
    return np.array([weights.sum(), weights @ labels, weights @ labels**2])
