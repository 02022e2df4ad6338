"""Linear models for free-running members: mini-batch gradients of one margin's loss.

A member steps along ``-(sum_i s_i loss'_i x_i / sum_i s_i + l2 w)`` of its mini-batch. By default
it averages with a peer's model half and half, and answers with an average over its own steps in
which late ones weigh more; where chunks are very unlike, as with sorted labels, no merging of
models repairs the members' different gradients: shuffle the chunks, or use another algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd import literal
from elasticml.algorithms.async_sgd.base import Arrays, Batch, Mail
from elasticml.algorithms.async_sgd.parts import summed
from elasticml.algorithms.async_sgd.row_products import adjoint, forward
from elasticml.algorithms.targets import Targets
from elasticml.data.chunk import Chunk
from elasticml.data.products import make_forward
from elasticml.errors import ConfigError
from elasticml.objectives.losses import Loss
from elasticml.objectives.penalties import L2

F64 = NDArray[np.float64]

#: With ``rate`` None: steps after which it has come down by a factor of sqrt(2).
_DECAY_STEPS: Final = 200.0
#: How fast the average forgets: step t has weight of the order t^3.
_RECENCY: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """``mean_i s_i loss(y_i, x_i.w) + l2/2 |w|^2``; an intercept is the last coordinate, free.

    Source of the average: Shamir and Zhang, "Stochastic gradient descent for non-smooth
    optimization" (ICML 2013), polynomial decay.
    """

    loss: Loss
    targets: Targets
    columns: int
    l2: float = 0.0
    intercept: bool = False
    #: Step length; None: from the mini-batches' rows, falling as ``1/sqrt(1 + t/200)``.
    rate: float | None = None
    #: "paper": a constant rate, a merge of weight ``rate/2`` through the Parzen window, no average.
    mode: Literal["default", "paper"] = "default"

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :class:`elasticml.algorithms.async_sgd.base.Problem`, here and below."""
        width = (self.columns + self.intercept,)
        return {"coef": width} if self.mode == "paper" else {"coef": width, "steps": (1,)}

    def begin(self, arrays: Mapping[str, F64]) -> Arrays:
        """Begin at ``coef``, by default zero: a convex objective has no dead start."""
        width = (self.columns + self.intercept,)
        coef = np.array(arrays.get("coef", np.zeros(width)), np.float64)
        if coef.shape != width or not np.isfinite(coef).all():
            raise ConfigError(
                f"start has a coef of shape {coef.shape}, wanted {width[0]} finite numbers",
                key="algorithm.start",
            )
        return self._made(coef, arrays)

    def _made(self, coef: F64, arrays: Mapping[str, F64]) -> Arrays:
        if self.mode == "paper":
            return {"coef": coef, **literal.begin(coef)}
        steps = np.array(arrays.get("steps", np.zeros(1)), np.float64)
        return {"coef": coef, "average": coef.copy(), "steps": steps}

    def step(self, state: Arrays, batch: Batch) -> None:
        """Take one step along the mini-batch's mean gradient."""
        if batch.size == 0:
            return
        coef = state["coef"]
        gradient = self._gradient(coef, batch)
        if self.mode == "paper":
            assert self.rate is not None
            literal.take(state, "coef", self.rate * gradient)
            return
        steps, rate = state["steps"], self.rate
        if rate is None:
            rate = self._own_rate(gradient, batch) / math.sqrt(1.0 + float(steps[0]) / _DECAY_STEPS)
        coef -= rate * gradient
        steps += 1.0
        share = (1.0 + _RECENCY) / (steps[0] + _RECENCY)
        state["average"] += min(1.0, share) * (coef - state["average"])

    def merge(self, state: Arrays, mail: Mail) -> bool:
        """Average with a peer's model; how, depends on the mode."""
        other = mail.arrays["coef"]
        if self.mode == "paper":
            assert self.rate is not None
            return literal.merge(state, "coef", other, mail.rows, self.rate)
        # The weight is no function of the rate: with a large one a merge would become an overwrite,
        # with a small one nothing would be merged at all.
        state["coef"] += 0.5 * (other - state["coef"])
        return True

    def message(self, state: Arrays, chance: np.random.Generator) -> Mail:
        """Copy the model, and how many steps have made it."""
        sent = ("coef",) if self.mode == "paper" else ("coef", "steps")
        return Mail(arrays={name: state[name].copy() for name in sent})

    def mean(self, states: Sequence[Mapping[str, F64]]) -> Arrays:
        """Average the members' models, each by its average over its steps."""
        return self.pooled(summed(self, states), len(states))

    def addends(self, state: Mapping[str, F64]) -> Arrays:
        """Return a member's answer: its average over its steps where it has one."""
        answer = {"coef": state.get("average", state["coef"]).copy()}
        return answer if self.mode == "paper" else {**answer, "steps": state["steps"].copy()}

    def pooled(self, total: Mapping[str, F64], members: int) -> Arrays:
        """Divide by the number of members; numbers that are not finite, too."""
        arrays = {name: array / members for name, array in total.items()}
        return self._made(arrays["coef"], arrays)

    def value(self, state: Mapping[str, F64], chunks: Sequence[Chunk]) -> float:
        """Sum loss plus penalty over the examples, by weight; of the average where there is one."""
        w = state.get("average", state["coef"])
        total = weight = 0.0
        for chunk in chunks:
            margins, slopes = np.empty(chunk.n_rows), np.empty(chunk.n_rows)
            make_forward(chunk.layout, w[: self.columns])(chunk, margins)
            if self.intercept:
                margins += w[-1]
            s = self.targets.weights(chunk.labels, chunk.weights)
            targets = self.targets.of(chunk.labels)
            total += self.loss.value_and_slope(margins, targets, s, slopes)
            weight += chunk.n_rows if s is None else float(s.sum())
        return total + weight * self._penalty().value(w)

    def _penalty(self) -> L2:
        return L2(strength=self.l2, n_penalised=self.columns)

    def _own_rate(self, gradient: F64, batch: Batch) -> float:
        """Return the step to the mini-batch's minimum along the gradient, were curvature largest.

        For one row and the squared loss that is ``1/|x|^2``, the longest step that does not
        overshoot; for many rows it is as long as they agree.
        """
        square = float(gradient @ gradient)
        along = np.empty(batch.size)
        forward(batch.parts, gradient[: self.columns], along)
        if self.intercept:
            along += gradient[-1]
        smoothness = self.loss.smoothness if math.isfinite(self.loss.smoothness) else 1.0
        curvature = smoothness * float(along @ along) / batch.size + self.l2 * square
        return square / curvature if curvature > 0.0 else 0.0

    def _gradient(self, w: F64, batch: Batch) -> F64:
        """Return the mean gradient."""
        n, d = batch.size, self.columns
        margins, slopes, gradient = np.empty(n), np.empty(n), np.zeros(w.size)
        forward(batch.parts, w[:d], margins)
        if self.intercept:
            margins += w[-1]
        labels = np.concatenate([chunk.labels[rows] for chunk, rows in batch.parts])
        weights = self.targets.weights(labels, _sample_weights(batch))
        self.loss.value_and_slope(margins, self.targets.of(labels), weights, slopes)
        total = n if weights is None else max(float(weights.sum()), np.finfo(np.float64).tiny)
        slopes /= total
        adjoint(batch.parts, slopes, gradient[:d])
        if self.intercept:
            gradient[-1] = slopes.sum()
        return gradient + self._penalty().gradient(w)


def _sample_weights(batch: Batch) -> F64 | None:
    if all(chunk.weights is None for chunk, _ in batch.parts):
        return None
    return np.concatenate(
        [
            np.ones(rows.size) if chunk.weights is None else chunk.weights[rows]
            for chunk, rows in batch.parts
        ]
    )
