"""Dual coordinate descent over rows in memory, in one thread, with shrinking and a certified gap.

``sum_i s_i loss(y_i x_i.w) + strength/2 |w|^2`` for the hinge, the squared hinge and the logistic
loss, where w may include the coefficient of a constant column. A dual variable ``a_i`` belongs to
each row, and ``w = 1/strength sum_i s_i a_i y_i x_i``. A pass visits the active rows in random
order and maximises the dual over one of them after the other. Rows whose dual variable is at a
bound and whose slope points far outside are left out of further passes, until the others have
reached the requested gap. The rows' shares of the gap at their visits tell when a certificate is
due.

Source: Hsieh, Chang, Lin, Keerthi and Sundararajan (2008), algorithm 3, for the passes and the
rule of shrinking; Yu, Huang and Lin (2011) for the logistic loss.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import scipy.sparse

from elasticml.algorithms.cocoa.line_search import products
from elasticml.algorithms.cocoa.sdca_kernels import shuffle
from elasticml.algorithms.linear.fit import Fit
from elasticml.algorithms.linear.problem import Problem
from elasticml.arrays import F64, I32, I64
from elasticml.compiled import regrouping_kernel, unchecked_kernel
from elasticml.data.chunks.kernels import Values, csr_add, csr_dot, prefetch
from elasticml.objectives.loss_kernels import loss_named

#: Mean of a row's own effect on its margin up to which the first pass is scaled to the rows seen.
GROW_MAX: Final = 0.25
#: Limit of the ratio between a certified gap and the one expected from the pass, either way.
RATIO_MAX: Final = 4.0
#: That ratio before the first certificate, for a loss with a kink, near which shares fall last.
KINK_RATIO: Final = 0.2
#: From this number of rows on, the share of the gap is computed for every eighth row only, where
#: the loss is logistic.
SHARES_ROWS: Final = 1024
SHARES_EVERY: Final = 8
#: Visits, in passes over all rows, after which a certificate is due in any case.
PATIENCE: Final = 10.0
#: A gap below this share of the objective is rounding.
ROUNDED: Final = 8.0 * float(np.finfo(np.float64).eps)
#: Seed of the first pass's order, and the difference to the next one's.
_SEED: Final = 0x1E3779B97F4A7C15
_NO_INDICES: Final = np.zeros(0, np.int32)


class MemoryRows(NamedTuple):
    """Rows in memory, sparse or dense."""

    #: (n + 1,) pointers; for dense rows multiples of the width.
    indptr: I32 | I64
    #: (stored,) columns; (0,) for dense rows.
    indices: I32
    #: (stored,), float64 or float32.
    values: Values
    #: Columns of dense rows; 0 for sparse ones.
    width: int


class _Problem(NamedTuple):
    targets: F64
    #: (n,), or (0,) for ones.
    weights: F64
    #: (n,) squared norms of the rows, with the constant column's.
    norms: F64
    #: The loss's record, see :mod:`elasticml.objectives.losses`.
    loss: Any
    #: 1 / strength.
    unit: float
    #: Value of the constant column, whose coefficient is the model's last; 0 for none.
    constant: float


def memory_rows(X: Any) -> MemoryRows:
    """Return the rows of a matrix, without a copy if it is in row order."""
    if scipy.sparse.issparse(X):
        return MemoryRows(X.indptr.astype(np.int32, copy=False), X.indices, X.data, 0)
    n, d = X.shape
    values = np.ascontiguousarray(X).reshape(-1)
    return MemoryRows(np.arange(n + 1, dtype=np.int32) * np.int32(d), _NO_INDICES, values, d)


@regrouping_kernel
def _dense_dot(values: Values, begin: Any, width: int, v: F64) -> float:
    total = 0.0
    for j in range(width):
        total += values[begin + j] * v[j]
    return total


@unchecked_kernel
def _dot(rows: MemoryRows, begin: Any, end: Any, v: F64) -> float:
    if rows.width > 0:
        return _dense_dot(rows.values, begin, rows.width, v)
    return csr_dot(rows.indices, rows.values, v, np.uint64(begin), np.uint64(end))


@unchecked_kernel
def _add(rows: MemoryRows, begin: Any, end: Any, c: float, v: F64) -> None:
    if rows.width > 0:
        for j in range(rows.width):
            v[j] += c * rows.values[begin + j]
    else:
        csr_add(rows.indices, rows.values, c, np.uint64(begin), np.uint64(end), v)


@unchecked_kernel
def _write_norms(rows: MemoryRows, constant: float, norms: F64) -> None:
    for i in range(norms.size):
        total = constant * constant
        for p in range(rows.indptr[i], rows.indptr[i + 1]):
            total += float(rows.values[p]) * float(rows.values[p])
        norms[i] = total


@unchecked_kernel
def _pass(
    rows: MemoryRows,
    problem: _Problem,
    alpha: F64,
    v: F64,
    active: I32,
    state: I64,
    share: float,
    slopes: F64,
) -> float:
    """Visit the active rows in random order; return the sum of their shares of the gap.

    Parameters
    ----------
    active : ndarray (n,)
        Row numbers, the active ones first; permuted.
    state : ndarray (2,)
        Number of active rows, and the seed of their order; modified.
    share : float
        In a first pass from zero, scaled to the rows seen so far, the weight of all rows; else 0.
    slopes : ndarray (2,)
        Largest and smallest slope that a row at its lower, upper bound may have to stay active;
        replaced by the largest and smallest projected slopes of this pass.
    """
    targets, weights, norms, loss, unit, constant = problem
    n_active, last = state[0], v.size - 1
    shuffle(active[:n_active], state[1])
    upper, lower, gap, seen, k = -math.inf, math.inf, 0.0, 0.0, 0
    every = SHARES_EVERY if n_active >= SHARES_ROWS else 1
    while k < n_active:
        i = active[k]
        if k + 1 < n_active:
            ahead = active[k + 1]
            for p in range(rows.indptr[ahead], rows.indptr[ahead + 1], 16):
                prefetch(rows.values, np.uint64(p))
                prefetch(rows.values, np.uint64(p + 8))
                if rows.width == 0:
                    prefetch(rows.indices, np.uint64(p))
        begin, end = np.int64(rows.indptr[i]), np.int64(rows.indptr[i + 1])
        y, s, old = targets[i], weights[i] if weights.size > 0 else 1.0, alpha[i]
        z = _dot(rows, begin, end, v) + (constant * v[last] if constant > 0.0 else 0.0)
        seen += s
        swell = share / seen if share > 0.0 and seen > 0.0 else 1.0
        m, q = swell * y * z, swell * unit * s * norms[i]
        if loss.shrinks():
            gap += s * loss.gap(old, m, y)
            # The derivative of the negated dual.
            slope = m - loss.margin(old, y)
            is_low, is_high = old <= 0.0, old >= loss.clip(math.inf, y)
            if (is_low and slope > slopes[0]) or (is_high and slope < slopes[1]):
                n_active -= 1
                active[k], active[n_active] = active[n_active], i
                continue
            projected = slope
            if (is_low and slope > 0.0) or (is_high and slope < 0.0):
                projected = 0.0
            upper, lower = max(upper, projected), min(lower, projected)
        elif k % every == 0:
            # Logarithms: the shares of some rows stand for all.
            gap += every * s * loss.gap(old, m, y)
        k += 1
        new = loss.short_step(old, m, y, q) if s > 0.0 else old
        if new != old:
            alpha[i] = new
            change = unit * s * y * (new - old)
            _add(rows, begin, end, change, v)
            if constant > 0.0:
                v[last] += constant * change
    slopes[0], slopes[1] = upper, lower
    state[0], state[1] = n_active, state[1] + _SEED
    return gap


@unchecked_kernel
def _certify(
    rows: MemoryRows, problem: _Problem, alpha: F64, v: F64, image: F64
) -> tuple[float, float]:
    """Return the sums of conjugates and of losses; add ``sum s a y x`` to ``image`` (D,)."""
    targets, weights, _, loss, _, constant = problem
    last, conjugates, losses = v.size - 1, 0.0, 0.0
    for i in range(targets.size):
        begin, end = np.int64(rows.indptr[i]), np.int64(rows.indptr[i + 1])
        y, s = targets[i], weights[i] if weights.size > 0 else 1.0
        z = _dot(rows, begin, end, v) + (constant * v[last] if constant > 0.0 else 0.0)
        conjugates += s * loss.minus(alpha[i], y)
        losses += s * loss.value(y * z, y)
        if alpha[i] != 0.0 and s > 0.0:
            c = s * alpha[i] * y
            _add(rows, begin, end, c, image)
            if constant > 0.0:
                image[last] += constant * c
    return conjugates, losses


def _passes_left(former: float, found: float, gap: float, passes: float) -> float:
    """Return how many passes lead to ``gap`` at the rate of those between two certified gaps."""
    if not math.isfinite(former):
        return 0.0
    rate = math.log(former / found) / passes if found < former else 0.0
    return math.log(found / gap) / rate if rate > 0.0 else math.inf


class DualDescent:
    """Dual coordinate descent for one set of targets, see the module docstring.

    Parameters
    ----------
    rows : MemoryRows
    d : int
        Number of columns.
    targets : ndarray (n,)
        -1 and +1.
    weights : ndarray (n,), optional
        None for ones.
    problem : Problem
        Of the hinge, the squared hinge or the logistic loss, with a penalty; an intercept is
        penalised.
    """

    def __init__(
        self, rows: MemoryRows, d: int, targets: F64, weights: F64 | None, problem: Problem
    ) -> None:
        n, value, self._name = targets.size, problem.intercept or 0.0, problem.loss
        self._total = float(n if weights is None else weights.sum())
        self._rows, self._strength = rows, problem.l2 * self._total
        norms = np.empty(n)
        _write_norms(rows, value, norms)
        self._problem = _Problem(
            targets=np.ascontiguousarray(targets, np.float64),
            weights=np.empty(0) if weights is None else weights,
            norms=norms,
            loss=loss_named(self._name).terms,
            unit=1.0 / self._strength,
            constant=value,
        )
        self._alpha = np.zeros(n)
        self._v = np.zeros(d + (problem.intercept is not None))
        self._active = np.arange(n, dtype=np.int32)
        self._state = np.array([n, _SEED + (problem.seed or 0)], np.int64)
        self._slopes = np.array([math.inf, -math.inf])
        #: Best certified objectives, and the model of the primal one.
        self._primal, self._dual, self._best = math.inf, -math.inf, self._v

    def solve(self, gap: float, passes: int, alternative: float = math.inf) -> Fit:
        """Make at most ``passes`` passes, until the gap is at most ``gap``.

        Parameters
        ----------
        alternative : float, optional
            Passes over all rows that another method would cost: the passes end when as many were
            made, or when more than these are expected from the last two certificates.
        """
        estimate, ratio = math.nan, KINK_RATIO if self._name == "hinge" else 1.0
        work, whole, done, found = 0.0, 0.0, 0, math.inf
        while True:
            done, work = done + 1, work + self._state[0] / self._alpha.size
            whole_weight = self._total if done == 1 and not self._alpha.any() else 0.0
            last, estimate = estimate, self._visit(whole_weight)
            pace = estimate / last if 0.0 < estimate < last else 1.0
            expected = estimate * math.sqrt(pace)
            is_due = ratio * expected <= gap or self._state[0] == 0
            if not is_due and work < PATIENCE and done < passes:
                continue
            former, found, since = found, self._certify(), whole
            whole, work = whole + work, 0.0
            is_reached = found <= gap or found <= ROUNDED * abs(self._primal)
            is_over = is_reached or whole > alternative or done >= passes
            if is_over or _passes_left(former, found, gap, whole - since) > alternative:
                found = max(found, 0.0)
                return Fit(w=self._best, gap=found, steps=done, converged=is_reached)
            if is_due or found > RATIO_MAX * expected:
                self._unshrink()
            if expected > 0.0:
                ratio = min(max(found / expected, 1.0 / RATIO_MAX**2), RATIO_MAX)

    def _visit(self, whole: float) -> float:
        """Make a pass; return the sum of the rows' shares of the gap.

        ``whole`` is the weight of all rows in the first pass, else 0.
        """
        share = whole if whole > 0.0 and self._grows() else 0.0
        problem, state, slopes = self._problem, self._state, self._slopes
        gap = _pass(self._rows, problem, self._alpha, self._v, self._active, state, share, slopes)
        # The limits of the next pass are the projected slopes of this one.
        slopes[0] = slopes[0] if slopes[0] > 0.0 else math.inf
        slopes[1] = slopes[1] if slopes[1] < 0.0 else -math.inf
        return gap

    def _grows(self) -> bool:
        """Whether the first pass is scaled to the rows seen so far."""
        return float(self._problem.norms.mean()) <= GROW_MAX * self._strength

    def _unshrink(self) -> None:
        self._state[0] = self._alpha.size
        self._slopes[:] = math.inf, -math.inf

    def _certify(self) -> float:
        """Recompute the model from the dual variables, and return the best certified gap."""
        image = np.zeros(self._v.size)
        conjugates, losses = _certify(self._rows, self._problem, self._alpha, self._v, image)
        image *= self._problem.unit
        half = 0.5 * self._strength
        primal = losses + half * products(self._v, self._v)[1]
        if primal < self._primal:
            self._primal, self._best = primal, self._v
        self._v = image
        self._dual = max(self._dual, conjugates - half * products(image, image)[1])
        return self._primal - self._dual
