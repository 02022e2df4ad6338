"""CoCoA by rows: coordinates are the dual variables of examples, and members exchange the model.

The driver has the model ``v = 1/(l2 S) sum s_i alpha_i x_i`` and adds the members' changes of it.

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
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from elasticml.algorithms.base import ON_CUDA, Arrays, Exchange, Outcome, Resume, Trainer
from elasticml.algorithms.cocoa import cocoa_exchanges
from elasticml.algorithms.cocoa.damping import Aggregation
from elasticml.algorithms.cocoa.frozen_loss_bound import FrozenGroups, RowLimits, plan_statistics
from elasticml.algorithms.cocoa.gap_schedule import Certificate, GapSchedule, smoothed_model
from elasticml.algorithms.cocoa.line_search import LineModel, products
from elasticml.algorithms.cocoa.scaled_chunks import check_scale
from elasticml.algorithms.cocoa.trainer import Cocoa, Step, check_warm_start
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
            "wanted softmax, the problem of linear; leave engine out, or use algorithm cocoa"
        )
    check_scale(checked.scale, facts)
    is_offset = offset_column(checked, facts) is not None  # refused before anything starts
    if rule == "freeze" and (is_offset or n > 1):
        what = "with algorithm.offset, which has" if is_offset else f"with {n} classes, which have"
        raise ConfigError(f"absent: got 'freeze' {what} no bound of the gap; use reload or stall")
    check_warm_start(initial, n * facts.n_columns, is_of_classes=n > 1)
    if n == 1:
        return _train(checked, facts, targets_for(checked, facts), rule, initial, resume)

    def of_class(k: int, own: Resume | None) -> Trainer:
        section = section_of_class(settings, n, k)
        each = settings_from_section(CoCoA, section)
        targets = targets_for(each, facts, k)
        return _train(each, facts, targets, rule, initial_model(section), own)

    return train_classes(of_class, n, resume)


def section_of_class(section: Mapping[str, Any], n: int, k: int) -> dict[str, Any]:
    """Return the ``algorithm`` section for class k of n, against the rest.

    The gaps of all classes sum up to the job's tolerance; the default one is a share of each
    class's objective. Rows are neither copied to a GPU nor skipped on disk, which would be done for
    each class by itself, unless the section says so.
    """
    settings = settings_from_section(CoCoA, section)
    own = dict(section)
    own["tolerance"] = None if settings.tolerance is None else settings.tolerance / n
    own["device"] = "cpu" if settings.device == "auto" else settings.device
    own["skip"] = bool(settings.skip)
    initial = initial_model(section)
    if initial:
        own["warm_start"] = {name: np.split(a, n)[k].tolist() for name, a in initial.items()}
    return own


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
    frozens = yield from _prepare_absence(settings, columns, rule, resume)
    every = settings.given_gap_every
    v = np.zeros(columns.n_model)
    if initial:
        v = columns.trained(initial["coef"], float(initial.get("intercept", np.zeros(1))[0]))
    cocoa = CocoaByRows(
        settings=settings,
        columns=columns,
        frozens=frozens,
        weight=weight_of_all(facts, targets),
        image=v,
        first_fill="map" if initial else "zero",
        single=facts.layout.dtype == "float32",
        gap_schedule=GapSchedule(
            every=None if every == "target" else every,
            target=settings.gap_to_reach(0.0),
            rows=facts.n_rows,
            is_seldom=every == "target",
        ),
        aggregation=Aggregation.of(settings),
        local_epochs=settings.epochs,
        waits=rule != "freeze",
    )
    estimated = settings.class_weight is not None and facts.weight_sum != facts.n_rows
    waits, certificates = rule != "freeze" or estimated, 0 if resume is not None else 1
    return (yield from cocoa.train(resume, waits=waits, certificates=certificates))


def _prepare_absence(
    settings: CoCoA, columns: Columns, rule: str, resume: Resume | None
) -> Generator[Exchange, Outcome, FrozenGroups]:
    """Compute the limits that bounds need, with "freeze" alone: an exchange over all members."""
    loss = MarginLoss(settings.loss, settings.terms)
    frozens = FrozenGroups(loss=loss, columns=columns, plan=None)
    if rule != "freeze":
        return frozens
    frozens.plan = plan_statistics(loss, columns.n_sent)
    limits = None if resume is None else resume.values["limits"]
    if limits is None:
        outcome = yield Exchange(
            operation=cocoa_exchanges.LARGEST_ROW,
            model=scale_arrays(columns),
            returns={"rows": (2,), "target": ()},
            reduce="max",
            require="everybody",
        )
        limits = outcome.arrays
    frozens.limits = RowLimits(rows=np.array(limits["rows"]), target=float(limits["target"]))
    return frozens


def scale_arrays(columns: Columns) -> dict[str, F64]:
    """Return the arrays that members need to scale rows."""
    parts = {"factor": columns.factor, "shift": columns.shift}
    return {name: part for name, part in parts.items() if part is not None}


@dataclass(slots=True, kw_only=True)
class CocoaByRows(Cocoa):
    """A job by rows: the image is ``1/(l2 S) sum s_i alpha_i x_i``, in trained coordinates."""

    settings: CoCoA
    columns: Columns
    frozens: FrozenGroups
    #: S, the weight of all examples, present and absent.
    weight: float
    #: Where the dual variables start: at zero, or mapped from the model.
    first_fill: cocoa_exchanges.Fill
    #: The data and the members' kernels are float32.
    single: bool
    #: The model before the last pass, and the one of the last certificate.
    before: F64 | None = None
    sent: F64 = field(default_factory=lambda: np.zeros(0))

    @property
    def stand_ins(self) -> int:
        """Number of absent groups under a bound."""
        return len(self.frozens.groups) if self.frozens.plan is not None else 0

    def note(self, outcome: Outcome) -> bool:
        """Record which groups are absent; return whether they have changed."""
        return self.frozens.note(outcome)

    # --- certificates -------------------------------------------------------------------------

    def ask_certificate(self, *, waits: bool) -> Exchange:
        """Send the model, or one near it with a better primal objective."""
        before = None if self.is_stale or self._is_near else self.before
        self.sent = smoothed_model(self.settings.terms, self.image, before)
        sent, statistics = self.columns.model(self.sent), self.frozens.shapes
        return Exchange(
            operation=cocoa_exchanges.CERTIFY,
            model={"sent": sent, **(scale_arrays(self.columns) if statistics else {})},
            returns={
                "primal": (),
                "dual": (),
                "image": sent.shape,
                "weight": (),
                "unset": (),
                **statistics,
            },
            parameters={"fill": self.first_fill if self.serial == 0 else "map"},
            keep=True,
        )

    def certified(self, outcome: Outcome) -> Certificate | None:
        """Add up both objectives; None if neither is known because examples are absent."""
        if outcome.absent_examples and self.frozens.plan is None:
            return None
        arrays = outcome.arrays
        weight = float(arrays["weight"])
        if outcome.absent_examples == 0:
            self.weight = weight
        image = self.frozens.add_image(np.asarray(arrays["image"]))
        # In the dual problem an offset is linear: sum s_i coefficient_i offset_i.
        fixed = self.columns.fixed
        along_offset = 0.0 if fixed is None else float(image[fixed])
        self.image = self.columns.up(image) / (self.settings.l2 * self.weight)
        certificate = self._certificate(arrays, self.weight - weight, along_offset)
        scale = self._scale(arrays)
        self.frozens.keep(outcome.exchange, self.sent, arrays, scale)
        self.gamma = scale - 1.0
        return certificate

    def _certificate(
        self, arrays: Arrays, absent_weight: float, along_offset: float
    ) -> Certificate:
        half = 0.5 * self.settings.l2
        is_bound = bool(self.frozens.groups)
        primal = float(arrays["primal"])
        if is_bound:
            primal += self.frozens.upper(self.sent, absent_weight)
        dual = float(arrays["dual"]) + self.frozens.dual() - along_offset
        return Certificate(
            primal=primal / self.weight + half * products(self.sent, self.sent)[1],
            dual=dual / self.weight - half * products(self.image, self.image)[1],
            v=self.sent,
            is_bound=is_bound,
        )

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
        frozen = self.image - own
        along = self._along(
            frozen,
            own,
            dual=float(arrays["dual"]) - (0.0 if fixed is None else float(image[fixed])),
            curvature=0.0,
        )
        scale = min(max(along.best, 0.0), 1.0)
        if scale < 1.0:
            self.image = frozen + scale * own
        return scale

    # --- passes -------------------------------------------------------------------------------

    def ask_pass(self) -> Exchange:
        """Send the model."""
        settings = self.settings
        is_paper = settings.is_paper and settings.given_sigma is None
        counts = ("visited", "partitions", "gap", "unset", "discarded")
        sums = dict.fromkeys(("dual", "curvature", *counts, ON_CUDA), ())
        return Exchange(
            operation=cocoa_exchanges.PASS,
            model={"v": self.image, **scale_arrays(self.columns)},
            returns={"dv": self.image.shape, **sums},
            parameters={
                "sigma": settings.given_sigma or 0.0,
                "sigma_per_member": settings.gamma if is_paper else 0.0,
                "weight": self.weight,
                # Gains may be so small that float32 kernels' rounding would hide them.
                "exact": self.single and self._is_near,
            },
        )

    def take(self, outcome: Outcome) -> Step:
        """Add the members' changes of the model, scaled by the exact line search."""
        arrays = outcome.arrays
        dv = np.asarray(arrays["dv"])
        along = self._along(
            self.image, dv, dual=float(arrays["dual"]), curvature=float(arrays["curvature"])
        )
        length = self.aggregation.length(along)
        self.before, self.image = self.image, self.image + length * dv
        if not np.all(np.isfinite(self.image)):
            raise JobFailedError(
                "the model is not finite, wanted a finite one: algorithm.sigma is too small for "
                "algorithm.gamma; leave both out",
                reason="diverged",
            )
        return Step(along=along, length=length, gap=float(arrays["gap"]) / self.weight)

    def _along(self, v: F64, dv: F64, *, dual: float, curvature: float) -> LineModel:
        return LineModel.of(
            v, dv, dual=dual, curvature=curvature, weight=self.weight, l2=self.settings.l2
        )

    # --- reports ------------------------------------------------------------------------------

    def reported(self) -> Certificate | None:
        """Return the best certificate; as in the papers, that of the current model."""
        return self.current if self.settings.is_paper else self.best

    def arrays(self, shown: Certificate | None) -> Arrays:
        """Return a model in the users' form."""
        return self.columns.arrays(self.image if shown is None else shown.v)

    def history(self, outcome: Outcome | None) -> dict[str, Any]:
        """Return the counts of a pass: visited rows; on GPUs those and undone sub-epochs."""
        if outcome is None:
            return {}
        counts = {name: float(outcome.arrays[name]) for name in ("visited", ON_CUDA, "discarded")}
        return {name: count for name, count in counts.items() if count or name == "visited"}

    def state(self) -> tuple[dict[str, F64], dict[str, Any]]:
        """Return the model and what was measured of the data; members have the dual variables."""
        limits = self.frozens.limits
        known = None if limits is None else {"rows": limits.rows.tolist(), "target": limits.target}
        return (
            {"v": self.image, **self.columns.state()},
            {"weight": self.weight, "limits": known},
        )

    def restore(self, resume: Resume) -> None:
        """Restore the model, from which the next certificate maps the dual variables."""
        self.image, self.weight = np.array(resume.arrays["v"]), float(resume.values["weight"])

    @property
    def _is_near(self) -> bool:
        """Whether the gap is small: then the mean of two models is no better than the last one."""
        return self.best is not None and self.best.gap <= FINE * abs(self.best.primal)
