"""Mean loss and metrics of a job's networks over all data, read again after the job has ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from elasticml.algorithms.base import Arrays
from elasticml.algorithms.local_sgd.making import INPUT_MEAN, INPUT_STD
from elasticml.algorithms.local_sgd.network import Network
from elasticml.algorithms.local_sgd.settings import read_settings
from elasticml.data.cache import Setting
from elasticml.data.chunk import Chunk
from elasticml.data.facts import DataFacts
from elasticml.data.source import Source
from elasticml.errors import DataError
from elasticml.jobs.evaluator import Reader, Score


class NetworkEvaluator:
    """Scores models of a ``local_sgd`` job; as :class:`elasticml.jobs.evaluator.Evaluator`.

    Parameters
    ----------
    algorithm : mapping
        The ``algorithm`` section of the job record.
    facts : DataFacts
        Of the training data.
    n_threads : int, optional
        Threads that read; default all processors that this process may use.

    Raises
    ------
    ConfigError
        When PyTorch is not installed here, or the module cannot be made.
    """

    def __init__(
        self,
        algorithm: Mapping[str, Any],
        facts: DataFacts,
        n_threads: int | None = None,
        cache: Setting = None,
    ) -> None:
        self._facts = facts
        self._n_threads = n_threads or max(1, len(os.sched_getaffinity(0)))
        self._cache = cache
        # Whatever the members have: this process may have no such device.
        self._network = Network(read_settings(algorithm), facts, device="auto")

    def score_training(
        self,
        source: Source,
        models: Sequence[Arrays],
        chunk_bytes: int | None = None,
        n_members: int = 1,
    ) -> list[Score]:
        """Score models on the training data, what was held out included.

        Raises
        ------
        ConfigError, DataError
            When the data cannot be read here.
        """
        ready = source.with_facts(self._facts) if source.needs_survey else source
        return self._scores(
            Reader(ready, self._n_threads, self._cache, chunk_bytes, n_members), models
        )

    def score_test(
        self, source: Source, models: Sequence[Arrays]
    ) -> tuple[list[Score], tuple[str, ...]]:
        """Score models on data that were not trained on.

        Returns
        -------
        list of Score, tuple of str
            The scores, and what is worth saying of the data, such as dropped columns.

        Raises
        ------
        ConfigError, DataError
            When the data cannot be read here, or a label is not one of the training data's.
        """
        reader = Reader(source.with_facts(self._facts), self._n_threads, self._cache)
        return self._scores(reader, models), reader.notes()

    def _scores(self, reader: Reader, models: Sequence[Arrays]) -> list[Score]:
        """Go through the data once for all models: reading them costs as much as the forward."""
        sums = np.zeros((len(models), 3))
        moments = np.zeros(3)
        with ThreadPoolExecutor(self._n_threads) as pool:
            for chunks in reader.batches(pool):
                for at, model in enumerate(models):
                    self._network.fill_named(model)
                    inputs = np.append(model[INPUT_MEAN], model[INPUT_STD])
                    for chunk in chunks:
                        sums[at] += self._of(chunk, inputs)
                moments += np.sum([_moments(chunk) for chunk in chunks], axis=0)
        if not moments[0]:
            raise DataError("the data hold no weighted examples; check the path and the format")
        return [self._score(found, moments) for found in sums]

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
            return Score(objective=mean, metrics=metrics)
        metrics = {}
        if self._network.loss_name == "mse":
            metrics["rmse"] = float(np.sqrt(mean))
            total, first, second = moments.tolist()
            spread = second / total - (first / total) ** 2
            if spread > 0.0:
                metrics["r2"] = 1.0 - mean / spread
        return Score(objective=mean, metrics=metrics)


def _moments(chunk: Chunk) -> Any:
    """Return sums of weights, of weight times label, and of weight times its square."""
    labels = chunk.labels
    weights = np.ones(labels.size) if chunk.weights is None else chunk.weights
    return np.array([weights.sum(), weights @ labels, weights @ labels**2])
