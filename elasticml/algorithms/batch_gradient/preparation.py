"""The step rule of gradient descent, determined before round 0."""

from __future__ import annotations

from collections.abc import Generator

from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.batch_gradient.settings import Settings
from elasticml.algorithms.batch_gradient.steps import DECAY_ROUNDS, StepRule, safe_step
from elasticml.algorithms.column_statistics import moments_exchange
from elasticml.algorithms.scaling import Columns, mean_square_norm


def fix_step(
    settings: Settings, columns: Columns, resume: Resume | None = None
) -> Generator[Exchange, Outcome, StepRule | None]:
    """Return the step rule; None for the line search.

    Needs one exchange if neither ``step_size`` nor ``resume`` gives the first length.
    """
    if settings.step == "line_search":
        return None
    first = settings.step_size if resume is None else float(resume.values["first_step"])
    if first is None:
        outcome = yield moments_exchange(columns.n_columns, weighted=True)
        count, total, squares = (outcome.arrays[name] for name in ("count", "total", "squares"))
        norm = mean_square_norm(columns, float(count), total, squares)
        first = safe_step(settings.loss.smoothness, norm, settings.l2)
    decay = 1.0 / DECAY_ROUNDS if settings.step == "decay" else 0.0
    return StepRule(first=first, decay=decay)
