"""What is fixed before round 0 by exchanges of their own: scaled columns, and the step rule."""

from __future__ import annotations

from collections.abc import Generator

from elasticml.algorithms.base import Exchange, Outcome
from elasticml.algorithms.batch_gradient import messages, scaling, steps
from elasticml.algorithms.batch_gradient.scaling import Columns
from elasticml.algorithms.batch_gradient.settings import Settings
from elasticml.algorithms.batch_gradient.targets import Targets
from elasticml.data.source import DataFacts


def fix_columns(settings: Settings, facts: DataFacts) -> Generator[Exchange, Outcome, Columns]:
    """Fix how columns are scaled; an exchange over everybody unless ``scale`` is "none"."""
    d, intercept = facts.n_columns, settings.intercept
    if settings.scale == "none":
        return Columns(n_columns=d, intercept=intercept)
    if settings.scale == "maxabs":
        outcome = yield messages.maxabs_exchange(d)
        return scaling.maxabs_columns(d, intercept, outcome.arrays["maxabs"])
    outcome = yield messages.moments_exchange(d, weighted=False)
    count, total, squares = (outcome.arrays[name] for name in ("count", "total", "squares"))
    return scaling.standard_columns(d, intercept, float(count), total, squares)


def fix_step(
    settings: Settings, columns: Columns
) -> Generator[Exchange, Outcome, steps.StepRule | None]:
    """Fix the step rule; None is the line search. One exchange where ``step_size`` is not given."""
    if settings.step == "line_search":
        return None
    first = settings.step_size
    if first is None:
        outcome = yield messages.moments_exchange(columns.n_columns, weighted=True)
        count, total, squares = (outcome.arrays[name] for name in ("count", "total", "squares"))
        norm = scaling.mean_square_norm(columns, float(count), total, squares)
        first = steps.safe_step(settings.loss.smoothness, norm, settings.l2)
    decay = 1.0 / steps.DECAY_ROUNDS if settings.step == "decay" else 0.0
    return steps.StepRule(first=first, decay=decay)


def weight_of_all(facts: DataFacts, targets: Targets) -> float:
    """Return sample weight times class weight over all examples, as far as the facts tell.

    Exact with either kind of weight; with both, as if they were independent, until the first sum
    over all examples tells.
    """
    if targets.positive is None:
        return facts.weight_sum
    each = (
        count * (targets.positive_weight if label == targets.positive else targets.negative_weight)
        for label, count in facts.label_counts.items()
    )
    return sum(each) / facts.n_rows * facts.weight_sum
