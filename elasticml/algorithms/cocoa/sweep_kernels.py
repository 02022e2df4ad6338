"""Coordinate descent on a quadratic problem over stored columns, centred on the fly.

The local problem is ``1/2 dw.A'HA dw - r.A dw`` plus the coefficients' penalty, with the curvatures
H of the examples, all one for the squared loss. The loops update the slope ``u = r - H A dw``.
Columns whose means are small relative to their variation are added as stored, which costs no more
than their stored values; centring then subtracts one number, the shift. The others are centred in
full: as differences of large numbers their steps would be rounding errors.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from elasticml.algorithms.cocoa import row_kernels
from elasticml.algorithms.cocoa.chunk_pointers import GRAM_FIELDS
from elasticml.algorithms.cocoa.row_kernels import pointer
from elasticml.arrays import F64, I64
from elasticml.compiled import kernel
from elasticml.objectives.penalty_kernels import Penalty

NO_GRAMS: Final = np.zeros((0, GRAM_FIELDS), np.int64)
#: Stands for curvatures that are all one.
NO_CURVATURES: Final = np.empty(0)
#: Columns are centred in full if their squared mean exceeds this multiple of the variance.
FAR: Final = 1e6
#: Share of the examples' weight not stored in a column below which it is summed directly.
LITTLE: Final = 1e-3
_I4: Final = np.empty(0, np.int32)


class WeightedColumns(NamedTuple):
    """The columns of a chunk as stored, with the examples' weights and curvatures."""

    #: (4,), kind of the columns, addresses of their pointers, indices and values.
    place: I64
    #: (d,), the means that centring subtracts; 0 without centring.
    means: F64
    #: (d,), ``x.Hx`` of centred columns.
    norms: F64
    #: (n,), square roots of the examples' weights.
    root: F64
    #: (n,), curvatures; empty if all are one.
    h: F64
    #: (n,), curvatures times the square roots.
    h_root: F64
    #: ``h_root.root``.
    total: float


class _Column(NamedTuple):
    """A stored column of any kind except sequences."""

    kind: int
    #: Addresses of the indices and of the values, and the number of stored values.
    at: int
    values_at: int
    n_stored: int


@kernel
def add_weighted(column: _Column, like: F64, c: float, h: F64, u: F64) -> None:
    """Add ``c h x`` to ``u`` for a stored column x."""
    kind, at, values_at, count = column
    if kind == 0:
        x = pointer(values_at, like)
        for i in range(count):
            u[i] += c * h[i] * x[i]
        return
    index, x = pointer(at, _I4), pointer(values_at, like)
    for k in range(count):
        place = np.uint32(index[k])
        u[place] += c * h[place] * (x[k] if kind == 1 else 1.0)


@kernel
def sweep(
    features: I64, columns: WeightedColumns, penalty: Penalty, w: F64, u: F64, shift: float
) -> float:
    """Minimise over each coordinate in turn; return the new shift.

    Parameters
    ----------
    features : ndarray (m,)
    w : ndarray (d,)
    u : ndarray (n,)
        The slope is u plus ``shift`` times ``h_root``.
    """
    place, means, norms, root, h, h_root, total = columns
    like = u[:0]
    for j in features:
        if norms[j] <= 0.0:
            # A column of zeros: only the penalty matters.
            w[j] = 0.0
            continue
        at, count, values_at = row_kernels.locate(
            place[0], j, u.size, place[1], place[2], place[3], like.itemsize
        )
        old = w[j]
        along = row_kernels.dot(place[0], at, values_at, count, NO_GRAMS, like, u)
        is_far = means[j] * means[j] * total > FAR * norms[j]
        if is_far:
            # The mean multiplies the rounding error of the slope along the roots: subtract it.
            level = 0.0
            for i in range(u.size):
                level += root[i] * u[i]
            along -= means[j] * level
        else:
            along += shift * means[j] * total
        new = penalty.best(along + norms[j] * old, norms[j])
        if new == old:
            continue
        w[j] = new
        if h.size > 0:
            add_weighted(_Column(place[0], at, values_at, count), like, old - new, h, u)
        else:
            row_kernels.add(place[0], at, values_at, count, NO_GRAMS, like, old - new, u)
        if is_far:
            c = (new - old) * means[j]
            for i in range(u.size):
                u[i] += c * h_root[i]
        else:
            shift += (new - old) * means[j]
    return shift


@kernel
def weigh(features: I64, columns: WeightedColumns, centred: bool, flat: float) -> None:
    """Replace columns' means and squared norms by those weighted by curvatures.

    The old means are subtracted before anything is squared.

    Parameters
    ----------
    features : ndarray (m,)
    columns : WeightedColumns
        ``means`` and ``norms`` are changed in place.
    flat : float
        Share of a mean below which a column's variation is rounding error.
    """
    place, means, norms, root, h, _, total = columns
    like = root[:0]
    for j in features:
        if norms[j] <= 0.0:
            continue
        at, count, values_at = row_kernels.locate(
            place[0], j, root.size, place[1], place[2], place[3], like.itemsize
        )
        column = _Column(place[0], at, values_at, count)
        first, square = _moments(column, like, root, h, means[j], total)
        if centred and total > 0.0:
            moved = first / total
            means[j] += moved
            square -= moved * moved * total
        norms[j] = square if square > flat * flat * total * means[j] * means[j] else 0.0


@kernel
def _moments(column: _Column, like: F64, root: F64, h: F64, mean: float, total: float) -> Any:
    """Sum, weighted by h, root times (column minus mean root), and the squares of the latter."""
    kind, at, values_at, count = column
    first, square, there = 0.0, 0.0, 0.0
    if kind == 0:
        x = pointer(values_at, like)
        for i in range(count):
            away = x[i] - mean * root[i]
            first += h[i] * root[i] * away
            square += h[i] * away * away
        return first, square
    index, x = pointer(at, _I4), pointer(values_at, like)
    for k in range(count):
        place = np.uint32(index[k])
        away = (x[k] if kind == 1 else 1.0) - mean * root[place]
        first += h[place] * root[place] * away
        square += h[place] * away * away
        there += h[place] * root[place] * root[place]
    rest = total - there
    if rest <= LITTLE * total:  # a difference would be rounding, times the squared mean
        k, rest = 0, 0.0
        for i in range(root.size):
            if k < count and index[k] == i:
                k += 1
            else:
                rest += h[i] * root[i] * root[i]
    return first - mean * rest, square + mean * mean * rest
