"""Lloyd's algorithm over all members' rows: ``mode: batch``, and the last passes of a free run.

K-Means by MapReduce: members map their examples to sums by nearest centre, the driver reduces the
sums and moves every centre to its mean. ``mode: batch`` makes each pass a round. It is the baseline
of a free-running job on the same members.

Source: the baseline "MapReduce based BATCH" of the asynchronous SGD paper.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from elasticml.algorithms.async_sgd.base import AsyncPlan
from elasticml.algorithms.async_sgd.local_kmeans import means_of
from elasticml.algorithms.async_sgd.seeding import pass_exchange
from elasticml.algorithms.base import (
    Arrays,
    Exchange,
    Model,
    Outcome,
    Parallel,
    Resume,
    RoundEnd,
    Trainer,
    Work,
    operation_of,
)
from elasticml.arrays import F64
from elasticml.data.chunks.chunk import Chunk
from elasticml.errors import ConfigError


def lloyd(centres: F64, passes: int) -> Generator[Exchange, Outcome, dict[str, F64]]:
    """Run up to ``passes`` iterations of Lloyd's algorithm; they end when no centre moves.

    Yields exchanges, as :func:`elasticml.algorithms.async_sgd.seeding.start` does. Returns
    ``centres``, and the ``counts`` of examples nearest to each before its last move. A centre
    without examples stays.
    """
    counts = np.zeros(len(centres))
    for _ in range(passes):
        outcome = yield pass_exchange(centres)
        counts, before = outcome.arrays["counts"], centres
        centres = means_of(centres, outcome.arrays["sums"], counts)
        if np.array_equal(centres, before):
            break
    return {"centres": centres, "counts": counts}


class BatchMember:
    """A member's half of BATCH, which has no loop: it answers exchanges of seeding and passes."""

    def __init__(self, plan: AsyncPlan) -> None:
        self._plan = plan

    def compute(self, work: Work, chunks: Sequence[Chunk], parallel: Parallel) -> Arrays:
        """Compute an exchange; see :class:`elasticml.algorithms.base.Solver`."""
        return operation_of(work, self._plan.operations)(work, chunks, parallel)


def batch_trainer(plan: AsyncPlan, rule: str, resume: Resume | None) -> Trainer:
    """Return the trainer of a job with ``mode: batch``.

    Raises
    ------
    ConfigError
        When the ``absent`` rule lets rounds end without all examples.
    """
    if rule != "reload":
        raise ConfigError(
            f"absent is {rule!r}, wanted reload with algorithm.mode: batch, whose passes go "
            "over all examples"
        )
    return _train(plan, resume)


def _train(plan: AsyncPlan, resume: Resume | None) -> Trainer:
    initial = (yield from plan.start()) if resume is None else resume.arrays
    centres: F64 = plan.loop.problem.begin(dict(initial))["centres"]
    passes = 0 if resume is None else int(resume.values["passes"])
    passes_max = plan.loop.passes
    # The checkpoint may be that of the last round: then no pass is left.
    is_done, is_still = passes_max is not None and passes >= passes_max, False
    while not is_done:
        outcome = yield pass_exchange(centres)
        counts = outcome.arrays["counts"]
        objective = _mean(plan, outcome)
        following = means_of(centres, outcome.arrays["sums"], counts)
        is_still = np.array_equal(following, centres)
        passes += 1
        go_on = yield RoundEnd(
            objective=objective,
            extra={"passes": passes},
            model={"centres": centres},
            next_model={"centres": following, "counts": counts},
            next_objective=objective if is_still else None,
            resume=Resume(arrays={"centres": following}, values={"passes": passes}),
        )
        centres = following
        is_done = passes_max is not None and passes >= passes_max
        if not go_on or is_still:
            break
    if not is_still:
        outcome = yield pass_exchange(centres)
    reason = "no centre moves" if is_still else f"{passes} passes"
    return Model(
        arrays={"centres": centres, "counts": outcome.arrays["counts"]},
        converged=is_still or is_done,
        reason=reason if is_still or is_done else "stopped as asked",
        objective=_mean(plan, outcome),
        extra={"passes": passes},
    )


def _mean(plan: AsyncPlan, outcome: Outcome) -> float:
    weight = outcome.examples if plan.weight is None else plan.weight
    return float(outcome.arrays["inertia"]) / weight
