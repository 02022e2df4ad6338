"""Scores of a job's models, which members compute from the rows that they hold.

A model is scored on rows of three roles: the training rows once, with the model that the job
returns; validation rows while the job trains, which may end it; test rows in the rounds that the
job evaluates. The model with which a round ends travels with the next round's first exchange, and
the sums of its metrics come back with that exchange's partials. One of the sums is the number of
rows in it: a validation score counts only if it is of all rows. If a member vanished with its rows
the score is withheld, and the next model is scored.

Where members own columns (primal CoCoA) none has a whole row. Each adds its columns' share of the
margins, and the driver computes the metrics of their sum. What is reduced, for n rows, is one
vector of: the number of rows of X.T in the sum; the margins (n) times the square roots of the
sample weights, as all columns are stored; and only the first time the number of rows of weights,
the targets (n) and the roots (n).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np

from elasticml.algorithms.base import (
    Algorithm,
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
    WaitingSolver,
    WarmingSolver,
    Work,
)
from elasticml.algorithms.parallel import Serial, runs
from elasticml.algorithms.registry import algorithm
from elasticml.arrays import F64
from elasticml.data.chunks.body import Layout
from elasticml.data.chunks.by_columns import own_coefs
from elasticml.data.chunks.checksums import as_text, digest_of_arrays
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import Adjoint, Forward, make_adjoint, make_forward
from elasticml.data.chunks.rows import chunk_of, fit_columns, rows_of_chunk
from elasticml.data.dataset_stats import DatasetStats
from elasticml.data.out_of_core.store import stream_chunks
from elasticml.data.source import Source
from elasticml.errors import ConfigError, DataError, JobFailedError, fault_of
from elasticml.evaluation.metrics import (
    Kind,
    Metrics,
    Scored,
    check_metric,
    class_numbers,
    default_metric,
    default_metrics,
)
from elasticml.ids import ROLE_ORDINALS, Role, is_trained, role_of
from elasticml.objectives.links import class_scores, predictions
from elasticml.specification.algorithms import (
    ALGORITHMS,
    BatchGradient,
    LocalSGD,
    PrimalCoCoA,
    link_of,
    settings_from_section,
)
from elasticml.specification.sections import Validate
from elasticml.story.history import HistoryRow


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


def column_shares(
    n_rows: int, model: Arrays, chunks: Sequence[Chunk], parallel: Parallel, size: int
) -> F64:
    """Return a member's share of the vector of margins, (size,).

    Parameters
    ----------
    n_rows : int
        n, the number of rows to score.
    model : mapping
        ``coef`` (1, d) is read.
    size : int
        ``1 + n`` or, with targets and weights, ``2 + 3 n``.
    """
    coef = np.ravel(model["coef"])
    out = np.zeros(size)

    def run(part: Sequence[Chunk]) -> F64:
        adjoints: dict[Layout, Adjoint] = {}
        for chunk in stream_chunks(part):
            if chunk.layout not in adjoints:
                adjoints[chunk.layout] = make_adjoint(chunk.layout, n_rows)
            adjoints[chunk.layout].add(chunk, own_coefs(chunk, coef))
        margins, one = np.zeros(n_rows), np.zeros(n_rows)
        for adjoint in adjoints.values():
            adjoint.result(one)
            margins += one
        return margins

    out[0] = sum(chunk.n_rows for chunk in chunks)
    for margins in parallel.map(run, runs(chunks, parallel.n_threads)):
        out[1 : 1 + n_rows] += margins
    if size > 1 + n_rows:
        from elasticml.algorithms.cocoa.column_solver import targets_of

        constants = targets_of(chunks, n_rows)
        parts = (constants["counts"][2:], constants["target"], constants["root"])
        out[1 + n_rows :] = np.concatenate(parts)
    return out


#: Prefix of the scored model's arrays.
_PREFIX: Final = "scored/"
#: Names of the sums in a partial.
SUMS: Final[Mapping[Role, str]] = {role: f"sums/{role}" for role in ROLE_ORDINALS}
#: The exchange that scores a model after the training.
SCORE: Final = "score"
_CANDIDATE, _BEST = "scored/candidate/", "scored/best/"
#: What the best model is without a trainer's end.
_CUT_SHORT: Final = Model(arrays={}, converged=False, reason="")


# --- which metrics --------------------------------------------------------------------------------


def resolve_metrics(
    section: Mapping[str, Any], names: Sequence[str], key: str = "validate"
) -> tuple[str, ...]:
    """Return the metrics of rows to score; of validation rows the algorithm's default if none.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of the job record.
    key : "validate" or "data.test"
        The setting that asks for the scores.

    Raises
    ------
    ConfigError
        When the algorithm has nothing to score, or a metric does not fit it.
    """
    name, path = str(section.get("name")), "validate" if key == "validate" else "evaluate"
    if ":" in name:
        if not names and key == "validate":
            raise ConfigError(f"validate.metric is missing: name one for algorithm {name}")
        return tuple(names)  # checked with the data, where the algorithm is imported
    if not _has_targets(section):
        raise ConfigError(
            f"{key}: {name} finds clusters, which have no targets to score; use problem: linear "
            f"or leave out {key}"
        )
    # Two stand for any number of classes, which the data say.
    kind = Kind(
        n_classes=2 * is_classification(section), has_probabilities=has_probabilities(section)
    )
    for metric in names:
        check_metric(metric, kind, f"{path}.metric")
    default = (default_metric(kind),) if key == "validate" else ()
    return tuple(names) or default


def _has_targets(section: Mapping[str, Any]) -> bool:
    return getattr(settings_of(section), "problem", None) != "kmeans"


def _metrics(
    section: Mapping[str, Any],
    facts: DatasetStats,
    validate: Mapping[str, Any] | None,
    evaluate: Mapping[str, Any] | bool | None,
) -> dict[Role, Metrics]:
    """Return the metrics of the rows of each role that a job scores.

    Raises
    ------
    ConfigError
        When a metric does not fit the data.
    """
    is_built_in = ":" not in str(section["name"])
    if is_built_in and not _has_targets(section):
        return {}
    kind, names = kind_of(section, facts), dict[Role, Sequence[str]]()
    if evaluate is not False:
        if is_built_in:
            names["train"] = default_metrics(kind, ranks=False)
        if facts.scored_rows.get("test"):
            given = evaluate.get("metric") if isinstance(evaluate, Mapping) else ()
            names["test"] = given or default_metrics(kind, ranks=True)
    if validate:
        names["validation"] = validate["metric"]
    return {role: Metrics(some, kind) for role, some in names.items()}


def _n_rows(facts: DatasetStats, role: Role, section: Mapping[str, Any]) -> int:
    """Return the number of rows of a role; of data by columns, of examples."""
    if role != "train":
        return facts.scored_rows.get(role, 0)
    return facts.layout.n_columns if owns_columns(section) else facts.n_rows


# --- a member's half ------------------------------------------------------------------------------


#: Adds up what the driver needs of a member's chunks to score a model: sums of a given size.
_Scorer = Callable[[Arrays, Sequence[Chunk], Parallel, int], F64]


class _RowScorer:
    """The sums of a member's rows of a role for one model after the other."""

    def __init__(
        self, role: Role, metrics: Metrics, section: Mapping[str, Any], facts: DatasetStats
    ) -> None:
        self._role = role
        self._metrics = metrics
        self._predictor = Predictor(section, facts)
        self._is_network = section["name"] == LocalSGD.name

    def __call__(
        self, model: Arrays, chunks: Sequence[Chunk], parallel: Parallel, size: int
    ) -> F64:
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
        # Metrics are computed once, since chunks of rows to score are many and small.
        labels, weights, predictions = [], [], []
        for chunk in stream_chunks(chunks):
            labels.append(np.array(chunk.labels, np.float64))
            weights.append(
                np.ones(chunk.n_rows) if chunk.weights is None else np.array(chunk.weights)
            )
            predictions.append(self._predictor(chunk))
        targets: Any = np.concatenate(labels)
        kind = self._metrics.kind
        if kind.n_classes:
            targets = class_numbers(targets, kind.classes, self._role)
        return self._metrics.sums(
            Scored(
                targets=targets,
                predictions=np.concatenate(predictions),
                weights=np.concatenate(weights),
                common=self._predictor.common,
            )
        )


class _ScoringSolver:
    """A member's solver that trains on training chunks, and scores models.

    Parameters
    ----------
    solver : Solver
    scorers : mapping
        By the role of the rows.
    """

    def __init__(self, solver: Solver, scorers: Mapping[Role, _Scorer]) -> None:
        self.solver = solver
        self._scorers = scorers
        self._holds_others = any(role != "train" for role in scorers)
        # What else it can do, this one can: a member asks for the attributes.
        if isinstance(solver, WarmingSolver):
            self.warm_up = solver.warm_up
        if isinstance(solver, WaitingSolver):
            self.waits = solver.waits

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Return the solver's arrays over the training chunks, with the sums that are asked."""
        # Most jobs have no rows that are only scored, and thousands of chunks in each exchange.
        trained = [c for c in chunks if is_trained(c.id)] if self._holds_others else chunks
        asked = [role for role in self._scorers if SUMS[role] in work.returns]
        if not asked:
            return self.solver.compute(work, trained, parallel)
        out: dict[str, Any] = {}
        if work.operation != SCORE:
            inner = replace(
                work,
                model={k: v for k, v in work.model.items() if not k.startswith(_PREFIX)},
                returns={k: s for k, s in work.returns.items() if k not in SUMS.values()},
            )
            out.update(self.solver.compute(inner, trained, parallel))
        model = _part_of(work.model, _PREFIX)
        for role in asked:
            (size,) = work.returns[SUMS[role]]
            some = [chunk for chunk in chunks if role_of(chunk.id) == role]
            out[SUMS[role]] = self._scorers[role](model, some, parallel, size)
        return out


def make_solver(
    section: Mapping[str, Any],
    facts: DatasetStats,
    validate: Mapping[str, Any] | None,
    evaluate: Mapping[str, Any] | bool | None = False,
) -> Solver:
    """Return a member's solver, which also scores if the job has rows to score.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of the job record.
    validate, evaluate : mapping, optional
        The sections of the job record; ``evaluate`` is False if no model is scored on training and
        test rows.

    Raises
    ------
    ConfigError, DataError
        As the algorithm's solver, and when a metric does not fit.
    """
    settings = {name: value for name, value in section.items() if name != "name"}
    solver = algorithm(str(section["name"])).solver(settings, facts)
    scorers: dict[Role, _Scorer] = {}
    for role, metrics in _metrics(section, facts, validate, evaluate).items():
        if owns_columns(section):
            scorers[role] = partial(column_shares, _n_rows(facts, role, section))
        else:
            scorers[role] = _RowScorer(role, metrics, section, facts)
    return _ScoringSolver(solver, scorers) if scorers else solver


def training_solver(solver: Solver) -> Solver:
    """Return the solver that trains: that of a solver which also scores, else itself."""
    return solver.solver if isinstance(solver, _ScoringSolver) else solver


# --- the driver's half ----------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class ScoredRows:
    """The rows of one role, and the last scores on them."""

    role: Role
    metrics: Metrics
    n_rows: int
    #: Where members own columns: rows of X.T in a whole sum, which are columns, targets and, if
    #: examples have weights, their roots. None where they own rows.
    n_parts: int | None = None
    #: Number of rows in the last sums, the scores, and the digest of the model.
    seen: int = 0
    scores: dict[str, float | None] = field(default_factory=dict)
    digest: str = ""
    #: (n_rows,) labels and square roots of the sample weights, where members own columns; None
    #: before the first whole sum.
    _targets: F64 | None = None
    _roots: F64 | None = None

    @property
    def size(self) -> int:
        """Number of sums that an exchange reduces."""
        if self.n_parts is None:
            return self.metrics.n_sums
        return 1 + self.n_rows if self._targets is not None else 2 + 3 * self.n_rows

    @property
    def is_complete(self) -> bool:
        """Whether the last sums were of all rows."""
        return self.seen == self.n_rows

    def take(self, model: Arrays, reduced: F64) -> None:
        """Take the sums of a model's metrics."""
        sums = reduced if self.n_parts is None else self._sums_of_columns(model, reduced)
        self.seen = 0 if sums is None else round(float(sums[0]))
        self.digest = _digest(model)
        self.scores = self.metrics.scores(np.zeros(self.metrics.n_sums) if sums is None else sums)

    def _sums_of_columns(self, model: Arrays, reduced: F64) -> F64 | None:
        """Return the sums of the metrics over all rows, (n_sums,); None if columns are missing.

        Parameters
        ----------
        model : mapping
            ``coef``, ``intercept`` and, to classify, ``classes``.
        reduced : ndarray (size,)
            See the top of this file.

        Raises
        ------
        DataError
            When a row has a label that the training rows do not have.
        """
        n = self.n_rows
        if round(float(reduced[0])) != self.n_parts:
            return None
        if reduced.size > 1 + n:
            self._targets = reduced[2 + n : 2 + 2 * n].copy()
            self._roots = reduced[2 + 2 * n :].copy() if reduced[1 + n] else np.ones(n)
        targets, roots = self._targets, self._roots
        assert targets is not None and roots is not None
        margins = np.divide(reduced[1 : 1 + n], roots, out=np.zeros(n), where=roots > 0.0)
        intercept = float(np.ravel(model["intercept"])[0])
        margins += intercept
        kind = self.metrics.kind
        classes = tuple(np.ravel(model["classes"]).tolist()) if kind.n_classes else ()
        return Metrics(self.metrics.names, replace(kind, classes=classes)).sums(
            Scored(
                targets=class_numbers(targets, classes, self.role) if classes else targets,
                predictions=margins,
                weights=roots * roots,
                common=intercept if classes else 0.0,
            )
        )

    def history_columns(self) -> dict[str, float | int | None]:
        """Return the columns of the history; the number of rows if some were missing."""
        columns: dict[str, float | int | None] = {
            f"{self.role}_{name}": value for name, value in self.scores.items()
        }
        return columns if self.is_complete else {**columns, f"{self.role}_rows": self.seen}


@dataclass(slots=True, kw_only=True)
class Validation:
    """The best model on the validation rows, and when the training ends by their score."""

    #: The section of the job record, without the data.
    rules: Validate
    rows: ScoredRows
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
    #: Digest of the last scored model: one that has not changed is not scored again.
    last: str = ""
    #: The training ends, since the score does not improve.
    is_stopped: bool = False
    columns: dict[str, float | int | None] = field(default_factory=dict)
    #: The scored model of this round is the best one.
    is_best: bool = False

    def take(self, model: Arrays) -> None:
        """Take the scores of a model: they count if all validation rows are in them."""
        rows = self.rows
        self.is_best, self.last = False, ""
        if not rows.is_complete:
            self.columns = {**self.blank(), "validation_rows": rows.seen}
            self.since = self.rules.every  # the next model is scored, whatever the turn
            return
        self.columns = {**rows.history_columns(), "validation_rows": rows.n_rows}
        self.last = rows.digest
        score = rows.scores[rows.metrics.names[0]]
        value = -math.inf if score is None else score
        if self.best_score is None or value > self.best_score:
            self.is_best = True
            self.best_score, self.best_scores = value, rows.scores
            self.best = {name: np.array(array) for name, array in model.items()}
            self.best_objective, self.best_gap, self.best_gap_is_bound = None, None, False
        if self.reference is None or value > self.reference + self.rules.min_delta:
            self.reference, self.misses = value, 0
        else:
            self.misses += 1

    def blank(self) -> dict[str, float | int | None]:
        """Return the columns of a round without a score."""
        return {f"validation_{name}": None for name in (*self.rows.metrics.names, "rows")}

    def end_round(self, end: RoundEnd) -> bool:
        """Take a round's end; return whether its next model is to be scored."""
        if self.is_best and _are_equal(end.model, self.best):
            # The round's objective is that of the model with which it started, which was scored.
            if end.objective_kind == "exact":
                self.best_objective = end.objective
            self.best_gap, self.best_gap_is_bound = end.gap, end.gap_is_bound
        self.since += 1
        self.is_stopped = 0 < self.rules.patience <= self.misses
        is_due = self.since >= self.rules.every and bool(end.next_model)
        if self.is_stopped or not is_due or _digest(end.next_model) == self.last:
            return False
        self.since = 0
        return True

    def returned(self, model: Model) -> Model:
        """Return the best model, with the columns of the last row of the history."""
        return replace(
            model,
            arrays=self.best,
            objective=self.best_objective,
            gap=self.best_gap,
            gap_is_bound=self.best_gap_is_bound,
            extra={**model.extra, **self.best_columns()},
            kept=None,
        )

    def best_columns(self) -> dict[str, float | int | None]:
        """Return the columns of the returned model; those of a withheld score if there is none."""
        if not self.best_scores:
            return self.columns or self.blank()
        columns = {f"validation_{name}": value for name, value in self.best_scores.items()}
        return {**columns, "validation_rows": self.rows.n_rows}

    def finished(self, model: Model) -> Model:
        """Return the model of the job: the best one, the last one if it is as good."""
        if not self.is_stopped and (self.is_best or self.best_score is None):
            return replace(model, extra={**model.extra, **self.best_columns()})
        if not self.best:
            return model
        metric = self.rows.metrics.names[0]
        kept = "the model is the best one on the validation rows"
        reason = f"{model.reason}; {kept}"
        if self.is_stopped:
            reason = (
                f"validation {metric} has not improved in {self.misses} scores; {kept}, "
                f"{metric} {self.best_score:.6g}"
            )
        return replace(self.returned(model), reason=reason, stopped_early=self.is_stopped)

    def values(self) -> dict[str, Any]:
        """Return the state for a checkpoint, without the best model, as JSON values."""
        names = (
            *("best_score", "best_scores", "best_objective", "best_gap", "best_gap_is_bound"),
            *("last", "reference", "misses", "since", "is_stopped"),
        )
        own = {name: getattr(self, name) for name in names}
        for name in ("best_score", "reference"):
            own[name] = None if own[name] in (None, -math.inf) else own[name]
        return own


@dataclass(slots=True, kw_only=True)
class Scoring:
    """Which model is scored when, around the algorithm's trainer, whose rounds stay as they are."""

    rows: Mapping[Role, ScoredRows]
    validation: Validation | None
    #: Rounds of which the test rows' scores are wanted, as :class:`.sections.Evaluate` says.
    every: int = 0
    rounds: frozenset[int] = frozenset()
    #: Rounds so far.
    ended: int = 0
    #: The model to score with the next exchange, on the rows of which roles; None: no score is due.
    candidate: Arrays | None = None
    due: tuple[Role, ...] = ()
    _columns: dict[str, float | int | None] = field(default_factory=dict)

    @staticmethod
    def of(
        section: Mapping[str, Any],
        facts: DatasetStats,
        validate: Mapping[str, Any] | None,
        evaluate: Mapping[str, Any] | bool | None,
    ) -> Scoring:
        """Return the scoring of a job before its first round.

        Raises
        ------
        ConfigError
            When a metric does not fit the data.
        DataError
            When there is no validation row.
        """
        if validate and not facts.scored_rows.get("validation"):
            raise DataError(
                "validate: there are no validation rows; set a larger validate.share, or name "
                "data that hold some"
            )
        rows: dict[Role, ScoredRows] = {}
        for role, metrics in _metrics(section, facts, validate, evaluate).items():
            rows[role] = ScoredRows(
                role=role,
                metrics=metrics,
                n_rows=_n_rows(facts, role, section),
                n_parts=facts.n_rows if owns_columns(section) else None,
            )
        held = rows.get("validation")
        chosen = evaluate if isinstance(evaluate, Mapping) else {}
        return Scoring(
            rows=rows,
            validation=Validation(
                rules=Validate.model_construct(**{"patience": 0, **validate}), rows=held
            )
            if validate and held
            else None,
            every=int(chosen.get("every") or 0),
            rounds=frozenset(chosen.get("rounds") or ()),
        )

    def run(self, trainer: Trainer) -> Trainer:
        """Run a trainer and score its models."""
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
                returns={**request.returns, **self._sizes(self.due)},
            )
        outcome = yield request
        anchor = outcome.anchor
        if anchor is not None:
            outcome = replace(outcome, anchor=replace(anchor, arrays=_without(anchor.arrays)))
        if model is None:
            return outcome
        self.candidate = None
        self._take(model, self.due, outcome)
        return replace(outcome, arrays=_without(outcome.arrays))

    def _sizes(self, roles: Sequence[Role]) -> dict[str, tuple[int, ...]]:
        return {SUMS[role]: (self.rows[role].size,) for role in roles}

    def _take(self, model: Arrays, roles: Sequence[Role], outcome: Outcome) -> None:
        for role in roles:
            rows = self.rows[role]
            rows.take(model, np.asarray(outcome.arrays[SUMS[role]]))
            if role != "validation":
                self._columns |= rows.history_columns()
            elif self.validation is not None:
                self.validation.take(model)

    def _round(self, end: RoundEnd) -> Generator[RoundEnd, Proceed, Proceed]:
        columns, self._columns = self._columns, {}
        self.ended += 1
        due: list[Role] = []
        validation, is_stopped = self.validation, False
        if validation is not None:
            columns = {**columns, **(validation.columns or validation.blank())}
            validation.columns = {}
            if validation.end_round(end):
                due.append("validation")
            is_stopped = validation.is_stopped
        # The first score comes early, so that test rows which do not fit the model end the job.
        is_wanted = self.ended == 1 or self.ended in self.rounds
        if "test" in self.rows and (is_wanted or (self.every and self.ended % self.every == 0)):
            due.append("test")
        if due and end.next_model:
            self.due = tuple(due)
            self.candidate = {name: np.array(a, np.float64) for name, a in end.next_model.items()}
        if is_stopped:
            self.candidate = None
        best = end.best
        if validation is not None and validation.best:
            best = validation.returned(_CUT_SHORT)
        proceed: Proceed = yield replace(
            end, extra={**end.extra, **columns}, resume=self._resume(end.resume), best=best
        )
        return replace(proceed, go_on=proceed.go_on and not is_stopped)

    def _finish(self, model: Model) -> Generator[Exchange, Outcome, Model]:
        """Score the final model on the validation rows, and the best of all on the others."""
        validation = self.validation
        if validation is not None:
            is_new = bool(model.arrays) and _digest(model.arrays) != validation.last
            if is_new and not validation.is_stopped:
                yield from self._score(model, ("validation",))
            model = validation.finished(model)
        others = [role for role in self.rows if role != "validation"]
        if not model.arrays or not others:
            return model
        digest = _digest(model.arrays)
        fresh = [r for r in others if self.rows[r].digest != digest or not self.rows[r].is_complete]
        if fresh:
            yield from self._score(model, fresh)
        columns: dict[str, float | int | None] = {}
        for role in others:
            columns |= self.rows[role].history_columns()
        return replace(model, extra={**model.extra, **columns})

    def _score(self, model: Model, roles: Sequence[Role]) -> Generator[Exchange, Outcome, None]:
        outcome = yield Exchange(
            operation=SCORE,
            model=_named(_PREFIX, model.arrays),
            returns=self._sizes(roles),
            result=model,
        )
        self._take(model.arrays, roles, outcome)

    # --- checkpoints ----------------------------------------------------------------------------

    def _resume(self, inner: Resume | None) -> Resume | None:
        if inner is None:
            return None
        validation = self.validation
        best = {} if validation is None else validation.best
        own = {"ended": self.ended, "due": list(self.due)}
        return replace(
            inner,
            arrays={
                **inner.arrays,
                **_named(_CANDIDATE, self.candidate or {}),
                **_named(_BEST, best),
            },
            values={
                **inner.values,
                "scoring": own,
                "validation": None if validation is None else validation.values(),
            },
        )

    def restore(self, resume: Resume) -> Resume:
        """Take the scoring's part of a checkpoint; return the trainer's part."""
        values = dict(resume.values)
        own = values.pop("scoring", None) or {}
        self.ended, self.due = int(own.get("ended", 0)), tuple(own.get("due", ()))
        self.candidate = _part_of(resume.arrays, _CANDIDATE) or None
        kept = values.pop("validation", None) or {}
        if self.validation is not None:
            for name, value in kept.items():
                setattr(self.validation, name, value)
            self.validation.best = _part_of(resume.arrays, _BEST)
        arrays = {k: v for k, v in resume.arrays.items() if not k.startswith(_PREFIX)}
        return replace(resume, arrays=arrays, values=values)


def make_trainer(
    section: Mapping[str, Any],
    facts: DatasetStats,
    absent: str,
    resume: Resume | None,
    validate: Mapping[str, Any] | None,
    evaluate: Mapping[str, Any] | bool | None = False,
) -> Trainer:
    """Return the trainer of a job, with the scores that the job asks for.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of the job record.
    validate, evaluate
        As of :func:`make_solver`.

    Raises
    ------
    ConfigError, DataError
        As the algorithm's trainer, and when a metric does not fit the data.
    """
    settings = {name: value for name, value in section.items() if name != "name"}
    factory = algorithm(str(section["name"])).trainer
    scoring = Scoring.of(section, facts, validate, evaluate)
    if not scoring.rows:
        return factory(settings, facts, absent, **({} if resume is None else {"resume": resume}))
    more = {} if resume is None else {"resume": scoring.restore(resume)}
    return scoring.run(factory(settings, facts, absent, **more))


def scores_here(
    section: Mapping[str, Any],
    facts: DatasetStats,
    models: Sequence[Arrays],
    source: Source,
    names: Sequence[str],
) -> list[dict[str, float | None]]:
    """Return the scores of models on all training rows of a source, read once in this process.

    Members have no rows that were lost with others; a study of what that costs needs them.

    Parameters
    ----------
    section : mapping
        The ``algorithm`` section of the job record; of an algorithm by rows.
    facts : DatasetStats
        Statistics of the training data.
    models : sequence of mappings
        Arrays by name.
    names : sequence of str
        Metrics.
    """
    metrics = Metrics(names, kind_of(section, facts))
    scorer = _RowScorer("train", metrics, section, facts)
    sums = np.zeros((len(models), metrics.n_sums))
    for block in source.blocks():
        chunks, _ = source.read(block.index, None, 1)
        for model, total in zip(models, sums, strict=True):
            total += scorer(model, chunks, Serial(), metrics.n_sums)
    return [metrics.scores(total) for total in sums]


# --- what a summary says --------------------------------------------------------------------------


def summary_scores(row: Mapping[str, Any], role: Role) -> dict[str, float]:
    """Return the scores of the training or test rows in the last row of a history."""
    prefix = f"{role}_"
    return {
        name.removeprefix(prefix): float(value)
        for name, value in row.items()
        if name.startswith(prefix) and name != f"{prefix}rows" and value is not None
    }


def incomplete_notes(row: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each role whose scores are not of all rows."""
    return [
        f"the {role} scores are of {n} rows: the others were lost with their members when the job "
        "ended"
        for role in ("train", "test")
        if (n := row.get(f"{role}_rows")) is not None
    ]


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
    column = f"validation_{metrics[0]}"
    counted = [row.get("validation_rows") for row in rows[:-1]]
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
        "metrics": {name: last.get(f"validation_{name}") for name in metrics},
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
    return {name: array for name, array in arrays.items() if name not in SUMS.values()}
