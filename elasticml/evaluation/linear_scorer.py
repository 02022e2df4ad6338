"""Objective and metrics of linear models over all data, for jobs whose data are rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticml.algorithms.base import Arrays, Exchange, Outcome
from elasticml.algorithms.batch_gradient.solver import BatchGradientSolver
from elasticml.algorithms.column_statistics import fix_columns
from elasticml.algorithms.parallel import Serial
from elasticml.algorithms.scaling import Columns
from elasticml.algorithms.targets import (
    Targets,
    offset_column,
    targets_for,
    two_class_targets,
)
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import Forward, make_forward
from elasticml.data.dataset_stats import DatasetStats
from elasticml.errors import DataError
from elasticml.evaluation.scoring import DataReader, Score, ranking
from elasticml.ids import ExchangeId
from elasticml.objectives.links import class_scores, predictions
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.objectives.multiclass import MultiLoss, OneAgainstRest, multiclass_loss
from elasticml.protocol.events import ExchangeHeader
from elasticml.specification.algorithms import (
    AsyncSGD,
    BatchGradient,
    CoCoA,
    settings_from_section,
)

# The objective of a linear job, from its algorithm's settings, for evaluating models.


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """``sum_i s_i loss_i / sum_i s_i + l2/2 ||w||^2`` with ``w`` in scaled coordinates.

    With more than two classes ``w`` is the models of all classes.
    """

    loss: MarginLoss | MultiLoss
    l2: float
    targets: Targets
    scale: str
    intercept: bool
    #: Value of the intercept's column; None if the intercept is not penalised.
    constant: float | None = None

    #: The offset's column, whose coefficient is 1; None without an offset.
    fixed: int | None = None

    @property
    def models(self) -> int:
        """Number of linear models: one for each of more than two classes."""
        return len(self.targets.numbered) or 1

    @property
    def one_against_rest(self) -> bool:
        """Whether each of several classes has a model of its own, against the rest."""
        return isinstance(self.loss, OneAgainstRest)

    def columns(self, n_columns: int) -> Columns:
        """Return the map to scaled coordinates for columns that are not scaled."""
        return Columns(
            n_columns=n_columns,
            intercept=self.intercept,
            constant=self.constant or 1.0,
            models=self.models,
            fixed=self.fixed,
        )

    def penalty(self, model: Arrays, columns: Columns) -> float:
        """Return ``l2/2 ||w||^2`` of a model in original coordinates."""
        w = columns.trained(model["coef"].reshape(-1), model["intercept"])
        if self.constant is None:
            w = w[: columns.n_coefficients]
        if self.fixed is not None:
            w[self.fixed] = 0.0
        return 0.5 * self.l2 * float(w @ w)


def objective_of(algorithm: Mapping[str, Any], facts: DatasetStats) -> Objective:
    """Return the objective for the ``algorithm`` section of a job record.

    Raises
    ------
    ConfigError, DataError
        When a setting is invalid or does not fit the data, or the algorithm is user-defined.
    """
    if algorithm.get("name") == "cocoa":
        cocoa = settings_from_section(CoCoA, algorithm)
        dual, targets = MarginLoss(cocoa.loss, cocoa.terms), targets_for(cocoa, facts)
        return Objective(
            loss=OneAgainstRest(dual) if targets.numbered else dual,
            l2=cocoa.l2,
            targets=targets,
            scale=cocoa.scale,
            intercept=cocoa.intercept,
            constant=cocoa.intercept_scaling,
            fixed=offset_column(cocoa, facts),
        )
    if algorithm.get("name") == "async_sgd":
        async_sgd = settings_from_section(AsyncSGD, algorithm)
        return Objective(
            loss=MarginLoss(async_sgd.loss, async_sgd.terms),
            l2=async_sgd.l2,
            targets=two_class_targets(async_sgd, facts),
            scale=async_sgd.scale,
            intercept=async_sgd.intercept,
            fixed=offset_column(async_sgd, facts),
        )
    settings = settings_from_section(BatchGradient, algorithm)
    loss, targets = (
        MarginLoss(settings.loss, settings.terms),
        targets_for(settings, facts),
    )
    return Objective(
        loss=multiclass_loss(loss) if targets.numbered else loss,
        fixed=offset_column(settings, facts),
        l2=settings.l2,
        targets=targets,
        scale=settings.scale if settings.penalise == "scaled" else "none",
        intercept=settings.intercept,
        constant=settings.intercept_scaling,
    )


# Objective and metrics of linear models over all data (batch gradient, CoCoA).


#: Models per pass over the data; each needs a margin for every row.
MODELS_PER_PASS = 16


@dataclass(frozen=True, slots=True)
class _Part:
    """The sums of one chunk, with one entry per model."""

    loss: F64
    correct: F64
    log_loss: F64
    square: F64
    weight: float
    #: Sums of the sample weights, weight * label, weight * label^2, and weight * loss at margin 0,
    #: the last one for losses with the link log.
    moments: F64
    labels: F64
    sample_weights: F64 | None
    #: (n_models, rows), or (0, rows) without ranking metrics.
    margins: F64


class LinearScorer:
    """Scores models with ``coef`` (k, d) and ``intercept`` (k,); k is 1, or several classes.

    Scaling of columns is derived from the training data. Unless these were scored before, the
    penalty in the objective of test data is ``l2/2 ||coef||^2`` without scaling.

    Parameters
    ----------
    algorithm : mapping
        The ``algorithm`` section of the job record.
    facts : DatasetStats
        Statistics of the training data.
    """

    def __init__(self, algorithm: Mapping[str, Any], facts: DatasetStats) -> None:
        self._objective = objective_of(algorithm, facts)
        self._facts = facts
        self._targets = self._objective.targets
        #: The map to scaled coordinates; if columns are scaled, the first training pass sets it.
        self._columns = self._objective.columns(facts.n_columns)

    def training(self, reader: DataReader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on the training data: exact objective, no ranking metrics."""
        self._columns = self._scaled_columns(reader)
        return self._score(reader, models, ranking=False)

    def test(self, reader: DataReader, models: Sequence[Arrays]) -> list[Score]:
        """Score models on test data, with ranking metrics.

        Raises
        ------
        DataError
            When a label does not occur in the training data.
        """
        return self._score(reader, models, ranking=True)

    def _score(self, reader: DataReader, models: Sequence[Arrays], *, ranking: bool) -> list[Score]:
        scores: list[Score] = []
        for start in range(0, len(models), MODELS_PER_PASS):
            some = models[start : start + MODELS_PER_PASS]
            scores += self._one_pass(reader, some, ranking)
        return scores

    def _one_pass(self, reader: DataReader, models: Sequence[Arrays], ranking: bool) -> list[Score]:
        forwards = [self._forward(model) for model in models]
        parts: list[_Part] = []
        with ThreadPoolExecutor(reader.n_threads) as pool:
            for chunks in reader.batches(pool):
                parts += pool.map(lambda chunk: self._part(chunk, forwards, ranking), chunks)
        if not parts:
            raise DataError("the data hold no examples; check the path and the format")
        if not sum(part.weight for part in parts):
            raise DataError("the weights of all examples are 0; give some of them a weight")
        return [self._merged(parts, index, model) for index, model in enumerate(models)]

    def _forward(self, model: Arrays) -> list[tuple[Forward, float]]:
        rows = np.asarray(model["coef"]).reshape(self._objective.models, -1)
        each = [make_forward(self._facts.layout, np.ascontiguousarray(w)) for w in rows]
        return list(zip(each, np.ravel(model["intercept"]).tolist(), strict=True))

    def _part(
        self, chunk: Chunk, forwards: Sequence[list[tuple[Forward, float]]], ranking: bool
    ) -> _Part:
        """Compute the sums of one chunk for every model, in one thread."""
        labels, sample = chunk.labels, chunk.weights
        self._check_labels(labels)
        targets = self._targets.of(labels)
        weights = self._targets.weights(labels, sample)
        s = np.ones(labels.size) if sample is None else np.asarray(sample)
        n_models, loss, k = len(forwards), self._objective.loss, self._objective.models
        ranking = ranking and k == 1
        sums = np.zeros((4, n_models))
        shape = labels.shape if k == 1 else (k, labels.size)
        margins = np.empty((n_models if ranking else 1, *shape))
        slope = np.empty(shape)
        for index, each in enumerate(forwards):
            z = margins[index if ranking else 0]
            for (forward, intercept), row in zip(each, z.reshape(k, -1), strict=True):
                forward(chunk, row)
                row += intercept
            sums[0, index] = loss.value_and_slope(z, targets, weights, slope)
            if k > 1:
                sums[1, index] = s @ (z.argmax(axis=0) == targets)
                if loss.name == "logistic":
                    sums[2, index] = s @ self._log_losses(z, targets)
            elif loss.is_classification:
                sums[1, index] = s @ ((z > 0.0) == (targets > 0.0))
                if loss.name == "logistic":
                    sums[2, index] = s @ np.logaddexp(0.0, -targets * z)
            else:
                sums[3, index] = s @ (targets - predictions(loss.link, z)) ** 2
        at_zero = 0.0
        if self._link_is_log:
            zeros = np.zeros(labels.size)
            at_zero = loss.value_and_slope(zeros, targets, s, slope)
        return _Part(
            loss=sums[0],
            correct=sums[1],
            log_loss=sums[2],
            square=sums[3],
            weight=float(s.sum() if weights is None else weights.sum()),
            moments=np.array([s.sum(), s @ labels, s @ labels**2, at_zero]),
            labels=np.array(labels) if ranking else labels[:0],
            sample_weights=None if sample is None or not ranking else np.array(sample),
            margins=margins if ranking else margins[:0],
        )

    def _log_losses(self, margins: F64, targets: F64) -> F64:
        """Return minus the logarithms of the probabilities of the rows' classes, (n,)."""
        against = self._objective.one_against_rest
        scores = class_scores("logistic", margins.T, one_against_rest=against)
        own = scores[np.arange(targets.size), targets.astype(np.int64)]
        losses: F64 = np.logaddexp.reduce(scores, axis=1) - own
        return losses

    def _check_labels(self, labels: F64) -> None:
        classes = self._facts.classes
        if not self._objective.loss.is_classification or classes is None:
            return
        unknown = labels[~np.isin(labels, classes)]
        if unknown.size:
            *most, last = (f"{label:g}" for label in classes)
            raise DataError(
                f"the test data have the label {unknown[0]:g}, wanted {', '.join(most)} or "
                f"{last} as in the training data; name the right file"
            )

    def _merged(self, parts: Sequence[_Part], index: int, model: Arrays) -> Score:
        loss = sum(float(part.loss[index]) for part in parts)
        weight = sum(part.weight for part in parts)
        mean = loss / weight
        objective = mean + self._objective.penalty(model, self._columns)
        total, first, second, at_zero = np.sum([part.moments for part in parts], axis=0)
        metrics: dict[str, float] = {}
        if not self._objective.loss.is_classification:
            square = sum(float(part.square[index]) for part in parts)
            variance_sum = second - first * first / total
            metrics["rmse"] = float(np.sqrt(square / total))
            if variance_sum > 0.0:
                metrics["r2"] = float(1.0 - square / variance_sum)
                if self._link_is_log:
                    metrics["d2"] = 1.0 - loss / self._constant_loss(total, first, at_zero)
            return Score(objective=objective, loss=mean, metrics=metrics)
        metrics["accuracy"] = sum(float(part.correct[index]) for part in parts) / float(total)
        if self._objective.loss.name == "logistic":
            metrics["logloss"] = sum(float(part.log_loss[index]) for part in parts) / float(total)
        if parts[0].margins.shape[0]:
            metrics |= _ranking(parts, index, self._targets)
        return Score(objective=objective, loss=mean, metrics=metrics)

    @property
    def _link_is_log(self) -> bool:
        return self._objective.loss.link == "log"

    def _constant_loss(self, total: float, first: float, at_zero: float) -> float:
        """Return the sum of the losses of the best constant, the mean; the link is log.

        Parameters
        ----------
        total, first, at_zero : float
            Sums of the weights, of weight * label, and of weight * loss at margin 0.
        """
        # The loss is A(z) - y B(z) + C(y), so differences between margins depend on the mean alone.
        mean = np.full(2, first / total)
        margins = np.array([0.0, np.log(mean[0])])
        losses = [
            self._objective.loss.value_and_slope(margins[k : k + 1], mean[:1], None, np.empty(1))
            for k in (0, 1)
        ]
        return at_zero + total * (losses[1] - losses[0])

    def _scaled_columns(self, reader: DataReader) -> Columns:
        """Compute the scaling of columns by running the trainer's preparation over all data."""
        rule = self._objective
        preparation = fix_columns(
            rule.scale,
            rule.intercept,
            self._facts,
            rule.constant or 1.0,
            models=rule.models,
            fixed=rule.fixed,
        )
        try:
            exchange = next(preparation)
            while True:
                exchange = preparation.send(self._outcome(exchange, reader))
        except StopIteration as stop:
            columns: Columns = stop.value
            return columns

    def _outcome(self, exchange: Exchange, reader: DataReader) -> Outcome:
        """Perform an exchange in this process: run the solver over the chunks batch by batch."""
        merge = np.maximum if exchange.reduce == "max" else np.add
        merged: dict[str, F64] = {}
        work = ExchangeHeader(
            exchange=ExchangeId(0),
            operation=exchange.operation,
            model=exchange.model,
            parameters=exchange.parameters,
            returns=exchange.returns,
        )
        # Column statistics do not depend on the loss. This solver supports smooth losses only, and
        # this one accepts any labels.
        section = {"scale": self._objective.scale, "loss": "squared"}
        with ThreadPoolExecutor(reader.n_threads) as pool:
            for chunks in reader.batches(pool):
                solver = BatchGradientSolver(section, self._facts)
                for name, array in solver.compute(work, chunks, Serial()).items():
                    merged[name] = merge(merged[name], array) if name in merged else array
        return Outcome(
            exchange=ExchangeId(0),
            arrays=merged,
            examples=self._facts.n_rows,
            absent_examples=0,
        )


def _ranking(parts: Sequence[_Part], index: int, targets: Targets) -> dict[str, float]:
    """Return the ranking metrics over all rows; none if there is only one class."""
    positive = targets.of(np.concatenate([part.labels for part in parts])) > 0.0
    margins = np.concatenate([part.margins[index] for part in parts])
    weights = None
    if any(part.sample_weights is not None for part in parts):
        weights = np.concatenate(
            [
                np.ones(part.labels.size) if part.sample_weights is None else part.sample_weights
                for part in parts
            ]
        )
    return ranking(positive, margins, weights)
