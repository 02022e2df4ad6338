"""Evaluate a job's models after the job: read the data again, compute objective and metrics."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elasticml.algorithms.base import Arrays
from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.source import Source
from elasticml.evaluation.scoring import DataReader, Score, Scorer
from elasticml.user_cache import CacheSetting


def _scorer_of(algorithm: str) -> Callable[[Mapping[str, Any], DatasetStats], Scorer]:
    """Return the scorer of an algorithm; importing another one's takes a third of a second."""
    if ":" in algorithm:
        from elasticml.evaluation.imported_scorer import ImportedScorer

        return ImportedScorer
    if algorithm == "local_sgd":
        from elasticml.evaluation.network_scorer import NetworkScorer

        return NetworkScorer
    if algorithm == "primal_cocoa":
        from elasticml.evaluation.column_scorer import ColumnScorer

        return ColumnScorer
    from elasticml.evaluation.linear_scorer import LinearScorer

    return LinearScorer


class Evaluator:
    """Scores the models of a job: linear models, networks, or those of an own algorithm.

    Parameters
    ----------
    algorithm : mapping
        The ``algorithm`` section of the job record.
    facts : DatasetStats
        Statistics of the training data.
    n_threads : int, optional
        Threads for reading and multiplying; by default all CPUs that this process may use.
    cache : path, bool or None
        As in :func:`elasticml.data.source.read_block`.

    Raises
    ------
    ConfigError
        When the models are networks, and PyTorch is not installed here or the module cannot be
        created.
    """

    def __init__(
        self,
        algorithm: Mapping[str, Any],
        facts: DatasetStats,
        n_threads: int | None = None,
        cache: CacheSetting = None,
    ) -> None:
        self._scorer: Scorer = _scorer_of(str(algorithm.get("name")))(algorithm, facts)
        self._facts = facts
        self._n_threads = n_threads or max(1, len(os.sched_getaffinity(0)))
        self._cache = cache

    def score_training(
        self,
        source: Source,
        models: Sequence[Arrays],
        chunk_bytes: int | None = None,
        n_members: int = 1,
    ) -> list[Score]:
        """Score models on all training data: exact objective, no ranking metrics.

        Parameters
        ----------
        source : Source
            The job's source.
        models : sequence of mappings
            ``coef`` (k, d) and ``intercept`` (k,), or a network's arrays by their names.
        chunk_bytes, n_members
            As in the job, so that the blocks which its members have cached are used.

        Raises
        ------
        ConfigError, DataError
            When the data cannot be read here.
        """
        ready = source.with_stats(self._facts) if source.needs_survey else source
        reader = DataReader(ready, self._n_threads, self._cache, chunk_bytes, n_members)
        return self._scorer.training(reader, models)

    def score_test(
        self, source: Source, models: Sequence[Arrays]
    ) -> tuple[list[Score], tuple[str, ...]]:
        """Score models on test data.

        Returns
        -------
        list of Score, tuple of str
            The scores, and notes about the data, such as dropped columns.

        Raises
        ------
        ConfigError, DataError
            When the data cannot be read here, or do not fit the training data: an unknown label,
            or, for networks, rows of another length.
        """
        reader = DataReader(source.with_stats(self._facts), self._n_threads, self._cache)
        return self._scorer.test(reader, models), reader.notes()
