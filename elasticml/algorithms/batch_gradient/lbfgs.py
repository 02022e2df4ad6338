"""L-BFGS: quasi-Newton directions from pairs of steps and gradient changes.

If the set of examples changes between two gradients, their difference is not the change of one
function's gradient: that pair is skipped. Older pairs are kept: pairs of the same losses are as
good as before, and restarting without any costs more than their error.

Source: Nocedal (1980), Liu and Nocedal (1989); for the skipped pair see docs/explanation/papers.md.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from elasticml.algorithms.base import Exchange, Outcome, Resume
from elasticml.algorithms.batch_gradient.line_search import (
    Ray,
    curvature_along,
    first_length,
    search_wolfe,
)
from elasticml.algorithms.batch_gradient.optimizer import Iterate, Reevaluate, Spent, Step
from elasticml.arrays import F64

# L-BFGS memory: pairs of steps and gradient changes, and the inverse Hessian they define.


#: Number of pairs kept.
PAIRS_MAX: Final = 10
#: Bytes per model coordinate of the pairs and one more under construction, doubled because a
#: checkpoint holds them, too.
PAIRS_BYTES: Final = 2 * 8 * 2 * (PAIRS_MAX + 1)
#: Least cosine between a step and the gradient change: below it the change is rounding.
COSINE_MIN: Final = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A step, and the change of one function's gradient along it."""

    #: Both shape (n_model,).
    step: F64
    change: F64
    #: ``step.change``, positive.
    product: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The last pairs, oldest first; immutable."""

    kept: tuple[Pair, ...] = ()

    def with_step(self, step: F64, change: F64) -> Pairs:
        """Return these pairs plus a new one if the function curves upwards along the step."""
        product = float(step @ change)
        if not product > COSINE_MIN * float(np.linalg.norm(step) * np.linalg.norm(change)):
            return self
        pair = Pair(step=step, change=change, product=product)
        return Pairs(kept=(*self.kept, pair)[-PAIRS_MAX:])

    def times(self, vector: F64) -> F64:
        """Return the inverse Hessian estimate times a vector; new, shape (n_model,).

        Without pairs this is the vector itself. With pairs the estimate is positive definite and
        starts from the identity times ``step.change / change.change`` of the last pair.

        Source: the two-loop recursion of Nocedal (1980).
        """
        out = vector.copy()
        shares = []
        for pair in reversed(self.kept):
            share = float(pair.step @ out) / pair.product
            out -= share * pair.change
            shares.append(share)
        if self.kept:
            last = self.kept[-1]
            out *= last.product / float(last.change @ last.change)
        for pair, share in zip(self.kept, reversed(shares), strict=True):
            out += (share - float(pair.change @ out) / pair.product) * pair.step
        return out


#: Longest step tried, in quasi-Newton steps: lengths are halved from here, so one of them is 1.
LONGEST: Final = 2.0
#: Names of a pair's arrays in checkpoints.
_PARTS: Final = ("step", "change")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """The start of the last step, and the set of examples there."""

    #: Both shape (n_model,).
    w: F64
    gradient: F64
    changes: int


class LBFGS:
    """The L-BFGS optimizer, with a Wolfe line search."""

    def __init__(self) -> None:
        self.pairs = Pairs()
        self.left: _Left | None = None
        self.skipped = 0
        self.directions = 0

    def step(self, here: Iterate) -> Generator[Exchange, Outcome, Step | Reevaluate | None]:
        """See :class:`optimizer.Optimizer`."""
        self._learn(here)
        changes = here.elastic.changes
        self.directions += 1
        direction = -self.pairs.times(here.gradient)
        step = yield from self._search(Ray(here=here, serial=self.directions, direction=direction))
        if isinstance(step, Step):
            # If examples were lost in the search, the next gradient is another function's.
            self.left = _Left(w=here.evaluated.point.w, gradient=here.gradient, changes=changes)
        elif step is None:
            # The direction may be to blame: the next one is the negative gradient.
            self.pairs, self.left = Pairs(), None
        return step

    def _learn(self, here: Iterate) -> None:
        """Store a pair for the last step if its two gradients are of the same function."""
        left, self.left = self.left, None
        if left is None:
            return
        if left.changes != here.elastic.changes:
            self.skipped += 1
            return
        step = here.evaluated.point.w - left.w
        self.pairs = self.pairs.with_step(step, here.gradient - left.gradient)

    def _search(self, ray: Ray) -> Generator[Exchange, Outcome, Step | Reevaluate | None]:
        longest = LONGEST
        if not self.pairs.kept:
            curvature = yield from curvature_along(ray)
            if curvature is None:
                return "again"
            longest = first_length(ray.here.value, ray.slope, curvature)
        return (yield from search_wolfe(ray, longest))

    def columns(self, spent: Spent) -> Mapping[str, float | int | None]:
        """See :class:`optimizer.Optimizer`."""
        skipped, self.skipped = self.skipped, 0
        return {**spent.take("probes"), "pairs": len(self.pairs.kept), "skipped_pairs": skipped}

    def resume(self, *, is_whole: bool) -> Resume:
        """See :class:`optimizer.Optimizer`."""
        arrays: dict[str, F64] = {}
        for k, pair in enumerate(self.pairs.kept):
            arrays |= {f"pair{k}_{part}": getattr(pair, part) for part in _PARTS}
        left = self.left if is_whole else None
        if left is not None:
            arrays |= {"left_w": left.w, "left_gradient": left.gradient}
        values = {
            "directions": self.directions,
            "products": [pair.product for pair in self.pairs.kept],
        }
        return Resume(arrays=arrays, values=values)

    def go_on(self, resume: Resume, changes: int) -> None:
        """See :class:`optimizer.Optimizer`."""
        self.directions = int(resume.values["directions"])
        kept = []
        for k, product in enumerate(resume.values["products"]):
            step, change = (np.array(resume.arrays[f"pair{k}_{part}"]) for part in _PARTS)
            kept.append(Pair(step=step, change=change, product=float(product)))
        self.pairs = Pairs(kept=tuple(kept))
        if "left_w" in resume.arrays:
            self.left = _Left(
                w=np.array(resume.arrays["left_w"]),
                gradient=np.array(resume.arrays["left_gradient"]),
                changes=changes,
            )
