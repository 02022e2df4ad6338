"""The driver's half of primal CoCoA: adds the members' steps, and certifies gaps.

Members own columns. The driver sends the residual, minus the slope of the loss; members return the
change of the predictions by their steps. A round is one ``pass`` and, when due, one ``certify``, in
which the predictions are recomputed from the coefficients. The same happens at the beginning of a
round after columns have come or gone. Lost coefficients restart from the last certificate's model.
If several members have the columns of a small model, a round may gather these instead, and finish
on them; see :mod:`elasticml.algorithms.primal_cocoa.working_set`.

Source: Smith, Forte, Ma, Takac, Jordan and Jaggi (2018), "CoCoA: a general framework", with the
features as data (its section 4); line search and damping are those of our study of CoCoA. A loss
whose curvature is not constant is replaced by its quadratic model in every round, as in proximal
Newton methods (Yuan, Ho and Lin, 2012).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from elasticml.algorithms.cocoa.gap_schedule import Certificate, GapSchedule
from elasticml.algorithms.cocoa.line_search import Aggregation, LineModel
from elasticml.algorithms.initial_model import initial_model
from elasticml.algorithms.linear.duality import Dual
from elasticml.algorithms.primal_cocoa import initialization, primal_exchanges
from elasticml.algorithms.primal_cocoa.problem import Problem
from elasticml.algorithms.primal_cocoa.solver import radius_of
from elasticml.algorithms.primal_cocoa.working_set import INNER, WorkingSet
from elasticml.arrays import F64
from elasticml.data.source import DatasetStats
from elasticml.specification.algorithms import PrimalCoCoA, absent_rule, settings_from_section

# The state of all columns at the last certificates, with bounds for absent columns.
#
# With ``absent: freeze`` the coefficients of vanished columns keep their values from the last
# certificate. Both objectives stay valid. The absent columns' contribution to ``X w`` is the last
# certificate's ``X w`` minus that of the columns still here. Their products with a residual equal
# those with an earlier residual up to ``|x_j|`` times the distance of the two.


@dataclass(slots=True, kw_only=True)
class CertifiedColumns:
    """Coefficients and slopes of every column at its last certificate."""

    #: (d,) norms of the columns.
    lengths: F64
    coef: F64
    #: (n,) ``X coef``; None before the first certificate.
    image: F64 | None = None
    #: (d,) products with the residual of the last certificate that the column took part in.
    slopes: F64 = field(init=False)
    #: (d,) the index of that residual in ``_residuals``.
    _which: NDArray[np.int64] = field(init=False)
    _residuals: list[F64] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slopes = np.zeros_like(self.lengths)
        self._which = np.zeros(self.lengths.size, np.int64)

    def take(
        self, residual: F64, arrays: dict[str, F64], here: NDArray[np.bool_] | None
    ) -> F64 | None:
        """Record a certificate; return the error bound of each product with the residual.

        Parameters
        ----------
        arrays : dict
            The reduced arrays ``image``, ``coef``, ``slopes``; with absent columns also ``former``.
        here : ndarray (d,) of bool, optional
            The columns that took part; None if all did.
        """
        if here is None or self.image is None:
            self.coef, self.image = arrays["coef"].copy(), arrays["image"].copy()
            self.slopes, self._residuals = arrays["slopes"].copy(), [residual]
            self._which[:] = 0
            return None
        self.image = arrays["image"] + (self.image - arrays["former"])
        self.coef = np.where(here, arrays["coef"], self.coef)
        self.slopes = np.where(here, arrays["slopes"], self.slopes)
        self._which[here] = len(self._residuals)
        self._residuals.append(residual)
        used, self._which = np.unique(self._which, return_inverse=True)
        self._residuals = [self._residuals[k] for k in used]
        moved = np.array([float(np.linalg.norm(residual - r)) for r in self._residuals])
        return np.asarray(self.lengths * moved[self._which])


_Steps = Generator[Exchange, Outcome, Any]


def make_trainer(
    settings: Mapping[str, Any], facts: DatasetStats, absent: str, resume: Resume | None = None
) -> Trainer:
    """Make the trainer of a job.

    Parameters
    ----------
    settings : mapping
        The job's ``algorithm`` section, see :class:`PrimalCoCoA`.
    facts : DatasetStats
        Of data by columns.
    absent : str
        "auto" | "reload" | "stall" | "freeze".
    resume : Resume, optional
        State of the round after which to continue.

    Raises
    ------
    ConfigError
        When a setting is unknown or out of range, or does not fit the data.
    """
    checked = settings_from_section(PrimalCoCoA, settings)
    freezes = absent_rule(checked.name, absent) == "freeze"
    initialization.check_data(facts)
    return _train(checked, facts, initial_model(settings), freezes, resume)


def _train(
    settings: PrimalCoCoA,
    facts: DatasetStats,
    initial: Mapping[str, F64],
    freezes: bool,
    resume: Resume | None,
) -> Trainer:
    problem, columns = yield from initialization.collect_problem(settings, facts, initial)
    first = initialization.first_coef(settings, columns.d, initial)
    descent = _Descent(
        settings=settings,
        problem=problem,
        columns=columns,
        gap_schedule=GapSchedule(
            every=settings.given_gap_every, target=settings.gap_to_reach(0.0), rows=columns.d
        ),
        aggregation=Aggregation(gamma=None),
        certified=CertifiedColumns(lengths=np.sqrt(columns.norms), coef=first),
        z=problem.with_intercept(np.zeros(facts.n_columns))[0],
        working_set=WorkingSet(n=facts.n_columns, centred=settings.intercept),
        local_epochs=settings.local_epochs,
        waits=True,
    )
    if resume is not None:
        descent.restore(resume)
    yield from descent.certify()
    if descent.certified.coef.any():
        # The first certificate computed the margins of this model; this one uses their residual.
        yield from descent.certify()
    descent.waits = not freezes
    return (yield from rounds_of(descent))


@dataclass(slots=True, kw_only=True)
class _Descent:
    """The margins between rounds, and the certificates of the model."""

    settings: PrimalCoCoA
    problem: Problem
    columns: initialization.ColumnSummary
    gap_schedule: GapSchedule
    aggregation: Aggregation
    certified: CertifiedColumns
    #: (n,) margins of the model unless ``is_stale``, times the square roots of the weights.
    z: F64
    working_set: WorkingSet
    local_epochs: float
    #: Certificates wait until no column is absent.
    waits: bool
    serial: int = 0
    #: Step length of the last pass, sent with the next exchange; 0 once it was sent.
    gamma: float = 0.0
    gamma_taken: float = 0.0
    #: Some columns came or went: the residual does not match the coefficients.
    is_stale: bool = False
    #: The next exchange closes the open group.
    seal: bool = False
    groups: tuple[Any, ...] = ()
    current: Certificate | None = None
    best: Certificate | None = None
    #: The lower bound of the last certificate; None if a pass was made or columns changed since.
    dual: Dual | None = None
    alive: float = 0.0
    #: Members with columns at the last pass; whether the last exchange had all columns.
    partitions: float = 0.0
    is_whole: bool = False
    resyncs: int = 0
    #: Relative distance of the margins from the recomputed ones, at the last certificate in which
    #: they should have been equal.
    drift: float | None = None

    # --- exchanges ----------------------------------------------------------------------------

    def certify(self, *, waits: bool | None = None, taken: F64 | None = None) -> _Steps:
        """Compute the objective, a lower bound of it, and the margins.

        With ``taken`` (d,) members first replace their coefficients by it.
        """
        waits = self.waits if waits is None else waits
        sent, problem = self.problem.dual_residual(self.z), self.problem
        outcome: Outcome = yield primal_exchanges.certify_exchange(
            sent,
            problem.roots,
            self.certified.coef,
            {
                **self._settling(),
                "parts": not waits,
                "centred": self.settings.intercept,
            },
            taken=taken,
            require="everybody" if waits else "any",
            seal=self._take_seal(),
        )
        self.gamma = 0.0
        self._note(outcome)
        arrays = {name: np.asarray(values) for name, values in outcome.arrays.items()}
        absent = outcome.absent_examples > 0
        slack = self.certified.take(sent, arrays, arrays["here"] > 0.5 if absent else None)
        assert self.certified.image is not None
        # Coefficients may have been lost since the last pass although no member is missing now.
        stale = self.is_stale or float(arrays["unset"]) > 0.0
        former = self.z
        self.z, intercept = problem.with_intercept(self.certified.image)
        if not stale:
            norm = problem.scale
            self.drift = float(np.linalg.norm(self.z - former)) / norm if norm else 0.0
        self.resyncs += stale and self.serial > 1
        self.is_stale = False
        coef, total = self.certified.coef, problem.total
        self.dual = problem.dual(coef, sent, self.certified.slopes, slack)
        self.current = initialization.check_finite(
            Certificate(
                primal=problem.primal(coef, self.z) / total,
                dual=self.dual.value / total,
                v=np.append(coef, intercept),
            )
        )
        self.best = self.current if self.best is None else self.current.better(self.best)
        self.gap_schedule.target = self.settings.gap_to_reach(self.best.primal)
        self.gap_schedule.certified(self.best.gap)

    def _pass(self) -> Generator[Exchange, Outcome, Outcome]:
        """Request the members' steps, and apply them with the line search."""
        problem = self.problem
        outcome = yield primal_exchanges.pass_exchange(
            problem.residual(self.z),
            problem.curvature(self.z),
            problem.roots,
            {
                **self._settling(),
                "damping": self.aggregation.damping,
                "local_epochs": self.local_epochs,
                "seed": self.settings.random_seed,
                "a1": problem.penalty.a1,
                "a2": problem.penalty.a2,
                "smoothness": problem.smoothness,
                "centred": self.settings.intercept,
                **self._sphere(),
            },
            seal=self._take_seal(),
        )
        arrays = outcome.arrays
        dv, l1, inner = (np.asarray(arrays[name]) for name in ("dv", "l1", "inner"))
        # The L1 norm is convex: along the step it is at most linear between both ends.
        penalty = LineModel(
            slope=-problem.penalty.a2 * float(inner[0]) - problem.penalty.a1 * float(l1[1]),
            curvature=problem.penalty.a2 * float(inner[1]),
        )
        step = problem.search(self.z, dv, penalty, problem.penalty.a1 * float(l1[0]))
        self.partitions = float(arrays["partitions"])
        self.aggregation = self.aggregation.adapted(step.along, self.partitions)
        self.gamma = self.gamma_taken = step.length
        self.z = problem.with_intercept(self.z + self.gamma * dv)[0]
        self.current = self.dual = None
        self.alive = float(arrays["alive"])
        self.gap_schedule.passed(float(arrays["visited"]))
        if float(arrays["unset"]) > 0.0:
            self.is_stale = True
        self._note(outcome)
        return outcome

    @property
    def _may_gather(self) -> bool:
        # A single member with all columns of a lasso needs no help.
        is_alone = self.partitions < (2.0 if self.problem.classes is None else 1.0)
        return self.settings.gather and self.is_whole and not (is_alone or self.is_stale)

    def _finish(self) -> Generator[Exchange, Outcome, bool]:
        """Gather the columns of a small model and solve for them; return whether this was done."""
        working_set, certified = self.working_set, self.certified
        best, problem = self.best, self.problem
        if not self._may_gather or self.current is None or self.dual is None or best is None:
            return False
        if not working_set.is_time():
            return False
        lengths = np.sqrt(problem.smoothness * self.columns.norms + problem.penalty.a2)
        features = working_set.choose(problem, self.dual, lengths, certified.coef, certified.slopes)
        if features is None or features.size == 0:
            return False
        missing = working_set.missing(features)
        if missing.size:
            outcome = yield primal_exchanges.gather_exchange(
                missing, self.z.size, seal=self._take_seal()
            )
            self._note(outcome)
            arrays = {name: np.asarray(values) for name, values in outcome.arrays.items()}
            if not working_set.take(missing, arrays["columns"], arrays["found"]) or self.is_stale:
                return False
        before, total = best.gap, problem.total
        goal = max(INNER * before, 0.5 * self.settings.gap_to_reach(best.primal)) * total
        solution = working_set.lower(
            problem, features, certified.coef, self.columns.means, gap=goal,
            than=self.current.primal * total,
        )  # fmt: skip
        if solution is None:
            working_set.ended(before, before)
            return False
        coef, self.z = solution
        self.current, self.gamma_taken = None, 1.0
        yield from self.certify(taken=coef)
        working_set.ended(before, self.best.gap if self.best is not None else before)
        return True

    def _sphere(self) -> dict[str, Scalar]:
        """Return the sphere that contains every solution's residual, if it is known."""
        if self.dual is None or self.best is None or not self.settings.screen:
            return {"share": 0.0, "radius": 0.0}
        gap = self.best.primal * self.problem.total - self.dual.scaled
        return {"share": self.dual.share, "radius": radius_of(gap)}

    def _settling(self) -> dict[str, Scalar]:
        """Return the next exchange's serial, and the step length to settle."""
        self.serial += 1
        return {"serial": self.serial, "settle": self.serial - 1, "gamma": self.gamma}

    def _take_seal(self) -> bool:
        seal, self.seal = self.seal, False
        return seal

    def _note(self, outcome: Outcome) -> None:
        """Record which groups are absent."""
        self.is_whole = outcome.absent_examples == 0
        changed = outcome.absent != self.groups or outcome.opened is not None
        self.groups = outcome.absent
        self.seal = self.seal or outcome.opened is not None
        if changed or (outcome.absent_examples and self.waits):
            self.is_stale = True

    # --- rounds -------------------------------------------------------------------------------

    def round(self) -> Generator[Exchange, Outcome, RoundEnd]:
        """Run one pass and the certificates due before and after it, or finish instead."""
        start, reported, model = self.current, self.best, self._arrays()
        damping = self.aggregation.damping
        visited = unset = 0.0
        if not (yield from self._finish()):
            if self.is_stale:
                yield from self.certify()
                start, reported, model = self.current, self.best, self._arrays()
            outcome = yield from self._pass()
            visited, unset = (float(outcome.arrays[name]) for name in ("visited", "unset"))
            # If certificates wait for absent columns, they do so at the beginning of a round.
            if self.gap_schedule.is_due() and not (self.is_stale and self.waits):
                yield from self.certify()
        after, measured = self.best, self.current
        return RoundEnd(
            objective=None if reported is None else reported.primal,
            gap=None if reported is None else reported.gap,
            step=self.gamma_taken,
            extra={
                "primal": None if start is None else start.primal,
                "dual": None if start is None else start.dual,
                "gap_best": None if after is None else after.gap,
                "gamma": self.gamma_taken,
                "damping": damping,
                "unset": unset,
                "visited": visited,
                "gathered": len(self.working_set.columns),
                "alive": self.alive,
                "support": None if after is None else int(np.count_nonzero(after.v[:-1])),
                "resyncs": self.resyncs,
                "drift": self.drift,
            },
            model=model,
            next_model=self._arrays(),
            next_objective=None if after is None else after.primal,
            next_gap=None if measured is None or after is None else after.gap,
            is_long=self._may_gather and self.working_set.waits <= 0,
            resume=initialization.resume_of(
                self.certified.coef,
                self.best,
                self.gap_schedule,
                {
                    "serial": self.serial,
                    "damping": self.aggregation.damping,
                    "local_epochs": self.local_epochs,
                    "resyncs": self.resyncs,
                },
            ),
        )

    def restore(self, resume: Resume) -> None:
        """Restore another process's state at its last certificate, which stays valid."""
        values = resume.values
        self.certified.coef = np.array(resume.arrays["coef"])
        self.best = initialization.certificate_of(resume)
        self.serial, self.resyncs = int(values["serial"]), int(values["resyncs"])
        self.aggregation = self.aggregation.damped(float(values["damping"]))
        self.local_epochs = float(values["local_epochs"])
        initialization.restore_gap_schedule(self.gap_schedule, resume)
        self.is_stale = True
        self.tune(resume.tuned)

    def tune(self, tuned: Mapping[str, Scalar]) -> None:
        """Apply settings that a policy has changed."""
        epochs, damping = tuned.get("local_epochs"), tuned.get("damping")
        if epochs is not None and float(epochs) > 0.0:
            self.local_epochs = float(epochs)
        if damping is not None and 0.0 < float(damping) <= 1.0:
            self.aggregation = self.aggregation.damped(float(damping))

    def _arrays(self) -> Arrays:
        """Return the reported model, in the users' form."""
        v = np.append(self.certified.coef, 0.0) if self.best is None else self.best.v
        return self.columns.arrays(v)

    # --- the end ------------------------------------------------------------------------------

    def reached(self) -> Model | None:
        """Stop where the gap is small enough, or is rounding error."""
        if self.best is None:
            return None
        if self.best.gap <= self.settings.gap_to_reach(self.best.primal):
            return self._model(converged=True, reason=self.settings.gap_reason)
        if self.best.is_at_float64_precision:
            return self._model(converged=True, reason="gap is zero to the precision of float64")
        return None

    def finish(self) -> Generator[Exchange, Outcome, Model]:
        """Make the model when the job stops, certified as well as possible."""
        if self.current is None or self.is_stale:
            yield from self.certify(waits=False)
        return self._model(converged=False, reason="stopped as asked")

    def _model(self, *, converged: bool, reason: str) -> Model:
        assert self.best is not None
        return Model(
            arrays=self._arrays(),
            converged=converged,
            reason=reason,
            objective=self.best.primal,
            gap=self.best.gap,
        )
