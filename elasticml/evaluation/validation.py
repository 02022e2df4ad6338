"""Validation while training: members score held-out rows in the exchanges of the rounds.

The model with which a round ends travels with the next round's first exchange, and the sums of its
metrics come back with that exchange's partials. One of the sums is the number of rows in it: a
score counts only if it is of all validation rows. If a member vanished with its rows the score is
withheld, and the next model is scored.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np

from elasticml.algorithms.base import (
    Arrays,
    Exchange,
    Model,
    Outcome,
    Parallel,
    Proceed,
    Resume,
    RoundEnd,
    Solver,
    Trainer,
    Work,
)
from elasticml.algorithms.parallel import runs
from elasticml.algorithms.registry import algorithm
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk, csr_chunk, dense_chunk
from elasticml.data.chunks.digests import as_text, digest_of_arrays
from elasticml.data.chunks.products import Forward, make_forward
from elasticml.data.chunks.rows import rows_of_chunk
from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.out_of_core.store import stream_chunks
from elasticml.errors import ConfigError, DataError, JobFailedError, fault_of
from elasticml.evaluation.column_validation import ColumnScores, column_shares
from elasticml.evaluation.metrics import (
    Kind,
    Metrics,
    Scored,
    check_metric,
    class_numbers,
    default_metric,
)
from elasticml.ids import is_validation
from elasticml.objectives.links import class_scores, predictions
from elasticml.specification.algorithms import (
    ALGORITHMS,
    BatchGradient,
    CoCoA,
    LocalSGD,
    PrimalCoCoA,
    link_of,
    settings_from_section,
)
from elasticml.story.history import HistoryRow

#: Name of the sums in a partial, and prefix of the scored model's arrays.
SUMS: Final = "validation"
_PREFIX: Final = "validation/"
#: The exchange that scores the final model.
VALIDATE: Final = "validate"
#: The exchange that scores the final model on the training rows, and its history columns.
_SCORE: Final = "score"
TRAIN_COLUMN: Final = "train_"
#: Prefix of history columns.
COLUMN: Final = "validation_"
_CANDIDATE, _BEST = "validation/candidate/", "validation/best/"
#: What the best model is without a trainer's end.
_CUT_SHORT: Final = Model(arrays={}, converged=False, reason="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The section ``validate`` of a job record, without the data."""

    metrics: tuple[str, ...]
    every: int = 1
    patience: int | None = None
    min_delta: float = 0.0

    @staticmethod
    def of(section: Mapping[str, Any]) -> Rules:
        """Read the section."""
        return Rules(
            metrics=tuple(section["metric"]),
            every=int(section.get("every") or 1),
            patience=int(section.get("patience") or 0) or None,
            min_delta=float(section.get("min_delta") or 0.0),
        )


# --- what a model predicts ------------------------------------------------------------------------


def resolve_metrics(section: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics of a job, its algorithm's default if there are none.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of the job record.

    Raises
    ------
    ConfigError
        When the algorithm cannot be validated, or a metric does not fit it.
    """
    name = str(section.get("name"))
    if ":" in name:
        if not names:
            raise ConfigError(
                f"validate.metric is missing: name one for algorithm {name}", path="validate.metric"
            )
        return tuple(names)  # checked with the data, where the algorithm is imported
    if getattr(_settings(section), "problem", None) == "kmeans":
        raise ConfigError(
            f"validate: {name} finds clusters, which have no targets to score; use problem: linear "
            "or leave out validate",
            path="validate",
        )
    is_classification, has_probabilities = _predicts(section)
    fits = {"is_classification": is_classification, "has_probabilities": has_probabilities}
    for metric in names:
        check_metric(metric, **fits)
    return tuple(names) or (default_metric(**fits),)


def is_classification(section: Mapping[str, Any]) -> bool:
    """Whether an algorithm's models classify, as far as its settings say."""
    is_imported = section.get("name") not in ALGORITHMS
    return not is_imported and bool(getattr(_settings(section), "is_classification", False))


def _predicts(section: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether models classify, and whether they give probabilities."""
    settings = _settings(section)
    return settings.is_classification, settings.loss in ("logistic", "cross_entropy")


def _owns_columns(section: Mapping[str, Any]) -> bool:
    """Whether members own columns, so that none has a whole row to score."""
    return str(section["name"]) == PrimalCoCoA.name


def _settings(section: Mapping[str, Any]) -> Any:
    kept = {key: value for key, value in section.items() if key != "warm_start"}
    return settings_from_section(ALGORITHMS[str(section["name"])], kept)


def _kind(section: Mapping[str, Any], facts: DatasetStats) -> Kind:
    name = str(section["name"])
    if ":" in name:
        own = algorithm(name)
        classes = () if own.is_regression or facts.classes is None else facts.classes
        if own.predict is None:
            raise ConfigError(
                f"validate: algorithm {name} has no predict, which scores need; give "
                "Algorithm(predict=...) a function",
                path="validate",
            )
        return Kind(n_classes=len(classes), classes=classes)
    is_classification, has_probabilities = _predicts(section)
    if _owns_columns(section):
        # The labels are among the targets, which members own as they own columns.
        return Kind(n_classes=2 * is_classification, has_probabilities=has_probabilities)
    classes = (facts.classes or ()) if is_classification else ()
    return Kind(n_classes=len(classes), has_probabilities=has_probabilities, classes=classes)


class _Predictor:
    """Predicts the rows of chunks with models in the form in which users get them."""

    def __init__(self, section: Mapping[str, Any], facts: DatasetStats) -> None:
        self._section = dict(section)
        self._facts = facts
        self._own = algorithm(str(section["name"])) if ":" in str(section["name"]) else None
        self._network: Any = None
        self._loss = "" if self._own else str(getattr(_settings(section), "loss", ""))
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

    def __call__(self, chunk: Chunk) -> F64:
        """Return the predictions of a chunk's rows, see :class:`Scored`."""
        if self._own is not None:
            return self._own_predictions(chunk)
        if self._network is not None:
            return self._outputs(chunk)
        d = self._coef.shape[1]
        if chunk.layout.kind != "sequence" and chunk.layout.n_columns > d:
            chunk = _cropped(chunk, d)
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
        from elasticml.algorithms.local_sgd.module_factory import INPUT_MEAN, INPUT_STD

        network, d = self._network, self._facts.n_columns
        if chunk.layout.n_columns != d:
            from elasticml.evaluation.scoring import row_length_error  # reads images, too

            raise row_length_error(chunk.layout.n_columns, d)
        mean, std = (float(np.ravel(self._model[n])[0]) for n in (INPUT_MEAN, INPUT_STD))
        x = network.inputs(network.rows_of(chunk).clone(), mean, std)
        out = network.outputs(x).cpu().numpy().astype(np.float64)
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


def _cropped(chunk: Chunk, d: int) -> Chunk:
    """Return a chunk without the columns that the training data do not have."""
    kept = rows_of_chunk(chunk)
    layout, weights = chunk.layout, chunk.weights
    if kept.dense is not None:
        return dense_chunk(chunk.id, kept.labels, kept.dense[:, :d], weights, dtype=layout.dtype)
    known = chunk.indices < d
    indptr = np.append(0, np.cumsum(known))[chunk.indptr]
    assert kept.values is not None
    values = kept.values[known]
    parts = (chunk.id, kept.labels, indptr, chunk.indices[known], values, d, weights)
    return csr_chunk(*parts, dtype=layout.dtype)


class _Scorer(Protocol):
    """Adds up what the driver needs of a member's validation chunks to score a model."""

    def sums(self, model: Arrays, chunks: Sequence[Chunk], parallel: Parallel, size: int) -> F64:
        """Return the sums over these chunks, (size,)."""
        ...


class _ColumnScorer:
    """The shares of a member's columns in the margins of all validation rows."""

    def __init__(self, n_rows: int) -> None:
        self._n_rows = n_rows

    def sums(self, model: Arrays, chunks: Sequence[Chunk], parallel: Parallel, size: int) -> F64:
        """See :func:`elasticml.evaluation.column_validation.column_shares`."""
        return column_shares(model, chunks, parallel, size=size, n_rows=self._n_rows)


class _RowScorer:
    """The sums of a member's validation rows for one model after the other."""

    def __init__(
        self, metrics: Sequence[str], section: Mapping[str, Any], facts: DatasetStats
    ) -> None:
        self._facts = facts
        self._kind = _kind(section, facts)
        self._metrics = Metrics(metrics, self._kind)
        self._predictor = _Predictor(section, facts)
        self._is_network = section["name"] == LocalSGD.name

    def sums(self, model: Arrays, chunks: Sequence[Chunk], parallel: Parallel, size: int) -> F64:
        """Return the sums over all rows of these chunks, added in the order of the chunks."""
        total = np.zeros(size)
        if not chunks:
            return total
        self._predictor.fill(model)
        # A network has threads of its own, and is one object.
        parts = [chunks] if self._is_network else runs(chunks, parallel.n_threads)
        for sums in [self._of(parts[0])] if self._is_network else parallel.map(self._of, parts):
            total += sums
        return total

    def _of(self, chunks: Sequence[Chunk]) -> F64:
        if not chunks:
            return np.zeros(self._metrics.n_sums)
        # Metrics are computed once, since chunks of validation rows are many and small.
        labels, weights, predictions = [], [], []
        for chunk in stream_chunks(chunks):
            labels.append(np.array(chunk.labels, np.float64))
            weights.append(
                np.ones(chunk.n_rows) if chunk.weights is None else np.array(chunk.weights)
            )
            predictions.append(self._predictor(chunk))
        targets: Any = np.concatenate(labels)
        if self._kind.n_classes:
            targets = class_numbers(targets, self._kind.classes)
        return self._metrics.sums(
            Scored(
                targets=targets,
                predictions=np.concatenate(predictions),
                weights=np.concatenate(weights),
            )
        )


class _ValidatingSolver:
    """A member's solver that trains on training chunks, and scores validation chunks.

    Parameters
    ----------
    solver : Solver
    scorer : _Scorer or None
        Of validation chunks; None if the job has none.
    train_scorer : _Scorer or None
        Of training chunks, with the final model; None if members do not score them.
    """

    def __init__(
        self, solver: Solver, scorer: _Scorer | None, train_scorer: _Scorer | None
    ) -> None:
        self.solver = solver
        self._scorer = scorer
        self._train_scorer = train_scorer

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the solver's arrays over the training chunks, with the sums if they are asked."""
        trained = [chunk for chunk in chunks if not is_validation(chunk.id)]
        if SUMS not in work.returns:
            return self.solver.compute(work, trained, parallel)
        model = {
            name.removeprefix(_PREFIX): array
            for name, array in work.model.items()
            if name.startswith(_PREFIX)
        }
        (size,) = work.returns[SUMS]
        if work.operation == _SCORE:
            assert self._train_scorer is not None
            return {SUMS: self._train_scorer.sums(model, trained, parallel, size)}
        out: dict[str, Any] = {}
        if work.operation != VALIDATE:
            inner = replace(
                work,
                model={k: v for k, v in work.model.items() if not k.startswith(_PREFIX)},
                returns={k: shape for k, shape in work.returns.items() if k != SUMS},
            )
            out.update(self.solver.compute(inner, trained, parallel))
        held = [chunk for chunk in chunks if is_validation(chunk.id)]
        assert self._scorer is not None
        out[SUMS] = self._scorer.sums(model, held, parallel, size)
        return out


def make_solver(
    section: Mapping[str, Any],
    facts: DatasetStats,
    validate: Mapping[str, Any] | None,
    *,
    scores_training: bool = False,
) -> Solver:
    """Return a member's solver, which also scores if the job is validated.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of the job record.
    validate : mapping or None
        The ``validate`` section of the job record.
    scores_training : bool
        Whether members score the final model on the training rows.

    Raises
    ------
    ConfigError, DataError
        As the algorithm's solver, and when a metric does not fit.
    """
    settings = {name: value for name, value in section.items() if name != "name"}
    solver = algorithm(str(section["name"])).solver(settings, facts)
    names = _train_metrics(section) if scores_training else ()
    train_scorer = _RowScorer(names, section, facts) if names else None
    scorer: _Scorer | None = None
    if validate and _owns_columns(section):
        scorer = _ColumnScorer(facts.validation_rows)
    elif validate:
        scorer = _RowScorer(Rules.of(validate).metrics, section, facts)
    if scorer is None and train_scorer is None:
        return solver
    return _ValidatingSolver(solver, scorer, train_scorer)


def training_solver(solver: Solver) -> Solver:
    """Return the solver that trains: that of a solver which also scores, else itself."""
    return solver.solver if isinstance(solver, _ValidatingSolver) else solver


# --- the trainer's half ---------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Validation:
    """The driver's half: which model is scored when, the best one, and when to stop.

    It wraps the algorithm's trainer; its exchanges and rounds stay as they are.
    """

    rules: Rules
    metrics: Metrics
    #: Number of validation rows: a score of fewer is withheld.
    n_rows: int
    #: What makes sums of margins where members own columns; None where they own rows.
    columns: ColumnScores | None = None
    #: The model to score with the next exchange; None: no score is due.
    candidate: Arrays | None = None
    best: Arrays = field(default_factory=dict)
    best_score: float | None = None
    best_scores: dict[str, float | None] = field(default_factory=dict)
    #: Objective and gap of the best model, where the trainer has computed them.
    best_objective: float | None = None
    best_gap: float | None = None
    best_gap_is_bound: bool = False
    #: The score from which an improvement counts, and scores since then.
    reference: float | None = None
    misses: int = 0
    #: Rounds since the last scored model.
    since: int = 0
    #: Scores so far, and those that were withheld.
    scored: int = 0
    withheld: int = 0
    #: Digest of the last scored model: one that has not changed is not scored again.
    last: str = ""
    #: The training ends, since the score does not improve.
    is_stopped: bool = False
    _columns: dict[str, float | int | None] = field(default_factory=dict)
    #: The scored model of this round is the best one.
    _is_best: bool = False

    @staticmethod
    def of(
        validate: Mapping[str, Any], section: Mapping[str, Any], facts: DatasetStats
    ) -> Validation:
        """Return the validation of a job before its first round.

        Raises
        ------
        ConfigError
            When a metric does not fit the data.
        DataError
            When there is no validation row.
        """
        if not facts.validation_rows:
            raise DataError(
                "validate: there are no validation rows; set a larger validate.share, or name "
                "data that hold some"
            )
        rules = Rules.of(validate)
        kind, n_rows = _kind(section, facts), facts.validation_rows
        columns = None
        if _owns_columns(section):
            columns = ColumnScores(
                names=rules.metrics,
                kind=kind,
                n_parts=facts.n_rows,
                n_rows=n_rows,
            )
        metrics = Metrics(rules.metrics, kind)
        return Validation(rules=rules, metrics=metrics, n_rows=n_rows, columns=columns)

    # --- the trainer ----------------------------------------------------------------------------

    def run(self, trainer: Trainer) -> Trainer:
        """Run a trainer with validation."""
        answer: Any = None
        while True:
            try:
                request = trainer.send(answer)
            except StopIteration as end:
                return (yield from self._finish(end.value))
            if isinstance(request, Exchange):
                answer = yield from self._exchange(request)
            else:
                answer = yield from self._round(request)

    def _exchange(self, request: Exchange) -> Generator[Exchange, Outcome, Outcome]:
        model = self.candidate if request.reduce == "sum" else None
        if model is not None:
            request = replace(
                request,
                model={**request.model, **_named(_PREFIX, model)},
                returns={**request.returns, SUMS: (self._size,)},
            )
        outcome = yield request
        anchor = outcome.anchor
        if anchor is not None and SUMS in anchor.arrays:
            outcome = replace(outcome, anchor=replace(anchor, arrays=_without(anchor.arrays)))
        if model is None:
            return outcome
        self.candidate = None
        self._take(model, np.asarray(outcome.arrays[SUMS]))
        return replace(outcome, arrays=_without(outcome.arrays))

    @property
    def _size(self) -> int:
        """Number of sums that an exchange reduces."""
        return self.metrics.n_sums if self.columns is None else self.columns.size

    def _take(self, model: Arrays, reduced: F64) -> None:
        """Take the sums of a model's metrics: a score if all validation rows are in them."""
        sums = reduced if self.columns is None else self.columns.sums(model, reduced)
        n = 0 if sums is None else round(float(sums[0]))
        self._is_best, self.last = False, ""
        if sums is None or n != self.n_rows:
            self.withheld += 1
            self._columns = {**self._blank(), f"{COLUMN}rows": n}
            self.since = self.rules.every  # the next model is scored, whatever the turn
            return
        scores = self.metrics.scores(sums)
        self._columns = {f"{COLUMN}{name}": value for name, value in scores.items()}
        self._columns[f"{COLUMN}rows"] = n
        self.scored += 1
        self.last = _digest(model)
        score = scores[self.metrics.names[0]]
        value = -math.inf if score is None else score
        if self.best_score is None or value > self.best_score:
            self._is_best = True
            self.best_score, self.best_scores = value, scores
            self.best = {name: np.array(array) for name, array in model.items()}
            self.best_objective, self.best_gap, self.best_gap_is_bound = None, None, False
        if self.reference is None or value > self.reference + self.rules.min_delta:
            self.reference, self.misses = value, 0
        else:
            self.misses += 1

    def _blank(self) -> dict[str, float | int | None]:
        return {f"{COLUMN}{name}": None for name in (*self.metrics.names, "rows")}

    def _round(self, end: RoundEnd) -> Generator[RoundEnd, Proceed, Proceed]:
        if self._is_best and _are_equal(end.model, self.best):
            # The round's objective is that of the model with which it started, which was scored.
            if end.objective_kind == "exact":
                self.best_objective = end.objective
            self.best_gap, self.best_gap_is_bound = end.gap, end.gap_is_bound
        columns, self._columns = self._columns or self._blank(), {}
        self.since += 1
        if (
            self.since >= self.rules.every
            and end.next_model
            and _digest(end.next_model) != self.last
        ):
            self.since = 0
            self.candidate = {name: np.array(a, np.float64) for name, a in end.next_model.items()}
        patience = self.rules.patience
        self.is_stopped = patience is not None and self.misses >= patience
        if self.is_stopped:
            self.candidate = None
        ended = replace(
            end,
            extra={**end.extra, **columns},
            resume=self._resume(end.resume),
            best=self._returned(_CUT_SHORT) if self.best else None,
        )
        proceed: Proceed = yield ended
        return replace(proceed, go_on=proceed.go_on and not self.is_stopped)

    def _finish(self, model: Model) -> Generator[Exchange, Outcome, Model]:
        """Score the final model, and return the best of all."""
        if not self.is_stopped and model.arrays:
            if _digest(model.arrays) != self.last:
                outcome = yield Exchange(
                    operation=VALIDATE,
                    model=_named(_PREFIX, model.arrays),
                    returns={SUMS: (self._size,)},
                )
                self._take(model.arrays, np.asarray(outcome.arrays[SUMS]))
            if self._is_best or self.best_score is None:
                return replace(model, extra={**model.extra, **self._best_columns()})
        if not self.best:
            return model
        metric = self.metrics.names[0]
        kept = "the model is the best one on the validation rows"
        reason = f"{model.reason}; {kept}"
        if self.is_stopped:
            reason = (
                f"validation {metric} has not improved in {self.misses} scores; {kept}, "
                f"{metric} {self.best_score:.6g}"
            )
        return replace(self._returned(model), reason=reason, stopped_early=self.is_stopped)

    def _returned(self, model: Model) -> Model:
        """Return the best model, with the columns of the last row of the history."""
        return replace(
            model,
            arrays=self.best,
            objective=self.best_objective,
            gap=self.best_gap,
            gap_is_bound=self.best_gap_is_bound,
            extra={**model.extra, **self._best_columns()},
            kept=None,
        )

    def _best_columns(self) -> dict[str, float | int | None]:
        """Return the columns of the returned model; those of a withheld score if there is none."""
        if not self.best_scores:
            return self._columns or self._blank()
        columns = {f"{COLUMN}{name}": value for name, value in self.best_scores.items()}
        return {**columns, f"{COLUMN}rows": self.n_rows}

    # --- checkpoints ----------------------------------------------------------------------------

    def _resume(self, inner: Resume | None) -> Resume | None:
        if inner is None:
            return None
        names = (
            *("best_score", "best_scores", "best_objective", "best_gap", "best_gap_is_bound"),
            *("last", "reference", "misses", "since", "scored", "withheld", "is_stopped"),
        )
        own = {name: getattr(self, name) for name in names}
        for name in ("best_score", "reference"):
            own[name] = None if own[name] in (None, -math.inf) else own[name]
        return replace(
            inner,
            arrays={
                **inner.arrays,
                **_named(_CANDIDATE, self.candidate or {}),
                **_named(_BEST, self.best),
            },
            values={**inner.values, "validation": own},
        )

    def restore(self, resume: Resume) -> Resume:
        """Take the validation's part of a checkpoint; return the trainer's part."""
        values = dict(resume.values)
        for name, value in (values.pop("validation", None) or {}).items():
            setattr(self, name, value)
        self.best = _part_of(resume.arrays, _BEST)
        self.candidate = _part_of(resume.arrays, _CANDIDATE) or None
        arrays = {k: v for k, v in resume.arrays.items() if not k.startswith(_PREFIX)}
        return replace(resume, arrays=arrays, values=values)


def make_trainer(
    section: Mapping[str, Any],
    facts: DatasetStats,
    absent: str,
    resume: Resume | None,
    validate: Mapping[str, Any] | None,
    *,
    scores_training: bool = False,
) -> Trainer:
    """Return the trainer of a job, with validation if the job asks for it.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of the job record.
    validate : mapping or None
        The ``validate`` section of the job record.
    scores_training : bool
        Whether members score the final model on the training rows.

    Raises
    ------
    ConfigError, DataError
        As the algorithm's trainer, and when a metric does not fit the data.
    """
    settings = {name: value for name, value in section.items() if name != "name"}
    factory = algorithm(str(section["name"])).trainer
    validation = Validation.of(validate, section, facts) if validate else None
    if resume is not None and validation is not None:
        resume = validation.restore(resume)
    more = {} if resume is None else {"resume": resume}
    trainer = factory(settings, facts, absent, **more)
    if validation is not None:
        trainer = validation.run(trainer)
    names = _train_metrics(section) if scores_training else ()
    return (
        _with_train_scores(trainer, Metrics(names, _kind(section, facts)), facts)
        if names
        else trainer
    )


def _train_metrics(section: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the metrics of the training rows; none if members have no linear model of rows."""
    if section["name"] not in (BatchGradient.name, CoCoA.name):
        return ()
    is_classification, has_probabilities = _predicts(section)
    if not is_classification:
        return ("neg_root_mean_squared_error", "r2")
    return ("accuracy", "neg_log_loss") if has_probabilities else ("accuracy",)


def _with_train_scores(trainer: Trainer, metrics: Metrics, facts: DatasetStats) -> Trainer:
    """Run a trainer, and then score its model, where all training rows are present."""
    model = yield from trainer
    if not model.arrays:
        return model
    outcome = yield Exchange(
        operation=_SCORE,
        model=_named(_PREFIX, model.arrays),
        returns={SUMS: (metrics.n_sums,)},
    )
    sums = np.asarray(outcome.arrays[SUMS])
    if round(float(sums[0])) != facts.n_rows:
        return model
    columns = {f"{TRAIN_COLUMN}{name}": value for name, value in metrics.scores(sums).items()}
    return replace(model, extra={**model.extra, **columns})


def train_scores(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of the training rows in the last row of a history, as summaries have them.

    Scores are greater for better models; ``logloss`` and ``rmse`` are smaller.
    """
    names = {
        "accuracy": ("accuracy", 1.0),
        "neg_log_loss": ("logloss", -1.0),
        "neg_root_mean_squared_error": ("rmse", -1.0),
        "r2": ("r2", 1.0),
    }
    return {
        name: sign * float(value)
        for column, (name, sign) in names.items()
        if (value := row.get(f"{TRAIN_COLUMN}{column}")) is not None
    }


def validation_summary(
    validate: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], n_rows: int
) -> dict[str, Any]:
    """Return what a summary says of the validation.

    Parameters
    ----------
    validate : mapping
        The ``validate`` section of the job record.
    rows : sequence of mapping
        The history; its last row is that of the model that the job returns.
    n_rows : int
        Number of validation rows.
    """
    metrics = list(validate["metric"])
    column = f"{COLUMN}{metrics[0]}"
    counted = [row.get(f"{COLUMN}rows") for row in rows[:-1]]
    last = rows[-1] if rows else {}
    score = last.get(column)
    scored = [row for row in rows[:-1] if row.get(column) is not None]
    rounds = [HistoryRow(row).round for row in scored if row[column] == score]
    return {
        "metric": metrics[0],
        "score": score,
        "round": None if score is None else next(iter(rounds), HistoryRow(last).round),
        "rows": n_rows,
        "scores": len(scored),
        "withheld": sum(n is not None and n != n_rows for n in counted),
        "metrics": {name: last.get(f"{COLUMN}{name}") for name in metrics},
    }


def _named(prefix: str, arrays: Arrays) -> dict[str, Any]:
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def _part_of(arrays: Arrays, prefix: str) -> dict[str, Any]:
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def _digest(model: Arrays) -> str:
    return as_text(digest_of_arrays(model))


def _are_equal(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def _without(arrays: Arrays) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if name != SUMS}
