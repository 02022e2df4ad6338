"""The start of a primal CoCoA job: targets, columns, the first model or a former process's."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticml.algorithms.base import Arrays, Exchange, Outcome, Resume
from elasticml.algorithms.cocoa.gap_schedule import Certificate, GapSchedule
from elasticml.algorithms.cocoa.initialization import certificate_of as certificate_of
from elasticml.algorithms.cocoa.initialization import gap_schedule_values
from elasticml.algorithms.cocoa.initialization import restore_gap_schedule as restore_gap_schedule
from elasticml.algorithms.primal_cocoa import primal_exchanges
from elasticml.algorithms.primal_cocoa.margin_problem import MarginProblem
from elasticml.algorithms.primal_cocoa.problem import Problem
from elasticml.algorithms.primal_cocoa.squared_problem import SquaredProblem
from elasticml.arrays import F64
from elasticml.data.source import DatasetStats
from elasticml.errors import ConfigError, DataError
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.specification.algorithms import PrimalCoCoA


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


def check_data(facts: DatasetStats) -> None:
    """Refuse data whose chunks this algorithm cannot read.

    Raises
    ------
    ConfigError
        When values are not float64.
    """
    layout = facts.layout
    if layout.dtype != "float64" or layout.kind == "sequence":
        raise ConfigError(
            f"data are {layout.kind} of {layout.dtype}, wanted float64 numbers by columns for "
            "primal_cocoa: em.from_arrays(X, y, by='columns')",
            key="data",
        )


def collect_problem(
    settings: PrimalCoCoA, facts: DatasetStats, initial: Mapping[str, F64]
) -> Generator[Exchange, Outcome, tuple[Problem, ColumnSummary]]:
    """Collect targets, weights and column constants in two exchanges over all members.

    Raises
    ------
    ConfigError
        When the warm start has other features.
    DataError
        When the data are not by columns, or a column's squared norm is not finite.
    """
    outcome = yield primal_exchanges.targets_exchange(facts.n_columns)
    problem = problem_of(settings, outcome.arrays)
    d = int(outcome.arrays["counts"][0])
    if initial and initial["coef"].size != d:
        raise ConfigError(
            f"algorithm.warm_start.coef has {initial['coef'].size} numbers, wanted "
            f"{d}, one for each feature; use a model of the same features",
            key="algorithm.warm_start",
        )
    outcome = yield primal_exchanges.columns_exchange(d, problem.roots, centred=settings.intercept)
    norms, means = (np.array(outcome.arrays[name]) for name in ("norms", "means"))
    root = problem.roots.get("root")
    weight = facts.n_columns if root is None else float(root @ root)
    with np.errstate(over="ignore", invalid="ignore"):
        huge = np.flatnonzero(~np.isfinite(norms + weight * means**2))
    if huge.size:
        raise DataError(
            f"the square of feature {huge[0]} is not finite, wanted one that float64 holds: its "
            "values are too large; divide the feature by its largest value"
        )
    return problem, ColumnSummary(norms=norms, means=means, classes=problem.classes)


def problem_of(settings: PrimalCoCoA, arrays: Arrays) -> Problem:
    """Make the problem from the targets exchange's arrays.

    Raises
    ------
    DataError
        When the data are not by columns, or the labels are not of two classes.
    """
    counts = [int(count) for count in arrays["counts"]]
    if counts[0] < 1 or counts[1] != 1 or counts[2] > 1:
        raise DataError(
            f"the data have {counts[0]} columns, {counts[1]} rows of targets and {counts[2]} "
            "of weights, wanted at least 1, 1, and 0 or 1: they are by rows; give "
            "primal_cocoa em.from_arrays(X, y, by='columns')"
        )
    y, root = np.array(arrays["target"]), np.array(arrays["root"]) if counts[2] else None
    if not settings.is_classification:
        return SquaredProblem.of(
            y,
            root,
            l1=settings.l1,
            l2=settings.l2,
            centred=settings.intercept,
            positive=settings.positive,
        )
    return MarginProblem.of(
        y,
        root,
        MarginLoss(settings.loss, settings.terms),
        class_weight=settings.class_weight,
        l1=settings.l1,
        l2=settings.l2,
        intercept=settings.intercept,
    )


def check_finite(certificate: Certificate) -> Certificate:
    """Return the certificate if its objectives are finite.

    Raises
    ------
    DataError
        When an objective is not finite.
    """
    if not (math.isfinite(certificate.primal) and math.isfinite(certificate.dual)):
        raise DataError(
            f"the objective is {certificate.primal}, its lower bound {certificate.dual}, wanted "
            "finite numbers: targets, features or algorithm.warm_start are too large; scale them"
        )
    return certificate


def first_coef(settings: PrimalCoCoA, d: int, initial: Mapping[str, F64]) -> F64:
    """Return the first coefficients: the warm start or zeros, made nonnegative if required."""
    warm = initial.get("coef")
    coef = np.zeros(d) if warm is None else np.array(warm)
    return np.maximum(coef, 0.0) if settings.positive else coef


def resume_of(
    coef: F64, best: Certificate | None, schedule: GapSchedule, values: Mapping[str, Any]
) -> Resume:
    """Return the state for another process, which starts from the last certificate's model.

    Parameters
    ----------
    coef : ndarray (d,)
    values : mapping
        Further values, JSON types only.
    """
    return Resume(
        arrays={"coef": coef, **({} if best is None else {"best_v": best.v})},
        values={
            **values,
            "cadence": gap_schedule_values(schedule),
            "best": None if best is None else {**best.columns(), "is_bound": best.is_bound},
        },
    )
