"""Objective and metrics of linear models over data by columns: primal CoCoA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Arrays, Work
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.primal_cocoa import messages
from elasticml.algorithms.primal_cocoa.settings import read_settings
from elasticml.algorithms.primal_cocoa.solver import PrimalCocoaSolver
from elasticml.data.chunk import Chunk
from elasticml.data.facts import DataFacts
from elasticml.data.products import make_adjoint
from elasticml.errors import DataError
from elasticml.jobs.scoring import Reader, Score
from elasticml.terms import ExchangeId

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Sums:
    """What a pass over all columns adds up to; everything is times the roots of the weights."""

    targets: F64
    #: Ones where no example has a weight.
    root: F64
    #: (n,) for each model.
    images: list[F64]


class ColumnScorer:
    """Scores models with ``coef`` (1, d) and ``intercept`` (1,) of the lasso or the elastic net.

    Parameters
    ----------
    algorithm : mapping
        The ``algorithm`` section of the job record.
    facts : DataFacts
        Of the training data.
    """

    def __init__(self, algorithm: Mapping[str, Any], facts: DataFacts) -> None:
        given = {key: value for key, value in algorithm.items() if key != "warm_start"}
        self._settings, self._section = read_settings(given), given
        self._facts = facts

    def training(self, reader: Reader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on the training data."""
        return self._score(reader, models)

    def test(self, reader: Reader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on data that were not trained on.

        Raises
        ------
        DataError
            When they have other columns than the training data.
        """
        return self._score(reader, models)

    def _score(self, reader: Reader, models: Sequence[Arrays]) -> list[Score]:
        with ThreadPoolExecutor(reader.n_threads) as pool:
            chunks = [chunk for some in reader.batches(pool) for chunk in some]
        sums = self._sums(chunks, [np.ravel(model["coef"]) for model in models])
        total = float(sums.root @ sums.root)
        mean = float(sums.root @ sums.targets) / total
        away = sums.targets - mean * sums.root
        spread, scores = float(away @ away), []
        for model, image in zip(models, sums.images, strict=True):
            w, intercept = np.ravel(model["coef"]), float(model["intercept"][0])
            error = sums.targets - image - intercept * sums.root
            square = float(error @ error)
            metrics = {"rmse": float(np.sqrt(square / total))}
            if spread > 0.0:
                metrics["r2"] = 1.0 - square / spread
            penalty = self._settings.l1 * float(np.abs(w).sum())
            penalty += 0.5 * self._settings.l2 * float(w @ w)
            scores.append(Score(objective=0.5 * square / total + penalty, metrics=metrics))
        return scores

    def _sums(self, chunks: Sequence[Chunk], coefs: Sequence[F64]) -> _Sums:
        n = max(chunk.layout.n_columns for chunk in chunks)
        exchange = messages.targets_exchange(n)
        work = Work(
            exchange=ExchangeId(0),
            operation=exchange.operation,
            model=exchange.model,
            parameters={},
            returns=exchange.returns,
        )
        told = PrimalCocoaSolver(self._section, self._facts).compute(work, chunks, Serial())
        d = int(told["counts"][0])
        if d != coefs[0].size:
            raise DataError(
                f"the data have {d} columns, wanted {coefs[0].size} as the training data have; "
                "name data of the same features"
            )
        images = []
        for w in coefs:
            adjoint, image = make_adjoint(self._facts.layout, n), np.zeros(n)
            for chunk in chunks:
                features = chunk.labels >= 0.0
                own = np.zeros(chunk.n_rows)
                own[features] = w[chunk.labels[features].astype(np.int64)]
                adjoint.add(chunk, own)
            adjoint.result(image)
            images.append(image)
        root = told["root"] if told["counts"][2] else np.ones(n)
        return _Sums(np.asarray(told["target"]), np.asarray(root), images)
