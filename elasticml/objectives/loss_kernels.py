"""Loops over margins and dual variables, compiled for each loss, and losses of many rows.

The loops are single-threaded, release the GIL and sum in float64 in row order. Losses of a tile of
rows are computed first and then added, so that plain arithmetic is vectorised: with the C library's
exponential and logarithm a row of the logistic loss takes 11 to 19 ns, here a quarter of that. Each
row's result comes from the same operations in the same order, whatever the neighbouring rows and
the vector width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from elasticml.arrays import F64, I64
from elasticml.compiled import make_callable, replaces, unchecked_kernel, vector_at
from elasticml.objectives import losses
from elasticml.objectives.losses import LOSSES, Link, exponential, logarithm, with_parameters

#: Replaces ``None`` for unit weights in kernels.
_NO_WEIGHTS: Final = np.empty(0)
#: Rows per tile: losses are computed for a tile, then added in row order, which is sequential.
_TILE_ROWS: Final = 512

#: ``log(2)``, and its split into 32 bits and the rest: an integer times the first part is exact.
_LN2: Final = 0.6931471805599453
_LN2_HIGH: Final = math.floor(_LN2 * 2.0**32) * 2.0**-32
_LN2_LOW: Final = 1.9082149292705877e-10
_LOG2_E: Final = 1.4426950408889634
#: Least exponent whose result is a normal number; smaller ones are clamped to it.
_LEAST: Final = -708.0
#: Coefficients of ``(exp(r) - 1 - r) / r^2``, highest power first, for ``|r| <= log(2) / 2``.
_EXP: Final = tuple(1.0 / math.factorial(k) for k in range(13, 1, -1))
#: Coefficients of ``(2 artanh(s) - 2 s) / s^3`` in ``s^2``, likewise, for ``|s| <= 0.172``.
_ARTANH: Final = tuple(2.0 / (2 * k + 1) for k in range(11, 0, -1))
#: Above this e, half of ``1 + e`` is closer to 1 than ``1 + e``.
_SQRT2_LESS_1: Final = 0.41421356


@replaces(exponential)
def _exponential(x: float) -> float:
    """Return ``exp(x)`` for ``x <= 0``: ``2^n exp(r)``; relative error at most 2 units of 2^-53."""
    x = _LEAST if x < _LEAST else x  # keeps NaN
    n = np.floor(x * _LOG2_E + 0.5)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    p = 0.0
    for c in _EXP:
        p = p * r + c
    power = np.int64((np.int64(n) + 1023) << 52).view(np.float64)
    return float((1.0 + (r + r * r * p)) * power)


@replaces(logarithm)
def _logarithm(e: float) -> float:
    """Return ``log(1 + e)`` for ``0 <= e <= 1``; relative error at most 2.5 units of 2^-53."""
    is_halved = e > _SQRT2_LESS_1
    f = 0.5 * (e - 1.0) if is_halved else e
    # log(1 + f) = 2 artanh(s) = 2 s + s^3 p = f - s (f - s^2 p)
    s = f / (2.0 + f)
    q = s * s
    p = 0.0
    for c in _ARTANH:
        p = p * q + c
    return f - s * (f - q * p) + (_LN2 if is_halved else 0.0)


@unchecked_kernel
def _losses(loss: Any, margins: F64, targets: F64, values: F64, slopes: F64) -> None:
    """Write each row's loss and slope, without weights."""
    for i in range(margins.size):
        y = targets[i]
        f = loss.fold(y)
        m = f * margins[i]
        values[i] = loss.value(m, y)
        slopes[i] = f * loss.slope(m, y)


@unchecked_kernel
def value_and_slope(loss: Any, margins: F64, targets: F64, weights: F64, slope_out: F64) -> float:
    """Return the sum of weighted losses, and write each row's weighted slope.

    ``weights`` (0,) means ones.
    """
    values, total = np.empty(_TILE_ROWS), 0.0
    for first in range(0, margins.size, _TILE_ROWS):
        tile = slice(first, first + _TILE_ROWS)
        slopes = slope_out[tile]
        _losses(loss, margins[tile], targets[tile], values, slopes)
        if weights.size:
            for i in range(slopes.size):
                total += weights[first + i] * values[i]
                slopes[i] *= weights[first + i]
        else:
            for i in range(slopes.size):
                total += values[i]
    return total


@unchecked_kernel
def along(
    loss: Any,
    margins: F64,
    directions: F64,
    targets: F64,
    weights: F64,
    steps: F64,
    values_out: F64,
    slopes_out: F64,
) -> None:
    """Add the loss and its derivative with respect to ``t_j`` to the outputs, for each length.

    ``sum_i s_i loss(z_i + t_j u_i, y_i)`` and ``sum_i s_i u_i loss'(z_i + t_j u_i, y_i)``.
    """
    moved, values, slopes = np.empty(_TILE_ROWS), np.empty(_TILE_ROWS), np.empty(_TILE_ROWS)
    for first in range(0, margins.size, _TILE_ROWS):
        tile = slice(first, first + _TILE_ROWS)
        z, u, y = margins[tile], directions[tile], targets[tile]
        for j in range(steps.size):
            for i in range(z.size):
                moved[i] = z[i] + steps[j] * u[i]
            _losses(loss, moved[: z.size], y, values, slopes)
            value, slope = 0.0, 0.0
            for i in range(z.size):
                s = weights[first + i] if weights.size else 1.0
                value += s * values[i]
                slope += s * u[i] * slopes[i]
            values_out[j] += value
            slopes_out[j] += slope


@unchecked_kernel
def curvature(loss: Any, margins: F64, targets: F64, weights: F64, out: F64) -> None:
    """Write each row's weighted second derivative."""
    for i in range(margins.size):
        out[i] = loss.curvature(loss.fold(targets[i]) * margins[i], targets[i])
    if weights.size:
        for i in range(margins.size):
            out[i] *= weights[i]


@unchecked_kernel
def curvature_along(loss: Any, margins: F64, directions: F64, targets: F64, weights: F64) -> float:
    """Return the sum of ``s_i loss''(z_i, y_i) u_i^2``: the curvature along a direction."""
    second, total = np.empty(margins.size), 0.0
    curvature(loss, margins, targets, weights, second)
    for i in range(margins.size):
        total += second[i] * directions[i] * directions[i]
    return total


@unchecked_kernel
def minus_conjugate(loss: Any, duals: F64, targets: F64, weights: F64) -> float:
    """Return the sum of ``s_i minus(a_i)``; ``weights`` (0,) means ones."""
    total = 0.0
    for i in range(duals.size):
        s = weights[i] if weights.size else 1.0
        total += s * loss.minus(duals[i], targets[i]) if s > 0.0 else 0.0
    return total


@unchecked_kernel
def _dual_variables(loss: Any, margins: F64, targets: F64, out: F64) -> None:
    for i in range(margins.size):
        y = targets[i]
        out[i] = -loss.slope(loss.fold(y) * margins[i], y)


@unchecked_kernel
def clip(loss: Any, duals: F64, targets: F64) -> None:
    """Move dual variables into the domain of the conjugate."""
    for i in range(duals.size):
        duals[i] = loss.clip(duals[i], targets[i])


# The same for many chunks in one call; int64 arrays are addresses, 0 for no weights.


@unchecked_kernel
def _values_and_slopes(
    loss: Any, rows: I64, margins: I64, targets: I64, weights: I64, slopes_out: I64, total: F64
) -> None:
    for c in range(rows.size):
        n = rows[c]
        total[0] += value_and_slope(
            loss,
            vector_at(margins[c], n, total),
            vector_at(targets[c], n, total),
            vector_at(weights[c], n if weights[c] else 0, total),
            vector_at(slopes_out[c], n, total),
        )


@unchecked_kernel
def _along_chunks(
    loss: Any,
    rows: I64,
    margins: I64,
    directions: I64,
    targets: I64,
    weights: I64,
    steps: F64,
    values_out: F64,
    slopes_out: F64,
) -> None:
    for c in range(rows.size):
        n = rows[c]
        along(
            loss,
            vector_at(margins[c], n, steps),
            vector_at(directions[c], n, steps),
            vector_at(targets[c], n, steps),
            vector_at(weights[c], n if weights[c] else 0, steps),
            steps,
            values_out,
            slopes_out,
        )


@dataclass(frozen=True, slots=True)
class MarginLoss:
    """A loss of one margin a row; targets are -1 or +1 if ``is_classification``, else real.

    In classification the dual variables of rows belong to the label-folded margins ``y z``.
    """

    #: Name in a job file, or the import path of a user's own.
    name: str
    terms: losses.Loss

    def __post_init__(self) -> None:
        record: Any = type(self.terms)
        make_callable(record)

    @property
    def link(self) -> Link:
        """How a margin becomes a prediction."""
        return self.terms.link

    @property
    def smoothness(self) -> float:
        """Upper bound of the second derivative: the slope's Lipschitz constant, or infinity."""
        return self.terms.smoothness()

    @property
    def is_classification(self) -> bool:
        """Whether targets are classes, -1 and +1."""
        return losses.is_of_classes(self.link)

    def value_and_slope(
        self, margins: F64, targets: F64, weights: F64 | None, slope_out: F64
    ) -> float:
        """Sum the losses and write each row's slope, in one pass.

        Parameters
        ----------
        margins, targets : ndarray (n,)
        weights : ndarray (n,), optional
            None for ones.
        slope_out : ndarray (n,)
            Overwritten by ``s_i loss'(z_i, y_i)``.

        Returns
        -------
        float
            ``sum_i s_i loss(z_i, y_i)``.
        """
        s = _NO_WEIGHTS if weights is None else weights
        return float(value_and_slope(self.terms, margins, targets, s, slope_out))

    def each(self, margins: F64, targets: F64) -> tuple[F64, F64]:
        """Return the rows' losses and slopes, (n,) each."""
        values, slopes = np.empty(margins.size), np.empty(margins.size)
        _losses(self.terms, margins, targets, values, slopes)
        return values, slopes

    def value(self, margin: float, target: float) -> float:
        """Return the loss of one row."""
        return float(self.each(np.array([margin]), np.array([target]))[0][0])

    def along(
        self,
        margins: F64,
        directions: F64,
        targets: F64,
        weights: F64 | None,
        steps: F64,
        values_out: F64,
        slopes_out: F64,
    ) -> None:
        """Add value and slope of the summed loss along a direction, for each step length.

        ``sum_i s_i loss(z_i + t_j u_i, y_i)`` and its derivative with respect to ``t_j``.

        Parameters
        ----------
        margins, directions, targets : ndarray (n,)
        steps, values_out, slopes_out : ndarray (J,)
        """
        s = _NO_WEIGHTS if weights is None else weights
        along(self.terms, margins, directions, targets, s, steps, values_out, slopes_out)

    def curvature(self, margins: F64, targets: F64, weights: F64 | None, out: F64) -> None:
        """Write ``s_i loss''(z_i, y_i)`` into ``out`` (n,)."""
        s = _NO_WEIGHTS if weights is None else weights
        curvature(self.terms, margins, targets, s, out)

    def curvature_along(
        self, margins: F64, directions: F64, targets: F64, weights: F64 | None
    ) -> float:
        """Return the sum of ``s_i loss''(z_i, y_i) u_i^2``."""
        s = _NO_WEIGHTS if weights is None else weights
        return float(curvature_along(self.terms, margins, directions, targets, s))

    def minus_conjugate(self, alpha: F64, targets: F64, weights: F64 | None) -> float:
        """Return the sum of ``s_i minus(a_i)``; minus infinity if one is infeasible.

        Parameters
        ----------
        alpha, targets : ndarray (n,)
        weights : ndarray (n,), optional
            None for ones.
        """
        s = _NO_WEIGHTS if weights is None else weights
        return float(minus_conjugate(self.terms, alpha, targets, s))

    def alpha_from_margin(self, margins: F64, targets: F64, out: F64) -> None:
        """Write the dual variables of margins ``X w`` (n,): ``-loss'``, label-folded.

        They are always feasible; 0 at the kink of the hinge.
        """
        _dual_variables(self.terms, margins, targets, out)

    def clip(self, alpha: F64, targets: F64) -> None:
        """Move dual variables (n,) into the domain of the conjugate."""
        clip(self.terms, alpha, targets)

    def values_and_slopes(
        self, rows: I64, margins: I64, targets: I64, weights: I64, slopes_out: I64, total: F64
    ) -> None:
        """Add :meth:`value_and_slope` of each of m chunks to ``total`` (1,).

        All arrays (m,): numbers of rows, and addresses of arrays (n_rows,); 0 for no weights.
        """
        _values_and_slopes(self.terms, rows, margins, targets, weights, slopes_out, total)

    def along_chunks(self, rows: I64, *places: I64, steps: F64, sums_out: F64) -> None:
        """Call :meth:`along` for each of m chunks, which adds to ``sums_out`` (2, J).

        ``places``: margins, directions, targets and weights, as in :meth:`values_and_slopes`.
        """
        arrays: tuple[Any, ...] = rows, *places, steps, sums_out[0], sums_out[1]
        _along_chunks(self.terms, *arrays)

    def warm_up(self, *, with_dual: bool) -> None:
        """Compile the loops that jobs call, or load their machine code from the cache."""
        one, out, none = np.ones(1), np.zeros(1), np.zeros(0, np.int64)
        self.value_and_slope(one, one, None, out)
        if with_dual:
            self.minus_conjugate(one, one, None)
            self.alpha_from_margin(one, one, out)
            self.clip(out, one)
        else:
            self.values_and_slopes(none, none, none, none, none, out)
            self.along_chunks(none, none, none, none, none, steps=one, sums_out=np.zeros((2, 1)))
            self.curvature(one, one, None, out)
            self.curvature_along(one, one, one, None)

    def balanced(self, alpha: F64, targets: F64, weights: F64 | None) -> F64:
        """Return dual variables (n,) that are feasible with an intercept that is not penalised.

        Their weighted sum of slopes is zero: the squared loss's are shifted; else those of the
        heavier class, in regression of the heavier sign, are scaled down. This changes nothing if
        the intercept is optimal.
        """
        s = alpha if weights is None else alpha * weights
        if self.name == "squared":
            return alpha - float(s.sum()) / float(s.size if weights is None else weights.sum())
        is_positive = (targets if self.is_classification else alpha) > 0.0
        factors = balancing_factors(float(s[is_positive].sum()), float(s[~is_positive].sum()))
        return alpha * np.where(is_positive, *factors)


def balancing_factors(one: float, other: float) -> tuple[float, float]:
    """Return the factors up to 1 by which two sums become equal in size."""
    one, other = abs(one), abs(other)
    least = min(one, other)
    return least / one if one else 0.0, least / other if other else 0.0


def loss_named(name: str, parameters: Mapping[str, float] = {}) -> MarginLoss:
    """Return a loss of this package by its name in job files.

    Parameters
    ----------
    name : str
        One of :data:`elasticml.objectives.losses.LOSSES`.
    parameters : mapping
        Of the loss; others have their defaults.
    """
    return MarginLoss(name, with_parameters(LOSSES[name], parameters))


def warm_kernels(kind: str | None = None, dtype: str | None = None) -> None:
    """Compile the kernel that every linear algorithm calls, or load it from the cache.

    Members call it before they report ready, so that no exchange waits for the compiler.
    """
    loss_named("logistic").value_and_slope(np.ones(1), np.ones(1), None, np.zeros(1))
