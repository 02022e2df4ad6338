"""Nearest centres by single precision, and by double precision where that cannot decide.

Single precision takes half the time of double. A row whose two nearest centres are closer to a tie
than rounding errors is compared again in double precision, so labels are those of double precision.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from elasticml.arrays import F32, F64, I32, I64
from elasticml.compiled import compiled, kernel, regrouping_kernel

#: Centres are padded to a multiple of these bytes, and scores to a multiple of twice as many: a
#: whole number of vectors of the loops over them.
_VECTOR_BYTES: Final = 64
#: Rows that are scored at a time.
ROWS: Final = 4
#: Columns that are added to a score at a time; rows and centres have zeros up to a multiple.
COLUMNS: Final = 4
_MOST: Final = np.int32(2**31 - 1)
_UNIT: Final = 2.0**-24
#: The smallest number of single precision above 0: squares below it are lost.
_SMALLEST: Final = 2.0**-149
#: Share of an error up to which a computed distance is within an eighth of the true one, where it
#: counts, and the factor that makes up for it.
_SMALL_SHARE: Final = 1e-3
_ROUGHLY: Final = 1.125
#: Rows and centres farther from the shift than this are compared in double precision only.
_FAR: Final = 1e15

#: Reassociated sums, without NaN handling: sources reject NaN.
comparing_kernel = compiled(fastmath={"reassoc", "contract", "nnan", "nsz"})


class Layout(NamedTuple):
    """Centres, laid out for products with rows."""

    #: (K, D)
    centres: F64
    #: A point near the data, (D,), that is subtracted from all.
    shift: F64
    #: Columns of the centres, rounded; padded with zeros.
    across: Any
    #: Half the squared norms of these; infinite in the padding.
    half_squares: Any
    #: The largest of these norms.
    radius: float


class Block(NamedTuple):
    """Rows in both precisions, and what :func:`nearest_checked` finds for them."""

    #: Some rows (m, D), and their numbers.
    X: F64
    rows: I64
    #: Rows minus the shift, and half the squares of their norms.
    singles: F32
    norms: F32
    #: Half the squared distances of four rows to all centres, and the same as integers.
    scores: F32
    bits: I32
    #: Nearest centres.
    labels: I32
    #: At most half the difference of the squared distances to the nearest and to any other centre;
    #: infinite for one centre.
    gaps: F64


def lay_out(centres: F64, shift: F64, dtype: Any) -> Layout:
    """Lay centres out; a shift such as their mean leaves digits of single precision to them."""
    n_centres, d = centres.shape
    lanes = _VECTOR_BYTES // np.dtype(dtype).itemsize
    across = np.zeros((_padded(d, COLUMNS), _padded(n_centres, lanes)), dtype)
    half_squares = np.empty(across.shape[1], dtype)
    radius = _write_across(centres, shift, across, half_squares)
    return Layout(centres, shift, across, half_squares, radius)


@kernel
def _write_across(centres: F64, shift: F64, across: Any, half_squares: Any) -> Any:
    most = 0.0
    for k in range(half_squares.size):
        half_squares[k] = np.inf
    for k in range(len(centres)):
        total = 0.0
        for j in range(shift.size):
            across[j, k] = centres[k, j] - shift[j]
            total += np.float64(across[j, k]) * np.float64(across[j, k])
        half_squares[k] = 0.5 * total
        most = max(most, total)
    return np.sqrt(most)


@kernel
def middle_of(centres: F64) -> F64:
    """Return a point among the centres, (D,): their mean, with less weight for far ones.

    The mean of centres of which one is far away is far from all.
    """
    mean, middle, total = np.zeros(centres.shape[1]), np.zeros(centres.shape[1]), 0.0
    for k in range(len(centres)):
        mean += centres[k] / len(centres)
    for k in range(len(centres)):
        square = squared_distance(centres[k], mean)
        weight = 1.0 / square if square > 0.0 else np.inf
        if not weight < np.inf:
            return mean
        middle += weight * centres[k]
        total += weight
    return middle / total if total > 0.0 else mean


def empty_block(n_rows: int, n_centres: int, d: int) -> Block:
    """Return space for this number of rows and centres."""
    width = _padded(n_centres, 2 * _VECTOR_BYTES // 4)
    scores = np.full((ROWS, width), np.inf, np.float32)
    singles = np.zeros((n_rows + ROWS, _padded(d, COLUMNS)), np.float32)
    norms = np.zeros(n_rows + ROWS, np.float32)
    rows, found = (np.empty((n_rows, d)), np.empty(n_rows, np.int64)), np.empty(n_rows, np.int32)
    return Block(*rows, singles, norms, scores, scores.view(np.int32), found, np.empty(n_rows))


def _padded(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@comparing_kernel
def score_four(X: Any, i: int, across: Any, half_squares: Any, norms: Any, scores: Any) -> None:
    """Write half the squared distances of rows ``i`` to ``i + 3`` to all centres."""
    # Known to be a multiple, or the loop takes half as long again.
    n_columns, width = len(across) // COLUMNS * COLUMNS, across.shape[1]
    a, b, e, f = scores[0], scores[1], scores[2], scores[3]
    x, y, z, w = X[i], X[i + 1], X[i + 2], X[i + 3]
    p, q, r, s = norms[i], norms[i + 1], norms[i + 2], norms[i + 3]
    for k in range(width):
        h = half_squares[k]
        a[k] = h + p
        b[k] = h + q
        e[k] = h + r
        f[k] = h + s
    # A vector of centres is loaded once for four rows, and four columns are added to a score at
    # a time: multiplications are the limit, not loads.
    for j in range(0, n_columns, COLUMNS):
        x0, x1, x2, x3 = x[j], x[j + 1], x[j + 2], x[j + 3]
        y0, y1, y2, y3 = y[j], y[j + 1], y[j + 2], y[j + 3]
        z0, z1, z2, z3 = z[j], z[j + 1], z[j + 2], z[j + 3]
        w0, w1, w2, w3 = w[j], w[j + 1], w[j + 2], w[j + 3]
        for k in range(width):
            c0, c1, c2, c3 = across[j, k], across[j + 1, k], across[j + 2, k], across[j + 3, k]
            a[k] -= x0 * c0 + x1 * c1 + x2 * c2 + x3 * c3
            b[k] -= y0 * c0 + y1 * c1 + y2 * c2 + y3 * c3
            e[k] -= z0 * c0 + z1 * c1 + z2 * c2 + z3 * c3
            f[k] -= w0 * c0 + w1 * c1 + w2 * c2 + w3 * c3


@comparing_kernel
def score_sparse(
    indptr: Any, indices: I32, values: Any, row: int, across: F64, half_squares: F64, scores: F64
) -> None:
    """Write half the squared distances of a CSR row to all centres, less half its square."""
    for k in range(scores.size):
        scores[k] = half_squares[k]
    for at in range(indptr[row], indptr[row + 1]):
        value, column = values[at], across[indices[at]]
        for k in range(scores.size):
            scores[k] -= value * column[k]


@kernel
def _least_two(bits: I32, scores: F32, last: int) -> tuple[Any, Any, Any]:
    """Return the place of the least score, the least score, and the least of the others.

    Nonnegative floats are ordered as their bits, and minima of integers are vectorized, where
    those of floats are not.
    """
    low = bits[0]
    for k in range(bits.size):
        low = bits[k] if bits[k] < low else low
    place = np.int32(last)
    for k in range(bits.size):
        at = np.int32(k) if bits[k] == low else np.int32(last)
        place = at if at < place else place
    least = scores[place]
    bits[place] = _MOST
    low = bits[0]
    for k in range(bits.size):
        low = bits[k] if bits[k] < low else low
    bits[place] = low
    return place, least, scores[place]


@regrouping_kernel
def squared_distance(x: F64, c: F64) -> float:
    """Return ``|x - c|^2``."""
    total = 0.0
    for j in range(c.size):
        total += (x[j] - c[j]) * (x[j] - c[j])
    return total


@kernel
def two_by_doubles(x: F64, centres: F64) -> tuple[int, float, float]:
    """Return the nearest centre, half its squared distance, and how much more the next one has."""
    place, least, second = 0, np.inf, np.inf
    for k in range(len(centres)):
        square = squared_distance(x, centres[k])
        if square < least:
            place, least, second = k, square, least
        elif square < second:
            second = square
    return place, 0.5 * least, 0.5 * (second - least) if second < np.inf else np.inf


@regrouping_kernel
def nearest_checked(n: Any, layout: Layout, block: Block) -> None:
    """Find the nearest centres of the first ``n`` rows; ties go to the first centre.

    Error: ``x.c``, of which four columns are added at a time, and both halved squares have relative
    errors of a few units of single precision, relative to the norms of row and centre. It is a
    share of the square of the sum of the distances of row and centre to the shift. A centre is at
    most as far from the shift as from the row and the row from the shift together; its score grows
    faster with its distance than the error does, so that what holds for the second holds for all.
    """
    # Records are for arguments of kernels only: a call with one counts references of its arrays.
    centres, shift, across, half_squares, radius = layout
    X, _, singles, norms, scores, bits, labels, gaps = block
    n_centres, d = centres.shape
    for i in range(n):
        square = 0.0
        for j in range(d):
            difference = X[i, j] - shift[j]
            singles[i, j] = difference
            square += difference * difference
        norms[i] = 0.5 * square
    share, least_error = 2.0 * _UNIT * (d // 4 + 12), 2.0 * _SMALLEST * (d + 8)
    for start in range(0, n, ROWS):
        score_four(singles, start, across, half_squares, norms, scores)
        for i in range(start, min(start + ROWS, n)):
            place, least, second = _least_two(bits[i - start], scores[i - start], n_centres - 1)
            row = np.sqrt(2.0 * np.float64(norms[i]))
            reach = row + radius
            if share <= _SMALL_SHARE:
                reach = min(reach, _ROUGHLY * (2.0 * row + np.sqrt(2.0 * max(second, 0.0))))
            error = share * reach * reach + least_error
            gap = np.float64(second) - np.float64(least) - error
            # Not ``gap <= 0``: a gap that is no number is not above zero.
            if not (gap > 0.0 and row < _FAR and radius < _FAR):
                place, _, gap = two_by_doubles(X[i], centres)
            labels[i], gaps[i] = place, gap
