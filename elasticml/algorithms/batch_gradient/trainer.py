"""The driver's half: distributed batch gradient descent, static and elastic: Algorithms 1 and 2.

A round is one ``gradient`` exchange and the exchanges of the optimizer: one or more ``probe``, and
for TRON one ``product`` for each conjugate gradient iteration. Losses and returns need additional
exchanges; without them Algorithm 2 is Algorithm 1.

Source: the resource-elastic paper, section 2. Lines 18 to 20 (which members bring an absent group
back, and when) are the driver's; the other lines are named where they are implemented.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from elasticml.algorithms.base import (
    Exchange,
    KeptModel,
    Model,
    Outcome,
    Resume,
    RoundEnd,
    Scalar,
    Trainer,
    check_first_objective,
)
from elasticml.algorithms.batch_gradient.certificate import LowerBound, lower_bound_for
from elasticml.algorithms.batch_gradient.curvature_estimates import curvatures_for
from elasticml.algorithms.batch_gradient.elastic_gradient import (
    AbsenceRules,
    ElasticGradient,
    Evaluated,
    Point,
)
from elasticml.algorithms.batch_gradient.gradient_descent import GradientDescent, fix_step
from elasticml.algorithms.batch_gradient.gradient_exchanges import gradient_exchange
from elasticml.algorithms.batch_gradient.lbfgs import LBFGS, PAIRS_BYTES
from elasticml.algorithms.batch_gradient.line_search import Ray, lowest_along
from elasticml.algorithms.batch_gradient.newton import Newton, check_columns, chosen_for
from elasticml.algorithms.batch_gradient.optimizer import Iterate, Optimizer, Spent, Step
from elasticml.algorithms.batch_gradient.stand_in_guard import (
    Known,
    StandInGuard,
    history_columns,
    interval,
)
from elasticml.algorithms.batch_gradient.stand_ins import Interval
from elasticml.algorithms.batch_gradient.tron import Tron
from elasticml.algorithms.column_statistics import fix_columns
from elasticml.algorithms.scaling import CarriedL2, Columns
from elasticml.algorithms.targets import (
    Targets,
    check_labels,
    n_models,
    offset_column,
    targets_for,
    weight_of_all,
)
from elasticml.arrays import F64
from elasticml.data.source import DatasetStats
from elasticml.errors import JobFailedError
from elasticml.objectives.penalty_kernels import L2
from elasticml.specification.algorithms import BatchGradient, absent_rule, settings_from_section

#: Rounds after which cached margins are recomputed, so that rounding errors do not accumulate.
REFRESH_ROUNDS: Final = 50
#: Consecutive failed searches after which the precision of float64 is reached.
FAILED_SEARCHES_MAX: Final = 2


def make_trainer(
    settings: Mapping[str, Any], facts: DatasetStats, absent: str, resume: Resume | None = None
) -> Trainer:
    """Return the trainer of a job.

    Parameters
    ----------
    settings : mapping
        The job's ``algorithm`` section, see :class:`BatchGradient`.
    facts : DatasetStats
    absent : str
        "auto" | "taylor" | "ignore" | "ignore_rescaled" | "stall" | "reload".
    resume : Resume, optional
        Checkpoint of the round after which to continue.

    Raises
    ------
    ConfigError
        When a setting is unknown or out of range.
    DataError
        When the loss is for classification and the data do not have at least two labels, or for
        regression and the labels are words.
    """
    checked = settings_from_section(BatchGradient, settings)
    rule = absent_rule(checked.name, absent)
    check_labels(checked.loss, facts, is_classification=checked.is_classification)
    targets = targets_for(checked, facts)
    offset_column(checked, facts)  # refused before anything starts
    if checked.chosen_optimizer == "newton":
        check_columns(checked, facts)
    rules = AbsenceRules.of(rule, checked)
    return _train(checked, facts, targets, rules, resume)


def column_bytes(section: Mapping[str, Any]) -> int:
    """Return the bytes per column of the optimizer's state, given the ``algorithm`` section.

    Sketches are not included: their size is bounded independently of the model's width, see
    :mod:`~elasticml.algorithms.batch_gradient.curvature_estimates`.
    """
    settings = settings_from_section(BatchGradient, section)
    return PAIRS_BYTES if settings.chosen_optimizer in ("lbfgs", "auto") else 0


def _train(
    settings: BatchGradient,
    facts: DatasetStats,
    targets: Targets,
    rules: AbsenceRules,
    resume: Resume | None,
) -> Trainer:
    chooses = settings.chosen_optimizer == "auto"
    if chooses:
        chosen = chosen_for(settings, facts) if resume is None else resume.values["optimizer"]
        settings = settings.model_copy(update={"optimizer": chosen})
    columns = yield from fix_columns(
        settings.scale,
        settings.intercept,
        facts,
        resume=resume,
        models=n_models(settings, facts),
        fixed=offset_column(settings, facts),
    )
    optimizer = yield from _make_optimizer(settings, facts, columns, resume)
    is_raw = settings.penalise == "raw"
    penalised = columns
    if is_raw:
        # A free intercept takes the shifts up: rows are shorter about their mean.
        shift = columns.shift if settings.has_free_intercept else None
        penalised = replace(columns, factor=None, shift=shift)
    lower_bound = yield from lower_bound_for(settings, penalised, resume)
    elastic = ElasticGradient(
        columns=columns,
        rules=rules,
        cached_anchors=settings.anchor == "cached",
        total_weight=weight_of_all(facts, targets),
        curvatures=curvatures_for(settings, columns, bends=rules.bends) if rules.guarded else None,
    )
    # Line 4: choose w^0.
    start = Point(serial=0, w=columns.start())
    penalty = _penalty(settings, columns)
    descent = _Descent(
        settings=settings,
        elastic=elastic,
        penalty=penalty,
        optimizer=optimizer,
        point=start,
        lower_bound=lower_bound,
        tells={"optimizer": settings.chosen_optimizer} if chooses else {},
    )
    if resume is not None:
        descent.go_on(resume)
    while True:
        ended = yield from descent.round()
        if isinstance(ended, Model):
            return ended
        if not (yield ended):
            return (yield from descent.finish())


def _penalty(settings: BatchGradient, columns: Columns) -> L2:
    common: dict[str, Any] = {
        "strength": settings.l2,
        "n_penalised": columns.n_coefficients,
        "unpenalised": columns.fixed,
    }
    if settings.penalise == "scaled":
        return L2(**common)
    constant = settings.intercept_scaling
    of_intercept = 0.0 if constant is None else constant**-2
    return CarriedL2(**common, columns=columns, of_intercept=of_intercept)


def _make_optimizer(
    settings: BatchGradient, facts: DatasetStats, columns: Columns, resume: Resume | None
) -> Generator[Exchange, Outcome, Optimizer]:
    if settings.chosen_optimizer == "newton":
        return Newton(settings, facts, columns)
    if settings.chosen_optimizer == "lbfgs":
        return LBFGS()
    if settings.chosen_optimizer == "tron":
        return Tron()
    return GradientDescent((yield from fix_step(settings, columns, resume)))


@dataclass(slots=True, kw_only=True)
class _Descent:
    """The trainer's state between rounds."""

    settings: BatchGradient
    elastic: ElasticGradient
    penalty: L2
    optimizer: Optimizer
    #: w^r.
    point: Point
    #: What is certain of the minimum; None if the job certifies no gap.
    lower_bound: LowerBound | None
    #: How solvers may compute the margins at ``point`` without multiplying.
    advance: Mapping[str, Scalar] = field(default_factory=dict)
    #: What the trainer has chosen itself, for the history and checkpoints.
    tells: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 0
    #: Serial of the last point.
    points: int = 0
    #: Norm of the first gradient.
    first_norm: float | None = None
    failed_searches: int = 0
    spent: Spent = field(default_factory=Spent)
    #: The objective at ``point`` over all examples, if known.
    value: float | None = None
    guard: StandInGuard = field(default_factory=StandInGuard)
    #: The best model so far by what is certain; None in ``mode: paper``, which returns the last.
    known: Known | None = None
    #: The last evaluated model is certainly worse than that.
    is_worse: bool = False

    def round(self) -> Generator[Exchange, Outcome, RoundEnd | Model]:
        """Lines 5 to 17: evaluate w^r, replace lost examples by stand-ins, and step."""
        elastic = self.elastic
        elastic.note = None
        before = elastic.corrections
        while True:
            evaluated = yield from self._watched(
                elastic.evaluate(
                    self.point, self.advance, roll_back=self.settings.rounds_rolled_back > 0
                )
            )
            if evaluated is None:
                return self._abandon()
            here = self._here(evaluated)
            if self.elastic.is_whole:
                changes = elastic.changes
                yield from self._certify_at(here)
                if elastic.changes != changes:
                    continue
            finished = self._check(here)
            if finished is not None:
                return finished
            error = interval(elastic, evaluated)
            self._learn(evaluated.point, here.value, error)
            retreat = self.guard.judge(elastic, evaluated, here.value, error, self.known)
            if retreat is not None:
                self.points += 1
                self.point, self.advance = Point(serial=self.points, w=retreat.w), {}
                continue
            absence_columns = history_columns(elastic, evaluated, self.penalty)
            step = None
            if not self.guard.holds:
                step = yield from self._watched(self.optimizer.step(here))
            if not isinstance(step, str):
                break
        model = elastic.columns.arrays(self.point.w)
        self._move(step, here.value)
        self.rounds += 1
        if self.value is not None:
            self._learn(self.point, self.value, Interval(low=0.0, high=0.0))
        return RoundEnd(
            objective=here.value,
            objective_kind="exact" if elastic.is_whole else "estimated",
            gap=self._gap(here.value) if elastic.is_whole else None,
            step=0.0 if step is None else step.length,
            stand_ins=elastic.stand_ins.count,
            extra=self._extra(here.norm, elastic.corrections - before) | absence_columns,
            model=model,
            next_model=elastic.columns.arrays(self.point.w),
            next_objective=self.value,
            next_gap=self._gap(self.value),
            best=self._best(),
            resume=self._resume(),
        )

    def _certify_at(self, here: Iterate) -> Generator[Exchange, Outcome, None]:
        """Raise the lower bound at an iterate over all examples, also along the intercepts."""
        bound, penalty, n = self.lower_bound, self._certified_penalty(), self.penalty.n_penalised
        if bound is None:
            return
        least = -math.inf
        if bound.asks_for_intercepts(here.value, penalty.by_coefficients(here.gradient), n):
            least, changes = here.value, self.elastic.changes
            for k in range(n, here.gradient.size):
                if here.gradient[k] != 0.0:
                    # The same direction in every round.
                    ray = Ray(
                        here=here, serial=-1 - k, direction=np.eye(1, here.gradient.size, k)[0]
                    )
                    least += (yield from lowest_along(ray)) - here.value
            if self.elastic.changes != changes:
                # With a stand-in for lost examples it is not a bound over all.
                least = -math.inf
        self._certify(here.evaluated.point.w, here.value, here.gradient, least)

    def _certified_penalty(self) -> L2:
        """Return the penalty whose coefficients the lower bound is about."""
        bound, penalty = self.lower_bound, self.penalty
        if isinstance(penalty, CarriedL2) and bound is not None and bound.intercept is not None:
            return replace(penalty, columns=replace(penalty.columns, shift=None))
        return penalty

    def _certify(self, w: F64, value: float, gradient: F64, least: float = -math.inf) -> None:
        """Raise the lower bound of the minimum; the arguments are of all examples."""
        if self.lower_bound is not None:
            penalty = self._certified_penalty()
            gradient, model = penalty.by_coefficients(gradient), penalty.coefficients(w)
            self.lower_bound.learn(value, gradient, model, penalty.n_penalised, least)

    def _gap(self, value: float | None) -> float | None:
        """Return the certified gap of an objective over all examples."""
        return None if self.lower_bound is None else self.lower_bound.gap(value)

    def _learn(self, point: Point, value: float, error: Interval | None) -> None:
        """Compare an evaluated model with the best one, by what is certain of both."""
        if self.settings.mode == "paper" or error is None:
            self.is_worse = False
            return
        if self.known is None or value + error.high < self.known.value:
            self.known = Known(
                point=point,
                value=value + error.high,
                is_bound=not self.elastic.is_whole,
                round=self.rounds,
            )
        self.is_worse = self.known.is_below(value + error.low)

    def _best(self) -> Model | None:
        """Return the best known model if the job would return it instead of the present one.

        That is so if the present one is worse, and as long as the guard does not trust the steps.
        """
        known = self.known
        if known is None:
            return None
        if self.elastic.is_whole:
            keeps = self.value is not None and known.is_below(self.value)
        else:
            keeps = self.guard.watches or self.is_worse
        if not keeps:
            return None
        return Model(
            arrays=self.elastic.columns.arrays(known.point.w),
            converged=False,
            reason="stopped as asked",
            objective=None if known.is_bound else known.value,
            gap=self._gap(known.value),
            gap_is_bound=known.is_bound and self.lower_bound is not None,
            kept=KeptModel(round=known.round, objective=known.value, is_bound=known.is_bound),
        )

    def _watched(
        self, part: Generator[Exchange, Outcome, Any]
    ) -> Generator[Exchange, Outcome, Any]:
        """Run a part; reset the failed searches if the set of examples, hence f^, has changed."""
        before = self.elastic.changes
        result = yield from part
        if self.elastic.changes != before:
            self.failed_searches = 0
        return result

    def _here(self, evaluated: Evaluated) -> Iterate:
        """Return the estimated objective and its gradient, including stand-ins and penalty."""
        elastic, w = self.elastic, evaluated.point.w
        divisor = elastic.divisor(evaluated.sums)
        with np.errstate(over="ignore", invalid="ignore"):  # a value that overflows is an error
            sums = elastic.stand_ins.total(evaluated.sums, w)
            value = sums.loss / divisor + self.penalty.value(w)
            gradient = sums.gradient / divisor + self.penalty.gradient(w)
            norm = float(np.linalg.norm(self.penalty.by_coefficients(gradient)))
        if self.first_norm is None:
            self.first_norm = norm
        return Iterate(
            elastic=elastic,
            penalty=self.penalty,
            evaluated=evaluated,
            spent=self.spent,
            value=value,
            gradient=gradient,
            norm=norm,
            first_norm=self.first_norm,
            round=self.rounds,
        )

    def _check(self, here: Iterate) -> Model | None:
        """Return the final model if the gradient is small or no step helps; only if whole."""
        value = here.value
        if self.rounds == 0:
            check_first_objective(value)
        if not math.isfinite(value):
            raise JobFailedError(
                f"the objective is {value} in round {self.rounds}, wanted a finite one: the "
                "step is too long or the values too large; lower algorithm.step_size or set "
                "algorithm.scale",
                reason="diverged",
            )
        if not self.elastic.is_whole:
            return None
        if here.norm <= self.settings.gradient_share * here.first_norm:
            return self._model(value, converged=True, reason=self.settings.gradient_reason)
        if self.failed_searches >= FAILED_SEARCHES_MAX:
            reason = "no step lowers the objective: the precision of float64 is reached"
            return self._model(value, converged=False, reason=reason)
        return None

    def _move(self, step: Step | None, value: float) -> None:
        """Line 17: w^{r+1} = w^r + the optimizer's step on the estimated objective."""
        if step is None:
            self.failed_searches += 1
            self.advance = {}
            self.value = value if self.elastic.is_whole else None
            return
        self.failed_searches = 0
        self.points += 1
        came_from = self.point.serial
        self.point = Point(serial=self.points, w=self.point.w + step.length * step.direction)
        self.advance = {}
        if step.serial is not None and (self.rounds + 1) % REFRESH_ROUNDS != 0:
            self.advance = {"base": came_from, "direction": step.serial, "step": step.length}
        is_known = self.elastic.is_whole and not math.isnan(step.value)
        self.value = step.value if is_known else None

    def _abandon(self) -> RoundEnd:
        """Line 16: ``w^{r+1} <- w^r, w^r <- w^{r-1}``, in a round in which examples vanished.

        In the written order this repeats round r. In the other reading, ``roll_back: 2``, the next
        round starts at ``w^{r-1}``. The stored gradient is the survivors' already.
        """
        model = self.elastic.columns.arrays(self.point.w)
        if self.settings.rounds_rolled_back == 2:
            assert self.elastic.last_evaluated is not None
            self.point = self.elastic.last_evaluated.point
        self.advance = {}
        self.value = None
        self.rounds += 1
        return RoundEnd(
            objective=None,
            objective_kind="estimated",
            stand_ins=self.elastic.stand_ins.count,
            extra=self._extra(None, 1),
            model=model,
            next_model=self.elastic.columns.arrays(self.point.w),
            best=self._best(),
            resume=self._resume(),
        )

    def _extra(self, norm: float | None, corrections: int) -> dict[str, float | int | str | None]:
        return {
            "gradient_norm": norm,
            **self.optimizer.columns(self.spent),
            "corrections": corrections,
            "note": self.elastic.note,
            **self.tells,
        }

    # --- checkpoints ---------------------------------------------------------------------------

    def _resume(self) -> Resume:
        """Return the state to start the next round in a process with all examples present.

        It contains no stand-ins and no caches of solvers: margins are recomputed there.
        """
        is_whole = self.elastic.is_whole
        optimizer = self.optimizer.resume(is_whole=is_whole)
        arrays = {"w": self.point.w, **self.elastic.columns.state(), **optimizer.arrays}
        known = None if is_whole else self.known
        if known is not None:
            arrays["known_w"] = known.point.w
        return Resume(
            arrays=arrays,
            values={
                "points": self.points,
                "rounds": self.rounds,
                "first_norm": self.first_norm,
                "failed_searches": self.failed_searches if is_whole else 0,
                "value": self.value if is_whole else None,
                "total_weight": self.elastic.total_weight,
                **({} if known is None else {"known": [known.value, known.is_bound, known.round]}),
                **({} if self.lower_bound is None else {"lower_bound": self.lower_bound.resume()}),
                **optimizer.values,
                **self.tells,
            },
        )

    def go_on(self, resume: Resume) -> None:
        """Restore the state of another process at the end of a round."""
        values = resume.values
        self.points = int(values["points"])
        self.point = Point(serial=self.points, w=np.array(resume.arrays["w"]))
        self.rounds = int(values["rounds"])
        self.first_norm, self.value = values["first_norm"], values["value"]
        self.failed_searches = int(values["failed_searches"])
        self.elastic.total_weight = float(values["total_weight"])
        if "known" in values:
            value, is_bound, round = values["known"]
            w = np.array(resume.arrays["known_w"])
            self.known = Known(
                point=Point(serial=-1, w=w), value=value, is_bound=is_bound, round=round
            )
        self.optimizer.go_on(resume, self.elastic.changes)

    def finish(self) -> Generator[Exchange, Outcome, Model]:
        """Return the model when the job stops; one more exchange if its objective is unknown."""
        if self.value is None and self.elastic.is_whole:
            sent = self.elastic.columns.down(self.point.w)
            outcome = yield gradient_exchange(sent, {**self.advance, "point": self.point.serial})
            if outcome.absent_examples == 0:
                sums, w = self.elastic.read(outcome.arrays), self.point.w
                self.value = sums.loss / sums.weight + self.penalty.value(w)
                gradient = sums.gradient / sums.weight + self.penalty.gradient(w)
                self._certify(w, self.value, gradient)
        best = self._best()
        if best is not None:
            return best
        return self._model(self.value, converged=False, reason="stopped as asked")

    def _model(self, value: float | None, *, converged: bool, reason: str) -> Model:
        return Model(
            arrays=self.elastic.columns.arrays(self.point.w),
            converged=converged,
            reason=reason,
            objective=value,
            gap=self._gap(value),
        )
