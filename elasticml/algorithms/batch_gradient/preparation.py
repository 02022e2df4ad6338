"""What is fixed before round 0 by an exchange of its own: the step rule."""

from __future__ import annotations

from collections.abc import Generator

from elasticml.algorithms import scaling
from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.batch_gradient import steps
from elasticml.algorithms.batch_gradient.settings import Settings
from elasticml.algorithms.column_statistics import moments_exchange
from elasticml.algorithms.scaling import Columns


def fix_step(
    settings: Settings, columns: Columns, resume: Resume | None = None
) -> Generator[Exchange, Outcome, steps.StepRule | None]:
    """Fix the step rule; None is the line search.

    One exchange where neither ``step_size`` nor a former process says how long the first one is.
    """
    if settings.step == "line_search":
        return None
    first = settings.step_size if resume is None else float(resume.values["first_step"])
    if first is None:
        outcome = yield moments_exchange(columns.n_columns, weighted=True)
        count, total, squares = (outcome.arrays[name] for name in ("count", "total", "squares"))
        norm = scaling.mean_square_norm(columns, float(count), total, squares)
        first = steps.safe_step(settings.loss.smoothness, norm, settings.l2)
    decay = 1.0 / steps.DECAY_ROUNDS if settings.step == "decay" else 0.0
    return steps.StepRule(first=first, decay=decay)
