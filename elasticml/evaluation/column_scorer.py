"""Objective and metrics of linear models over column-partitioned data (primal CoCoA)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticml.algorithms.base import Arrays
from elasticml.algorithms.primal_cocoa.margin_problem import class_weights
from elasticml.algorithms.primal_cocoa.solver import targets_of
from elasticml.arrays import F64
from elasticml.data.chunks.by_columns import own_coefs
from elasticml.data.chunks.products import Adjoint, make_adjoint
from elasticml.data.dataset_stats import DatasetStats
from elasticml.errors import DataError
from elasticml.evaluation.scoring import DataReader, Score, ranking
from elasticml.objectives.loss_kernels import loss_named
from elasticml.specification.algorithms import PrimalCoCoA, settings_from_section


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums of one pass over all columns."""

    #: Targets, unscaled.
    targets: F64
    #: Square roots of the sample weights; ones if there are none.
    root: F64
    #: ``root * (X @ coef)``, (n,), for each model.
    images: list[F64]


class ColumnScorer:
    """Scores models with ``coef`` (1, d), ``intercept`` (1,) and, to classify, ``classes`` (2,).

    Parameters
    ----------
    algorithm : mapping
        The ``algorithm`` section of the job record.
    facts : DatasetStats
        Statistics of the training data.
    """

    def __init__(self, algorithm: Mapping[str, Any], facts: DatasetStats) -> None:
        section = {key: value for key, value in algorithm.items() if key != "warm_start"}
        self._settings = settings_from_section(PrimalCoCoA, section)
        self._facts = facts
        #: Weights of the smaller and the larger label; None before the training data were scored.
        self._pair: tuple[float, float] | None = None

    def training(self, reader: DataReader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on the training data, without ranking metrics."""
        return self._score(reader, models, is_test=False)

    def test(self, reader: DataReader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on test data.

        Raises
        ------
        DataError
            When their columns or labels differ from those of the training data.
        """
        return self._score(reader, models, is_test=True)

    def _score(self, reader: DataReader, models: Sequence[Arrays], *, is_test: bool) -> list[Score]:
        if not models:
            return []
        sums = self._sums(reader, [np.ravel(model["coef"]) for model in models])
        if self._settings.is_classification:
            return [
                self._classified(sums, image, model, is_test)
                for model, image in zip(models, sums.images, strict=True)
            ]
        total = float(sums.root @ sums.root)
        targets = sums.targets * sums.root
        mean = float(sums.root @ targets) / total
        centred = targets - mean * sums.root
        variance_sum, scores = float(centred @ centred), []
        for model, image in zip(models, sums.images, strict=True):
            w, intercept = np.ravel(model["coef"]), float(model["intercept"][0])
            error = targets - image - intercept * sums.root
            square = float(error @ error)
            metrics = {"rmse": float(np.sqrt(square / total))}
            if variance_sum > 0.0:
                metrics["r2"] = 1.0 - square / variance_sum
            loss = 0.5 * square / total
            objective = loss + self._penalty(w)
            scores.append(Score(objective=objective, loss=loss, metrics=metrics))
        return scores

    def _penalty(self, w: F64) -> float:
        return self._settings.l1 * float(np.abs(w).sum()) + 0.5 * self._settings.l2 * float(w @ w)

    def _classified(self, sums: _Sums, image: F64, model: Arrays, is_test: bool) -> Score:
        is_weighted = sums.root > 0.0
        root = sums.root[is_weighted]
        labels = sums.targets[is_weighted]
        classes = np.ravel(model["classes"])
        unknown = labels[~np.isin(labels, classes)]
        if unknown.size:
            raise DataError(
                f"the test data have the label {unknown[0]:g}, wanted {classes[0]:g} or "
                f"{classes[1]:g} as in the training data; name the right file"
            )
        is_positive = labels == classes[1]
        pair = self._pair if is_test else None
        if pair is None:
            class_weight = self._settings.class_weight
            pair = class_weights(class_weight, classes, is_positive) or (1.0, 1.0)
            self._pair = self._pair if is_test else pair
        sampled = root * root
        weights = sampled * np.where(is_positive, pair[1], pair[0])
        z, targets = (
            image[is_weighted] / root + float(model["intercept"][0]),
            2.0 * is_positive - 1.0,
        )
        loss = loss_named(self._settings.loss)
        value = loss.value_and_slope(z, targets, weights, np.empty(z.size))
        total = float(sampled.sum())
        metrics = {"accuracy": float(sampled @ ((z > 0.0) == is_positive)) / total}
        if loss.name == "logistic":
            metrics["logloss"] = float(sampled @ np.logaddexp(0.0, -targets * z)) / total
        if is_test:
            metrics |= ranking(is_positive, z, sampled)
        mean = value / float(weights.sum())
        objective = mean + self._penalty(np.ravel(model["coef"]))
        return Score(objective=objective, loss=mean, metrics=metrics)

    def _sums(self, reader: DataReader, coefs: Sequence[F64]) -> _Sums:
        """Read all columns once, batch by batch, since a batch may be all that fits in memory."""
        totals: dict[str, F64] = {}
        adjoints: list[Adjoint] = []
        n = 0
        with ThreadPoolExecutor(reader.n_threads) as pool:
            for chunks in reader.batches(pool):
                if not chunks:
                    continue
                if not adjoints:
                    n = chunks[0].layout.n_columns
                    adjoints = [make_adjoint(self._facts.layout, n) for _ in coefs]
                for name, values in targets_of(chunks, n).items():
                    totals[name] = totals.get(name, 0.0) + values
                for w, adjoint in zip(coefs, adjoints, strict=True):
                    for chunk in chunks:
                        adjoint.add(chunk, own_coefs(chunk, w))
        d, n_columns = int(totals["counts"][0]) if totals else 0, coefs[0].size
        if d != n_columns:
            raise DataError(
                f"the data have {d} columns, wanted {n_columns} as the training data have; "
                "name data of the same features"
            )
        images = [np.zeros(n) for _ in coefs]
        for adjoint, image in zip(adjoints, images, strict=True):
            adjoint.result(image)
        return _Sums(
            totals["target"], totals["root"] if totals["counts"][2] else np.ones(n), images
        )
