"""The driver's half of CoCoA: adds the members' steps, certifies gaps, restores what was lost.

A round is one ``pass`` and, when due, one ``certify``. Nothing is sent in between: the share of its
step that a member keeps is sent with the next exchange. The model is recomputed from the dual
variables in every certificate, so that rounding errors do not accumulate, and at the beginning of a
round after examples have come or gone.

After a loss, dual variables that remain no longer balance each other, and those mapped from an
early model are far off: their dual objective can be far below that of zero, because the model is
their sum divided by a small ``l2``. Bounded ones recover in a few passes. Those of losses without
bounds do not; they are multiplied by a factor in [0, 1] with which the dual objective is at least
that of zero.

Source: both CoCoA papers with ``mode: paper``; by default the line search and the damping of our
study of them.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from elasticml.algorithms.base import (
    Arrays,
    Exchange,
    Model,
    Outcome,
    Resume,
    RoundEnd,
    Scalar,
    Trainer,
)
from elasticml.algorithms.certified_rounds import rounds_of
from elasticml.algorithms.cocoa import cocoa_exchanges, initialization
from elasticml.algorithms.cocoa.frozen_loss_bound import FrozenGroups
from elasticml.algorithms.cocoa.gap_schedule import Certificate, GapSchedule, smoothed_model
from elasticml.algorithms.cocoa.line_search import Aggregation, LineModel, products
from elasticml.algorithms.cocoa.mode import mode_of
from elasticml.algorithms.cocoa.scaled_chunks import check_scale
from elasticml.algorithms.column_statistics import fix_columns
from elasticml.algorithms.initial_model import initial_model
from elasticml.algorithms.one_against_rest import train_classes
from elasticml.algorithms.scaling import Columns
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
from elasticml.errors import ConfigError, JobFailedError
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.specification.algorithms import CoCoA, absent_rule, settings_from_section

#: Gap relative to the objective below which float32 members sum their steps in float64.
FINE: Final = 1e-4
_Steps = Generator[Exchange, Outcome, Any]


def make_trainer(
    settings: Mapping[str, Any], facts: DatasetStats, absent: str, resume: Resume | None = None
) -> Trainer:
    """Make the trainer of a job.

    Parameters
    ----------
    settings : mapping
        The job's ``algorithm`` section, see :class:`CoCoA`.
    facts : DatasetStats
    absent : str
        "auto" | "reload" | "stall" | "freeze".
    resume : Resume, optional
        State of the round after which to continue.

    Raises
    ------
    ConfigError
        When a setting is unknown or out of range, or does not fit the data.
    DataError
        When the data of a classification loss have less than two labels or continuous ones, or
        those of a regression loss have words.
    """
    checked = settings_from_section(CoCoA, settings)
    rule, initial = absent_rule(checked.name, absent), initial_model(settings)
    check_labels(checked.loss, facts, is_classification=checked.is_classification)
    n = n_models(checked, facts)
    if n > 1 and checked.loss == "logistic" and checked.engine_of is not None:
        raise ConfigError(
            f"algorithm.engine: cocoa trains one model for each of {n} classes against the rest, "
            "wanted softmax, the problem of linear; leave engine out, or use algorithm cocoa",
            key="algorithm.engine",
        )
    check_scale(checked.scale, facts)
    is_offset = offset_column(checked, facts) is not None  # refused before anything starts
    if rule == "freeze" and is_offset:
        raise ConfigError(
            "absent: got 'freeze' with algorithm.offset, which has no bound of the gap; use "
            "reload or stall",
            path="absent",
        )
    initialization.check_warm_start(initial, facts, n)
    if n == 1:
        return _train(checked, facts, targets_for(checked, facts), rule, initial, resume)
    if rule == "freeze":
        raise ConfigError(
            f"absent: got 'freeze' with {n} classes, which have no bound of the gap; use reload or "
            "stall",
            path="absent",
        )

    def of_class(k: int, own: Resume | None) -> Trainer:
        section = initialization.section_of_class(settings, n, k)
        each = settings_from_section(CoCoA, section)
        targets = targets_for(each, facts, k)
        return _train(each, facts, targets, rule, initial_model(section), own)

    return train_classes(of_class, n, resume)


def _train(
    settings: CoCoA,
    facts: DatasetStats,
    targets: Targets,
    rule: str,
    initial: Mapping[str, F64],
    resume: Resume | None,
) -> Trainer:
    columns = yield from fix_columns(
        settings.scale,
        settings.intercept,
        facts,
        settings.intercept_scaling,
        resume,
        fixed=offset_column(settings, facts),
    )
    columns = columns.without_fixed()
    frozens = yield from initialization.prepare_absence(settings, columns, rule, resume)
    estimated = settings.class_weight is not None and facts.weight_sum != facts.n_rows
    ascent = _Ascent(
        settings=settings,
        columns=columns,
        frozens=frozens,
        gap_schedule=initialization.gap_schedule_for(settings, facts.n_rows),
        aggregation=Aggregation.of(settings),
        weight=weight_of_all(facts, targets),
        v=initialization.first_model(initial, columns),
        local_epochs=settings.epochs,
        single=facts.layout.dtype == "float32",
        waits=rule != "freeze" or estimated,
    )
    if resume is None:
        yield from ascent.certify(fill="map" if initial else "zero")
    else:
        ascent.restore(resume)
    ascent.waits = rule != "freeze"
    return (yield from rounds_of(ascent))


@dataclass(slots=True, kw_only=True)
class _Ascent:
    """The model between rounds, and its certificates."""

    settings: CoCoA
    columns: Columns
    frozens: FrozenGroups
    gap_schedule: GapSchedule
    aggregation: Aggregation
    #: S, the weight of all examples, present and absent.
    weight: float
    #: In trained coordinates: ``1/(l2 S) sum s_i alpha_i x_i`` unless ``is_stale``.
    v: F64
    local_epochs: float
    #: The data and the members' kernels are float32.
    single: bool
    #: Certificates wait until no example is absent.
    waits: bool
    serial: int = 0
    #: The model before the last pass.
    before: F64 | None = None
    #: Step length of the last pass, sent with the next exchange; 0 once it was sent.
    gamma: float = 0.0
    #: Step length of the last pass.
    gamma_taken: float = 0.0
    #: Examples came or went: the model does not match the dual variables.
    is_stale: bool = False
    #: The next exchange closes the open group.
    seal: bool = False
    #: The last certificate; None if the model has changed since.
    current: Certificate | None = None
    #: The best of all certificates.
    best: Certificate | None = None
    resyncs: int = 0
    #: Relative distance of the model from the one recomputed from the dual variables, at the last
    #: certificate in which they should have been equal: v = A alpha.
    drift: float | None = None

    # --- exchanges ----------------------------------------------------------------------------

    def certify(self, fill: cocoa_exchanges.Fill = "map", *, waits: bool | None = None) -> _Steps:
        """Compute both objectives at the model, and recompute it from the dual variables."""
        waits = self.waits if waits is None else waits
        own_v, before = self.v, None if self.is_stale or self._is_near else self.before
        sent_v = smoothed_model(self.settings.terms, own_v, before)
        outcome: Outcome = yield cocoa_exchanges.certify_exchange(
            self.columns.model(sent_v),
            self.columns,
            {**self._settling(), "fill": fill},
            statistics=self.frozens.shapes,
            require="everybody" if waits else "any",
            seal=self._take_seal(),
        )
        self.gamma = 0.0
        self._note(outcome)
        if outcome.absent_examples and self.frozens.plan is None:
            self.is_stale = True  # neither objective is known without the absent examples
            return
        arrays = outcome.arrays
        weight = float(arrays["weight"])
        if outcome.absent_examples == 0:
            self.weight = weight
        image = self.frozens.add_image(np.asarray(arrays["image"]))
        # In the dual problem an offset is linear: sum s_i coefficient_i offset_i.
        fixed = self.columns.fixed
        along_offset = 0.0 if fixed is None else float(image[fixed])
        self.v = self.columns.up(image) / (self.settings.l2 * self.weight)
        # Dual variables may have been lost since the last pass although no member is missing now.
        stale = self.is_stale or (self.serial > 1 and float(arrays["unset"]) > 0.0)
        if not stale and self.serial > 1:
            off, square = self.v - own_v, products(self.v, self.v)[1]
            self.drift = math.sqrt(products(off, off)[1] / square) if square else 0.0
        self.resyncs += stale
        self.is_stale = False
        self.current = self._certificate(sent_v, arrays, self.weight - weight, along_offset)
        scale = self._scale(arrays) if stale or fill == "map" else 1.0
        self.frozens.keep(outcome.exchange, sent_v, arrays, scale)
        self.best = self.current if self.best is None else self.current.better(self.best)
        self.gap_schedule.target = self.settings.gap_to_reach(self.best.primal)
        self.gap_schedule.certified(self.best.gap)

    def _scale(self, arrays: Arrays) -> float:
        """Multiply unbounded dual variables by the best factor in [0, 1], and return it.

        Best by a lower bound of the dual objective: ``-loss*``, also with an offset, is concave and
        zero at zero, hence above its chord from there. The members multiply in the next exchange.
        Dual variables of absent examples stay as they are.
        """
        if float(arrays["unset"]) == 0.0:
            return 1.0
        largest = np.array([math.inf])
        MarginLoss(self.settings.loss, self.settings.terms).clip(largest, np.zeros(1))
        if math.isfinite(largest[0]):
            return 1.0
        image, fixed = np.asarray(arrays["image"]), self.columns.fixed
        own = self.columns.up(image) / (self.settings.l2 * self.weight)
        frozen = self.v - own
        along = LineModel.of(
            frozen,
            own,
            dual=float(arrays["dual"]) - (0.0 if fixed is None else float(image[fixed])),
            curvature=0.0,
            weight=self.weight,
            l2=self.settings.l2,
        )
        scale = min(max(along.best, 0.0), 1.0)
        if scale < 1.0:
            self.gamma, self.v = scale - 1.0, frozen + scale * own
        return scale

    def _certificate(
        self, sent_v: F64, arrays: Arrays, absent_weight: float, along_offset: float
    ) -> Certificate:
        half = 0.5 * self.settings.l2
        is_bound = bool(self.frozens.groups)
        primal = float(arrays["primal"])
        if is_bound:
            primal += self.frozens.upper(sent_v, absent_weight)
        dual = float(arrays["dual"]) + self.frozens.dual() - along_offset
        return Certificate(
            primal=primal / self.weight + half * products(sent_v, sent_v)[1],
            dual=dual / self.weight - half * products(self.v, self.v)[1],
            v=sent_v,
            is_bound=is_bound,
        )

    def _pass(self) -> Generator[Exchange, Outcome, Outcome]:
        """Request the members' steps, and apply them with the line search."""
        aggregation = self.aggregation
        outcome = yield cocoa_exchanges.pass_exchange(
            self.v,
            self.columns,
            {
                **self._settling(),
                "damping": aggregation.damping,
                "sigma": aggregation.sigma,
                "sigma_per_member": mode_of(self.settings).sigma_per_member(self.settings),
                "local_epochs": self.local_epochs,
                "seed": self.settings.random_seed,
                "weight": self.weight,
                "exact": self._is_fine,
            },
            seal=self._take_seal(),
        )
        arrays = outcome.arrays
        dv = np.asarray(arrays["dv"])
        along = LineModel.of(
            self.v,
            dv,
            dual=float(arrays["dual"]),
            curvature=float(arrays["curvature"]),
            weight=self.weight,
            l2=self.settings.l2,
        )
        self.gamma = aggregation.length(along)
        self.gamma_taken = self.gamma
        self.before, self.v = self.v, self.v + self.gamma * dv
        self.aggregation = aggregation.adapted(along, float(arrays["partitions"]))
        if not np.all(np.isfinite(self.v)):
            raise JobFailedError(
                "the model is not finite, wanted a finite one: algorithm.sigma is too small for "
                "algorithm.gamma; leave both out",
                reason="diverged",
            )
        self.current = None
        self.gap_schedule.passed(float(arrays["visited"]), float(arrays["gap"]) / self.weight)
        if float(arrays["unset"]) > 0.0:
            self.is_stale = True
        self._note(outcome)
        return outcome

    @property
    def _is_fine(self) -> bool:
        """Whether gains are so small that float32 kernels' rounding would hide them."""
        return self.single and self._is_near

    @property
    def _is_near(self) -> bool:
        """Whether the gap is small: then the mean of two models is no better than the last one."""
        best = self.best
        return best is not None and best.gap <= FINE * abs(best.primal)

    def _settling(self) -> dict[str, Scalar]:
        """Return the next exchange's serial, and the step length to settle."""
        self.serial += 1
        return {"serial": self.serial, "settle": self.serial - 1, "gamma": self.gamma}

    def _take_seal(self) -> bool:
        seal, self.seal = self.seal, False
        return seal

    def _note(self, outcome: Outcome) -> None:
        """Record which groups are absent."""
        changed = self.frozens.note(outcome)
        self.seal = self.seal or outcome.opened is not None
        if changed or (outcome.absent_examples and self.frozens.plan is None):
            self.is_stale = True

    # --- rounds -------------------------------------------------------------------------------

    def round(self) -> Generator[Exchange, Outcome, RoundEnd]:
        """Run one pass, and the certificates that are due before and after it."""
        if self.is_stale:
            yield from self.certify()
        start, reported = self.current, self._shown()
        model = self._arrays()
        damping = self.aggregation.damping
        outcome = yield from self._pass()
        # If certificates wait for absent examples, they do so at the beginning of the next round.
        if self.gap_schedule.is_due() and not (self.is_stale and self.waits):
            yield from self.certify()
        after = self._shown()
        measured = after if self.current is not None else None
        return RoundEnd(
            objective=None if reported is None else reported.primal,
            objective_kind="bound" if reported is not None and reported.is_bound else "exact",
            gap=None if reported is None else reported.gap,
            gap_is_bound=reported is not None and reported.is_bound,
            step=self.gamma_taken,
            stand_ins=len(self.frozens.groups) if self.frozens.plan is not None else 0,
            extra={
                "primal": None if start is None else start.primal,
                "dual": None if start is None else start.dual,
                "gap_best": None if self.best is None else self.best.gap,
                "gamma": self.gamma_taken,
                "damping": damping,
                "unset": float(outcome.arrays["unset"]),
                **cocoa_exchanges.visit_counts(outcome),
                "resyncs": self.resyncs,
                "drift": self.drift,
            },
            model=model,
            next_model=self._arrays(),
            next_objective=None if after is None or after.is_bound else after.primal,
            next_gap=None if measured is None else measured.gap,
            next_gap_is_bound=measured is not None and measured.is_bound,
            resume=self._resume(),
        )

    def _resume(self) -> Resume:
        """Return the state for continuing in another process; members have the dual variables."""
        return initialization.resume_of(
            self.v,
            self.columns,
            self.best,
            self.frozens,
            self.gap_schedule,
            {
                "serial": self.serial,
                "weight": self.weight,
                "damping": self.aggregation.damping,
                "local_epochs": self.local_epochs,
                "resyncs": self.resyncs,
            },
        )

    def restore(self, resume: Resume) -> None:
        """Restore the state of another process at the end of a round, without dual variables.

        No chunk has any: the next round maps them from the model, and recomputes the model from
        them. Certificates stay valid: the optimum is the same.
        """
        values, self.is_stale = resume.values, True
        self.v, self.best = np.array(resume.arrays["v"]), initialization.certificate_of(resume)
        self.serial, self.weight = int(values["serial"]), float(values["weight"])
        self.aggregation = self.aggregation.damped(float(values["damping"]))
        self.local_epochs, self.resyncs = float(values["local_epochs"]), int(values["resyncs"])
        initialization.restore_gap_schedule(self.gap_schedule, resume)
        self.tune(resume.tuned)

    def tune(self, tuned: Mapping[str, Scalar]) -> None:
        """Apply settings that a policy has changed."""
        epochs, damping = tuned.get("local_epochs"), tuned.get("damping")
        if epochs is not None and float(epochs) > 0.0:
            self.local_epochs = float(epochs)
        if damping is not None and 0.0 < float(damping) <= 1.0:
            self.aggregation = self.aggregation.damped(float(damping))

    def _shown(self) -> Certificate | None:
        """Return the reported certificate."""
        return mode_of(self.settings).reported(self.current, self.best)

    def _arrays(self) -> Arrays:
        """Return the reported model, in the users' form."""
        shown = self._shown()
        return self.columns.arrays(self.v if shown is None else shown.v)

    # --- the end ------------------------------------------------------------------------------

    def reached(self) -> Model | None:
        """Stop where the gap is small enough, or is rounding error."""
        shown = self._shown()
        if shown is None:
            return None
        if shown.gap <= self.settings.gap_to_reach(shown.primal):
            return self._model(converged=True, reason=self.settings.gap_reason)
        if shown.is_at_float64_precision:
            return self._model(converged=True, reason="gap is zero to the precision of float64")
        return None

    def finish(self) -> Generator[Exchange, Outcome, Model]:
        """Make the model when the job stops, certified as well as possible."""
        if self.current is None or self.is_stale:
            yield from self.certify(waits=False)
        return self._model(converged=False, reason="stopped as asked")

    def _model(self, *, converged: bool, reason: str) -> Model:
        shown = self._shown()
        is_bound = shown is not None and shown.is_bound
        return Model(
            arrays=self._arrays(),
            converged=converged,
            reason=reason,
            objective=None if shown is None or is_bound else shown.primal,
            gap=None if shown is None else shown.gap,
            gap_is_bound=is_bound,
        )
