"""Proximal Newton steps for a sparse linear model, on a working set of columns.

``sum_i s_i loss(z_i, y_i) + a1 |w|_1 + a2/2 |w|^2`` with ``z = X w + b``, b not penalised or
absent. With the loss replaced by its quadratic model at the current margins this is an elastic net
over rows of weight ``s_i loss''`` with targets ``z - loss'/loss''``; a line search follows.

On sparse columns the subproblem is solved without a copy of them:
``slopes.u + 1/2 sum_i D_i u_i^2 + a1 |w|_1 + a2/2 |w|^2`` with ``u = X (w - w_old) + shift``. The
row weights D are looked up on the way, so that a step costs one pass for squares, slopes and the
products with a dual point, and then as many sweeps as the wanted accuracy needs. Columns that stay
at zero well within the threshold are left out of later sweeps until the others have converged. With
an intercept, it is kept optimal throughout, as if the columns had been centred.

Source: Friedman, Hastie and Tibshirani (2010), section 3; Yuan, Ho and Lin (2012), algorithms 1 and
2, for inexact steps, shrinking, and step lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from elasticml.algorithms.linear.column_matrix import ColumnMatrix
from elasticml.algorithms.linear.coordinate_descent_kernels import GramProblem, Penalty, best
from elasticml.algorithms.linear.coordinate_descent_kernels import descend as sweep_on_gram
from elasticml.algorithms.linear.elastic_net import ElasticNetSolver
from elasticml.algorithms.linear.gram import CLOSE
from elasticml.algorithms.linear.gram_descent import EQUATIONS_MAX, descend
from elasticml.algorithms.linear.row_blocks import BorderedRows
from elasticml.arrays import F64, I32, I64
from elasticml.compiled import inlined_kernel, kernel
from elasticml.objectives.conjugates import DualLoss

#: A column at zero is near its threshold if its distance is below this share of the largest
#: violation seen last.
NEAR: Final = 1e-4
#: Maximum sweeps of a step, and of one on columns whose Gram matrix is smaller.
SWEEPS_MAX: Final = 1000
FULL_SWEEPS_MAX: Final = 100
_0, _1, _2, _3, _4 = (np.uint64(k) for k in range(5))


class SparseColumns(NamedTuple):
    """Some columns of a matrix (n, d) in CSC format."""

    #: (m,), the columns' numbers.
    features: I64
    #: Pointers, row numbers and values of all columns.
    indptr: I32
    indices: I32
    values: F64


class QuadraticStep(NamedTuple):
    """An approximate minimum of the quadratic model."""

    #: (m,), the coefficients, and the intercept's step.
    w: F64
    rise: float
    #: (n,), the slopes that the quadratic model predicts there.
    slopes: F64
    #: Sweeps; the most allowed if the violations are not small enough then.
    sweeps: int


def measure(columns: SparseColumns, curvature: F64, slopes: F64, dual: F64) -> F64:
    """Return the sums of ``D x^2``, ``D x``, ``slope x`` and ``dual x`` of each column, (m, 4)."""
    out = np.empty((columns.features.size, 4))
    _measure(columns, curvature, slopes, dual, out)
    return out


def solve_quadratic_model(
    columns: SparseColumns,
    moments: F64,
    w: F64,
    slopes: F64,
    curvature: F64,
    penalty: Penalty,
    *,
    intercept: bool,
    goal: float,
    sweeps_max: int,
) -> QuadraticStep | None:
    """Minimise the quadratic model until the violations that a sweep meets add up to ``goal``.

    Parameters
    ----------
    columns : SparseColumns
    moments : ndarray (m, at least 3)
        From :func:`measure`.
    w : ndarray (m,)
        Their coefficients; not modified.
    slopes, curvature : ndarray (n,)
        Weighted first and second derivatives of the rows' losses.
    intercept : bool
        Whether there is an unpenalised intercept.
    goal : float

    Returns
    -------
    QuadraticStep, or None if eliminating the intercept leaves only rounding of a column
    """
    moments, total, shift = moments[:, :3].copy(), 0.0, 0.0
    if intercept:
        total = float(curvature.sum())
        taken = moments[:, 1] ** 2 / total
        if np.any(moments[:, 0] - taken <= CLOSE * moments[:, 0]):
            return None
        moments[:, 0] -= taken
        shift = -float(slopes.sum()) / total
    else:
        moments[:, 1] = 0.0
    new, q = w.copy(), np.zeros(curvature.size)
    model = (curvature, moments, total)
    shift, sweeps = _descend(columns, model, penalty, goal, sweeps_max, new, q, shift)
    return QuadraticStep(new, shift, slopes + q + shift * curvature, sweeps)


@inlined_kernel
def _along(indices: I32, values: F64, q: F64, begin: np.uint64, end: np.uint64) -> float:
    """Return a column times ``q``; four partial sums hide the latency of the additions."""
    body = begin + (end - begin) // _4 * _4
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    for p in range(begin, body, _4):
        s0 += values[p] * q[np.uint32(indices[p])]
        s1 += values[p + _1] * q[np.uint32(indices[p + _1])]
        s2 += values[p + _2] * q[np.uint32(indices[p + _2])]
        s3 += values[p + _3] * q[np.uint32(indices[p + _3])]
    for p in range(body, end):
        s0 += values[p] * q[np.uint32(indices[p])]
    return (s0 + s1) + (s2 + s3)


@kernel
def _measure(columns: SparseColumns, curvature: F64, slopes: F64, dual: F64, out: F64) -> None:
    """Write the moments of :func:`measure` into ``out``."""
    features, indptr, indices, values = columns
    for k in range(features.size):
        j = np.uint64(features[k])
        square, whole, slope, product = 0.0, 0.0, 0.0, 0.0
        for p in range(np.uint64(indptr[j]), np.uint64(indptr[j + _1])):
            i, x = np.uint32(indices[p]), values[p]
            weighted = curvature[i] * x
            square += weighted * x
            whole += weighted
            slope += slopes[i] * x
            product += dual[i] * x
        out[k, 0], out[k, 1], out[k, 2], out[k, 3] = square, whole, slope, product


@inlined_kernel
def _leans(slope: float, w: float, a1: float) -> float:
    """Return a coordinate's violation of optimality; negative strictly within the threshold."""
    if w > 0.0:
        return abs(slope + a1)
    if w < 0.0:
        return abs(slope - a1)
    return abs(slope) - a1


@kernel
def _shuffle(places: I64, count: int, state: np.uint64) -> np.uint64:
    """Shuffle the first ``count`` entries; return the generator's new state."""
    for i in range(count - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        k = np.int64(((state >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        places[i], places[k] = places[k], places[i]
    return state


@kernel
def _descend(
    columns: SparseColumns,
    model: tuple[F64, F64, float],
    penalty: Penalty,
    goal: float,
    sweeps_max: int,
    w: F64,
    q: F64,
    shift: float,
) -> tuple[float, int]:
    """Sweep over coordinates in random order until the violations are small.

    Returns the new shift, and the number of sweeps.

    Parameters
    ----------
    model : tuple
        The curvature (n,); each column's centred squared norm, its sum (0 without an intercept) and
        its first slope, (m, 3); the sum of the curvature, 0 without an intercept.
    w : ndarray (m,)
        Modified in place.
    q : ndarray (n,)
        ``D X (w - w_old)``, modified in place; does not include the shift.
    """
    features, indptr, indices, values = columns
    curvature, moments, total = model
    a1, a2, _ = penalty
    m = features.size
    active, n_active = np.arange(m), m
    room, state = math.inf, np.uint64(0x9E3779B97F4A7C15)
    for done in range(sweeps_max):
        state = _shuffle(active, n_active, state)
        leaning, largest, at = 0.0, 0.0, 0
        while at < n_active:
            k = np.uint64(active[at])
            j, old = np.uint64(features[k]), w[k]
            begin, end = np.uint64(indptr[j]), np.uint64(indptr[j + _1])
            slope = moments[k, 2] + shift * moments[k, 1] + a2 * old
            slope += _along(indices, values, q, begin, end)
            over = _leans(slope, old, a1)
            if over < -room:
                n_active -= 1
                active[at], active[n_active] = active[n_active], active[at]
                continue
            at += 1
            leaning += max(over, 0.0)
            largest = max(largest, over)
            square = moments[k, 0] + a2
            # A column of zeros: only the penalty matters.
            new = best(square * old - slope, a1, square, False) if square > 0.0 else 0.0
            if new != old:
                w[k] = new
                for p in range(begin, end):
                    i = np.uint32(indices[p])
                    q[i] += (new - old) * curvature[i] * values[p]
                if total > 0.0:
                    shift -= (new - old) * moments[k, 1] / total
        if leaning <= goal:
            if n_active == m:
                return shift, done + 1
            # Check the columns that were left out once more.
            n_active, room = m, math.inf
            continue
        room = NEAR * largest
    return shift, sweeps_max


#: Least curvature of a row as a share of its slope: badly misclassified rows have almost none,
#: which would give unbounded steps.
CURVED: Final = 1e-6
#: Sufficient decrease of the line search, as a share of the predicted decrease.
TAKEN: Final = 0.01
#: Maximum halvings of a step.
HALVINGS_MAX: Final = 40
#: Up to this number of dense columns the whole Gram matrix is computed at once.
PRODUCTS: Final = 100
#: A predicted decrease below this share of the value is rounding.
HIDDEN: Final = 64.0 * float(np.finfo(np.float64).eps)
#: Maximum Newton steps of the intercept alone, and the relative slope at which they stop.
INTERCEPT_STEPS: Final = 50
LEVEL: Final = 1e-14
#: Sweeps on a Gram matrix between two looks at the decrease, the most looks, and the share of the
#: decrease so far below which sweeps gain little.
ROUGH_SWEEPS: Final = 10
ROUGH_MAX: Final = 10
ROUGH: Final = 0.1
#: Ratio of a step's decrease to the one before, above which inexact steps are what is slow.
SLOW_PACE: Final = 0.5
#: Decrease by a step, as a share of the loss, from which on inexact steps are what is slow.
CLOSE_SHARE: Final = 1e-4
#: Accuracy of a Newton step's subproblem, as a share of the working set's gap.
GAP_SHARE: Final = 0.01
#: The same on a Gram matrix of all columns, as a share of the wanted gap.
WHOLE_SHARE: Final = 0.1
TINY: Final = float(np.finfo(np.float64).tiny)


def _sweep_roughly(gram: GramProblem, penalty: Penalty, gap: float, w: F64, q: F64) -> None:
    """Sweep on a Gram matrix as long as that gains much; updates ``w`` and ``q`` in place."""
    values: list[float] = []
    for _ in range(ROUGH_MAX):
        values.append(penalty.of(w) - 0.5 * float(w @ (gram.linear + q)))
        if len(values) > 2 and values[-2] - values[-1] <= ROUGH * (values[0] - values[-1]):
            return
        sweep_on_gram(gram, penalty, gap, ROUGH_SWEEPS, w, q)


class Taken(NamedTuple):
    """A step that a line search found."""

    share: float
    #: The losses there, and by how much the objective falls.
    loss: float
    decrease: float
    #: Whether the predicted decrease was above rounding.
    is_measurable: bool


def line_search(
    at: Callable[[float], tuple[float, float]], before: float, promised: float
) -> Taken | None:
    """Halve a step until the objective falls enough; None if it never does.

    Parameters
    ----------
    at : callable
        Maps a share of the step to the losses and the penalty there.
    before, promised : float
        The objective, and the decrease predicted for the whole step.
    """
    # This close to the optimum differences of values are rounding: take the full step.
    is_measurable = promised > HIDDEN * abs(before)
    if not promised >= -HIDDEN * abs(before):
        return None  # Uphill or not finite: a step spoilt by rounding.
    share = 1.0
    for _ in range(HALVINGS_MAX):
        loss, cost = at(share)
        least = before - TAKEN * share * promised + HIDDEN * abs(before)
        if loss + cost <= least or (not is_measurable and np.isfinite(loss)):
            return Taken(share, loss, before - loss - cost, is_measurable)
        share *= 0.5
    return None


class MarginModel:
    """A model with its margins, losses and slopes.

    Parameters
    ----------
    columns : ColumnMatrix
        Neither weighted nor centred.
    targets : ndarray (n,)
        -1 and +1.
    weights : ndarray (n,), optional
        None for ones.
    loss : DualLoss
        A differentiable loss of margins.
    intercept : bool
        Whether there is an unpenalised intercept.
    rows : BorderedRows, optional
        The same matrix by rows, if their Gram matrix is cheap.
    """

    def __init__(
        self,
        columns: ColumnMatrix,
        targets: F64,
        weights: F64 | None,
        loss: DualLoss,
        *,
        intercept: bool,
        rows: BorderedRows | None = None,
    ) -> None:
        self._columns, self.targets, self.weights = columns, targets, weights
        self._interval = (loss.low, loss.high)
        self._loss, self.has_intercept, self.rows = loss, intercept, rows
        self.w, self.b = np.zeros(columns.d), 0.0
        #: (n,) margins.
        self.z = np.zeros(columns.n)
        #: (n,) ``s_i loss'`` at the margins, and the sum of losses.
        self.slopes, self.value = np.empty(columns.n), 0.0
        #: By how much the last step reduced the objective.
        self.decrease = math.inf
        #: The ratio of that to the decrease by the step before.
        self.pace = 0.0
        #: (n,) slopes that the last step's subproblem predicted, if they satisfy the constraints.
        self.predicted: F64 | None = None
        #: Whether the last step's predicted decrease was above rounding.
        self.is_measurable = True
        #: Whether sweeps over sparse columns have not solved a subproblem.
        self.is_stiff = False
        #: (n,) the curvature that was measured last.
        self._curved = np.empty(0)

    def begin(self, w: F64, b: float) -> None:
        """Set the model."""
        self.w, self.b = np.array(w, np.float64), float(b)
        support = np.flatnonzero(self.w)
        self.z = self._columns.combination(support, self.w[support]) + self.b

    def value_of_zero(self) -> float:
        """Return the sum of losses at zero coefficients and intercept."""
        return self._at(np.zeros(self.z.size), np.empty(self.z.size))

    def look(self) -> None:
        """Compute losses and slopes at the current margins."""
        self.value = self._at(self.z, self.slopes)

    def _at(self, z: F64, slopes: F64) -> float:
        return self._loss.loss.value_and_slope(z, self.targets, self.weights, slopes)

    def curvature(self) -> F64:
        """Return ``s_i loss''`` (n,), bounded from below by a small share of the slope."""
        curvature = np.empty(self.z.size)
        self._loss.loss.curvature(self.z, self.targets, self.weights, curvature)
        curvature = np.maximum(curvature, CURVED * np.abs(self.slopes))
        return curvature if curvature.any() else np.full(self.z.size, CURVED)

    def settle_intercept(self) -> None:
        """Optimise the intercept by Newton steps, and update losses and slopes."""
        self.look()
        if not self.has_intercept:
            return
        other = np.empty(self.z.size)
        for _ in range(INTERCEPT_STEPS):
            slope, curvature = float(self.slopes.sum()), float(self.curvature().sum())
            if abs(slope) <= LEVEL * float(np.abs(self.slopes).sum()) or curvature <= 0.0:
                return
            step = -slope / curvature
            for _ in range(HALVINGS_MAX):
                value = self._at(self.z + step, other)
                if abs(float(other.sum())) < abs(slope):
                    break
                step *= 0.5
            else:
                return  # Rounding.
            self.b, self.value = self.b + step, value
            self.z += step
            self.slopes, other = other, self.slopes

    @property
    def is_on_rows(self) -> bool:
        """Whether steps use the Gram matrix of all columns, by rows."""
        if self.rows is None:
            return False
        return self.is_stiff or self.decrease <= CLOSE_SHARE * self.value

    def is_full(self, working: I64) -> bool:
        """Whether these are sparse columns with more entries than their Gram matrix.

        A sweep then takes longer than one over the matrix, which can also jump to the optimum of a
        sign pattern: sweeps alone take thousands for linearly dependent columns.
        """
        if working.size > EQUATIONS_MAX:
            return False
        return self.stored(working) >= working.size**2

    def stored(self, features: I64) -> int:
        """Return the number of stored values of sparse columns."""
        indptr = self._columns.stored[0]
        return int((indptr[features + 1] - indptr[features]).sum())

    def measure(self, features: I64, dual: F64) -> F64:
        """Return the moments of sparse columns, for the next step and a bound; see the kernel."""
        self._curved = self.curvature()
        return measure(
            SparseColumns(features, *self._columns.stored), self._curved, self.slopes, dual
        )

    def sweep_step(self, penalty: Penalty, working: I64, moments: F64, goal: float) -> int:
        """Take a proximal Newton step by sweeps over sparse columns, without a copy of them.

        Returns the number of sweeps; ``is_measurable`` says what the step gained.

        Parameters
        ----------
        working : ndarray (m,)
            Contains all columns of the model.
        moments : ndarray (m, 4)
            At this model.
        goal : float
            Violations of the subproblem's constraints that may remain.
        """
        most = FULL_SWEEPS_MAX if self.is_full(working) else SWEEPS_MAX
        if self.rows is not None:
            most = 1 + math.ceil(self.rows.gram_products())
        solution = solve_quadratic_model(
            SparseColumns(working, *self._columns.stored),
            moments,
            self.w[working],
            self.slopes,
            self._curved,
            penalty,
            intercept=self.has_intercept,
            goal=goal,
            sweeps_max=most,
        )
        if solution is None:
            self.newton_step(penalty, working, 0.0)
            return 0
        self.is_stiff = self.is_stiff or solution.sweeps >= most
        step = solution.w - self.w[working]
        self._go(penalty, working, step, solution.rise)
        self.predicted = solution.slopes
        return solution.sweeps

    def newton_step(self, penalty: Penalty, working: I64, gap: float) -> None:
        """Take a proximal Newton step on these columns and the intercept.

        Parameters
        ----------
        working : ndarray (m,)
            Contains all columns of the model.
        gap : float
            Gap to which the subproblem is solved.
        """
        curvature, self.predicted = self.curvature(), None
        if self.rows is not None:
            solved = self._solve_on_rows(self.rows, curvature, penalty, working, gap)
            if solved is not None:
                self._go(penalty, working, *solved)
                return
        shift = np.divide(self.slopes, curvature, out=np.zeros(self.z.size), where=curvature > 0.0)
        old, is_sparse = self.w[working], self._columns.is_sparse
        matrix = ColumnMatrix(
            self._columns.take(working), self.z - shift, curvature, centred=self.has_intercept
        )
        solver = ElasticNetSolver(
            matrix,
            old,
            by_products=self.is_full(working) if is_sparse else working.size <= PRODUCTS,
        )
        new = solver.solve(penalty, gap, SWEEPS_MAX).w
        b = matrix.intercept(new) if self.has_intercept else 0.0
        self._go(penalty, working, new - old, b - self.b)

    def _solve_on_rows(
        self, rows: BorderedRows, curvature: F64, penalty: Penalty, working: I64, gap: float
    ) -> tuple[F64, float, F64] | None:
        """Return a step of the columns, of the intercept and of the margins, by a Gram matrix.

        None if eliminating the intercept leaves only rounding of a column.
        """
        old, total = self.w[working], float(curvature.sum())
        is_whole = working.size == rows.n_model
        G, slope = rows.gram(curvature), rows.adjoint(self.slopes)
        if not is_whole:
            G, slope = G[np.ix_(working, working)], slope[working]
        square, rise = float(np.sum(self.slopes**2 / np.maximum(curvature, TINY))), 0.0
        across = np.zeros(working.size)
        if self.has_intercept:
            rise, across = -float(self.slopes.sum()) / total, rows.adjoint(curvature)[working]
            left = G.diagonal() - across**2 / total
            if np.any(left <= CLOSE * G.diagonal()):
                return None
            G -= np.outer(across, across / total)
            slope += rise * across
            square -= rise**2 * total
        linear, w, q = G @ old - slope, old.copy(), -slope
        yy = square + float(old @ (linear - slope))
        problem = GramProblem(G, linear, yy)
        _sweep_roughly(problem, penalty, gap, w, q)

        def whole_step() -> tuple[F64, float, F64]:
            step = w - old
            up = rise - (float(across @ step) / total if self.has_intercept else 0.0)
            return step, up, self._along(working, step) + up

        solution = whole_step()
        predicted = self.slopes + curvature * solution[2]
        if self.pace > SLOW_PACE or self._lost(predicted, penalty) <= gap / WHOLE_SHARE:
            descend(problem, penalty, gap, SWEEPS_MAX, w, q)
            solution = whole_step()
            self.predicted = self.slopes + curvature * solution[2]
        return solution

    def _lost(self, slopes: F64, penalty: Penalty) -> float:
        """Return what the gap of predicted slopes is at least, as far as clipping them matters.

        Where that is too much, an exact solution of the subproblem certifies nothing yet.
        """
        assert self.rows is not None
        s = self.targets if self.weights is None else self.targets * self.weights
        over = slopes + s * np.clip(-slopes / np.where(s == 0.0, 1.0, s), *self._interval)
        if not over.any():
            return 0.0
        steepest = float(np.abs(self.rows.adjoint(over)).max())
        return steepest / (penalty.a1 + steepest) * (self.value + penalty.of(self.w))

    def _along(self, working: I64, step: F64) -> F64:
        if self.rows is None:
            moved = np.flatnonzero(step)
            return self._columns.combination(working[moved], step[moved])
        whole = np.zeros(self.rows.n_model)
        whole[working] = step
        return self.rows.forward(whole)

    def _go(
        self, penalty: Penalty, working: I64, step: F64, rise: float, along: F64 | None = None
    ) -> None:
        """Take a step by backtracking line search; ``along`` is that of the margins, if known."""
        if along is None:
            along = self._along(working, step) + rise
        old = self.w[working]
        before = self.value + penalty.of(old)
        promised = -float(self.slopes @ along) + penalty.of(old) - penalty.of(old + step)
        slopes = np.empty(self.z.size)

        def at(share: float) -> tuple[float, float]:
            return self._at(self.z + share * along, slopes), penalty.of(old + share * step)

        taken = line_search(at, before, promised)
        self.is_measurable = taken is not None and taken.is_measurable
        if taken is None:
            return
        self.w[working], self.b = old + taken.share * step, self.b + taken.share * rise
        self.z += taken.share * along
        self.pace, self.decrease = taken.decrease / max(self.decrease, TINY), taken.decrease
        self.value, self.slopes = taken.loss, slopes
