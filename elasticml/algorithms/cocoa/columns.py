"""CoCoA by columns: coordinates are the coefficients of features, and members exchange margins.

The driver has the margins of the model. It sends the residual, minus the slope of the loss; members
return the change of the margins by their steps. Lost coefficients restart from the last
certificate's model. A round may gather the columns of a small model instead, and finish on them;
see :mod:`elasticml.algorithms.cocoa.working_set`.

With ``absent: freeze`` the coefficients of vanished columns keep their values from the last
certificate. Both objectives stay valid. The absent columns' contribution to ``X w`` is the last
certificate's ``X w`` minus that of the columns still here. Their products with a residual equal
those with an earlier residual up to ``|x_j|`` times the distance of the two.

Source: Smith, Forte, Ma, Takac, Jordan and Jaggi (2018), "CoCoA: a general framework", with the
features as data (its section 4). A loss whose curvature is not constant is replaced by its
quadratic model in every round, as in proximal Newton methods (Yuan, Ho and Lin, 2012).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.base import Arrays, Exchange, Outcome, Resume, Trainer
from elasticml.algorithms.cocoa import cocoa_exchanges
from elasticml.algorithms.cocoa.column_blocks import mean_penalty
from elasticml.algorithms.cocoa.column_problem import Problem
from elasticml.algorithms.cocoa.damping import Aggregation
from elasticml.algorithms.cocoa.gap_schedule import Certificate, GapSchedule
from elasticml.algorithms.cocoa.line_search import LineModel
from elasticml.algorithms.cocoa.trainer import Cocoa, Step, check_warm_start
from elasticml.algorithms.cocoa.working_set import INNER, WorkingSet
from elasticml.algorithms.initial_model import initial_model
from elasticml.algorithms.linear.duality import Dual
from elasticml.arrays import F64
from elasticml.data.source import DatasetStats
from elasticml.errors import ConfigError, DataError
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.specification.algorithms import PrimalCoCoA, absent_rule, settings_from_section


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSummary:
    """Constants of all columns."""

    #: (d,) squared norms, weighted and centred; the means that were subtracted.
    norms: F64
    means: F64
    #: (2,) the labels; None in regression.
    classes: F64 | None

    @property
    def d(self) -> int:
        """Number of columns."""
        return self.norms.size

    def arrays(self, v: F64) -> Arrays:
        """Return a model in the users' form: coefficients and the intercept of uncentred data."""
        intercept = float(v[-1]) - float(self.means @ v[:-1])
        arrays = {"coef": v[None, :-1].copy(), "intercept": np.array([intercept])}
        return arrays if self.classes is None else {**arrays, "classes": self.classes.copy()}


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
        When a setting is unknown or out of range, or does not fit the data: values are not float64.
    """
    checked = settings_from_section(PrimalCoCoA, settings)
    freezes = absent_rule(checked.name, absent) == "freeze"
    layout = facts.layout
    if layout.dtype != "float64" or layout.kind == "sequence":
        raise ConfigError(
            f"data are {layout.kind} of {layout.dtype}, wanted float64 numbers by columns for "
            "primal_cocoa: em.from_arrays(X, y, by='columns')"
        )
    return _train(checked, facts, initial_model(settings), freezes, resume)


def _train(
    settings: PrimalCoCoA,
    facts: DatasetStats,
    initial: Mapping[str, F64],
    freezes: bool,
    resume: Resume | None,
) -> Trainer:
    problem, summary = yield from collect_problem(settings, facts, initial)
    coef = np.array(initial.get("coef", np.zeros(summary.d)))
    if settings.positive:
        coef = np.maximum(coef, 0.0)
    # Zero is allowed everywhere.
    coef[~(problem.penalty.sizes(coef) < math.inf)] = 0.0
    cocoa = CocoaByColumns(
        settings=settings,
        problem=problem,
        summary=summary,
        known=CertifiedColumns(lengths=np.sqrt(summary.norms), coef=coef),
        image=problem.with_intercept(np.zeros(facts.n_columns))[0],
        working_set=WorkingSet(n=facts.n_columns, centred=settings.intercept),
        gap_schedule=GapSchedule(
            every=settings.given_gap_every, target=settings.gap_to_reach(0.0), rows=summary.d
        ),
        aggregation=Aggregation(gamma=None),
        local_epochs=settings.local_epochs,
        waits=not freezes,
    )
    # The first certificate computes the margins of a model; the second one uses their residual.
    certificates = 2 if (coef if resume is None else resume.arrays["coef"]).any() else 1
    return (yield from cocoa.train(resume, waits=True, certificates=certificates))


def collect_problem(
    settings: PrimalCoCoA, facts: DatasetStats, initial: Mapping[str, F64]
) -> Generator[Exchange, Outcome, tuple[Problem, ColumnSummary]]:
    """Collect targets, weights and column constants in two exchanges over all members.

    Raises
    ------
    ConfigError
        When the warm start has other features.
    DataError
        When the data are not by columns, the labels are not of two classes, or a column's squared
        norm is not finite.
    """
    n = (facts.n_columns,)
    outcome = yield Exchange(
        operation=cocoa_exchanges.TARGETS,
        model={},
        returns={"target": n, "root": n, "counts": (3,)},
        require="everybody",
    )
    arrays = outcome.arrays
    counts = [int(count) for count in arrays["counts"]]
    if counts[0] < 1 or counts[1] != 1 or counts[2] > 1:
        raise DataError(
            f"the data have {counts[0]} columns, {counts[1]} rows of targets and {counts[2]} "
            "of weights, wanted at least 1, 1, and 0 or 1: they are by rows; give "
            "primal_cocoa em.from_arrays(X, y, by='columns')"
        )
    y, root = np.array(arrays["target"]), np.array(arrays["root"]) if counts[2] else None
    problem = Problem.of(
        y,
        root,
        MarginLoss(settings.loss, settings.terms),
        mean_penalty(settings),
        class_weight=settings.class_weight,
        intercept=settings.intercept,
    )
    d = counts[0]
    check_warm_start(initial, d)
    outcome = yield Exchange(
        operation=cocoa_exchanges.COLUMNS,
        model=problem.roots,
        returns={"norms": (d,), "means": (d,)},
        parameters={"centred": settings.intercept},
        require="everybody",
    )
    norms, means = (np.array(outcome.arrays[name]) for name in ("norms", "means"))
    weight = facts.n_columns if root is None else float(root @ root)
    with np.errstate(over="ignore", invalid="ignore"):
        huge = np.flatnonzero(~np.isfinite(norms + weight * means**2))
    if huge.size:
        raise DataError(
            f"the square of feature {huge[0]} is not finite, wanted one that float64 holds: its "
            "values are too large; divide the feature by its largest value"
        )
    return problem, ColumnSummary(norms=norms, means=means, classes=problem.classes)


def check_finite(certificate: Certificate, settings: PrimalCoCoA) -> Certificate:
    """Return the certificate if its objectives are finite.

    Raises
    ------
    DataError
        When an objective is not finite that the settings have.
    """
    has_dual = math.isfinite(certificate.dual) or not settings.certifies_gap
    if not (math.isfinite(certificate.primal) and has_dual):
        raise DataError(
            f"the objective is {certificate.primal}, its lower bound {certificate.dual}, wanted "
            "finite numbers: targets, features or algorithm.warm_start are too large; scale them"
        )
    return certificate


@dataclass(slots=True, kw_only=True)
class CocoaByColumns(Cocoa):
    """A job by columns: the image (n,) is the margins times the square roots of the weights."""

    settings: PrimalCoCoA
    problem: Problem
    summary: ColumnSummary
    known: CertifiedColumns
    working_set: WorkingSet
    #: The lower bound of the last certificate; None if a pass was made or columns changed since.
    dual: Dual | None = None
    groups: tuple[Any, ...] = ()
    #: The residual of the last certificate.
    sent: F64 = field(default_factory=lambda: np.zeros(0))
    #: (d,) coefficients that members replace theirs by in the next certificate.
    taken: F64 | None = None
    #: Whether the last exchange had all columns.
    is_whole: bool = False

    def note(self, outcome: Outcome) -> bool:
        """Record which groups are absent; return whether they have changed."""
        changed = outcome.absent != self.groups or outcome.opened is not None
        self.is_whole, self.groups = outcome.absent_examples == 0, outcome.absent
        return changed

    # --- certificates -------------------------------------------------------------------------

    def ask_certificate(self, *, waits: bool) -> Exchange:
        """Send a dual feasible residual, and the last model for chunks without coefficients."""
        self.sent = self.problem.dual_residual(self.image)
        taken, self.taken = self.taken, None
        coef, n = self.known.coef, self.sent.shape
        d = coef.shape
        return Exchange(
            operation=cocoa_exchanges.CERTIFY,
            model={
                "residual": self.sent,
                **self.problem.roots,
                "coef": coef,
                **({} if taken is None else {"taken": taken}),
            },
            returns={
                **{"image": n, "coef": d, "slopes": d, "unset": ()},
                **({} if waits else {"here": d, "former": n}),
            },
            parameters={"parts": not waits, "centred": self.settings.intercept},
        )

    def certified(self, outcome: Outcome) -> Certificate:
        """Compute the objective, a lower bound of it, and the margins."""
        problem = self.problem
        arrays = {name: np.asarray(values) for name, values in outcome.arrays.items()}
        absent = outcome.absent_examples > 0
        slack = self.known.take(self.sent, arrays, arrays["here"] > 0.5 if absent else None)
        assert self.known.image is not None
        self.image, intercept = problem.with_intercept(self.known.image)
        coef, total = self.known.coef, problem.total
        self.dual = problem.dual(coef, self.sent, self.known.slopes, slack)
        certificate = Certificate(
            primal=problem.primal(coef, self.image) / total,
            dual=self.dual.value / total,
            v=np.append(coef, intercept),
        )
        return check_finite(certificate, self.settings)

    # --- passes -------------------------------------------------------------------------------

    def ask_pass(self) -> Exchange:
        """Send the residual and the curvatures."""
        problem = self.problem
        residual, curvature = problem.residual(self.image), problem.curvature(self.image)
        curvatures = {} if curvature is None else {"curvature": curvature}
        counts = dict.fromkeys(("visited", "partitions", "unset"), ())
        return Exchange(
            operation=cocoa_exchanges.PASS,
            model={"residual": residual, **curvatures, **problem.roots},
            returns={"dv": residual.shape, "sizes": (2,), "inner": (2,), **counts},
            parameters={"weight": problem.total, "centred": self.settings.intercept},
        )

    def take(self, outcome: Outcome) -> Step:
        """Add the members' changes of the margins, scaled by the line search."""
        arrays, problem = outcome.arrays, self.problem
        dv, sizes, inner = (np.asarray(arrays[name]) for name in ("dv", "sizes", "inner"))
        # The sizes are convex: along the step they are at most linear between both ends.
        penalty = LineModel(
            slope=-problem.penalty.a2 * float(inner[0]) - problem.penalty.a1 * float(sizes[1]),
            curvature=problem.penalty.a2 * float(inner[1]),
        )
        step = problem.search(self.image, dv, penalty, problem.penalty.a1 * float(sizes[0]))
        self.image = problem.with_intercept(self.image + step.length * dv)[0]
        self.dual = None
        return step

    # --- solving on the driver ----------------------------------------------------------------

    def solves_here(self) -> bool:
        """Whether the members have all columns, and it is time for an attempt."""
        return self._may_gather() and self.working_set.waits <= 0

    def _may_gather(self) -> bool:
        is_first = self.serial == 1  # at zero, nothing tells which columns are those of the model
        return self.settings.gathers and self.is_whole and not (is_first or self.is_stale)

    def solve_here(self) -> Generator[Exchange, Outcome, bool]:
        """Gather the columns of a small model and solve for them; return whether this was done."""
        working_set, known, problem, dual = self.working_set, self.known, self.problem, self.dual
        best, current = self.best, self.current
        if not self._may_gather() or current is None or dual is None or best is None:
            return False
        if not working_set.is_time():
            return False
        lengths = np.sqrt(problem.smoothness * self.summary.norms + problem.penalty.a2)
        features = working_set.choose(problem, dual, lengths, known.coef, known.slopes)
        if features is None or features.size == 0:
            return False
        missing = working_set.missing(features)
        if missing.size:
            gather = Exchange(
                operation=cocoa_exchanges.GATHER,
                model={"wanted": missing.astype(np.float64)},
                returns={"columns": (missing.size, self.image.size), "found": missing.shape},
                is_long=True,
            )
            arrays = (yield from self.ask(gather)).arrays
            columns, found = (np.asarray(arrays[name]) for name in ("columns", "found"))
            if not working_set.take(missing, columns, found) or self.is_stale:
                return False
        before, total = best.gap, problem.total
        goal = max(INNER * before, 0.5 * self.settings.gap_to_reach(best.primal)) * total
        solution = working_set.lower(
            problem, features, known.coef, self.summary.means, gap=goal,
            than=current.primal * total,
        )  # fmt: skip
        if solution is None:
            working_set.ended(before, before)
            return False
        self.taken, self.image = solution
        self.current, self.gamma_taken = None, 1.0
        yield from self.certify()
        working_set.ended(before, self.best.gap if self.best is not None else before)
        return True

    # --- reports ------------------------------------------------------------------------------

    def arrays(self, shown: Certificate | None) -> Arrays:
        """Return a model in the users' form."""
        return self.summary.arrays(np.append(self.known.coef, 0.0) if shown is None else shown.v)

    def history(self, outcome: Outcome | None) -> dict[str, Any]:
        """Return the counts of a pass, and the sizes of the model."""
        return {
            "visited": 0.0 if outcome is None else float(outcome.arrays["visited"]),
            "gathered": len(self.working_set.columns),
            "support": None if self.best is None else int(np.count_nonzero(self.best.v[:-1])),
        }

    def state(self) -> tuple[dict[str, F64], dict[str, Any]]:
        """Return the last certificate's coefficients."""
        return {"coef": self.known.coef}, {}

    def restore(self, resume: Resume) -> None:
        """Restore the coefficients."""
        self.known.coef = np.array(resume.arrays["coef"])
