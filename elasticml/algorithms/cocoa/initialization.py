"""The start of a CoCoA job: limits for bounds, the first model, and a former process's state."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.cocoa import cocoa_exchanges
from elasticml.algorithms.cocoa.frozen_loss_bound import FrozenGroups, RowLimits, plan_statistics
from elasticml.algorithms.cocoa.gap_schedule import Certificate, GapSchedule
from elasticml.algorithms.cocoa.mode import mode_of
from elasticml.algorithms.initial_model import initial_model
from elasticml.algorithms.scaling import Columns
from elasticml.arrays import F64
from elasticml.data.source import DatasetStats
from elasticml.errors import ConfigError
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.specification.algorithms import CoCoA, settings_from_section


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


def check_warm_start(initial: Mapping[str, F64], facts: DatasetStats, models: int = 1) -> None:
    """Refuse a warm start from other data.

    Raises
    ------
    ConfigError
        When the model has another number of features or classes.
    """
    coef, wanted = initial.get("coef"), models * facts.n_columns
    if coef is not None and coef.size != wanted:
        raise ConfigError(
            f"algorithm.warm_start.coef has {coef.size} numbers, wanted {wanted}, one for "
            f"each feature{' and class' if models > 1 else ''}; use a model of the same features",
            key="algorithm.warm_start",
        )


def gap_schedule_for(settings: CoCoA, n_rows: int) -> GapSchedule:
    """Return the schedule of certificates."""
    every = mode_of(settings).gap_every(settings)
    return GapSchedule(
        every=None if every == "target" else every,
        target=settings.gap_to_reach(0.0),
        rows=n_rows,
        is_seldom=every == "target",
    )


def first_model(initial: Mapping[str, F64], columns: Columns) -> F64:
    """Return the first model, in trained coordinates: the warm start, or zero."""
    if not initial:
        return np.zeros(columns.n_model)
    intercept = initial.get("intercept", np.zeros(1))
    return columns.trained(initial["coef"], float(intercept[0]))


def prepare_absence(
    settings: CoCoA, columns: Columns, rule: str, resume: Resume | None
) -> Generator[Exchange, Outcome, FrozenGroups]:
    """Compute the limits that bounds need, with "freeze" alone: an exchange over all members."""
    loss = MarginLoss(settings.loss, settings.terms)
    frozens = FrozenGroups(loss=loss, columns=columns, plan=None)
    if rule != "freeze":
        return frozens
    frozens.plan = plan_statistics(loss, columns.n_sent)
    if resume is not None and resume.values["limits"] is not None:
        limits = resume.values["limits"]
        frozens.limits = RowLimits(rows=np.array(limits["rows"]), target=float(limits["target"]))
        return frozens
    outcome = yield cocoa_exchanges.largest_row_exchange(columns)
    frozens.limits = RowLimits(
        rows=np.array(outcome.arrays["rows"]), target=float(outcome.arrays["target"])
    )
    return frozens


def resume_of(
    v: F64,
    columns: Columns,
    best: Certificate | None,
    frozens: FrozenGroups,
    schedule: GapSchedule,
    values: Mapping[str, Any],
) -> Resume:
    """Return the state for another process, which maps the dual variables from the model.

    Parameters
    ----------
    v : ndarray (D,)
        The model in trained coordinates.
    values : mapping
        Further values, JSON types only.
    """
    limits = frozens.limits
    return Resume(
        arrays={"v": v, **columns.state(), **({} if best is None else {"best_v": best.v})},
        values={
            **values,
            "cadence": gap_schedule_values(schedule),
            "best": None if best is None else {**best.columns(), "is_bound": best.is_bound},
            "limits": None
            if limits is None
            else {"rows": limits.rows.tolist(), "target": limits.target},
        },
    )


def gap_schedule_values(schedule: GapSchedule) -> dict[str, Any]:
    """Return the state of the schedule's counters."""
    counters = {k: getattr(schedule, k) for k in ("credit", "passes", "certified_at", "ratio")}
    return {**counters, "marks": list(schedule.marks)}


def certificate_of(resume: Resume) -> Certificate | None:
    """Return the best certificate of a former process; it stays valid for the same data."""
    best = resume.values["best"]
    if best is None:
        return None
    return Certificate(
        primal=float(best["primal"]),
        dual=float(best["dual"]),
        v=np.array(resume.arrays["best_v"]),
        is_bound=bool(best["is_bound"]),
    )


def restore_gap_schedule(schedule: GapSchedule, resume: Resume) -> None:
    """Restore the schedule of a former process."""
    values = resume.values["cadence"]
    schedule.credit = float(values["credit"])
    schedule.passes, schedule.certified_at = int(values["passes"]), int(values["certified_at"])
    schedule.ratio = float(values.get("ratio", 1.0))
    schedule.marks = [(int(passes), float(gap)) for passes, gap in values["marks"]]
