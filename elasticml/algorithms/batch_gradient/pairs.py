"""L-BFGS memory: pairs of steps and gradient changes, and the inverse Hessian they define."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

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
