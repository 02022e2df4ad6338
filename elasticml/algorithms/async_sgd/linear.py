"""Linear models for free-running members: mini-batch gradients of a margin loss.

A member steps along ``-(sum_i s_i loss'_i x_i / sum_i s_i + l2 w)`` of its mini-batch. By default
it averages its model equally with a peer's, and reports an average over its own steps that gives
later ones more weight. If chunks are very dissimilar, as with sorted labels, no merging of models
makes up for the members' different gradients: shuffle the chunks, or use another algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from elasticml.algorithms.async_sgd.base import Arrays, Batch, Mail
from elasticml.algorithms.scaling import Columns
from elasticml.algorithms.targets import Targets
from elasticml.arrays import F64, I32, I64
from elasticml.compiled import kernel, regrouping_kernel
from elasticml.data.chunks.chunk import Chunk
from elasticml.data.chunks.products import make_forward
from elasticml.errors import ConfigError
from elasticml.objectives.loss_kernels import MarginLoss
from elasticml.objectives.penalty_kernels import L2

# Products with the rows of a mini-batch: ``X w`` and ``X.T c``.

Real = NDArray[np.float64] | NDArray[np.float32]
Parts = Sequence[tuple[Chunk, I64]]


@regrouping_kernel
def _dense_forward(values: Real, rows: I64, w: F64, out: F64) -> None:
    for i in range(rows.size):
        x, total = values[rows[i]], 0.0
        for j in range(values.shape[1]):
            total += x[j] * w[j]
        out[i] = total


@kernel
def _dense_adjoint(values: Real, rows: I64, c: F64, out: F64) -> None:
    for i in range(rows.size):
        x = values[rows[i]]
        for j in range(values.shape[1]):
            out[j] += c[i] * x[j]


@kernel
def _csr_forward(indptr: I32, indices: I32, values: Real, rows: I64, w: F64, out: F64) -> None:
    for i in range(rows.size):
        total = 0.0
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            x = values[at] if values.size > 0 else 1.0
            total += x * w[indices[at]]
        out[i] = total


@kernel
def _csr_adjoint(indptr: I32, indices: I32, values: Real, rows: I64, c: F64, out: F64) -> None:
    for i in range(rows.size):
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            x = values[at] if values.size > 0 else 1.0
            out[indices[at]] += c[i] * x


def forward(parts: Parts, w: F64, out: F64) -> None:
    """Write the rows' products with ``w`` into ``out`` (rows,).

    Raises
    ------
    ConfigError
        When the chunks hold sequences, or more columns than ``w`` has.
    """
    at = 0
    for chunk, rows in parts:
        _check(chunk, w)
        part = out[at : at + rows.size]
        if chunk.layout.kind == "dense":
            _dense_forward(chunk.values, rows, w, part)
        else:
            _csr_forward(chunk.indptr, chunk.indices, chunk.values, rows, w, part)
        at += rows.size


def adjoint(parts: Parts, coefficients: F64, out: F64) -> None:
    """Add ``sum_i c_i x_i`` to ``out``."""
    at = 0
    for chunk, rows in parts:
        part = coefficients[at : at + rows.size]
        if chunk.layout.kind == "dense":
            _dense_adjoint(chunk.values, rows, part, out)
        else:
            _csr_adjoint(chunk.indptr, chunk.indices, chunk.values, rows, part, out)
        at += rows.size


def _check(chunk: Chunk, w: F64) -> None:
    if chunk.layout.kind == "sequence" or chunk.layout.n_columns > w.size:
        raise ConfigError(
            f"algorithm.problem is 'linear' and chunk {chunk.id} is {chunk.layout.kind} with "
            f"{chunk.layout.n_columns} columns, wanted numbers in at most {w.size}; for sequences "
            "use algorithm cocoa or batch_gradient"
        )


#: With ``rate`` None: steps after which the rate has decreased by a factor of sqrt(2).
_DECAY_STEPS: Final = 200.0
#: Exponent of the polynomial-decay average: step t has weight of order t^3.
_RECENCY: Final = 3.0
#: Bits of the numbers by which columns are scaled: their sums over members are exact.
_SCALING_BITS: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """``mean_i s_i loss(y_i, x_i.w) + l2/2 |w|^2``; an intercept is the last coordinate.

    The intercept is not penalised. With scaled columns ``w`` is the model of the scaled rows.

    Source of the average: Shamir and Zhang, "Stochastic gradient descent for non-smooth
    optimization" (ICML 2013), polynomial decay.
    """

    loss: MarginLoss
    targets: Targets
    columns: int
    l2: float = 0.0
    intercept: bool = False
    #: Number of the offset's column, whose coefficient is 1.
    fixed: int | None = None
    #: Step length; None: from the mini-batch's curvature, decreasing as ``1/sqrt(1 + t/200)``.
    rate: float | None = None
    #: Columns are scaled: every state has the same ``scaling`` (2, d), their factors and shifts.
    is_scaled: bool = False

    @property
    def n_model(self) -> int:
        """Number of coordinates of the model."""
        return self.columns + self.intercept

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :class:`elasticml.algorithms.async_sgd.base.Problem`, here and below."""
        scaling = {"scaling": (2, self.columns)} if self.is_scaled else {}
        return {"coef": (self.n_model,), "steps": (1,), **scaling}

    def columns_of(self, state: Mapping[str, F64]) -> Columns:
        """Return the map from a state's model to the one of the rows as they are."""
        factor, shift = state["scaling"] if self.is_scaled else (None, None)
        return Columns(
            n_columns=self.columns,
            intercept=self.intercept,
            factor=factor,
            shift=shift if self.intercept else None,
            fixed=self.fixed,
        )

    def begin(self, arrays: Mapping[str, F64]) -> Arrays:
        """Start from ``coef``, by default zero: a convex objective has no bad start."""
        return self._state(self.first_coef(arrays), arrays)

    def first_coef(self, arrays: Mapping[str, F64]) -> F64:
        """Return a copy of ``coef`` or zeros, (n_model,).

        Raises
        ------
        ConfigError
            When it has another shape, or numbers that are not finite.
        """
        coef = np.array(arrays.get("coef", np.zeros(self.n_model)), np.float64)
        if coef.shape != (self.n_model,) or not np.isfinite(coef).all():
            raise ConfigError(
                f"algorithm.start has a coef of shape {coef.shape}, wanted {self.n_model} finite "
                "numbers"
            )
        if self.fixed is not None:
            coef[self.fixed] = 1.0
        return coef

    def _state(self, coef: F64, arrays: Mapping[str, F64]) -> Arrays:
        steps = np.array(arrays.get("steps", np.zeros(1)), np.float64)
        scaling = {"scaling": np.array(arrays["scaling"])} if self.is_scaled else {}
        return {"coef": coef, "average": coef.copy(), "steps": steps, **scaling}

    def step(self, state: Arrays, batch: Batch) -> None:
        """Take one step along the mini-batch's mean gradient."""
        if batch.size == 0:
            return
        coef = state["coef"]
        columns = self.columns_of(state)
        gradient = self.gradient(coef, batch, columns)
        steps, rate = state["steps"], self.rate
        if rate is None:
            rate = self._own_rate(gradient, batch, columns) / math.sqrt(
                1.0 + float(steps[0]) / _DECAY_STEPS
            )
        coef -= rate * gradient
        steps += 1.0
        share = (1.0 + _RECENCY) / (steps[0] + _RECENCY)
        state["average"] += min(1.0, share) * (coef - state["average"])

    def merge(self, state: Arrays, mail: Mail) -> bool:
        """Average with a peer's model."""
        other = mail.arrays["coef"]
        # The weight must not depend on the rate: a large rate would turn a merge into an overwrite,
        # and a small one would make it ineffective.
        state["coef"] += 0.5 * (other - state["coef"])
        return True

    def message(self, state: Arrays, chance: np.random.Generator) -> Mail:
        """Copy the model, its number of steps and its scaling."""
        return Mail(arrays={name: state[name].copy() for name in self.shapes()})

    def addends(self, state: Mapping[str, F64]) -> Arrays:
        """Return a member's model, its average over its steps, their number and the scaling."""
        own = {name: state[name].copy() for name in self.shapes()}
        return own | {"coef": state.get("average", state["coef"]).copy()}

    def pooled(self, total: Mapping[str, F64], members: int) -> Arrays:
        """Divide by the number of members; non-finite values are allowed."""
        arrays = {name: array / members for name, array in total.items()}
        return self._state(arrays["coef"], arrays)

    def value(self, state: Mapping[str, F64], chunks: Sequence[Chunk]) -> float:
        """Return the weighted sum of loss plus penalty, at the average if there is one."""
        w, columns = state.get("average", state["coef"]), self.columns_of(state)
        total = weight = 0.0
        sent = columns.down(w)
        for chunk in chunks:
            margins, slopes = np.empty(chunk.n_rows), np.empty(chunk.n_rows)
            make_forward(chunk.layout, sent[: self.columns])(chunk, margins)
            if self.intercept:
                margins += sent[-1]
            s = self.targets.weights(chunk.labels, chunk.weights)
            targets = self.targets.of(chunk.labels)
            total += self.loss.value_and_slope(margins, targets, s, slopes)
            weight += chunk.n_rows if s is None else float(s.sum())
        return total + weight * self._penalty().value(self._free(w))

    def _free(self, w: F64) -> F64:
        """Return a vector with a zero for the fixed coefficient."""
        if self.fixed is None:
            return w
        free = w.copy()
        free[self.fixed] = 0.0
        return free

    def _penalty(self) -> L2:
        return L2(strength=self.l2, n_penalised=self.columns)

    def _own_rate(self, gradient: F64, batch: Batch, columns: Columns) -> float:
        """Return the step to the mini-batch's minimum along the gradient, for maximal curvature.

        For one row and the squared loss this is ``1/|x|^2``, the longest step that does not
        overshoot; for many rows it is longer the less they agree.
        """
        square = float(gradient @ gradient)
        along, sent = np.empty(batch.size), columns.down(gradient)
        forward(batch.parts, sent[: self.columns], along)
        if self.intercept:
            along += sent[-1]
        smoothness = self.loss.smoothness if math.isfinite(self.loss.smoothness) else 1.0
        curvature = smoothness * float(along @ along) / batch.size + self.l2 * square
        return square / curvature if curvature > 0.0 else 0.0

    def gradient(self, w: F64, batch: Batch, columns: Columns) -> F64:
        """Return the mean gradient over a mini-batch of at least one row."""
        n, d, sent = batch.size, self.columns, columns.down(w)
        margins, slopes, gradient = np.empty(n), np.empty(n), np.zeros(w.size)
        forward(batch.parts, sent[:d], margins)
        if self.intercept:
            margins += sent[-1]
        labels = np.concatenate([chunk.labels[rows] for chunk, rows in batch.parts])
        weights = self.targets.weights(labels, _sample_weights(batch))
        self.loss.value_and_slope(margins, self.targets.of(labels), weights, slopes)
        total = n if weights is None else max(float(weights.sum()), np.finfo(np.float64).tiny)
        slopes /= total
        adjoint(batch.parts, slopes, gradient[:d])
        if self.intercept:
            gradient[-1] = slopes.sum()
        return self._free(columns.up(gradient) + self._penalty().gradient(w))


def summable(values: F64) -> F64:
    """Round numbers to fewer bits, so that the mean of equal ones is exact."""
    mantissas, exponents = np.frexp(values)
    rounded: F64 = np.ldexp(np.rint(np.ldexp(mantissas, _SCALING_BITS)), exponents - _SCALING_BITS)
    return rounded


def _sample_weights(batch: Batch) -> F64 | None:
    if all(chunk.weights is None for chunk, _ in batch.parts):
        return None
    return np.concatenate(
        [
            np.ones(rows.size) if chunk.weights is None else chunk.weights[rows]
            for chunk, rows in batch.parts
        ]
    )
